"""One optimizer for a whole model: an ordinary one for the trunk, and plain SGD for the output layers.

A training loop, a `Trainer` or a scheduler that knows one optimizer sees a `torch.optim.Optimizer`. Inside are several.
They share their parameter groups and their state with the one outside, as the same objects.

    Optimizer                 param_groups: all groups          state: one mapping
      trunk                   an optimizer of torch for the parameters of all other layers
      heads                   plain SGD for each head with row-sparse gradients
      FactoredSGD             for every FactoredLinear; its groups hold V and the mark of each layer

The marks have the norms of the factored gradients. So whatever clips, unscales or zeroes the gradients of all groups
reaches these as well: see `zloss.layers.mark`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, overload, runtime_checkable

import torch
from torch import Tensor, nn

from zloss.inputs import check_callable, check_flag, check_mapping, check_rates, shown
from zloss.layers import FactoredLinear
from zloss.layers.factored import living_layers
from zloss.optim.groups import check_parameters, listed, saved_groups
from zloss.optim.sgd import FactoredSGD, PlainSGD


@runtime_checkable
class RowSparse(Protocol):
    """A head that may have row-sparse gradients, and then makes its own optimizer."""

    is_row_sparse: bool

    def parameters(self) -> Iterable[Tensor]:
        """Return all parameters."""

    def sgd(self, lr: float, *, weight_decay: float = 0.0) -> torch.optim.Optimizer:
        """Return plain SGD for all parameters."""


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
        groups = self.param_groups
        held = {parameter for group in groups for parameter in group["params"]}
        for layer in self.layers:  # all of them, before any layer has moved
            if layer.gradient_mark not in held:
                raise ValueError(
                    "a FactoredLinear has other parameters than when this optimizer was made, as after "
                    "load_state_dict(..., assign=True): make the optimizer anew"
                )
            layer.recorded_gradient()  # refuses a mark that was not changed by one factor
        without_marks = [[p for p in group["params"] if p in self._layers] for group in groups]
        self.param_groups = [
            group | {"params": weights}
            for group, weights in zip(groups, without_marks, strict=True)
        ]
        try:
            super()._descend_all()
        finally:
            self.param_groups = groups


class Optimizer(torch.optim.Optimizer):
    """One optimizer for a model with factored layers: any optimizer for the trunk, and exact SGD for the output.

    It is a `torch.optim.Optimizer` like any other. Schedulers, `GradScaler`, `torch.nn.utils.clip_grad_norm_`,
    checkpoints, Lightning, the `Trainer` of transformers and Accelerate need no special lines. Clipping takes the one
    norm of all gradients, with that of the whole C x H matrix.

    Each `FactoredLinear` in the model gets `FactoredSGD`. Each head with row-sparse gradients gets its own plain SGD.
    The trunk is everything else. A loop over `param_groups` finds the groups of the trunk first.

    Args:
        model: the model, or several modules.
        trunk: an optimizer class of `torch.optim`, or a function that makes an optimizer from a list of parameters.
        output_lr: the learning rate of the output layers.
        output_weight_decay: the weight decay of the output layers.
        options: for the optimizer of the trunk, such as `lr` and `weight_decay`.

    >>> model = nn.Sequential(nn.Linear(5, 8), zloss.FactoredLinear(8, 1000))
    >>> optimizer = Optimizer(model, torch.optim.AdamW, lr=1e-3, weight_decay=0.1, output_lr=50.0)
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
    >>> optimizer = Optimizer(model, trunk, output_lr=50.0)
    """

    def __init__(
        self,
        model: nn.Module | Iterable[nn.Module],
        trunk: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        *,
        output_lr: float | None = None,
        output_weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        check_callable("trunk", trunk)
        models = _checked_models(model)
        modules = {module: None for one in models for module in one.modules()}
        layers = [module for module in modules if isinstance(module, FactoredLinear)]
        heads = [one for one in modules if isinstance(one, RowSparse) and one.is_row_sparse]
        own = {p for one in (*layers, *heads) for p in one.parameters()}
        named: dict[Tensor, str] = {
            p: name for one in models for name, p in one.named_parameters() if p not in own
        }
        _check_output_lr(output_lr, output_weight_decay, has_outputs=bool(own))
        # In the order of their groups. Steps are taken in the opposite order.
        self._optimizers: list[torch.optim.Optimizer] = []
        if named:
            self._optimizers.append(_checked_trunk(trunk(list(named), **options), named))
        output: dict[str, Any] = {"weight_decay": output_weight_decay}
        output |= {} if output_lr is None else {"lr": output_lr}
        self._optimizers += [head.sgd(**output) for head in heads]
        self._optimizers += [MarkedSGD(layers, **output)] if layers else []
        self._has_trunk = bool(named)
        self._owners: list[int] = []  # of each group: the number of its optimizer
        super().__init__([g for inner in self._optimizers for g in inner.param_groups], {})
        self._share()

    @property
    def layers(self) -> list[FactoredLinear]:
        """The factored layers that this optimizer trains."""
        last = self._optimizers[-1]
        return last.layers if isinstance(last, FactoredSGD) else []

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
        check_flag("set_to_none", set_to_none)
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
        if "layers" not in param_group:
            given = param_group.get("params", [])
            params = [given] if isinstance(given, Tensor) else listed(given)
            self._check_new(params)
            param_group = {**param_group, "params": params}
        number = self._number_for(param_group)
        inner = self._optimizers[number]
        inner.add_param_group(param_group)
        self.param_groups.append(inner.param_groups[-1])
        self._owners.append(number)

    def _check_new(self, params: list[Any]) -> None:
        unnamed = {p for entry in params for p in listed(entry) if isinstance(p, Tensor)}
        if any(not unnamed.isdisjoint(layer.parameters()) for layer in living_layers()):
            raise ValueError(
                'these are parameters of a FactoredLinear: add the layer itself, {"layers": [layer]}'
            )
        check_parameters(params, {p for group in self.param_groups for p in group["params"]})

    def _number_for(self, param_group: dict[str, Any]) -> int:
        """Return the number of the optimizer that a new group belongs to."""
        if "layers" in param_group and isinstance(self._optimizers[-1], FactoredSGD):
            return len(self._optimizers) - 1
        if "layers" not in param_group and self._has_trunk:
            return 0
        what = "factored layers" if "layers" in param_group else "parameters of a trunk"
        raise ValueError(f"the model had no {what} yet: make a new zloss.Optimizer")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the options and the state of a `zloss.Optimizer` for such a model.

        Options of the trunk that are missing stay as they are: optimizers of a newer torch may have more of them.
        """
        for prepare in self._optimizer_load_state_dict_pre_hooks.values():
            own = dict(state_dict)
            state_dict = prepare(self, own) or own
        saved = saved_groups(state_dict, self.param_groups)
        try:
            for number in reversed(range(len(self._optimizers))):
                self._load_part(number, saved, state_dict["state"])
        except Exception:
            self._share()  # as it was
            raise
        states = [inner.state for inner in self._optimizers]
        self.state = defaultdict(dict, {p: state for one in states for p, state in one.items()})
        parts = [iter(inner.param_groups) for inner in self._optimizers]
        self.param_groups = [next(parts[number]) for number in self._owners]
        self._share()
        for conclude in self._optimizer_load_state_dict_post_hooks.values():
            conclude(self)

    def _load_part(self, number: int, saved: list[Any], state: Mapping[Any, Any]) -> None:
        """Load what a state dict has for one of the optimizers inside."""
        inner, groups = self._optimizers[number], []
        for group, own, owner in zip(saved, self.param_groups, self._owners, strict=True):
            if owner == number:
                kept = () if isinstance(inner, PlainSGD) else own.keys() & inner.defaults.keys()
                groups.append({name: own[name] for name in kept} | group)
        numbers = [one for group in groups for one in group["params"]]
        part = {one: state[one] for one in numbers if one in state}
        inner.load_state_dict({"state": part, "param_groups": groups})

    def _share(self) -> None:
        """Give the optimizers inside the groups and the state of this one."""
        for number, inner in enumerate(self._optimizers):
            owned = zip(self.param_groups, self._owners, strict=True)
            groups = [group for group, owner in owned if owner == number]
            inner.__setstate__({"state": self.state, "param_groups": groups})

    def __getstate__(self) -> dict[str, Any]:
        # Torch copies named attributes only.
        own = ("_optimizers", "_owners", "_has_trunk")
        return super().__getstate__() | {name: vars(self)[name] for name in own}

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


def _check_output_lr(lr: float | None, weight_decay: float, *, has_outputs: bool) -> None:
    if not has_outputs and (lr is not None or weight_decay != 0):
        raise ValueError(
            "output_lr and output_weight_decay are for FactoredLinear layers and for heads with row-sparse gradients, "
            "and the model has none: leave them out"
        )
    if has_outputs and lr is None:
        raise ValueError("output_lr is missing: the learning rate of the output layers, plain SGD")
    if lr is not None:
        check_rates(lr, weight_decay)


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
