"""Clipping of ordinary gradients and of factored layers together, by one common norm."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from zloss.inputs import as_float, check_flag, shown
from zloss.layers import FactoredLinear
from zloss.layers.factored import living_layers
from zloss.optim.groups import listed
from zloss.precision import finest_dtype


@torch.no_grad()
def clip_grad_norm_(
    params_and_layers: nn.Module | Tensor | Iterable[Tensor | nn.Module],
    max_norm: float,
    *,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Clip the gradients of ordinary parameters and of factored layers by their one common 2-norm.

        gradient = gradient * min(1, max_norm / norm of all gradients)

    It is `torch.nn.utils.clip_grad_norm_` for a network with a factored layer. The norm of a factored gradient is the
    norm of the full C x H matrix.

    Args:
        params_and_layers: parameters and modules in any mix; a module stands for all parameters and layers in it.
        max_norm: the norm to clip to.
        error_if_nonfinite: raise when the norm is NaN or infinite, before anything is scaled.

    Returns:
        The norm before clipping, a tensor of shape ().

    >>> network = nn.ModuleList([nn.Linear(5, 8), zloss.FactoredLinear(8, 1000)])
    >>> h = network[0](torch.randn(4, 5))
    >>> zloss.ZLoss(a=0.1, b=10)(network[1](h, torch.tensor([1, 2, 3, 4]))).backward()
    >>> norm = clip_grad_norm_(network, max_norm=0.1)
    >>> clip_grad_norm_(network, max_norm=0.1)                      # the norm is now 0.1
    tensor(0.1000, dtype=torch.float64)
    """
    largest = as_float(max_norm)
    if not largest > 0:  # infinity is fine, for the norm alone
        raise ValueError(f"max_norm must be a number > 0, got {shown(max_norm)}")
    check_flag("error_if_nonfinite", error_if_nonfinite)
    parameters, layers = _parameters_and_layers(params_and_layers)
    grads = [p.grad for p in parameters if p.grad is not None]
    device = grads[0].device if grads else layers[0].V.device if layers else torch.device("cpu")
    norms = [_entries(grad).norm(dtype=finest_dtype(grad.device)) for grad in grads]
    norms += [layer.grad_norm() for layer in layers]
    norms = norms or [torch.zeros((), device=device)]
    total: Tensor = torch.stack([norm.to(device, finest_dtype(device)) for norm in norms]).norm()
    if error_if_nonfinite and not total.isfinite():
        raise ValueError(f"the norm of the gradients is {total.item()}: nothing was clipped")
    factor = (largest / (total + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factor.to(grad.device, grad.dtype))
    for layer in layers:
        layer.scale_grad_(factor.to(layer.U.device, layer.U.dtype))
    return total


def _entries(grad: Tensor) -> Tensor:
    """Return all entries of a gradient that may differ from zero, each once."""
    return grad.coalesce().values() if grad.is_sparse else grad


def _parameters_and_layers(given: Any) -> tuple[list[Tensor], list[FactoredLinear]]:
    parameters: dict[Tensor, None] = {}
    layers: dict[FactoredLinear, None] = {}
    # `nn.Sequential` and other containers are modules that can be iterated over.
    for item in [given] if isinstance(given, nn.Module) else listed(given):
        if isinstance(item, nn.Module):
            parameters |= dict.fromkeys(item.parameters())
            layers |= {
                module: None for module in item.modules() if isinstance(module, FactoredLinear)
            }
        elif isinstance(item, Tensor):
            parameters[item] = None
        else:
            raise ValueError(
                f"params_and_layers must be parameters and modules, got {type(item).__name__}"
            )
    for layer in living_layers():
        if layer.pending.mark_has_norm and layer.gradient_mark in parameters:
            layers[layer] = None
        is_named = layer.V in parameters or layer.gradient_mark in parameters
        if is_named and layer not in layers and layer.recorded_gradient() is not None:
            raise ValueError(
                "these are parameters of a FactoredLinear, whose gradient is no .grad: give the module itself, as in "
                "clip_grad_norm_(model, max_norm) or clip_grad_norm_([trunk, layer], max_norm)"
            )
    # Parameters that only mark a recorded gradient, and have no gradient to clip.
    marks = {layer.gradient_mark for layer in layers}
    return [parameter for parameter in parameters if parameter not in marks], list(layers)
