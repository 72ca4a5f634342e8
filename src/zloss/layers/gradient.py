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
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor

from zloss.layers.mark import SMALLEST, GradientMark, WrittenNorm
from zloss.streams import is_capturing

_BELOW_THE_BATCH = ("h", "index", "target_grad", "target_rows")  # what has M rows


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


class PendingGradient:
    """The gradient that waits for a step: records of backward passes, until a step uses them up or they are zeroed.

    Args:
        mark: the parameter that makes what others do to all gradients reach the records.
    """

    def __init__(self, mark: GradientMark) -> None:
        self.mark = mark
        self.is_unscaled = False  # has a GradScaler divided what is recorded?
        self.mark_has_norm = False  # is the mark as long as the gradient?
        self.is_passed_over = False  # was there a step of others, and none that uses this gradient?
        self._records: list[RecordedGradient] = []
        self._appliers: WeakSet[Any] | None = (
            None  # optimizers that live, and this object after a `step_` by hand
        )
        self._written_mark: Tensor | None = None
        self._written_version = 0
        self.written_norm: WrittenNorm | None = None

    def attach(self, applier: object) -> None:
        """Take note of an optimizer that will apply what is recorded."""
        self._appliers = self._appliers or WeakSet()
        self._appliers.add(applier)
        self.is_passed_over = False

    def is_awaited(self) -> bool:
        """Return whether somebody will apply what is recorded."""
        return bool(self._appliers)

    def record(self, gradient: RecordedGradient) -> None:
        """Add to the gradient that the next step will apply."""
        if self._is_zeroed():
            self._records = []
            self.mark.grad = self._intact_mark()
        elif self.mark_has_norm:  # what was done so far was not done to this gradient
            self._follow_mark()
        self._records.append(gradient)
        self.is_unscaled = False

    def gradient(self) -> RecordedGradient | None:
        """Return the sum of what is recorded; None without any."""
        if not self.exists():
            return None
        if self.mark_has_norm:
            self._follow_mark()
        else:
            self._warn_if_scaled()
        return self.total()

    def total(self) -> RecordedGradient:
        """Return the sum of the records, whatever others have done to the mark."""
        if len(self._records) > 1:
            self._records = [concatenate(self._records)]
        return self._records[0]

    def exists(self) -> bool:
        """Return whether a gradient waits."""
        return bool(self._records) and not self._is_zeroed()

    def scale_(self, factor: Tensor | float) -> None:
        """Multiply what is recorded by a factor."""
        if self.mark_has_norm and self.exists():
            self._follow_mark()
            self.written_norm = WrittenNorm(self.mark, self.mark.grad[0] * factor)  # type: ignore[index]  # it exists
        self._records = [record.scaled(factor) for record in self._records]

    def fit_refactored(self) -> None:
        """Adapt the records to a U that has become the identity."""
        self._records = [record.after_refactor() for record in self._records]

    def drop(self) -> None:
        """Forget what is recorded."""
        self._records, self.mark.grad, self.is_unscaled = [], None, False

    def use_up(self) -> None:
        """Forget what is recorded, as a step has applied it."""
        if not self.is_awaited():
            self.attach(self)
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
        # A copy has no gradient, as with torch's parameters, and no optimizer yet; its layer gives it the mark.
        nothing = dict.fromkeys(("mark", "_written_mark", "written_norm", "_appliers"))
        return self.__dict__ | nothing | {"_records": []}

    def _intact_mark(self) -> Tensor:
        """Return the last mark until somebody writes to it: in a graph, to make another would delay every step."""
        mark, own = self._written_mark, self.mark
        intact = (own.device, own.dtype, self._written_version)
        if mark is None or (mark.device, mark.dtype, mark._version) != intact:
            mark = self._written_mark = torch.full_like(own, SMALLEST)
            self._written_version = mark._version
        return mark

    def _is_zeroed(self) -> bool:
        mark = self.mark.grad
        if mark is None:
            return True
        # `set_to_none=False` writes a zero. A mark without a write need not be read: the host would wait for a GPU.
        # Writes to `.data` are not counted, so a mark on a CPU is always read. One with the norm makes records zero.
        is_changed = mark._version != self._written_version and not self.mark_has_norm
        is_suspect = is_changed or mark.device.type == "cpu"
        return is_suspect and not is_capturing() and not mark.any()

    def _follow_mark(self) -> None:
        """Do to the records what others have done to a mark that has the norm."""
        assert self.written_norm is not None
        factor = self.written_norm.factor_since()
        if factor is not None:
            self._records = [record.scaled(factor) for record in self._records]
            self.written_norm = WrittenNorm(self.mark, self.mark.grad[0])  # type: ignore[index]

    def _warn_if_scaled(self) -> None:
        mark = self.mark.grad
        if mark is None or mark._version == self._written_version or is_capturing():
            return
        warnings.warn(
            "gradients of parameters were changed in place, as by torch's clip_grad_norm_, but not that of a factored "
            "layer: use zloss.clip_grad_norm_ or scale_grad_, or train with a zloss.Optimizer",
            stacklevel=2,
        )
