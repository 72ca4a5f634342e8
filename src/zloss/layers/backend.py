"""The passes and the steps of a factored layer: what a backend supplies, how autograd calls it, and the definition.

`FactoredStatistics` is the autograd function of the layer: statistics forward; backward, the gradient of h and a record
of the gradient of W. `TorchBackend` defines the arithmetic in torch; `triton_backend.py` does the same by few launches.

Three products of a B x H with an H x H matrix serve both passes, whatever the number of classes and of targets:
`h @ gram` and `h @ U^T` forward, `(weighted sum of target rows) @ U` backward. The step uses the first two again.

Shape letters: B rows, H width of the layer (with the bias column), K targets per row, N valid targets, C classes.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zloss.layers.gradient import RecordedGradient, all_places, nonzero_places
from zloss.layers.limits import first_derivatives_only
from zloss.layers.matrix import FactoredMatrix, Integrity
from zloss.layers.supervisor import Conditioning, Fault, Health, Supervisor, assess
from zloss.layers.update import Factors, Step, exact_step
from zloss.precision import exact_products, finest_dtype
from zloss.targets import checked_targets, parse_targets

# A host that runs ahead of its GPU sees the condition pass its limit late. A single step that would exceed the limit
# this many times over has leapt towards singularity, and is refused.
_LEAP = 100.0


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

    def invalidate(self, matrix: FactoredMatrix) -> None:
        """Take note of factors that have changed by other means than a step of this backend."""

    def begin_capture(self) -> None:
        """Prepare for a step that is captured as a CUDA graph."""

    def end_capture(self) -> None:
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


class Saved(NamedTuple):
    """The tensors that the definition keeps for a backward pass."""

    h: Tensor  # (B, H) in the dtype of the state, as are the others where nothing else is said
    hg: Tensor  # (B, H) h @ gram, in the dtype of products
    hu: Tensor  # (B, H) h @ U^T, in the dtype of products
    mean: Tensor  # (B,)
    rows: Tensor  # (N, H) rows of V
    places: Tensor  # (N,) where these targets stand among all B K
    index: Tensor  # (B, K) classes
    valid: Tensor  # (B, K) bool
    refused: Tensor  # () bool


class TorchBackend(Backend):
    """The definition: every formula of README.md in torch, on any device."""

    def __init__(
        self, supervisor: Supervisor, conditioning: Conditioning, matrix: FactoredMatrix
    ) -> None:
        super().__init__(supervisor, conditioning)
        device = matrix.rows.device
        self.report = torch.zeros(4, device=device, dtype=finest_dtype(device))

    def forward(
        self,
        matrix: FactoredMatrix,
        h: Tensor,
        target: Tensor,
        ignore_index: int,
        *,
        has_backward: bool,
    ) -> Forward:
        f, dtype = matrix.factors, matrix.rows.dtype
        waits = self.supervisor.waits_for(h.device)
        parse, places_of = (
            (checked_targets, nonzero_places) if waits else (parse_targets, all_places)
        )
        targets = parse(target, len(h), matrix.rows.num_rows, ignore_index)
        places = places_of(targets.valid)
        rows = matrix.rows.gather(targets.index.flatten()[places])
        # A copy, as the caller may use the memory of h for the next batch before the step.
        hs = with_bias_column(h.to(f.U.dtype, copy=True), len(f.U))
        hp = hs.to(matrix.product_dtype)
        hg, hu = hp @ f.gram.to(hp.dtype), hp @ f.U.T.to(hp.dtype)
        mean, scatter = hs @ f.wbar, (hs * hg).sum(1).clamp_min(0)
        row = places // targets.shape[1]
        own = (rows * hu[row]).sum(-1, dtype=hs.dtype) + (hs @ f.omega)[row]
        scores = own.new_zeros(targets.valid.numel()).index_copy_(0, places, own)
        scores = torch.where(targets.valid, scores.reshape(targets.shape), 0)
        moments = (mean + scatter).to(dtype)  # which may overflow what holds them
        refused = self.supervisor.inspect(
            Fault.TARGET.value * targets.out_of_range
            + Fault.HIDDEN.value * ~moments.isfinite().all()
        )
        saved = Saved(hs, hg, hu, mean, rows, places, targets.index, targets.valid, refused)
        mean = torch.where(refused, torch.nan, mean)
        return Forward(scores.to(dtype), mean.to(dtype), scatter.to(dtype), targets.valid, saved)

    def backward(
        self, matrix: FactoredMatrix, passed: Passed, upstream: Upstream
    ) -> tuple[Tensor, RecordedGradient]:
        s: Saved = passed.saved
        f, dtype = matrix.factors, s.h.dtype
        scores, mean, scatter = (
            s.mean.new_zeros(shape) if grad is None else grad.to(dtype)
            for grad, shape in zip(upstream, (s.valid.shape, len(s.h), len(s.h)), strict=True)
        )
        target_grad, curvature = torch.where(s.valid, scores, 0), 2 * scatter
        own = s.rows * target_grad.flatten()[s.places][:, None]
        weighted = torch.zeros_like(s.h).index_add_(0, s.places // s.index.shape[1], own)
        target_rows = weighted.to(s.hg.dtype) @ f.U.to(s.hg.dtype)
        target_rows = target_rows + target_grad.sum(1)[:, None] * f.omega
        grad_h = curvature[:, None] * s.hg + mean[:, None] * f.wbar + target_rows
        record = RecordedGradient(
            h=s.h,
            hg=s.hg,
            hu=s.hu,
            mean=s.mean,
            curvature=curvature,
            mean_grad=mean / matrix.rows.num_rows,
            index=s.index,
            target_grad=target_grad,
            target_rows=target_rows,
        )
        # The layers below must not learn from a batch that this one refused.
        grad_h = torch.where(s.refused, 0, grad_h[:, : passed.shape[1]])
        return grad_h.to(passed.dtype), record

    def step_(
        self, matrix: FactoredMatrix, grad: RecordedGradient, lr: float, weight_decay: float
    ) -> None:
        step = exact_step(matrix.factors, grad, lr, weight_decay, matrix.rows.num_rows)
        report = assess(step, grad, weight_decay, torch.finfo(matrix.rows.dtype).max)
        if self.supervisor.waits_for(matrix.rows.device):
            health = Health.read(report, matrix.rows.width)
            self._apply_or_refuse(matrix, step, grad, lr, health)
        else:
            self._apply_where_sound(matrix, step, grad, lr, report)

    def _apply_or_refuse(
        self, matrix: FactoredMatrix, step: Step, grad: RecordedGradient, lr: float, health: Health
    ) -> None:
        """Apply a step of known health: through the factors, or explicitly in the course of a refactor."""
        if health.fault:
            raise self.supervisor.error(Fault(health.fault), health.safe_lr)
        if self.conditioning.is_sound(health, matrix.rows.width, matrix.rows.dtype):
            matrix.set_(step.factors)
            matrix.subtract_rows_(grad, step.rows, lr)
            return
        # The new U_inv is badly conditioned or does not exist; once U is multiplied into V the step does not need it.
        matrix.multiply_(step.factors.U, step.factors.omega)
        matrix.subtract_rows_(grad, grad.h, lr)
        self.conditioning.warn_if_hasty(health.safe_lr)
        self.conditioning.note_refactor(matrix.restart_(step.factors.gram, step.factors.wbar))
        self.supervisor.forget_reports()

    def _apply_where_sound(
        self, matrix: FactoredMatrix, step: Step, grad: RecordedGradient, lr: float, report: Tensor
    ) -> None:
        """Decide on the device: apply the step, or change nothing and raise a fault there for the host to find."""
        standing = self.supervisor.fault_on(matrix.rows.device)
        fault, _, U_squares, inverse_squares = report
        width, limit = (
            matrix.rows.width,
            self.conditioning.limit(matrix.rows.width, matrix.rows.dtype),
        )
        leaps = ~((U_squares * inverse_squares).sqrt() / width <= _LEAP * limit)
        verdict = torch.where(fault == 0, leaps * Fault.SINGULAR.value, fault).long()
        standing.copy_(torch.where(standing == 0, verdict, standing))
        report[0] = standing
        self.report.copy_(torch.where(self.report[0] == 0, report, self.report))
        sound = standing == 0
        pairs = zip(step.factors, matrix.factors, strict=True)
        matrix.set_(Factors(*(torch.where(sound, new, old) for new, old in pairs)))
        grad = replace(grad, target_grad=torch.where(sound, grad.target_grad, 0))
        matrix.subtract_rows_(grad, torch.where(sound, step.rows, 0), lr)


def with_bias_column(h: Tensor, width: int) -> Tensor:
    """Return `h`, with a column of ones where the layer has one more column than `h`: its bias."""
    return h if h.shape[1] == width else torch.cat([h, h.new_ones(len(h), 1)], 1)
