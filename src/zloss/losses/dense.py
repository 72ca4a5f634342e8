"""Losses that need every logit: the paper's comparisons, which no factored layer can train."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zloss.losses.reduction import Reduction, check_reduction, reduce_loss
from zloss.losses.spherical import SOFTPLUS_IS_LINEAR
from zloss.stats import check_logits, mean_and_scatter, z_normalize
from zloss.targets import IGNORE_INDEX, checked_targets


class SigmoidCrossEntropy(nn.Module):
    r"""Every class an independent Bernoulli variable: `softplus(-o_t) + sum_{i != t} softplus(o_i)`.

    With K targets per example the loss is the average of its K single-target values, as for every loss here.

    >>> SigmoidCrossEntropy()(torch.zeros(1, 3), torch.tensor([0]))    # 3 log(2)
    tensor(2.0794)
    """

    def __init__(self, *, reduction: Reduction = "mean", ignore_index: int = IGNORE_INDEX) -> None:
        super().__init__()
        check_reduction(reduction)
        self.reduction: Reduction = reduction
        self.ignore_index = ignore_index

    def forward(
        self,
        logits: Tensor,  # (B, C)
        target: Tensor,  # (B,) or (B, K)
        *,
        weight: Tensor | None = None,  # (B,)
    ) -> Tensor:
        check_logits(logits)
        targets = checked_targets(target, logits.shape[0], logits.shape[1], self.ignore_index)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        # Swap the target's softplus(o) for softplus(-o) = softplus(o) - o. The sum is taken in float64: a single huge
        # logit must not wipe out the many small terms when it is subtracted again.
        total = F.softplus(logits, threshold=SOFTPLUS_IS_LINEAR).sum(1, dtype=torch.float64)
        own = logits.gather(1, targets.index)
        per_target = torch.where(targets.valid, total[:, None] - own, 0)
        per_example = (per_target.sum(1) / targets.valid.sum(1).clamp_min(1)).to(logits.dtype)
        return reduce_loss(per_example, targets.valid.any(1), self.reduction, weight)


class ZNormalized(nn.Module):
    r"""Any dense loss on Z-normalised logits: `loss(a z, target) / a` with `z = (o - mu) / sigma`.

    Normalisation makes every loss invariant to shift and scale and gives it the hyper-parameter `a`. With
    `nn.CrossEntropyLoss` this is the paper's `L_{S-Z}`. Targets, weights and reduction are those of the inner loss.

    >>> loss = ZNormalized(nn.CrossEntropyLoss(), a=2.0)
    >>> logits = torch.tensor([[0.0, 1.0, 5.0]])
    >>> bool(torch.isclose(loss(logits, torch.tensor([2])), loss(10 * logits + 3, torch.tensor([2]))))
    True
    """

    def __init__(self, loss: nn.Module, *, a: float) -> None:
        super().__init__()
        if not (math.isfinite(a) and a > 0):
            raise ValueError(f"a must be a finite number > 0, got {a}")
        self.loss = loss
        self.a = a

    def forward(self, logits: Tensor, target: Tensor, **kwargs: Any) -> Tensor:
        check_logits(logits)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        mean, scatter = mean_and_scatter(logits)
        z = z_normalize(logits, mean, scatter / logits.shape[1])
        result: Tensor = self.loss(self.a * z, target, **kwargs) / self.a
        return result

    def extra_repr(self) -> str:
        return f"a={self.a}"
