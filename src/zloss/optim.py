"""SGD on factored layers and on row-sparse gradients, and clipping of all of them together."""

import math
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zloss import kernels
from zloss.layers import FactoredLinear
from zloss.layers.weight import GradientMark


class PlainSGD(Optimizer):
    """`parameter -= lr * gradient` in some form, group by group."""

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take the step of every gradient that is there. A factored layer uses its own up."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:  # all of them, before any parameter has changed
            _check_rates(group)
        for group in self.param_groups:
            for parameter in group["params"]:
                self._descend(parameter, group)
        return loss

    def _descend(self, parameter: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError


class FactoredSGD(PlainSGD):
    """Plain SGD on factored layers: exactly the steps of `torch.optim.SGD` on the dense weights they stand for.

    Use it beside an ordinary optimizer for the rest of the network. Learning-rate schedulers work as usual. Momentum
    and adaptive rates would need a dense gradient and do not exist here.

    Args:
        layers: a layer, several, or parameter groups `{"layers": [...], "lr": ...}`.
        lr: learning rate.
        weight_decay: L2 penalty, added to the gradient as `weight_decay * W`.

    >>> layer = zloss.FactoredLinear(8, 1000)
    >>> optimizer = FactoredSGD(layer, lr=0.5)
    >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    """

    def __init__(
        self,
        layers: FactoredLinear | Iterable[FactoredLinear] | Iterable[dict[str, Any]],
        lr: float,
        *,
        weight_decay: float = 0.0,
    ) -> None:
        self._layers: dict[Tensor, FactoredLinear] = {}
        groups: list[Any] = _listed(layers)
        if not groups:
            raise ValueError("FactoredSGD got no layers")
        if not isinstance(groups[0], dict):
            groups = [{"layers": groups}]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add layers, given as `{"layers": [...]}`, with options of their own."""
        if not isinstance(param_group, dict) or "layers" not in param_group or "params" in param_group:
            got = ", ".join(param_group) if isinstance(param_group, dict) else type(param_group).__name__
            raise ValueError(f'a group of FactoredSGD is {{"layers": [...]}} with options, got {got}')
        group = dict(param_group)
        layers = _listed(group.pop("layers"))
        for layer in layers:
            if not isinstance(layer, FactoredLinear):
                raise ValueError(
                    f"FactoredSGD trains FactoredLinear layers, got {type(layer).__name__}; "
                    "give other parameters to an ordinary optimizer; a head makes its own by head.sgd(lr)"
                )
        _check_rates(self.defaults | group)
        super().add_param_group(group | {"params": [layer.V for layer in layers]})
        self._layers |= {layer.V: layer for layer in layers}

    def _descend(self, parameter: Tensor, group: dict[str, Any]) -> None:
        self._layers[parameter].step_(float(group["lr"]), weight_decay=group["weight_decay"])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the recorded gradients."""
        for layer in self._layers.values():
            layer.zero_grad()

    def __getstate__(self) -> dict[str, Any]:
        # Torch names what a copy of an optimizer has; without its layers this one could not step.
        return super().__getstate__() | {"_layers": self._layers}


def _listed(layers: Any) -> list[Any]:
    return list(layers) if isinstance(layers, Iterable) else [layers]


class RowSGD(PlainSGD):
    """Plain SGD on parameters whose gradients may be row-sparse: `torch.optim.SGD(parameters, lr)`, made for them.

    A coalesced sparse gradient, like that of `HierarchicalSoftmax`, is added on a GPU in one pass over its rows, twice
    as fast as torch's own addition. One of float32 with repeated rows, like that of `nn.Embedding(sparse=True)`, takes
    one pass too, with the sums of such rows in no fixed order; not where torch is asked for deterministic algorithms.
    Others go torch's way.

    >>> head = zloss.HierarchicalSoftmax(8, 100)
    >>> optimizer = RowSGD(head.parameters(), lr=0.1)
    """

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float) -> None:
        _check_rates({"lr": lr})
        super().__init__(params, {"lr": lr})

    def _descend(self, parameter: Tensor, group: dict[str, Any]) -> None:
        if parameter.grad is not None:
            _subtract(parameter, parameter.grad, float(group["lr"]))


