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

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, overload, runtime_checkable

import torch
from torch import Tensor, nn

from zloss.inputs import check_callable, check_flag, check_mapping
from zloss.layers import FactoredLinear
from zloss.layers.factored import living_layers
from zloss.optim.checked_optimizer import CheckedOptimizer
from zloss.optim.groups import check_parameters, listed, saved_groups
from zloss.optim.sgd import FactoredSGD
from zloss.optim.whole_arguments import check_outputs, checked_models, checked_trunk


@runtime_checkable
class RowSparse(Protocol):
    """A head that may have row-sparse gradients, and then makes its own optimizer."""

    is_row_sparse: bool

    def parameters(self) -> Iterable[Tensor]:
        """Return all parameters."""

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
        models = checked_models(model)
        modules = {module: None for one in models for module in one.modules()}
        layers = [module for module in modules if isinstance(module, FactoredLinear)]
        heads = [one for one in modules if isinstance(one, RowSparse) and one.is_row_sparse]
        own = {p for one in (*layers, *heads) for p in one.parameters()}
        named: dict[Tensor, str] = {
            p: name for one in models for name, p in one.named_parameters() if p not in own
        }
        rates: dict[str, Any] = {"lr": output_lr, "weight_decay": output_weight_decay}
        factored: dict[str, Any] = {"relative_lr": output_relative_lr, "row_lr": output_row_lr}
        check_outputs(rates | factored, has_layers=bool(layers), has_outputs=bool(own))
        # In the order of their groups. Steps are taken in the opposite order.
        self._optimizers: list[torch.optim.Optimizer] = []
        if named:
            self._optimizers.append(checked_trunk(trunk(list(named), **options), named))
        self._optimizers += [head.optimizer(**rates) for head in heads]
        if layers:
            self._optimizers.append(MarkedSGD(layers, **rates, **factored))
        self._has_trunk = bool(named)
        self._owners: list[int] = []  # of each group: the number of its optimizer
        super().__init__([g for inner in self._optimizers for g in inner.param_groups], {})
        self._share()

    @property
    def layers(self) -> list[FactoredLinear]:
        """The factored layers that this optimizer trains."""
        last = self._output()
        return [] if last is None else last.layers

    @property
    def units(self) -> list[float | None]:
        """The units of the relative rates of all layers: see `FactoredSGD.units`."""
        last = self._output()
        return [] if last is None else last.units

    def _output(self) -> FactoredSGD | None:
        last = self._optimizers[-1]
        return last if isinstance(last, FactoredSGD) else None

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
                kept = (
                    ()
                    if isinstance(inner, CheckedOptimizer)
                    else own.keys() & inner.defaults.keys()
                )
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
