"""The reduction of one loss per example: row weights, ignored rows, and "none", "mean" or "sum"."""

from typing import Literal, get_args

import torch
from torch import Tensor

from zloss.inputs import REALS, check_choice, fault_of_tensor

Reduction = Literal["none", "mean", "sum"]


def check_reduction(reduction: str) -> None:
    """Refuse an unknown reduction."""
    check_choice("reduction", reduction, get_args(Reduction))


def reduce_loss(
    per_example: Tensor,  # (B,), 0 on ignored rows
    counted: Tensor,  # (B,) bool
    reduction: Reduction,
    weight: Tensor | None = None,  # (B,)
) -> Tensor:
    """Multiply the losses by the row weights, and return their mean, their sum, or the losses themselves.

    `mean` divides by the number of rows that are not ignored. It does not divide by the sum of the weights. A batch in
    which every row is ignored has the mean 0.
    """
    if weight is not None:
        if fault := fault_of_tensor(weight, REALS):
            raise ValueError(f"weight must be a tensor of real numbers, got {fault}")
        if weight.shape != per_example.shape:
            raise ValueError(
                f"weight must have one entry per example, {tuple(per_example.shape)}, got {tuple(weight.shape)}"
            )
        if weight.device != per_example.device:
            raise ValueError(f"weight must be on {per_example.device}, got {weight.device}")
        per_example = torch.where(counted, per_example * weight, 0)
    if reduction == "none":
        return per_example
    total = per_example.sum()
    return total if reduction == "sum" else total / counted.sum().clamp_min(1)
