"""From one loss per example to what training wants: row weights, ignored rows, none/mean/sum."""

from typing import Literal, get_args

import torch
from torch import Tensor

Reduction = Literal["none", "mean", "sum"]


def check_reduction(reduction: str) -> None:
    """Refuse a reduction that does not exist."""
    if reduction not in get_args(Reduction):
        raise ValueError(
            f"reduction must be one of {', '.join(get_args(Reduction))}, got {reduction!r}"
        )


def reduce_loss(
    per_example: Tensor,  # (B,), 0 on ignored rows
    counted: Tensor,  # (B,) bool
    reduction: Reduction,
    weight: Tensor | None = None,  # (B,)
) -> Tensor:
    """Multiply by the row weights, then reduce.

    `mean` divides by the number of rows that are not ignored, whatever their weights; a batch in which every row is
    ignored has the mean 0.
    """
    if weight is not None:
        if not isinstance(weight, Tensor):
            raise ValueError(f"weight must be a tensor, got {type(weight).__name__}")
        if weight.shape != per_example.shape:
            raise ValueError(
                f"weight must have one entry per example, {tuple(per_example.shape)}, got {tuple(weight.shape)}"
            )
        per_example = torch.where(counted, per_example * weight, 0)
    if reduction == "none":
        return per_example
    total = per_example.sum()
    return total if reduction == "sum" else total / counted.sum().clamp_min(1)
