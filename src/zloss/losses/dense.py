"""Losses that need every logit: the paper's comparisons, which no factored layer can train."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zloss.losses.loss import DenseLoss, HyperParameters, Loss
from zloss.losses.reduction import Reduction
from zloss.losses.spherical import SOFTPLUS_IS_LINEAR
from zloss.stats import checked_logits, mean_and_scatter, z_normalize
from zloss.targets import IGNORE_INDEX, Targets


class SoftmaxCrossEntropy(DenseLoss):
    r"""Negative log-likelihood of the softmax, `log(sum_i exp(o_i)) - o_t`.

    `nn.CrossEntropyLoss` with what every loss here has: K targets per example, row weights, and a mean of 0 for a batch
    whose targets are all ignored.

    >>> SoftmaxCrossEntropy()(torch.zeros(1, 3), torch.tensor([0]))    # log(3)
    tensor(1.0986)
    """

    is_likelihood = True

    def per_target(self, logits: Tensor, index: Tensor) -> Tensor:
        return -F.log_softmax(logits, dim=1).gather(1, index)


class SigmoidCrossEntropy(DenseLoss):
    r"""Every class an independent Bernoulli variable: `softplus(-o_t) + sum_{i != t} softplus(o_i)`.

    Args:
        b: subtracted from all logits first. Without it, a new layer of C classes believes in half of them and its
            first gradients are C / 2 times those of later steps; with `b = log(C)` it begins with one in C.

    >>> SigmoidCrossEntropy()(torch.zeros(1, 3), torch.tensor([0]))    # 3 log(2)
    tensor(2.0794)
    """

    def __init__(
        self, *, b: float = 0.0, reduction: Reduction = "mean", ignore_index: int = IGNORE_INDEX
    ) -> None:
        super().__init__(reduction=reduction, ignore_index=ignore_index)
        self.b = _checked_shift(b)

    def per_target(self, logits: Tensor, index: Tensor) -> Tensor:
        logits = logits - self.b
        # Swap the target's softplus(o) for softplus(-o) = softplus(o) - o. The sum is taken in float64: a single huge
        # logit must not wipe out the many small terms when it is subtracted again.
        total = F.softplus(logits, threshold=SOFTPLUS_IS_LINEAR).sum(1, dtype=torch.float64)
        return total[:, None] - logits.gather(1, index)

    def extra_repr(self) -> str:
        return f"b={self.b}, reduction={self.reduction!r}"


class ZNormalized(HyperParameters):
    r"""Any dense loss on Z-normalised logits: `loss(a (z - b), target) / a` with `z = (o - mu) / sigma`.

    Normalisation makes every loss invariant to shift and scale and gives it the hyper-parameters `a` and `b`. With
    `nn.CrossEntropyLoss`, to which b means nothing, this is the paper's `L_{S-Z}`. Targets, weights and reduction are
    those of the inner loss.

    >>> loss = ZNormalized(nn.CrossEntropyLoss(), a=2.0)
    >>> logits = torch.tensor([[0.0, 1.0, 5.0]])
    >>> bool(torch.isclose(loss(logits, torch.tensor([2])), loss(10 * logits + 3, torch.tensor([2]))))
    True
    """

    def __init__(self, loss: nn.Module, *, a: float, b: float = 0.0) -> None:
        super().__init__()
        if not (math.isfinite(a) and a > 0):
            raise ValueError(f"a must be a finite number > 0, got {a}")
        self.loss = loss
        self.a, self.b = a, _checked_shift(b)

    @property
    def reduction(self) -> str:
        """That of the inner loss."""
        return str(self.loss.reduction)

    @property
    def ignore_index(self) -> int:
        """That of the inner loss."""
        return int(getattr(self.loss, "ignore_index", IGNORE_INDEX))

    @property
    def is_likelihood(self) -> bool:
        """Whether the softmax of `a (z - b)` is what the inner loss takes the likelihood of."""
        return is_likelihood(self.loss)

    def forward(self, logits: Tensor, target: Tensor | Targets, **kwargs: Any) -> Tensor:
        if isinstance(target, Targets) and not isinstance(self.loss, Loss | ZNormalized):
            target = target.to_tensor(self.ignore_index)
        result: Tensor = self.loss(self._normalized(logits), target, **kwargs) / self.a
        return result

    def score(self, logits: Tensor) -> Tensor:
        """What the classes are ranked by: z grows with the logit."""
        if not getattr(self.loss, "is_monotone", True):
            raise ValueError(
                f"{type(self.loss).__name__} does not rank classes by their Z-normalised activations"
            )
        return logits

    def log_prob(self, logits: Tensor) -> Tensor:  # (B, C) -> (B, C)
        """Log-probabilities of all classes, those of the inner loss at `a (z - b)`."""
        return log_prob_of(self.loss, self._normalized(logits))

    def _normalized(self, logits: Tensor) -> Tensor:
        logits = checked_logits(logits)
        mean, scatter = mean_and_scatter(logits)
        return self.a * (z_normalize(logits, mean, scatter / logits.shape[1]) - self.b)

    def extra_repr(self) -> str:
        return f"a={self.a}, b={self.b}"


def _checked_shift(b: float) -> float:
    if not math.isfinite(b):
        raise ValueError(f"b must be a finite number, got {b}")
    return b


def is_likelihood(loss: nn.Module) -> bool:
    """Whether a loss gives probabilities; torch's own cross-entropy counts too."""
    return isinstance(loss, nn.CrossEntropyLoss) or bool(getattr(loss, "is_likelihood", False))


def log_prob_of(loss: nn.Module, logits: Tensor) -> Tensor:  # (B, C) -> (B, C)
    """Log-probabilities of all classes under a loss that is a likelihood."""
    if isinstance(loss, nn.CrossEntropyLoss):
        return F.log_softmax(checked_logits(logits), dim=1)
    if not isinstance(loss, Loss | ZNormalized):
        raise ValueError(f"{type(loss).__name__} is not known to be a likelihood")
    return loss.log_prob(logits)
