"""What a checkpoint has beside the weights, as tensors by name and what JSON can hold."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names start so, under the rest of their names."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def split_state(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimizer as tensors by name, and the rest for JSON."""
    state = optimizer.state_dict()
    flat = {
        f"{number}.{name}": value
        for number, values in state["state"].items()
        for name, value in values.items()
    }
    tensors = {path: value for path, value in flat.items() if isinstance(value, Tensor)}
    numbers = {path: value for path, value in flat.items() if path not in tensors}
    return tensors, {"groups": state["param_groups"], "numbers": numbers}


def joined_state(tensors: dict[str, Tensor], rest: dict[str, Any]) -> dict[str, Any]:
    """What `split_state` took apart."""
    state: dict[int, dict[str, Any]] = {}
    for path, value in (tensors | rest["numbers"]).items():
        number, _, name = path.partition(".")
        state.setdefault(int(number), {})[name] = value
    return {"state": state, "param_groups": rest["groups"]}


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's random numbers."""
    states = {"cpu": torch.get_rng_state()}
    return states | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else states


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Go on with these random numbers."""
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
