"""The gradient of the C x H weight matrix, recorded in O(B H) numbers instead of C H.

For a spherical loss the gradient with respect to the activations is `diag(A) O + g_s 1^T + Y`, where Y is sparse: it is
nonzero in the columns of the targets only. Hence

    dL/dW = W K1 + 1 (H^T g_s)^T + Y^T H,        K1 = H^T diag(A) H

and everything on the right is known from the batch H, two numbers per row and one per target. Records of several
backward passes concatenate into the record of their sum, as long as W does not change in between.

Shape letters: B rows, H width of the layer (with the bias column where there is one), K targets per row, C classes.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class RecordedGradient:
    """What one or several backward passes leave behind for the step.

    In the dtype of the layer's state; only `hg` and `hu` have that of products, which it sets for those to come. What
    kernels record may have the dtype of products throughout.
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
    begun: Any = None  # what kernels have begun the step with, for these rows and factors alone

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
        """The record of `factor` times the gradient."""
        return replace(
            self,
            curvature=self.curvature * factor,
            mean_grad=self.mean_grad * factor,
            target_grad=self.target_grad * factor,
            target_rows=self.target_rows * factor,
        )

    def after_refactor(self) -> "RecordedGradient":
        """The same gradient once U has become the identity."""
        return replace(self, hu=None, begun=None)

    def is_finite(self) -> Tensor:  # () bool, on the device
        """Whether the upstream gradients were; the batch itself was checked on its way in."""
        parts = (self.curvature, self.mean_grad, self.target_grad)
        return torch.stack([part.isfinite().all() for part in parts]).all()

    @cached_property  # a step asks twice
    def entries(
        self,
    ) -> tuple[Tensor, Tensor, Tensor]:  # (N,) rows of the batch, (N,) classes, (N,) gradients
        """The nonzero elements of Y. On a GPU, which would have to be waited for to know them, all that may be."""
        grad = self.target_grad
        places = nonzero_places(grad) if grad.device.type == "cpu" else all_places(grad)
        return places // grad.shape[1], self.index.flatten()[places], grad.flatten()[places]

    def repeated_targets(self) -> Tensor:  # (B, H)
        """`Y Y^T H`: row i sums the rows h_j of all examples that share a target with i, weighted by both gradients.

        Equal targets are brought together by sorting, so that shapes do not depend on values and a GPU need not be
        waited for.
        """
        row, target, grad = self.entries
        ordered, order = target.sort()
        starts_group = F.pad((ordered[1:] != ordered[:-1]).long(), (min(1, len(target)), 0))
        group = torch.empty_like(target).scatter_(0, order, starts_group.cumsum(0))
        weighted = grad[:, None] * self.h[row]
        sums = torch.zeros_like(weighted).index_add_(0, group, weighted)
        return torch.zeros_like(self.h).index_add_(0, row, grad[:, None] * sums[group])

    def norm(self, wbar: Tensor, num_classes: int) -> Tensor:  # ()
        """Frobenius norm of the full C x H gradient, without forming it.

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
    """Where among all of them there is something but zero. Waits for the device."""
    return values.flatten().nonzero()[:, 0]


def all_places(values: Tensor) -> Tensor:  # (N,)
    """The same for who cannot wait."""
    return torch.arange(values.numel(), device=values.device)


def concatenate(records: list[RecordedGradient]) -> RecordedGradient:
    """The record of the sum of the gradients. Rows with fewer targets are padded with targets of gradient zero."""
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
    for name in (f.name for f in fields(RecordedGradient) if f.name != "begun"):
        parts = [getattr(record, name) for record in padded]
        together[name] = None if any(part is None for part in parts) else torch.cat(parts)
    return RecordedGradient(**together)
