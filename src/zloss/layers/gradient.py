"""The gradient of the C x H weight matrix, recorded in O(B H) numbers instead of C H, until a step uses it up.

For a spherical loss the gradient with respect to the activations is `diag(A) O + g_s 1^T + Y`, where Y is sparse: it is
nonzero in the columns of the targets only. Hence

    dL/dW = W K1 + 1 (H^T g_s)^T + Y^T H,        K1 = H^T diag(A) H

and everything on the right is known from the batch H, two numbers per row and one per target. Records of several
backward passes concatenate into the record of their sum, as long as W does not change in between.

Shape letters: B rows, H width of the layer (with the bias column where there is one), K targets per row, C classes.
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

_FORGOTTEN_STEP = 100  # backward passes without a step before we suspect that there is no optimizer
_MARK = 1e-20  # not zero, and yet too small to change a norm of gradients that it is part of


@dataclass(frozen=True)
class RecordedGradient:
    """The record that one or several backward passes leave behind for the step.

    Its tensors have the dtype of the layer's state. Only `hg` and `hu` have the dtype of products, and the step
    computes in it. A record made by kernels may have the dtype of products throughout.
    """

    h: Tensor  # (B, H) the batch
    hg: Tensor  # (B, H) h @ gram
    hu: Tensor | None  # (B, H) h @ U^T, where the forward pass needed it
    mean: Tensor  # (B,) mean activation
    curvature: Tensor  # (B,) A = 2 dL/dscatter
    mean_grad: Tensor  # (B,) c = dL/dmean / C
    index: Tensor  # (B, K) the targets
    target_grad: Tensor  # (B, K) dL/do_t, 0 where ignored
    target_rows: Tensor  # (B, H) sum over the targets of dL/do_t W_t

    @property
    def target_grad_sum(self) -> Tensor:  # (B,) y
        return self.target_grad.sum(1)

    @property
    def sum_grad(self) -> Tensor:  # (B,) g_s = dL/ds at fixed q
        return self.mean_grad - self.curvature * self.mean

    def centred_target_rows(
        self, wbar: Tensor
    ) -> Tensor:  # (B, H) T = sum over the targets of dL/do_t (W_t - wbar)
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

    @cached_property  # a step asks twice
    def entries(
        self,
    ) -> tuple[Tensor, Tensor, Tensor]:  # (N,) rows of the batch, (N,) classes, (N,) gradients
        """Return the nonzero elements of Y; on a GPU, where to find them means to wait, all that may be nonzero."""
        grad = self.target_grad
        places = nonzero_places(grad) if grad.device.type == "cpu" else all_places(grad)
        return places // grad.shape[1], self.index.flatten()[places], grad.flatten()[places]

    def repeated_targets(self) -> Tensor:  # (B, H)
        """Return `Y Y^T H`: row i sums the rows h_j of all examples that share a target with i.

        Each row is weighted by both gradients. Sorting brings equal targets together, so that shapes do not depend on
        values and nothing waits for a GPU.
        """
        row, target, grad = self.entries
        ordered, order = target.sort()
        starts_group = F.pad((ordered[1:] != ordered[:-1]).long(), (min(1, len(target)), 0))
        group = torch.empty_like(target).scatter_(0, order, starts_group.cumsum(0))
        weighted = grad[:, None] * self.h[row]
        sums = torch.zeros_like(weighted).index_add_(0, group, weighted)
        return torch.zeros_like(self.h).index_add_(0, row, grad[:, None] * sums[group])

    def norm(self, wbar: Tensor, num_classes: int) -> Tensor:  # ()
        """Return the Frobenius norm of the full C x H gradient, without forming it.

        The gradient splits into a part whose columns sum to zero and the rank-one rest `1 e^T`; the squared norms add.
        """
        y = self.target_grad_sum
        h, rows = self.h.to(y.dtype), self.centred_target_rows(wbar)
        a = self.curvature[:, None]
        hy = h.T @ y
        e = h.T @ (self.mean_grad + y / num_classes)
        if len(h) < h.shape[1]:  # through B x B matrices
            weights = ((a * self.hg + 2 * rows) @ h.T) * self.curvature
            dense_part = (weights * (h @ h.T)).sum()
        else:  # through H x H matrices
            k1 = h.T @ (a * h)
            dense_part = ((h.T @ (a * self.hg + 2 * rows)) * k1).sum()
        sparse_part = (h * self.repeated_targets()).sum() - hy @ hy / num_classes
        return (dense_part + sparse_part + num_classes * (e @ e)).clamp_min(0).sqrt()


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
    padded = [
        replace(
            record,
            index=F.pad(record.index, (0, widest - record.index.shape[1])),
            target_grad=F.pad(record.target_grad, (0, widest - record.index.shape[1])),
        )
        for record in records
    ]
    together: dict[str, Any] = {}
    for name in (f.name for f in fields(RecordedGradient)):
        parts = [getattr(record, name) for record in padded]
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
        self._passes_without_step: int | None = 0  # None once there was a step
        self._written_mark: Tensor | None = None
        self._written_version = 0

    def record(self, gradient: RecordedGradient) -> None:
        """Add to the gradient that the next step will apply."""
        if self._is_zeroed():
            self._records = []
            self.mark.grad = self._intact_mark()
        self._records.append(gradient)
        self.is_unscaled = False
        if self._passes_without_step is None:
            return
        self._passes_without_step += 1
        if self._passes_without_step == _FORGOTTEN_STEP:
            warnings.warn(
                f"{_FORGOTTEN_STEP} backward passes without a step: give this layer to a FactoredSGD, as other "
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
        self._passes_without_step = None
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
            warnings.warn(
                "the gradient recorded for V was lost as others wrote to it: step first",
                stacklevel=3,
            )

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
