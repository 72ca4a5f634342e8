"""Learning rates that mean the same for every layer, width, number of classes and batch.

A loss such as the Z-loss does not change when all weights W are multiplied by a number. Then its gradient shrinks as W
grows, and a learning rate means something only relative to the size of W. A relative rate r stands for the rate

    lr = r * unit,        unit = |W| / |dL/dW|        (Frobenius norms, at the first step)

With r = 1, the first step changes W by a matrix as large as W. The unit is found once, so every step is plain SGD.
The section "The learning rate of the output layer" in docs/guides/loss-and-rates.md explains why that is enough.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from zloss.inputs import check_flag, check_number, shown
from zloss.layers import FactoredLinear
from zloss.layers.gradient import RecordedGradient
from zloss.layers.gradient_norm import norm_of
from zloss.layers.row_rule import without_rows
from zloss.streams import must_not_wait

# The relative rate where nothing else is said.
DEFAULT = 1.0
# The key of the unit in the state that an optimizer keeps for a parameter.
UNIT = "lr_unit"
# Of the terms that cancel where a loss does not see the scale of W. Rounding leaves 1e-5 of float32 terms, and the
# losses of this library that do see the scale leave 1e-1 and more.
_MOST_LEFT = 1e-3


def chosen(lr: float | None = None, relative_lr: float | None = None) -> dict[str, Any]:
    """Return the options of a parameter group for a rate. Schedulers change `lr`, whichever it is."""
    if lr is not None and relative_lr is not None:
        raise ValueError(
            f"give lr or relative_lr, not both, got {shown(lr)} and {shown(relative_lr)}"
        )
    if lr is not None:
        return {"lr": lr, "is_relative": False}
    relative_lr = DEFAULT if relative_lr is None else relative_lr
    check_number("relative_lr", relative_lr, least=0)
    return {"lr": relative_lr, "is_relative": True}


@torch.no_grad()
def unit_of(layer: FactoredLinear, *, counts_rows: bool = True) -> float | None:
    """Return the unit of relative rates for the recorded gradient of a layer, or None if that is zero or not finite.

    Looked-up rows that follow a rule of their own do not count. A loss that sees the scale of W is refused, unless
    there are looked-up rows: their part of the loss is not known here. On a GPU this waits for the device.
    """
    whole = layer.recorded_gradient()
    if whole is None:
        return None
    has_rows, has_batch = len(whole.h) > len(whole.curvature), bool(len(whole.curvature))
    grad = whole if counts_rows and has_batch else without_rows(whole)
    if must_not_wait():
        raise ValueError(
            "a captured step cannot find the unit of a relative learning rate, which has to wait for the device: take "
            "a step outside of the graph first, as CapturedStep does, or give FactoredSGD an absolute lr"
        )
    norm = norm_of(grad, layer.wbar, layer.num_classes)
    gradient, left = torch.stack([norm, _part_along(grad, layer.num_classes)]).tolist()
    if has_rows and not gradient:
        raise ValueError(
            "a relative learning rate needs a loss on the output of the layer, and the first gradient is of looked-up "
            "rows alone: give an absolute one, as in FactoredSGD(layer, lr=0.1)"
        )
    if not (math.isfinite(gradient) and gradient > 0):
        return None
    if not (has_rows or left <= _MOST_LEFT):
        raise ValueError(
            "a relative learning rate needs a loss that does not change when all activations are multiplied by a "
            "number, as ZLoss: this loss changes, so that no rate suits every scale of the weights. Give an absolute "
            "one, as in FactoredSGD(layer, lr=0.1), or head.sgd(lr=0.1)"
        )
    size = layer.gram.trace().clamp_min(0) + layer.num_classes * layer.wbar.square().sum()
    unit: float = size.sqrt().item() / gradient
    return unit


def check_saved(groups: Iterable[dict[str, Any]], states: Iterable[Any]) -> None:
    """Refuse groups and states of a state dict that no optimizer with relative rates has written."""
    for group in groups:
        check_flag("is_relative of a group in state_dict", group["is_relative"])
    for unit in (state[UNIT] for state in states if isinstance(state, dict) and UNIT in state):
        if not isinstance(unit, float) or not 0 < unit < math.inf:
            raise ValueError(f"{UNIT} in state_dict must be a number > 0, got {shown(unit)}")


def _part_along(grad: RecordedGradient, num_classes: int) -> Tensor:  # ()
    """Return the share of the gradient's parts along W that is left when they cancel: 0 for a loss without a scale."""
    rows, dtype = len(grad.batch), grad.mean.dtype
    along = torch.stack(
        [
            (grad.target_rows[:rows].to(dtype) * grad.batch.to(dtype)).sum(1),
            grad.curvature * (grad.hg.to(dtype) * grad.batch.to(dtype)).sum(1),
            num_classes * grad.mean_grad * grad.mean,
        ]
    )
    return along.sum(0).abs().sum() / along.abs().sum()