def _subtract(parameter: Tensor, grad: Tensor, lr: float) -> None:
    if grad.is_sparse and _suits_kernel(parameter, grad):
        rows, values = grad._indices()[0], grad._values()
        kernels.load("row_update").add_rows_(parameter, rows, values, -lr, repeated=not grad.is_coalesced())
    else:
        parameter.add_(grad, alpha=-lr)


def _suits_kernel(parameter: Tensor, grad: Tensor) -> bool:
    is_plain = parameter.dim() == 2 and parameter.is_contiguous() and parameter.dtype != torch.float64
    if not grad.is_coalesced():  # repeated rows are added by atomic additions
        is_plain &= parameter.dtype == torch.float32 and not torch.are_deterministic_algorithms_enabled()
    return is_plain and grad.sparse_dim() == 1 and parameter.device.type == "cuda" and kernels.available()


@torch.no_grad()
def clip_grad_norm_(
    params_and_layers: nn.Module | Tensor | Iterable[Tensor | nn.Module],
    max_norm: float,
    *,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Clip the gradients of ordinary parameters and of factored layers by their one common 2-norm.

    Does for a network with a factored layer what `torch.nn.utils.clip_grad_norm_` does for its dense twin: the norm of
    the factored gradient is that of the full C x H matrix.

    Args:
        params_and_layers: parameters and modules in any mix; a module stands for all that it contains.
        max_norm: the norm to clip to.
        error_if_nonfinite: raise when the norm is NaN or infinite, before anything is scaled.

    Returns:
        The norm before clipping.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be > 0, got {max_norm}")
    parameters, layers = _parameters_and_layers(params_and_layers)
    grads = [p.grad for p in parameters if p.grad is not None]
    device = grads[0].device if grads else layers[0].V.device if layers else torch.device("cpu")
    norms = [_entries(grad).norm(dtype=torch.float64) for grad in grads] + [layer.grad_norm() for layer in layers]
    norms = norms or [torch.zeros((), device=device)]
    total = torch.stack([norm.to(device).double() for norm in norms]).norm()
    if error_if_nonfinite and not total.isfinite():
        raise ValueError(f"the norm of the gradients is {total.item()}: nothing was clipped")
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factor.to(grad.device, grad.dtype))
    for layer in layers:
        layer.scale_grad_(factor.to(layer.U.device, layer.U.dtype))
    return total


def _entries(grad: Tensor) -> Tensor:
    """All entries of a gradient that may differ from zero, each once."""
    return grad.coalesce().values() if grad.is_sparse else grad


def _parameters_and_layers(given: Any) -> tuple[list[Tensor], list[FactoredLinear]]:
    parameters: dict[Tensor, None] = {}
    layers: dict[FactoredLinear, None] = {}
    for item in [given] if isinstance(given, Tensor | nn.Module) else given:
        if isinstance(item, nn.Module):
            parameters |= dict.fromkeys(item.parameters())
            layers |= {module: None for module in item.modules() if isinstance(module, FactoredLinear)}
        elif isinstance(item, Tensor):
            parameters[item] = None
        else:
            raise ValueError(f"expected parameters and modules, got {type(item).__name__}")
    marks = {layer.gradient_mark for layer in layers}  # which stand for gradients and are none
    if any(isinstance(p, GradientMark) and p.grad is not None and p not in marks for p in parameters):
        raise ValueError(
            "these are parameters of a FactoredLinear, whose gradient is no .grad: give the module itself, as in "
            "clip_grad_norm_(model, max_norm)"
        )
    return [parameter for parameter in parameters if parameter not in marks], list(layers)


def _check_rates(group: dict[str, Any]) -> None:
    for name in ("lr", "weight_decay"):
        value = group.get(name, 0.0)
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number >= 0, got {value}")
