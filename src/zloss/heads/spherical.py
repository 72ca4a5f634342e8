"""The head for spherical losses: a layer that computes `SphericalStats`, and a loss that is a function of them."""

from collections.abc import Iterator

from torch import Tensor, nn
from torch.optim import Optimizer

from zloss.heads.defaults import FACTORED_Z_LOSS, GRAM, HeadDefaults, OptimizerName
from zloss.heads.head import Head
from zloss.heads.negatives import SharedNegatives
from zloss.inputs import shown
from zloss.layers import DenseLinear, FactoredLinear
from zloss.layers.ranking import Scores
from zloss.losses import SphericalLoss, ZLoss
from zloss.losses.loss import Loss
from zloss.losses.reduction import reduce_loss
from zloss.optim import FactoredSGD
from zloss.stats import SphericalStats


class SphericalOutput(Head):
    """A spherical loss on a layer that does not form logits: `FactoredLinear`, or `GramLinear` for any optimizer.

    Args:
        layer: `FactoredLinear`, `GramLinear`, or `DenseLinear`, the definition that the others are compared with.
        loss: `ZLoss` or another spherical loss.
        negatives: `SharedNegatives`, a softmax over few explicit classes that is added to the loss; None for none.

    >>> head = SphericalOutput(zloss.FactoredLinear(16, 100_000), zloss.ZLoss(a=0.1, b=10))
    >>> optimizer = head.sgd()
    >>> head(torch.randn(4, 16), torch.tensor([7, 0, 99_999, -100])).backward()
    >>> optimizer.step()

    The loss decides how classes are ranked: by probability if the loss is a likelihood, else by activation.
    """

    def __init__(
        self,
        layer: FactoredLinear | DenseLinear,
        loss: SphericalLoss,
        negatives: SharedNegatives | None = None,
    ) -> None:
        if not isinstance(layer, FactoredLinear | DenseLinear):
            raise ValueError(
                f"layer must be a FactoredLinear, GramLinear or DenseLinear, got {type(layer).__name__}"
            )
        if not isinstance(loss, SphericalLoss):
            raise ValueError(
                f"{type(loss).__name__} is not a spherical loss, so it needs every logit: use ZLoss, SquaredError, "
                "TaylorSoftmax or SphericalSoftmax here, or DenseOutput for any loss"
            )
        if negatives is not None and not isinstance(negatives, SharedNegatives):
            raise ValueError(f"negatives must be SharedNegatives or None, got {shown(negatives)}")
        if negatives is not None and negatives.num_classes != layer.num_classes:
            raise ValueError(
                f"the negatives are drawn from {negatives.num_classes} classes, but the layer has {layer.num_classes}"
            )
        super().__init__(layer.in_features, layer.num_classes, ignore_index=layer.ignore_index)
        self.layer, self.loss, self.negatives = layer, loss, negatives

    def forward(self, h: Tensor, target: Tensor, *, weight: Tensor | None = None) -> Tensor:
        if isinstance(self.layer, FactoredLinear):  # it checks its input itself
            return self._loss_of(h, self.layer(h, target), weight)
        admitted = self._admission.admit(h, target, self.reference_weight)
        stats = self.layer(admitted.h, admitted.targets)
        return admitted.conclude(self._loss_of(admitted.h, stats, weight))

    def _loss_of(self, h: Tensor, stats: SphericalStats, weight: Tensor | None) -> Tensor:
        loss: Tensor = self.loss(stats, weight=weight)
        if self.negatives is None or self.negatives.strength == 0:
            return loss
        term = self.negatives(self.layer, h, stats)
        reduced = reduce_loss(term, stats.counted, self.loss.reduction, weight)
        return loss + self.negatives.strength * reduced

    def scores(self, h: Tensor) -> Scores:
        scores = self.layer.scores(h)
        # Scores without a transform are ranked faster: what is added to a whole row does not change its ranks.
        is_plain = type(self.loss).score is Loss.score
        return scores if is_plain else scores.transformed(self.loss.score)

    def logits(self, h: Tensor) -> Tensor:  # (B, C)
        """Return all activations, without gradient."""
        with self._evaluation(h):
            return self.layer.logits(h)

    @property
    def is_likelihood(self) -> bool:
        return self.loss.is_likelihood

    @property
    def is_capturable(self) -> bool:
        return self.layer.uses_kernels if isinstance(self.layer, FactoredLinear) else True

    @property
    def has_relative_rates(self) -> bool:
        return isinstance(self.layer, FactoredLinear) and isinstance(self.loss, ZLoss)

    @property
    def reference_weight(self) -> Tensor:
        return self.layer.V if isinstance(self.layer, FactoredLinear) else self.layer.linear.weight

    @property
    def defaults(self) -> HeadDefaults | None:
        if not isinstance(self.layer, FactoredLinear):
            return GRAM
        return FACTORED_Z_LOSS if self.has_relative_rates else None

    def optimizer(
        self,
        name: OptimizerName | None = None,
        *,
        lr: float | None = None,
        weight_decay: float = 0.0,
    ) -> Optimizer:
        """Return an optimizer for the layer. For a factored layer it is `FactoredSGD`: nothing else can train it.

        With the Z-loss, its rate is the relative rate 1. For other losses on a factored layer, give `lr`.
        """
        if not isinstance(self.layer, FactoredLinear):
            return super().optimizer(name, lr=lr, weight_decay=weight_decay)
        if name not in (None, "sgd"):
            raise ValueError(
                f"a factored layer takes the exact step of plain SGD and has no gradient for {shown(name)}: use "
                'head.optimizer("sgd"), or GramLinear (head="gram") for other optimizers'
            )
        if not self.has_relative_rates:
            _, lr = self._completed("sgd", lr)
        return FactoredSGD(self.layer, lr, weight_decay=weight_decay)

    def _weights(self) -> Iterator[nn.Parameter]:
        return self.layer.parameters()  # the number of the negatives belongs to the layers below

    def sgd(
        self,
        lr: float | None = None,
        *,
        relative_lr: float | None = None,
        weight_decay: float = 0.0,
    ) -> Optimizer:
        """Return plain SGD. For a factored layer this is `FactoredSGD`, and a rate may be relative or left out."""
        if isinstance(self.layer, FactoredLinear):
            return FactoredSGD(self.layer, lr, relative_lr=relative_lr, weight_decay=weight_decay)
        if relative_lr is not None:
            raise ValueError(
                f"only a FactoredLinear has relative learning rates: give {type(self.layer).__name__} an absolute one"
            )
        return super().sgd(lr, weight_decay=weight_decay)
