"""Checks of what an optimizer for a whole model is made of."""

from typing import Any

import torch
from torch import Tensor, nn

from zloss.inputs import shown
from zloss.optim.groups import listed


def checked_models(model: Any) -> list[nn.Module]:
    """Return several modules as a list, and one as a list of it alone, or refuse anything else."""
    models = [model] if isinstance(model, nn.Module) else listed(model)
    if not models or not all(isinstance(one, nn.Module) for one in models):
        raise ValueError(
            f"model must be a module or several, got {shown(model)}: parameters alone do not show which of them are "
            "those of an output layer"
        )
    return models


def check_outputs(rates: dict[str, Any], *, has_layers: bool, has_outputs: bool) -> None:
    """Refuse rates of output layers that the model does not have."""
    given = {name for name, value in rates.items() if not _is_left_out(value)}
    if given and not has_outputs:
        raise ValueError(
            f"the model has no FactoredLinear layer and no head with row-sparse gradients: leave out {_names_of(given)}"
        )
    if (lost := given & {"relative_lr", "row_lr"}) and not has_layers:
        raise ValueError(f"the model has no FactoredLinear layer: leave out {_names_of(lost)}")


def _is_left_out(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and value == 0)


def _names_of(rates: set[str]) -> str:
    return " and ".join(f"output_{name}" for name in sorted(rates))


def checked_trunk(trunk: Any, named: dict[Tensor, str]) -> torch.optim.Optimizer:
    """Return the optimizer of the trunk, or refuse one that cannot train exactly these parameters."""
    if not isinstance(trunk, torch.optim.Optimizer):
        raise ValueError(f"trunk must make an optimizer of torch, but made {shown(trunk)}")
    if isinstance(trunk, torch.optim.LBFGS):
        raise ValueError("LBFGS takes several looks at a step, and the output layers take one")
    held = {parameter for group in trunk.param_groups for parameter in group["params"]}
    if strangers := held.difference(named):
        raise ValueError(
            f"trunk must make an optimizer of the parameters that it is given, but {len(strangers)} others are in it"
        )
    missing = [name for p, name in named.items() if p.requires_grad and p not in held]
    if missing:
        raise ValueError(
            f"trunk has left out {', '.join(missing)}, which would never move: give them to its optimizer, or freeze "
            "them by requires_grad_(False)"
        )
    return trunk
