"""The gradient of the C x H weight matrix, recorded in O(B H) numbers instead of C H, until a step uses it up.

For a spherical loss the gradient with respect to the activations is `diag(A) O + g_s 1^T + Y`, where Y is sparse: it is
nonzero in the columns of the targets only. Hence

    dL/dW = W K1 + 1 (H^T g_s)^T + Y^T H,        K1 = H^T diag(A) H

and everything on the right is known from the batch H, two numbers per row and one per target. Records of several
backward passes concatenate into the record of their sum, as long as W does not change in between.

Only Y^T H has rows of single classes. So it can hold the gradients of rows of W that a network has looked up: H and Y
get one more row for each. These rows stand below the batch, and nothing else in the formula has them: see `rows.py`.

Shape letters: B rows of the batch, M rows with those below it, H width of the layer (with the bias column), K targets
per row, C classes.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zloss.streams import is_capturing

_FORGOTTEN_STEP = 100  # records without a step before we suspect that there is no optimizer
_BELOW_THE_BATCH = ("h", "index", "target_grad", "target_rows")  # what has M rows
_MARK = 1e-20  # not zero, and yet too small to change a norm of gradients that it is part of


@dataclass(frozen=True)
class RecordedGradient:
    """The record that one or several backward passes leave behind for the step.

    Its tensors have the dtype of the layer's state. Only `hg` and `hu` have the dtype of products, and the step
    computes in it. A record made by kernels may have the dtype of products throughout.
    """

    h: Tensor  # (M, H) the batch, and below it the directions of gradients of looked-up rows
    hg: Tensor  # (B, H) h @ gram
    hu: Tensor | None  # (B, H) h @ U^T, where the forward pass needed it
    mean: Tensor  # (B,) mean activation
    curvature: Tensor  # (B,) A = 2 dL/dscatter
    mean_grad: Tensor  # (B,) c = dL/dmean / C
    index: Tensor  # (M, K) the targets, and looked-up classes
    target_grad: Tensor  # (M, K) dL/do_t, 0 where ignored
    target_rows: Tensor  # (M, H) sum over the targets of dL/do_t W_t

    @property
    def batch(self) -> Tensor:  # (B, H)
        """The rows of h that the dense part of the gradient has."""
        return self.h[: len(self.curvature)]

    def padded(self, part: Tensor) -> Tensor:  # (B, ...) -> (M, ...)
        """Return numbers of the batch with zeros below them, for the rows below the batch."""
        missing = len(self.h) - len(part)
        return torch.cat([part, part.new_zeros(missing, *part.shape[1:])]) if missing else part

    @property
    def target_grad_sum(self) -> Tensor:  # (M,) y
        return self.target_grad.sum(1)

    @property
    def sum_grad(self) -> Tensor:  # (B,) g_s = dL/ds at fixed q
        return self.mean_grad - self.curvature * self.mean

    def centred_target_rows(
        self, wbar: Tensor
    ) -> Tensor:  # (M, H) T = sum over the targets of dL/do_t (W_t - wbar)
        return self.target_rows - self.target_grad_sum[:, None] * wbar

    def scaled(self, factor: Tensor | float) -> "RecordedGradient":
        """Return the record of `factor` times the gradient."""
        return replace(
            self,
            curvature=self.curvature * factor,
            mean_grad=self.mean_grad * factor,
            target_grad=self.target_grad * factor,
            target_rows=self.target_rows * factor,
        )

    def after_refactor(self) -> "RecordedGradient":
        """Return the record of the same gradient once U has become the identity."""
        return replace(self, hu=None)

    def in_precision(self, dtype: torch.dtype) -> "RecordedGradient":
        """Return the record of the same gradient for a step that is computed in `dtype`."""
        return replace(self, hg=self.hg.to(dtype), hu=None)

    def is_finite(self) -> Tensor:  # () bool, on the device
        """Return whether the upstream gradients are finite; the batch itself was checked on its way in."""
        parts = (self.curvature, self.mean_grad, self.target_grad)
        return torch.stack([part.isfinite().all() for part in parts]).all()

    @cached_property
    def entries(
        self,
    ) -> tuple[Tensor, Tensor, Tensor]:  # (N,) rows of Y, (N,) classes, (N,) gradients
        """Return the nonzero elements of Y; on a GPU, where to find them means to wait, all that may be nonzero."""
        grad = self.target_grad
        places = nonzero_places(grad) if grad.device.type == "cpu" else all_places(grad)
        return places // grad.shape[1], self.index.flatten()[places], grad.flatten()[places]

    @cached_property
    def groups(self) -> tuple[Tensor, Tensor]:  # (N,), (N,)
        """Return the number of the class of each entry, counted from 0, and the class of each number; else class 0.

        Sorting brings equal targets together, so that shapes do not depend on values and nothing waits for a GPU.
        """
        target = self.entries[1]
        ordered, order = target.sort()
        starts_group = F.pad((ordered[1:] != ordered[:-1]).long(), (min(1, len(target)), 0))
        group = torch.empty_like(target).scatter_(0, order, starts_group.cumsum(0))
        return group, torch.zeros_like(target).scatter_(0, group, target)

    def summed_by_class(self, rows: Tensor) -> Tensor:  # (M, H) -> (N, H)
        """Return `g_t row` for every target, summed over the targets of each class in the order of `groups`."""
        row, _, grad = self.entries
        weighted = grad.to(rows.dtype)[:, None] * rows[row]
        return torch.zeros_like(weighted).index_add_(0, self.groups[0], weighted)

    def repeated_targets(self) -> Tensor:  # (M, H)
        """Return `Y Y^T H`: row i sums `g_i g_j h_j` over all examples j that share a target with i."""
        row, _, grad = self.entries
        h = self.h.to(grad.dtype)  # kernels record it in the dtype of products
        shared = grad[:, None] * self.summed_by_class(h)[self.groups[0]]
        return torch.zeros_like(h).index_add_(0, row, shared)


def nonzero_places(values: Tensor) -> Tensor:  # (N,)
    """Return the places of all values that differ from zero. Waits for the device."""
    return values.flatten().nonzero()[:, 0]


def all_places(values: Tensor) -> Tensor:  # (N,)
    """Return all places: a superset of the nonzero ones that is known without waiting for the device."""
    return torch.arange(values.numel(), device=values.device)


def concatenate(records: Sequence[RecordedGradient]) -> RecordedGradient:
    """Return the record of the sum of the gradients; rows with fewer targets get further targets of gradient zero."""
    if len(records) == 1:
        return records[0]
    widest = max(record.index.shape[1] for record in records)
    together: dict[str, Any] = {}
    for name in (f.name for f in fields(RecordedGradient)):
        parts = [getattr(record, name) for record in records]
        if name in ("index", "target_grad"):
            parts = [F.pad(part, (0, widest - part.shape[1])) for part in parts]
        if name in _BELOW_THE_BATCH:  # all batches come first
            sizes = [len(record.curvature) for record in records]
            halves = [part.tensor_split([size]) for part, size in zip(parts, sizes, strict=True)]
            parts = [half[k] for k in (0, 1) for half in halves]
        together[name] = None if any(part is None for part in parts) else torch.cat(parts)
    return RecordedGradient(**together)


class GradientMark(nn.Parameter):
    """A parameter that has a `.grad`, not zero, exactly while a factored layer has a gradient of W recorded.

    So `zero_grad()` of a model, or of any optimizer that holds its parameters, drops the record too, as it would the
    gradient of an `nn.Linear`.
    """

    @classmethod
    def like(cls, weight: Tensor) -> "GradientMark":
        """Return a mark for a layer with this weight."""
        zero = torch.zeros(1, device=weight.device, dtype=weight.dtype)
        return cls(zero, requires_grad=weight.requires_grad)


class PendingGradient:
    """The gradient that waits for a step: records of backward passes, until a step uses them up or they are zeroed.

    Args:
        mark: the parameter that makes `zero_grad()` of others reach the records.
    """

    def __init__(self, mark: GradientMark) -> None:
        self.mark = mark
        self.is_unscaled = False  # has a GradScaler divided what is recorded?
        self._records: list[RecordedGradient] = []
        self._records_without_step: int | None = 0  # None once there was a step
        self._written_mark: Tensor | None = None
        self._written_version = 0

    def record(self, gradient: RecordedGradient) -> None:
        """Add to the gradient that the next step will apply."""
        if self._is_zeroed():
            self._records = []
            self.mark.grad = self._intact_mark()
        self._records.append(gradient)
        self.is_unscaled = False
        if self._records_without_step is None:
            return
        self._records_without_step += 1
        if self._records_without_step == _FORGOTTEN_STEP:
            warnings.warn(
                f"{_FORGOTTEN_STEP} gradients were recorded without a step: give this layer to a FactoredSGD, as other "
                "optimizers pass over it",
                stacklevel=2,
            )

    def gradient(self) -> RecordedGradient | None:
        """Return the sum of what is recorded; None without any."""
        if not self.exists():
            return None
        self._warn_if_scaled()
        if len(self._records) > 1:
            self._records = [concatenate(self._records)]
        return self._records[0]

    def exists(self) -> bool:
        """Return whether a gradient waits."""
        return bool(self._records) and not self._is_zeroed()

    def scale_(self, factor: Tensor | float) -> None:
        """Multiply what is recorded by a factor."""
        self._records = [record.scaled(factor) for record in self._records]

    def unscale_(self, scale: Tensor) -> None:
        """Divide what is recorded by the scale of a GradScaler."""
        self.scale_(scale.reciprocal())
        self.is_unscaled = True

    def fit_refactored(self) -> None:
        """Adapt the records to a U that has become the identity."""
        self._records = [record.after_refactor() for record in self._records]

    def drop(self) -> None:
        """Forget what is recorded."""
        self._records, self.mark.grad, self.is_unscaled = [], None, False

    def use_up(self) -> None:
        """Forget what is recorded, as a step has applied it."""
        self._records_without_step = None
        self.drop()

    def warn_if_zeroed_too_soon(self) -> None:
        """Warn where somebody has zeroed the gradient before the step."""
        if self._records:
            self._records = []
            warnings.warn(
                "the gradient was dropped before the step: the model, or another optimizer that holds this layer's "
                "parameters, was told to zero_grad() in between; take all steps first",
                stacklevel=2,
            )

    def warn_if_overwritten(self) -> None:
        """Warn of a gradient that is lost because others have written to V."""
        if self.exists():
            lost = "the gradient recorded for V was lost as others wrote to it: step first"
            warnings.warn(lost, stacklevel=3)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no gradient, as with torch's parameters; its layer gives it the mark.
        return self.__dict__ | {"mark": None, "_records": [], "_written_mark": None}

    def _intact_mark(self) -> Tensor:
        """Return the last mark until somebody writes to it: in a graph, to make another would delay every step."""
        mark, own = self._written_mark, self.mark
        if (
            mark is None
            or mark._version != self._written_version
            or (mark.device, mark.dtype) != (own.device, own.dtype)
        ):
            mark = self._written_mark = torch.full_like(own, _MARK)
            self._written_version = mark._version
        return mark

    def _is_zeroed(self) -> bool:
        mark = self.mark.grad
        if mark is None:
            return True
        # `set_to_none=False` writes a zero. A mark without a write need not be read: the host would wait for a GPU.
        # Writes to `.data` are not counted, so a mark on a CPU is always read.
        is_suspect = mark._version != self._written_version or mark.device.type == "cpu"
        return is_suspect and not is_capturing() and not mark.any()

    def _warn_if_scaled(self) -> None:
        mark = self.mark.grad
        if mark is None or mark._version == self._written_version or is_capturing():
            return
        warnings.warn(
            "the gradients of the parameters were changed in place, as torch's clip_grad_norm_ and clip_grad_value_ "
            "do: that of a factored layer is none of them, and stays as it is; use zloss.clip_grad_norm_ or "
            "scale_grad_",
            stacklevel=2,
        )
