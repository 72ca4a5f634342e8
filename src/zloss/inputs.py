"""Checks of the hidden batch that an output layer receives, and of the sizes that it is built with."""

import math
from numbers import Integral
from typing import Any

import torch
from torch import Tensor


def check_sizes(in_features: int, num_classes: int) -> None:
    """Refuse sizes that no layer can have."""
    # Whole numbers of numpy are fine, but not 1e6.
    are_whole = all(isinstance(size, Integral) for size in (in_features, num_classes))
    if not are_whole or in_features < 1 or num_classes < 2:
        raise ValueError(
            f"expected whole numbers in_features >= 1 and num_classes >= 2, got {in_features!r} and {num_classes!r}"
        )


def check_rates(lr: float, weight_decay: float) -> None:
    """Refuse a learning rate or a weight decay that is negative, infinite or NaN."""
    for name, value in (("lr", lr), ("weight_decay", weight_decay)):
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number >= 0, got {value}")


def check_hidden(h: Tensor, in_features: int, weight: Tensor) -> None:
    """Refuse a hidden batch of the wrong kind, shape, device or dtype for a layer with this weight."""
    if not isinstance(h, Tensor) or not h.is_floating_point():
        got = f"dtype {h.dtype}" if isinstance(h, Tensor) else type(h).__name__
        raise ValueError(
            f"h must be a floating-point tensor of shape (B, {in_features}), got {got}"
        )
    if h.dim() != 2 or h.shape[1] != in_features:
        hint = (
            "; flatten leading dimensions first, and those of the target with them"
            if h.dim() > 2
            else ""
        )
        raise ValueError(f"h must have shape (B, {in_features}), got {tuple(h.shape)}{hint}")
    if h.device != weight.device:
        raise ValueError(f"h is on {h.device} but the layer is on {weight.device}")
    if torch.promote_types(h.dtype, weight.dtype) != weight.dtype:
        raise ValueError(
            f"h has dtype {h.dtype} but the layer holds {weight.dtype}: convert one of them"
        )


def check_same_device(h: Tensor, target: Any) -> None:
    """Refuse targets on another device."""
    if isinstance(target, Tensor) and target.device != h.device:
        raise ValueError(f"h and target must be on one device, got {h.device} and {target.device}")


def with_bias_column(h: Tensor, width: int) -> Tensor:
    """Return `h`, with a column of ones where the layer has one more column than `h`: its bias."""
    return h if h.shape[1] == width else torch.cat([h, h.new_ones(len(h), 1)], 1)
