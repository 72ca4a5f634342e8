"""The base of heads that have one dense weight matrix and differ in how they train it."""

import torch
from torch import Tensor, nn

from zloss.heads.head import Head
from zloss.inputs import FLOATS, check_flag, check_hidden, check_place
from zloss.layers.ranking import LinearScores, Scores
from zloss.layers.storage import InMemory
from zloss.targets import IGNORE_INDEX


class LinearHead(Head):
    """A head around an ordinary `nn.Linear`, which is its attribute `linear`."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        ignore_index: int = IGNORE_INDEX,
    ) -> None:
        super().__init__(in_features, num_classes, ignore_index=ignore_index)
        check_flag("bias", bias)
        check_place(device, dtype, FLOATS)
        self.linear = nn.Linear(in_features, num_classes, bias=bias, device=device, dtype=dtype)

    def activations(self, h: Tensor) -> LinearScores:
        """Return `h @ W^T + b`, to be evaluated piecewise."""
        check_hidden(h, self.in_features, self.linear.weight)
        weight, bias = self.linear.weight, self.linear.bias
        return LinearScores(h.to(weight.dtype), InMemory(weight), class_bias=bias)

    def scores(self, h: Tensor) -> Scores:
        return self.activations(h)

    def logits(self, h: Tensor) -> Tensor:  # (B, C)
        """Return all activations, without gradient."""
        with self._evaluation(h):
            return self.activations(h).all()
