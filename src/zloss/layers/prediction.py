"""Predictions of a trained layer: scores, best classes and ranks, the same way for every layer."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from zloss.inputs import check_same_device
from zloss.layers.ranking import LinearScores
from zloss.precision import exact_products
from zloss.targets import checked_targets


class Predicting(ABC):
    """The contract of an output layer that predicts: it supplies `scores`, and all predictions follow from them.

    Nothing here has a gradient.
    """

    ignore_index: int

    @abstractmethod
    def scores(self, h: Tensor) -> LinearScores:
        """The scores of all classes, to be evaluated piecewise; within `exact_products` where they should be exact."""

    @torch.no_grad()
    def logits(self, h: Tensor) -> Tensor:  # (B, C)
        """All scores `h @ W.T`, without gradient. A factored layer does it without forming W."""
        with _exact_products_of(h):
            return self.scores(h).all()

    @torch.no_grad()
    def topk(
        self, h: Tensor, k: int, *, block_size: int | None = None
    ) -> tuple[Tensor, Tensor]:  # (B, k), (B, k)
        """Scores and classes of the k best classes, best first, in blocks of `block_size` classes."""
        with _exact_products_of(h):
            return self.scores(h).topk(k, block_size)

    @torch.no_grad()
    def rank(
        self, h: Tensor, target: Tensor, *, block_size: int | None = None
    ) -> Tensor:  # as target
        """1 + the number of classes that score strictly higher than the target; 0 for an ignored target."""
        with _exact_products_of(h):
            scores = self.scores(h)
            check_same_device(h, target)
            targets = checked_targets(target, len(h), scores.num_classes, self.ignore_index)
            return scores.rank(targets, block_size).reshape(target.shape)


def _exact_products_of(h: Tensor) -> AbstractContextManager[None]:
    """Return the context for exact products on the device of h. Anything but a tensor is refused later, by `scores`."""
    return exact_products(h.device.type) if isinstance(h, Tensor) else nullcontext()
