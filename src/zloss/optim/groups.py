"""Checks of the parameter groups that an optimizer receives from a user or from a checkpoint."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from zloss.inputs import is_whole, shown

# Options that torch's schedulers keep in a group and need there when they resume, and a name for logs.
NOTES = frozenset({"initial_lr", "max_lr", "min_lr", "swa_lr", "name"})


def listed(given: Any) -> list[Any]:
    """Return several things as a list, and anything else as a list of it alone."""
    is_several = isinstance(given, Iterable) and not isinstance(given, str | bytes | Tensor | dict)
    return list(given) if is_several else [given]


def listed_groups(params: Any) -> list[dict[str, Any]]:
    """Return parameter groups as a list, and several parameters as one group."""
    groups = listed(params)
    if not groups or isinstance(params, Tensor):
        raise ValueError(
            f"params must be one or more parameters in a list, or groups of them, got {shown(params)}"
        )
    return groups if all(isinstance(group, dict) for group in groups) else [{"params": groups}]


def check_parameters(params: list[Any], others: set[Tensor]) -> None:
    """Refuse anything but parameters that are trained here only, each once. They may have names, as pairs."""
    unnamed = [pair[1] if isinstance(pair, tuple) and len(pair) == 2 else pair for pair in params]
    for parameter in unnamed:
        if not isinstance(parameter, Tensor) or not parameter.is_leaf:
            raise ValueError(
                f"params must be parameters, which are tensors without a history, got {shown(parameter)}"
            )
    if len(set(unnamed) | others) < len(unnamed) + len(others):
        raise ValueError("a parameter is here twice: each step would train it twice")


def saved_groups(state_dict: Any, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups of a state dict, or refuse a state dict of another optimizer."""
    saved: Any = state_dict.get("param_groups") if isinstance(state_dict, dict) else None
    are_groups = isinstance(saved, list) and all(isinstance(group, dict) for group in saved)
    if not are_groups or not isinstance(state_dict.get("state"), dict):
        raise ValueError(
            f"state_dict must be what state_dict() of an optimizer has returned, got {shown(state_dict)}"
        )
    sizes = [_length(group.get("params")) for group in saved]
    own = [len(group["params"]) for group in groups]
    if sizes != own:
        raise ValueError(
            f"state_dict has groups of {sizes} parameters, and this optimizer has groups of {own}"
        )
    return list(saved)


def _length(params: Any) -> int | None:
    are_numbers = isinstance(params, list) and all(is_whole(number) for number in params)
    return len(params) if are_numbers else None
