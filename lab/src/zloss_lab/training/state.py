"""Conversion of the state of optimizers and random numbers to named tensors and to values for JSON."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with the prefix, by their names without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def split_states(
    optimizers: Sequence[Optimizer],
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Return the states of optimizers as tensors by name, and a table for JSON with the rest of each state."""
    tensors: dict[str, Tensor] = {}
    tables = []
    for number, optimizer in enumerate(optimizers):
        state = optimizer.state_dict()
        numbers: dict[str, Any] = {}
        for parameter, values in state["state"].items():
            for name, value in values.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{number}.{parameter}.{name}"] = value
                else:
                    numbers[f"{parameter}.{name}"] = value
        tables.append({"groups": state["param_groups"], "numbers": numbers})
    return tensors, tables


def restore_states(
    optimizers: Sequence[Optimizer], tensors: dict[str, Tensor], tables: list[dict[str, Any]]
) -> None:
    """Load the states that `split_states` returned into optimizers."""
    for number, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Any]] = {}
        values = with_prefix(tensors, f"optimizer.{number}.") | tables[number]["numbers"]
        for path, value in values.items():
            parameter, _, name = path.partition(".")
            state.setdefault(int(parameter), {})[name] = value
        optimizer.load_state_dict({"state": state, "param_groups": tables[number]["groups"]})


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the random number generators of torch."""
    states = {"cpu": torch.get_rng_state()}
    return states | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else states


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Set the states of the random number generators of torch."""
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
