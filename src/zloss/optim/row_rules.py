"""The options and the state of the rule that looked-up rows follow under `FactoredSGD`.

`zloss.layers.row_rule` has the rule itself. Its state is one number per class. It belongs to the optimizer, which
saves it with its own state.
"""

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from zloss.inputs import check_number, shown
from zloss.layers.row_rule import RowAdagrad

ROW_OPTIONS = ("row_lr", "row_eps")
_SQUARES = "row_squares"  # in the state of a layer


def check_row_options(group: dict[str, Any]) -> None:
    """Refuse rates that the rule cannot have."""
    if group["row_lr"] is None:
        return
    check_number("row_lr", group["row_lr"], least=0)
    check_number("row_eps", group["row_eps"], above=0)
    if not (first := group.get("first_lr", group["lr"])) > 0:
        raise ValueError(
            f"row_lr belongs to the lr that the group starts with, which must be > 0 then, got lr={shown(first)}"
        )


def row_rule(
    V: Tensor, state: MutableMapping[Tensor, dict[str, Any]], group: dict[str, Any], unit: float
) -> RowAdagrad | None:
    """Return the rule for a step of the layer with the rows V, or None for plain SGD. It makes its state at first.

    The learning rate of the step is `unit` times the lr of the group, and a unit of 0 is of a step without a gradient.
    """
    if group["row_lr"] is None or unit == 0:
        return None
    squares = state[V].get(_SQUARES)
    if squares is None:
        squares = torch.zeros(len(V), dtype=V.dtype, device=V.device)
    state[V][_SQUARES] = squares = squares.to(V.device, V.dtype)  # the layer may have moved
    ratio = float(group["row_lr"]) / (float(group["first_lr"]) * unit)
    return RowAdagrad(squares, ratio=ratio, eps=float(group["row_eps"]))


def check_saved_squares(
    saved: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]], state: dict[Any, Any]
) -> None:
    """Refuse the state of another layer. `saved` has numbers where `groups` has the layers."""
    numbers = (number for group in saved for number in group["params"])
    layers = (V for group in groups for V in group["params"])
    for number, V in zip(numbers, layers, strict=True):
        squares = state.get(number, {}).get(_SQUARES)
        if squares is not None and getattr(squares, "shape", None) != V.shape[:1]:
            raise ValueError(
                f"state_dict has {_SQUARES} of another layer: expected one number for each of {len(V)} classes, got "
                f"{shown(squares)}"
            )


def adopt_row_options(group: dict[str, Any], own: dict[str, Any]) -> None:
    """Keep the own options where a state dict of plain SGD has none."""
    for name in (*ROW_OPTIONS, "first_lr"):
        group.setdefault(name, own[name])
