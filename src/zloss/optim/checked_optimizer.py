"""The base of our optimizers: groups that are checked, and steps that go through the parameters one by one."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from zloss.inputs import check_callable, check_mapping, check_rates
from zloss.optim.groups import NOTES, check_parameters, listed, saved_groups

# Options in the state dict of another optimizer that we must not ignore. Its other options mean nothing without these.
_FOREIGN_OPTIONS = {"momentum", "nesterov", "maximize", "betas", "amsgrad", "weight_decay"}


class CheckedOptimizer(Optimizer):
    """An optimizer that refuses wrong groups and foreign states, and takes its steps parameter by parameter."""

    options: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")
    _shown_options: ClassVar[str] = "lr and weight_decay"
    _instead: ClassVar[str] = "the optimizers of torch.optim have others"

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take a step with every gradient that exists. The step uses up the recorded gradient of a factored layer."""
        loss = None
        check_callable("closure", closure, or_none=True)
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._descend_all()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own."""
        check_mapping("param_group", param_group)
        known = {"params", *self.options, *NOTES}
        self._refuse(name for name in param_group if name not in known)
        self._check_group(self.defaults | param_group)
        given = param_group.get("params")
        params = [given] if isinstance(given, Tensor) else listed(given)
        before = {parameter for group in self.param_groups for parameter in group["params"]}
        check_parameters(params, before)
        super().add_param_group({**param_group, "params": params})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the options and the state. The state of another optimizer is refused if it uses options missing here."""
        foreign = _FOREIGN_OPTIONS.difference(self.options)
        for group in saved_groups(state_dict, self.param_groups):
            self._refuse(name for name, value in group.items() if name in foreign and value)
            if missing := ", ".join(name for name in self.options if name not in group):
                raise ValueError(f"state_dict has a group without {missing}")
            self._check_group(group)
        super().load_state_dict(state_dict)

    def _refuse(self, names: Iterable[str]) -> None:
        if refused := ", ".join(names):
            raise ValueError(
                f"{type(self).__name__} has {self._shown_options}, got {refused}: {self._instead}"
            )

    def _check_group(self, group: dict[str, Any]) -> None:
        """Refuse options that a step cannot have."""
        check_rates(group["lr"], group.get("weight_decay", 0.0))

    def _descend_all(self) -> None:
        for group in self.param_groups:  # all of them, before any parameter has changed
            self._check_group(group)
        for group in self.param_groups:
            for parameter in group["params"]:
                self._descend(parameter, group)

    def _descend(self, parameter: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError
