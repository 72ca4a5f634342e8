"""One optimizer for a whole model: an ordinary one for the trunk, and plain SGD for the output layers.

A training loop, a `Trainer` or a scheduler that knows one optimizer sees a `torch.optim.Optimizer`. Inside are several.
They share their parameter groups and their state with the one outside, as the same objects.

    Optimizer                 param_groups: all groups          state: one mapping
      trunk                   an optimizer of torch for the parameters of all other layers
      heads                   for each head with row-sparse gradients, the optimizer that suits it
      FactoredSGD             for every FactoredLinear; its groups hold V and the mark of each layer

The marks have the norms of the factored gradients. So whatever clips, unscales or zeroes the gradients of all groups
reaches these as well: see `zloss.layers.mark`.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, overload, runtime_checkable

import torch
from torch import Tensor, nn

from zloss.inputs import check_callable, check_mapping, check_rates, shown
from zloss.layers import FactoredLinear
from zloss.layers.factored import living_layers
from zloss.layers.mark import GradientMark
from zloss.optim.groups import listed, saved_groups
from zloss.optim.sgd import FactoredSGD, check_saved_state


@runtime_checkable
class RowSparse(Protocol):
    """A head that may have row-sparse gradients, and then makes its own optimizer."""

    is_row_sparse: bool

    def optimizer(
        self, *, lr: float | None = None, weight_decay: float = 0.0
    ) -> torch.optim.Optimizer:
        """Return the optimizer that suits the head, for all parameters."""


class MarkedSGD(FactoredSGD):
    """`FactoredSGD` whose groups hold the marks of the layers too, and whose marks have the norms of the gradients."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add layers, given as `{"layers": [...]}`, with options of their own."""
        super().add_param_group(param_group)
        params = self.param_groups[-1]["params"]
        params += [self._layers[weight].gradient_mark for weight in params]

    def _attach(self, layers: Iterable[FactoredLinear]) -> None:
        for layer in layers:
            layer.attach(self, mark_has_norm=True)

    def _descend_all(self) -> None:
        held = {parameter for group in self.param_groups for parameter in group["params"]}
        for layer in self.layers:  # all of them, before any layer has moved
            if layer.gradient_mark not in held:
                raise ValueError(
                    "a FactoredLinear has other parameters than when this optimizer was made, as after "
                    "load_state_dict(..., assign=True): make the optimizer anew"
                )
            layer.recorded_gradient()  # refuses a mark that was not changed by one factor
        super()._descend_all()

    def _descend(self, parameter: Tensor, group: dict[str, Any]) -> None:
        if not isinstance(parameter, GradientMark):
            super()._descend(parameter, group)


