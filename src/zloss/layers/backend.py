"""The contract of the backends, which compute the passes and the steps of a factored layer.

`torch_backend.py` defines all results in torch. `triton_backend.py` gets the same results with few kernel launches.

Shape letters: B rows, H width of the layer (with the bias column), K targets per row.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zloss.layers.gradient import RecordedGradient
from zloss.layers.matrix import FactoredMatrix
from zloss.layers.supervisor import Conditioning, Supervisor


class Forward(NamedTuple):
    """The statistics of a batch, and what its backward pass and its step need."""

    scores: Tensor  # (B, K) activations of the targets, 0 where ignored
    mean: Tensor  # (B,)
    scatter: Tensor  # (B,)
    valid: Tensor  # (B, K) bool
    saved: Any  # a named tuple of tensors, of a type that its backend knows; it has the `classes`, (B, K)
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

    A backend owns its copies of the factors and the report on its latest step. The report holds the fault, the safe
    learning rate, the squared norm of U in parts, and the squared norm of `U^-1` in as many parts.
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
