"""The autograd function of a factored layer, and the contract of the backends that compute for it.

`FactoredStatistics` yields the statistics forward; backward, it yields the gradient of h and a record of the gradient
of W. A `Backend` does the arithmetic of both passes and of the step: `torch_backend.py` defines it in torch, and
`triton_backend.py` does the same by few launches.

Shape letters: B rows, H width of the layer (with the bias column), K targets per row.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zloss.layers.gradient import RecordedGradient
from zloss.layers.limits import first_derivatives_only
from zloss.layers.matrix import FactoredMatrix, Integrity
from zloss.layers.supervisor import Conditioning, Supervisor
from zloss.precision import exact_products


class Forward(NamedTuple):
    """The statistics of a batch, and what its backward pass and its step need."""

    scores: Tensor  # (B, K) activations of the targets, 0 where ignored
    mean: Tensor  # (B,)
    scatter: Tensor  # (B,)
    valid: Tensor  # (B, K) bool
    saved: Any  # a named tuple of tensors, of a type that its backend knows
    begun: object = None  # work for the step of this batch that a backend has begun


class Passed(NamedTuple):
    """A forward pass as its backward pass finds it."""

    saved: Any  # as in `Forward`
    begun: object
    shape: torch.Size  # of h
    dtype: torch.dtype  # of h


class Upstream(NamedTuple):
    """The derivatives of the loss with respect to the statistics; None where the loss does not see one."""

    scores: Tensor | None  # (B, K)
    mean: Tensor | None  # (B,)
    scatter: Tensor | None  # (B,)


class Backend(ABC):
    """One way to compute the passes and the steps of a factored layer.

    A backend owns the copies of the factors that it works with, and the report on its latest step: fault, safe learning
    rate, then the squared norms of U and of its inverse in parts.
    """

    report: Tensor  # on the device; of the first step that was refused, or else of the latest

    def __init__(self, supervisor: Supervisor, conditioning: Conditioning) -> None:
        self.supervisor, self.conditioning = supervisor, conditioning

    @abstractmethod
    def forward(
        self,
        matrix: FactoredMatrix,
        h: Tensor,  # (B, H), or one column less where there is a bias
        target: Tensor,  # (B,) or (B, K)
        ignore_index: int,
        *,
        has_backward: bool,
    ) -> Forward:
        """Compute the statistics of a batch."""

    @abstractmethod
    def backward(
        self, matrix: FactoredMatrix, passed: Passed, upstream: Upstream
    ) -> tuple[Tensor, RecordedGradient]:
        """Compute the gradient of h, and the record of the gradient of W."""

    @abstractmethod
    def step_(
        self, matrix: FactoredMatrix, grad: RecordedGradient, lr: float, weight_decay: float
    ) -> None:
        """Take the exact SGD step, or refuse it and change nothing."""

    def invalidate(self, matrix: FactoredMatrix) -> None:  # noqa: B027  nothing to do without copies
        """Take note of factors that have changed by other means than a step of this backend."""

    def begin_capture(self) -> None:  # noqa: B027
        """Prepare for a step that is captured as a CUDA graph."""

    def end_capture(self) -> None:  # noqa: B027
        """Finish what a captured step has left open."""


class Tape:
    """Link from one forward pass to the weights it saw, and from its backward pass to its record."""

    def __init__(self, matrix: FactoredMatrix, backend: Backend, integrity: Integrity) -> None:
        self.matrix, self.backend = matrix, backend
        self._integrity, self._version = integrity, integrity.version
        self._record: RecordedGradient | None = None

    def check_unchanged(self) -> None:
        """Refuse a backward pass through weights that are gone."""
        if self._integrity.version != self._version:
            raise RuntimeError(
                "the layer took a step, was refactored or got new weights between this forward pass and its backward "
                "pass: run every backward before that"
            )

    def put(self, record: RecordedGradient) -> None:
        """Leave the record of the backward pass."""
        self._record = record

    def take(self) -> RecordedGradient:
        """Return the record of the backward pass, once."""
        record, self._record = self._record, None
        assert record is not None, "autograd accumulates after backward, which puts a record here"
        return record


class FactoredStatistics(torch.autograd.Function):
    """`h -> (target scores, mean, scatter, valid)` of the activations `h @ (V U + 1 omega^T)^T`."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,  # (B, H)
        anchor: Tensor | None,  # (0,) takes part so that backward runs even where h has no gradient
        target: Tensor,  # (B,) or (B, K)
        ignore_index: int,
        tape: Tape,
    ) -> tuple[Tensor, ...]:
        has_backward = any(ctx.needs_input_grad)
        with exact_products(h.device.type):
            passed = tape.backend.forward(
                tape.matrix, h.detach(), target, ignore_index, has_backward=has_backward
            )
        ctx.save_for_backward(*passed.saved)
        ctx.tape, ctx.kind, ctx.begun = tape, type(passed.saved), passed.begun
        ctx.shape, ctx.dtype = h.shape, h.dtype
        ctx.mark_non_differentiable(passed.valid)
        ctx.set_materialize_grads(False)  # each would be a launch
        return passed[:4]

    @staticmethod
    @first_derivatives_only
    def backward(
        ctx: Any,
        scores: Tensor | None,
        mean: Tensor | None,
        scatter: Tensor | None,
        _: None,
    ) -> tuple[Tensor | None, ...]:
        ctx.tape.check_unchanged()
        passed = Passed(ctx.kind(*ctx.saved_tensors), ctx.begun, ctx.shape, ctx.dtype)
        with exact_products(ctx.tape.matrix.rows.device.type):
            grad_h, record = ctx.tape.backend.backward(
                ctx.tape.matrix, passed, Upstream(scores, mean, scatter)
            )
        ctx.tape.put(record)
        anchor_grad = grad_h.new_empty(0) if ctx.needs_input_grad[1] else None
        return grad_h, anchor_grad, None, None, None