class Optimizer(torch.optim.Optimizer):
    """One optimizer for a model with factored layers: any optimizer for the trunk, and exact SGD for the output.

    It is a `torch.optim.Optimizer` like any other. Schedulers, `GradScaler`, `torch.nn.utils.clip_grad_norm_`,
    checkpoints, Lightning, the `Trainer` of transformers and Accelerate need no special lines. Clipping takes the one
    norm of all gradients, with that of the whole C x H matrix.

    Each `FactoredLinear` in the model gets `FactoredSGD`. Each head with row-sparse gradients makes its optimizer, by
    `head.optimizer()`. The trunk is everything else. A loop over `param_groups` finds the groups of the trunk first.

    Args:
        model: the model, or several modules.
        trunk: an optimizer class of `torch.optim`, or a function that makes an optimizer from a list of parameters.
        output_lr: the learning rate of the output layers. Without it, they have their own defaults.
        output_relative_lr: `relative_lr` of `FactoredSGD`, in the place of `output_lr`.
        output_weight_decay: the weight decay of the output layers.
        output_row_lr: `row_lr` of `FactoredSGD`, for rows that the network looks up.
        options: for the optimizer of the trunk, such as `lr` and `weight_decay`.

    >>> model = nn.Sequential(nn.Linear(5, 8), zloss.FactoredLinear(8, 1000))
    >>> optimizer = Optimizer(model, torch.optim.AdamW, lr=1e-3, weight_decay=0.1)
    >>> scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    >>> loss = zloss.ZLoss(a=0.1, b=10)(model[1](model[0](torch.randn(4, 5)), torch.tensor([1, 2, 3, 4])))
    >>> loss.backward()
    >>> norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    >>> optimizer.step()
    >>> scheduler.step()
    >>> optimizer.zero_grad()

    A function can divide the trunk into groups:

    >>> def trunk(parameters):
    ...     groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1}]
    ...     groups += [{"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0}]
    ...     return torch.optim.AdamW(groups, lr=1e-3)
    >>> optimizer = Optimizer(model, trunk)
    """

    def __init__(
        self,
        model: nn.Module | Iterable[nn.Module],
        trunk: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        *,
        output_lr: float | None = None,
        output_relative_lr: float | None = None,
        output_weight_decay: float = 0.0,
        output_row_lr: float | None = None,
        **options: Any,
    ) -> None:
        check_callable("trunk", trunk)
        models = _checked_models(model)
        modules = {module: None for one in models for module in one.modules()}
        layers = [module for module in modules if isinstance(module, FactoredLinear)]
        heads = [one for one in modules if isinstance(one, RowSparse) and one.is_row_sparse]
        own = {p for output in (*layers, *heads) for p in output.parameters()}
        named = {p: name for one in models for name, p in one.named_parameters() if p not in own}
        factored = {"relative_lr": output_relative_lr, "row_lr": output_row_lr}
        rates = {"lr": output_lr, "weight_decay": output_weight_decay}
        _check_outputs(rates | factored, has_layers=bool(layers), has_outputs=bool(own))
        # In the order of their groups. Steps are taken in the opposite order.
        self._optimizers: list[torch.optim.Optimizer] = []
        if named:
            self._optimizers.append(_checked_trunk(trunk(list(named), **options), named))
        self._optimizers += [head.optimizer(**rates) for head in heads]
        if layers:
            self._optimizers.append(MarkedSGD(layers, **rates, **factored))
        self._owners: list[int] = []  # of each group: the number of its optimizer
        super().__init__([g for inner in self._optimizers for g in inner.param_groups], {})
        self._share()

    @property
    def layers(self) -> list[FactoredLinear]:
        """The factored layers that this optimizer trains."""
        return [layer for inner in self._of_layers() for layer in inner.layers]

    @property
    def units(self) -> list[float | None]:
        """The units of the relative rates of all layers: see `FactoredSGD.units`."""
        return [unit for inner in self._of_layers() for unit in inner.units]

    def _of_layers(self) -> list[FactoredSGD]:
        return [inner for inner in self._optimizers if isinstance(inner, FactoredSGD)]

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take a step with every gradient that exists. The output layers come first: they may refuse a step."""
        check_callable("closure", closure, or_none=True)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for inner in reversed(self._optimizers):
            inner.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients."""
        super().zero_grad(set_to_none)
        for layer in self.layers:
            layer.zero_grad()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add `{"params": [...]}` to the trunk, or `{"layers": [...]}` to the output, with options of their own."""
        check_mapping("param_group", param_group)
        for number, inner in enumerate(self._optimizers):
            if any(param_group is own for own in inner.param_groups):  # from the constructor
                self.param_groups.append(param_group)
                self._owners.append(number)
                return
        number = self._number_for(param_group)
        inner = self._optimizers[number]
        inner.add_param_group(param_group)
        self.param_groups.append(inner.param_groups[-1])
        self._owners.append(number)

    def _number_for(self, param_group: dict[str, Any]) -> int:
        """Return the number of the optimizer that a new group belongs to."""
        has_layers = "layers" in param_group
        given = param_group.get("params", [])
        params = set() if has_layers else {p for p in listed(given) if isinstance(p, Tensor)}
        if any(not params.isdisjoint(layer.parameters()) for layer in living_layers()):
            raise ValueError(
                'these are parameters of a FactoredLinear: add the layer itself, {"layers": [layer]}'
            )
        if any(not params.isdisjoint(group["params"]) for group in self.param_groups):
            raise ValueError("a parameter is here twice: each step would train it twice")
        for number, inner in enumerate(self._optimizers):
            is_output = isinstance(inner, FactoredSGD)
            if is_output if has_layers else number == 0 and not is_output:
                return number
        what = "factored layers" if has_layers else "parameters of a trunk"
        raise ValueError(f"the model had no {what} yet: make a new zloss.Optimizer")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the options and the state of a `zloss.Optimizer` for such a model."""
        saved = saved_groups(state_dict, self.param_groups)
        for group in saved:
            check_rates(group.get("lr"), group.get("weight_decay", 0.0))
        check_saved_state(saved, self.param_groups, state_dict["state"])
        super().load_state_dict(state_dict)

    def _share(self) -> None:
        """Give the optimizers inside the groups and the state of this one."""
        for number, inner in enumerate(self._optimizers):
            owned = zip(self.param_groups, self._owners, strict=True)
            groups = [group for group, owner in owned if owner == number]
            inner.__setstate__({"state": self.state, "param_groups": groups})

    def __getstate__(self) -> dict[str, Any]:
        # Torch copies named attributes only.
        own = {"_optimizers": self._optimizers, "_owners": self._owners}
        return super().__getstate__() | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()


def _checked_models(model: Any) -> list[nn.Module]:
    models = [model] if isinstance(model, nn.Module) else listed(model)
    if not models or not all(isinstance(one, nn.Module) for one in models):
        raise ValueError(
            f"model must be a module or several, got {shown(model)}: parameters alone do not show which of them are "
            "those of an output layer"
        )
    return models


def _check_outputs(rates: dict[str, Any], *, has_layers: bool, has_outputs: bool) -> None:
    """Refuse rates of output layers that the model does not have."""
    given = {name for name, value in rates.items() if value not in (None, 0.0)}
    if given and not has_outputs:
        raise ValueError(
            f"the model has no FactoredLinear layer and no head with row-sparse gradients: leave out {_names_of(given)}"
        )
    if (lost := given & {"relative_lr", "row_lr"}) and not has_layers:
        raise ValueError(f"the model has no FactoredLinear layer: leave out {_names_of(lost)}")


def _names_of(rates: set[str]) -> str:
    return " and ".join(f"output_{name}" for name in sorted(rates))


def _checked_trunk(trunk: Any, named: dict[Tensor, str]) -> torch.optim.Optimizer:
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
