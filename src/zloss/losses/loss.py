"""The base classes of all losses: reduction, ignored targets, and the meaning of the scores of the classes.

A trained network is used through its scores, and the loss of its training decides what they mean. A softmax orders the
classes by their activations, and a spherical softmax by the squares of these. Some losses are likelihoods. Other losses
only rank.
"""

from abc import ABC, abstractmethod
from numbers import Number
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from zloss.inputs import FLOATS, check_same_device, check_tensor
from zloss.losses.class_weight import register_class_weight, weigh
from zloss.losses.reduction import Reduction, check_reduction, reduce_loss
from zloss.stats import checked_logits
from zloss.targets import IGNORE_INDEX, Targets, check_ignore_index, checked_targets

_CONSTANTS = (Number, str, Tensor)  # numbers of NumPy too


class HyperParameters(nn.Module):
    """A module with numbers that become part of a captured step. They may change between steps."""

    def captured_constants(self) -> list[Any]:
        """Return the current hyper-parameters. If they have changed, `CapturedStep` captures its step again."""
        attributes = (value for module in self.modules() for value in vars(module).values())
        numbers = [
            value
            for value in attributes
            if not isinstance(value, bool) and isinstance(value, _CONSTANTS)
        ]
        return numbers + list(self.buffers())


class Loss(HyperParameters, ABC):
    """A loss over classes.

    Args:
        reduction: "mean" over the rows that are not ignored, "sum", or "none" for one value per example.
        ignore_index: the target that is ignored.
        class_weight: a weight for each class, (C,). It multiplies the loss of each target of that class, before the
            average over the K targets of an example. Row weights multiply it. The mean does not divide by weights.
            `zloss.balanced_weights` makes weights from counts. They are a buffer: `loss.to(device)` moves them, and no
            optimizer trains them.
    """

    class_weight: Tensor | None  # (C,)
    is_likelihood: bool = False  # True if `exp(-loss)` sums to one over the classes
    is_monotone: bool = True  # True if `score` orders the classes as their activations do

    def __init__(
        self,
        *,
        reduction: Reduction = "mean",
        ignore_index: int = IGNORE_INDEX,
        class_weight: Tensor | None = None,  # (C,)
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        check_ignore_index(ignore_index)
        register_class_weight(self, class_weight)
        self.reduction: Reduction = reduction
        self.ignore_index = ignore_index

    def score(self, logits: Tensor) -> Tensor:
        """Return the scores that rank the classes: for a likelihood, unnormalised log-probabilities."""
        check_tensor("logits", logits, FLOATS)
        return logits

    def log_prob(self, logits: Tensor) -> Tensor:  # (B, C) -> (B, C)
        """Return the log-probabilities of all classes."""
        self.require_likelihood()
        return F.log_softmax(self.score(checked_logits(logits)), dim=1)

    def require_likelihood(self) -> None:
        """Refuse a loss that gives no probabilities."""
        if not self.is_likelihood:
            raise ValueError(
                f"{type(self).__name__} is not a likelihood: it ranks classes and gives them no probabilities; "
                "train with a softmax, TaylorSoftmax or SphericalSoftmax where you need them"
            )


class DenseLoss(Loss):
    """A loss that needs every logit: `loss(logits, target)`, with `weight=(B,)` row weights.

    With K targets per example the loss is the average of its K single-target values.
    """

    def forward(
        self,
        logits: Tensor,  # (B, C)
        target: Tensor | Targets,  # (B,) or (B, K)
        *,
        weight: Tensor | None = None,  # (B,)
    ) -> Tensor:
        logits = checked_logits(logits)
        check_same_device(logits, target, "logits")
        targets = checked_targets(target, logits.shape[0], logits.shape[1], self.ignore_index)
        per_target = self.per_target(logits, targets.index)
        weighted = weigh(per_target, targets.index, self.class_weight, logits.shape[1])
        per_example = targets.mean(weighted).to(logits.dtype)
        return reduce_loss(per_example, targets.counted, self.reduction, weight)

    @abstractmethod
    def per_target(self, logits: Tensor, index: Tensor) -> Tensor:  # (B, C), (B, K) -> (B, K)
        """Return the loss of each example for each of its targets."""
