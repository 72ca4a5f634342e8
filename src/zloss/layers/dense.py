"""The dense output layer: the definition that every other layer is tested against."""

from typing import Self

import torch
from torch import Tensor, nn

from zloss.inputs import (
    FLOATS,
    check_flag,
    check_hidden,
    check_linear,
    check_place,
    check_same_device,
    check_sizes,
    in_dtype_of,
)
from zloss.layers.prediction import Predicting
from zloss.layers.ranking import LinearScores
from zloss.layers.storage import InMemory
from zloss.stats import SphericalStats
from zloss.targets import IGNORE_INDEX, Targets, check_ignore_index, checked_row_ids


class DenseLinear(Predicting, nn.Module):
    """`FactoredLinear` without the factors: an ordinary `nn.Linear` behind the same interface, at O(B C H) a step.

    Trained by any optimizer. With `torch.optim.SGD(lr, weight_decay=...)` it takes the very steps that
    `FactoredLinear` takes under `FactoredSGD`.

    >>> layer = DenseLinear(8, 1000)
    >>> layer(torch.randn(4, 8), torch.tensor([1, 2, 3, 4]))
    SphericalStats(target=(4,), num_classes=1000)
    """

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
        super().__init__()
        check_sizes(in_features, num_classes)
        check_flag("bias", bias)
        check_place(device, dtype, FLOATS)
        check_ignore_index(ignore_index)
        self.linear = nn.Linear(in_features, num_classes, bias=bias, device=device, dtype=dtype)
        self.ignore_index = ignore_index

    @property
    def in_features(self) -> int:
        """The width H of the hidden layer."""
        return self.linear.in_features

    @property
    def num_classes(self) -> int:
        """The number of classes, C."""
        return self.linear.out_features

    def forward(self, h: Tensor, target: Tensor | Targets) -> SphericalStats:
        check_hidden(h, self.in_features, self.linear.weight)
        check_same_device(h, target)
        logits = self.linear(in_dtype_of(self.linear.weight, h))
        return SphericalStats.from_logits(logits, target, ignore_index=self.ignore_index)

    def rows(self, ids: Tensor, *, with_bias: bool = False) -> Tensor:  # (...) -> (..., H)
        """Rows of W, differentiable: `W[ids]`; `with_bias=True` appends the bias of its class to each."""
        weight, bias = self.linear.weight, self.linear.bias
        check_flag("with_bias", with_bias)
        if with_bias and bias is None:
            raise ValueError(f"with_bias=True needs {type(self).__name__}(..., bias=True)")
        index = checked_row_ids(ids, weight)
        rows = weight[index]
        if with_bias:
            rows = torch.cat([rows, bias[index, None]], 1)
        return rows.reshape(*ids.shape, rows.shape[1])

    def weight(self) -> Tensor:  # (C, H)
        """A copy of the weight matrix W."""
        return self.linear.weight.detach().clone()

    def bias(self) -> Tensor | None:  # (C,)
        """A copy of the bias, or None."""
        return None if self.linear.bias is None else self.linear.bias.detach().clone()

    def to_linear(self) -> nn.Linear:
        """An independent `nn.Linear` with the same weights."""
        return _copy_of(self.linear)

    @classmethod
    def from_linear(cls, linear: nn.Linear, *, ignore_index: int = IGNORE_INDEX) -> Self:
        """A layer that starts from a copy of the weights of `linear`."""
        check_linear(linear)
        layer = cls(
            linear.in_features, linear.out_features, device="meta", ignore_index=ignore_index
        )
        layer.linear = _copy_of(linear)
        return layer

    def scores(self, h: Tensor) -> LinearScores:
        weight, bias = self.linear.weight, self.linear.bias
        check_hidden(h, self.in_features, weight)
        return LinearScores(h.to(weight.dtype), InMemory(weight), class_bias=bias)


def _copy_of(linear: nn.Linear) -> nn.Linear:
    weight, bias = linear.weight, linear.bias
    copy = nn.Linear(
        linear.in_features,
        linear.out_features,
        bias=bias is not None,
        device="meta",
        dtype=weight.dtype,
    )
    copy.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        copy.bias = nn.Parameter(bias.detach().clone())
    return copy
