"""Conversion of the state of optimizers and random numbers to named tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adagrad, Adam, Optimizer, SparseAdam

import zloss

# What the optimizers with a state hold for each parameter, once it has had a gradient.
_OF_ADAM = ("step", "exp_avg", "exp_avg_sq")
_UNIT = "lr_unit"  # of a relative rate
_STATES: dict[type[Optimizer], tuple[str, ...]] = {
    Adagrad: ("step", "sum"),
    Adam: _OF_ADAM,
    SparseAdam: _OF_ADAM,
    zloss.FactoredSGD: (_UNIT,),
    zloss.RowAdam: _OF_ADAM,
}
_OF_ONE_NUMBER = ("step", _UNIT)


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with the prefix, by their names without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def tensors_of(optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Return the states of optimizers as tensors by name. Numbers become tensors of one number.

    Parameter groups are left out: they follow from the config and from the schedule.
    """
    return {
        f"optimizer.{number}.{parameter}.{name}": _as_tensor(value)
        for number, optimizer in enumerate(optimizers)
        for parameter, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }


def _as_tensor(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


def restore_optimizers(optimizers: Sequence[Optimizer], tensors: dict[str, Tensor]) -> None:
    """Load the states that `tensors_of` returned into new optimizers. `ValueError` for states of other optimizers."""
    for number, optimizer in enumerate(optimizers):
        whole = optimizer.state_dict()
        own = with_prefix(tensors, f"optimizer.{number}.")
        shapes = [tuple(one.shape) for group in optimizer.param_groups for one in group["params"]]
        names = _STATES.get(type(optimizer), ())
        # A parameter that had no gradient yet, such as a cluster that no target was in, has no state.
        places = [place for place in range(len(shapes)) if with_prefix(own, f"{place}.")]
        wanted = {f"{place}.{name}": (place, name) for place in places for name in names}
        if own.keys() != wanted.keys():
            differing = ", ".join(sorted(own.keys() ^ wanted.keys()))
            raise ValueError(f"the state of optimizer {number} has other parts: {differing}")
        state: dict[int, dict[str, Any]] = {}
        for path, (place, name) in wanted.items():
            value = own[path]
            if tuple(value.shape) != (() if name in _OF_ONE_NUMBER else shapes[place]):
                raise ValueError(f"optimizer.{number}.{path} has the shape {tuple(value.shape)}")
            is_number = not value.is_floating_point() or name == _UNIT
            state.setdefault(place, {})[name] = value.item() if is_number else value
        optimizer.load_state_dict({**whole, "state": state})


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the random number generators of torch."""
    states = {"cpu": torch.get_rng_state()}
    return states | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else states


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Set the states of the random number generators of torch."""
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)
