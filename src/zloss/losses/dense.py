"""Losses that need every logit, so that no factored layer can train them. The paper compares the Z-loss with them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zloss.inputs import (
    FLOATS,
    check_number,
    check_same_device,
    check_tensor,
    checked_classes,
    shown,
)
from zloss.losses.functions import SOFTPLUS_IS_LINEAR
from zloss.losses.loss import DenseLoss, HyperParameters, Loss
from zloss.losses.reduction import Reduction
from zloss.stats import checked_logits, mean_and_scatter, z_normalize
from zloss.targets import IGNORE_INDEX, Targets


class SoftmaxCrossEntropy(DenseLoss):
    r"""The negative log-likelihood of the softmax, `log(sum_i exp(o_i)) - o_t`.

    It differs from `nn.CrossEntropyLoss` in what all losses of this library share. It takes K targets per example and
    row weights, and its mean is 0 for a batch in which every target is ignored.

    >>> SoftmaxCrossEntropy()(torch.zeros(1, 3), torch.tensor([0]))    # log(3)
    tensor(1.0986)
    """

    is_likelihood = True

    def per_target(self, logits: Tensor, index: Tensor) -> Tensor:
        check_pair(logits, index)
        return -F.log_softmax(logits, dim=1).gather(1, index)


class SigmoidCrossEntropy(DenseLoss):
    r"""The negative log-likelihood of independent classes, `softplus(-o_t) + sum_{i != t} softplus(o_i)`.

    Args:
        b: the number that is subtracted from all logits first. With b = 0, a new layer gives every class the
            probability 1/2, and its first gradients are C / 2 times as large as later ones. With `b = log(C)` it gives
            every class a probability near 1/C.
        reduction: "mean" over the rows that are not ignored, "sum", or "none" for one value per example.
        ignore_index: the target that is ignored.
        class_weight: a weight for each class, (C,): see `zloss.balanced_weights`.

    >>> SigmoidCrossEntropy()(torch.zeros(1, 3), torch.tensor([0]))    # 3 log(2)
    tensor(2.0794)
    """

    def __init__(
        self,
        *,
        b: float = 0.0,
        reduction: Reduction = "mean",
        ignore_index: int = IGNORE_INDEX,
        class_weight: Tensor | None = None,
    ) -> None:
        super().__init__(reduction=reduction, ignore_index=ignore_index, class_weight=class_weight)
        self.b = _checked_shift(b)

    def per_target(self, logits: Tensor, index: Tensor) -> Tensor:
        check_pair(logits, index)
        logits = logits - self.b
        # For the target, softplus(-o) = softplus(o) - o replaces softplus(o). The sum is in float64: one huge
        # logit must not swallow the many small terms before it is subtracted again.
        total = F.softplus(logits, threshold=SOFTPLUS_IS_LINEAR).sum(1, dtype=torch.float64)
        return total[:, None] - logits.gather(1, index)

    def extra_repr(self) -> str:
        return f"b={self.b}, reduction={self.reduction!r}"


class ZNormalized(HyperParameters):
    r"""A dense loss on Z-normalised logits: `loss(a (z - b), target) / a` with `z = (o - mu) / sigma`.

    The normalised loss does not change if all logits are shifted or scaled. It has the hyper-parameters `a` and `b`.
    With `nn.CrossEntropyLoss`, on which b has no effect, this is `L_{S-Z}` of the paper. The inner loss decides which
    targets, weights and reductions are possible.

    Args:
        loss: the inner loss, of this library or of torch.
        a: the softness, > 0.
        b: the z-score that becomes the logit 0.

    >>> loss = ZNormalized(nn.CrossEntropyLoss(), a=2.0)
    >>> logits = torch.tensor([[0.0, 1.0, 5.0]])
    >>> bool(torch.isclose(loss(logits, torch.tensor([2])), loss(10 * logits + 3, torch.tensor([2]))))
    True
    """

    def __init__(self, loss: nn.Module, *, a: float, b: float = 0.0) -> None:
        super().__init__()
        check_number("a", a, above=0)
        if not isinstance(loss, nn.Module):
            raise ValueError(
                f"loss must be a module that is called as loss(logits, target), got {shown(loss)}"
            )
        self.loss = loss
        self.a, self.b = a, _checked_shift(b)

    @property
    def reduction(self) -> str:
        """The reduction of the inner loss."""
        return str(self.loss.reduction)

    @property
    def ignore_index(self) -> int:
        """The ignore_index of the inner loss."""
        return int(getattr(self.loss, "ignore_index", IGNORE_INDEX))

    @property
    def is_likelihood(self) -> bool:
        """True if the inner loss is a likelihood: its probabilities are then the probabilities at `a (z - b)`."""
        return is_likelihood(self.loss)

    def forward(self, logits: Tensor, target: Tensor | Targets, **kwargs: Any) -> Tensor:
        if isinstance(target, Targets) and not isinstance(self.loss, Loss | ZNormalized):
            target = target.to_tensor(self.ignore_index)
        result: Tensor = self.loss(self._normalized(logits), target, **kwargs) / self.a
        return result

    def score(self, logits: Tensor) -> Tensor:
        """Return the scores that rank the classes: the logits, because z grows with them."""
        if not getattr(self.loss, "is_monotone", True):
            raise ValueError(
                f"{type(self.loss).__name__} does not rank classes by their Z-normalised activations"
            )
        check_tensor("logits", logits, FLOATS)
        return logits

    def log_prob(self, logits: Tensor) -> Tensor:  # (B, C) -> (B, C)
        """Return the log-probabilities of all classes, which the inner loss gives at `a (z - b)`."""
        return log_prob_of(self.loss, self._normalized(logits))

    def _normalized(self, logits: Tensor) -> Tensor:
        logits = checked_logits(logits)
        mean, scatter = mean_and_scatter(logits)
        return self.a * (z_normalize(logits, mean, scatter / logits.shape[1]) - self.b)

    def extra_repr(self) -> str:
        return f"a={self.a}, b={self.b}"


def _checked_shift(b: float) -> float:
    check_number("b", b)
    return b


def check_pair(logits: Tensor, index: Tensor) -> None:
    """Refuse logits (B, C) and classes (B, K) that do not fit together."""
    check_tensor("logits", logits, FLOATS, dims=(2,))
    checked_classes("index", index, logits.shape[1])
    if index.dtype != torch.long or index.dim() != 2 or len(index) != len(logits):
        raise ValueError(
            f"index must be int64 of shape ({len(logits)}, K), got {index.dtype} {tuple(index.shape)}"
        )
    check_same_device(logits, index, "logits")


def is_likelihood(loss: nn.Module) -> bool:
    """Return whether a loss gives probabilities. Torch's own cross-entropy does."""
    return isinstance(loss, nn.CrossEntropyLoss) or bool(getattr(loss, "is_likelihood", False))


def log_prob_of(loss: nn.Module, logits: Tensor) -> Tensor:  # (B, C) -> (B, C)
    """Return the log-probabilities of all classes under a loss that is a likelihood."""
    if isinstance(loss, nn.CrossEntropyLoss):
        return F.log_softmax(checked_logits(logits), dim=1)
    if not isinstance(loss, Loss | ZNormalized):
        raise ValueError(f"{type(loss).__name__} is not known to be a likelihood")
    return loss.log_prob(logits)
