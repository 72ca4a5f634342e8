"""Plain SGD on factored layers."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from zloss.inputs import check_callable, check_mapping, check_rates, shown
from zloss.layers import FactoredLinear
from zloss.layers.gradient import RecordedGradient
from zloss.optim.groups import check_parameters, listed, saved_groups

# Options that torch's schedulers keep in a group and need there when they resume, and a name for logs.
_NOTES = {"initial_lr", "max_lr", "min_lr", "swa_lr", "name"}
# Options in the state dict of another optimizer that we must not ignore. Its other options mean nothing without these.
_FOREIGN_OPTIONS = {"momentum", "nesterov", "maximize", "betas", "weight_decay"}


class PlainSGD(Optimizer):
    """An optimizer that does `parameter -= lr * gradient` in some form, group by group."""

    options: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")
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
        self._refuse(name for name in param_group if name not in {"params", *self.options, *_NOTES})
        _check_rates_of(self.defaults | param_group)
        given = param_group.get("params")
        params = [given] if isinstance(given, Tensor) else listed(given)
        before = {parameter for group in self.param_groups for parameter in group["params"]}
        check_parameters(params, before)
        super().add_param_group({**param_group, "params": params})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the options. The state of a `torch.optim.SGD` will do, unless it uses options that are missing here."""
        foreign = _FOREIGN_OPTIONS.difference(self.options)
        for group in saved_groups(state_dict, self.param_groups):
            self._refuse(name for name, value in group.items() if name in foreign and value)
            if missing := ", ".join(name for name in self.options if name not in group):
                raise ValueError(f"state_dict has a group without {missing}")
            _check_rates_of(group)
        super().load_state_dict(state_dict)

    def _refuse(self, names: Iterable[str]) -> None:
        if refused := ", ".join(names):
            raise ValueError(
                f"{type(self).__name__} has {' and '.join(self.options)}, got {refused}: {self._instead}"
            )

    def _descend_all(self) -> None:
        for group in self.param_groups:  # all of them, before any parameter has changed
            _check_rates_of(group)
        for group in self.param_groups:
            for parameter in group["params"]:
                self._descend(parameter, group)

    def _descend(self, parameter: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError


class FactoredSGD(PlainSGD):
    """Plain SGD on factored layers: exactly the steps of `torch.optim.SGD` on the dense weights of the layers.

        W = W - lr * (dL/dW + weight_decay * W)

    Use it beside an ordinary optimizer for the rest of the network. Learning-rate schedulers work as usual. Give
    `OneCycleLR` and `CyclicLR`, which can cycle momentum too, `cycle_momentum=False`. Momentum and adaptive rates would
    need a dense gradient and do not exist here.

    Under a `torch.amp.GradScaler`, `scaler.step(optimizer)` divides the recorded gradients by the scale and takes the
    step. If one has a NaN or an infinity, it drops all of them and takes no step. `scaler.update()` needs the gradients
    of an ordinary optimizer beside these: the scale follows them. To clip in between, see `unscale_`.

    Args:
        layers: a layer, several layers, or parameter groups `{"layers": [...], "lr": ...}`.
        lr: the learning rate.
        weight_decay: the L2 penalty, added to the gradient as `weight_decay * W`.
        others: options of other optimizers, such as momentum. They are refused, with advice on what to use instead.

    >>> layer = zloss.FactoredLinear(8, 1000)
    >>> optimizer = FactoredSGD(layer, lr=0.5)
    >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    >>> zloss.ZLoss(a=0.1, b=10)(layer(torch.randn(4, 8), torch.tensor([1, 2, 3, 4]))).backward()
    >>> optimizer.step()
    >>> scheduler.step()
    """

    _instead = "momentum and adaptive rates need a dense gradient, which GramLinear under an ordinary optimizer has"
    # Asks GradScaler for the two attributes below. They exist while it calls `step`.
    _step_supports_amp_scaling = True
    grad_scale: Tensor | None  # None if `GradScaler.unscale_` was called
    found_inf: Tensor | int

    def __init__(
        self,
        layers: FactoredLinear | Iterable[FactoredLinear] | Iterable[dict[str, Any]],
        lr: float,
        *,
        weight_decay: float = 0.0,
        **others: Any,
    ) -> None:
        self._refuse(others)
        check_rates(lr, weight_decay)
        self._layers: dict[Tensor, FactoredLinear] = {}
        groups: list[Any] = listed(layers)
        if not groups:
            raise ValueError("FactoredSGD got no layers")
        if not isinstance(groups[0], dict):
            groups = [{"layers": groups}]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add layers, given as `{"layers": [...]}`, with options of their own."""
        if (
            not isinstance(param_group, dict)
            or "layers" not in param_group
            or "params" in param_group
        ):
            got = (
                ", ".join(map(str, param_group))
                if isinstance(param_group, dict)
                else type(param_group).__name__
            )
            raise ValueError(
                f'a group of FactoredSGD is {{"layers": [...]}} with options, got {got}'
            )
        group = dict(param_group)
        layers = listed(group.pop("layers"))
        for layer in layers:
            if not isinstance(layer, FactoredLinear):
                raise ValueError(
                    f"FactoredSGD trains FactoredLinear layers, got {type(layer).__name__}; "
                    "give other parameters to an ordinary optimizer; a head makes its own by head.sgd(lr)"
                )
        super().add_param_group(group | {"params": [layer.V for layer in layers]})
        self._layers |= {layer.V: layer for layer in layers}
        self._attach(layers)

    @property
    def layers(self) -> list[FactoredLinear]:
        """The layers that this optimizer trains."""
        return list(self._layers.values())

    def unscale_(self, scaler: GradScaler) -> None:
        """Divide the recorded gradients by the scale, to clip them; `scaler.step(optimizer)` does not do it again.

        Call it in the place of `scaler.unscale_(optimizer)`, which finds nothing to divide.

        >>> layer = zloss.FactoredLinear(8, 1000)
        >>> optimizer, scaler = FactoredSGD(layer, lr=0.5), torch.amp.GradScaler("cpu")
        >>> loss = zloss.ZLoss(a=0.1, b=10)(layer(torch.randn(4, 8), torch.tensor([1, 2, 3, 4])))
        >>> scaler.scale(loss).backward()
        >>> optimizer.unscale_(scaler)
        >>> norm = zloss.clip_grad_norm_(layer, 1.0)
        >>> scaler.step(optimizer)
        """
        if not isinstance(scaler, GradScaler):
            raise ValueError(f"scaler must be a torch.amp.GradScaler, got {shown(scaler)}")
        self._divide(scaler.get_scale())

    def _descend_all(self) -> None:
        try:
            if self._is_to_skip():
                self.zero_grad()
            else:
                super()._descend_all()
        except Exception:
            # GradScaler removes these attributes only after a successful step. The next scale would be multiplied by
            # the old one.
            for name in ("grad_scale", "found_inf"):
                vars(self).pop(name, None)
            raise

    def _is_to_skip(self) -> bool:
        """Undo the scaling of a GradScaler that calls this step, and return True if the step must be skipped."""
        if not hasattr(self, "grad_scale"):
            return False
        if self.grad_scale is not None:
            self._divide(self.grad_scale)
        elif any(True for _ in self._scaled()):
            raise ValueError(
                "scaler.unscale_(optimizer) does not find the recorded gradient of a factored layer, which is still "
                "scaled: call optimizer.unscale_(scaler) in its place"
            )
        recorded = (layer.recorded_gradient() for layer in self._layers.values())
        records = [record for record in recorded if record is not None]
        return bool(self.found_inf) or not all(_is_finite(record) for record in records)

    def _divide(self, scale: Tensor | float) -> None:
        for layer in self._scaled():
            layer.unscale_grad_(scale)

    def _scaled(self) -> Iterator[FactoredLinear]:
        """Yield the layers with a recorded gradient that is still multiplied by the scale of a GradScaler."""
        for layer in self._layers.values():
            if layer.recorded_gradient() is not None and not layer.is_grad_unscaled:
                yield layer

    def _descend(self, parameter: Tensor, group: dict[str, Any]) -> None:
        self._layers[parameter].step_(float(group["lr"]), weight_decay=group["weight_decay"])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the recorded gradients."""
        for layer in self._layers.values():
            layer.zero_grad()

    def _attach(self, layers: Iterable[FactoredLinear]) -> None:
        for layer in layers:
            layer.attach(self)

    def __getstate__(self) -> dict[str, Any]:
        # Torch copies named attributes only. Without its layers a copy could not step.
        return super().__getstate__() | {"_layers": self._layers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._attach(self._layers.values())


def _is_finite(record: RecordedGradient) -> bool:
    return bool(record.is_finite() & record.target_rows.isfinite().all())


def _check_rates_of(group: dict[str, Any]) -> None:
    check_rates(group["lr"], group.get("weight_decay", 0.0))
