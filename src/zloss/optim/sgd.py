"""Plain SGD on factored layers, with absolute or relative rates, and a rule of their own for looked-up rows."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.amp import GradScaler

from zloss.inputs import check_number, check_rates, shown
from zloss.layers import FactoredLinear
from zloss.layers.gradient import RecordedGradient
from zloss.layers.supervisor import RefusedStepError
from zloss.optim import relative_rate
from zloss.optim.checked_optimizer import CheckedOptimizer
from zloss.optim.groups import listed, saved_groups
from zloss.optim.row_rules import (
    ROW_OPTIONS,
    adopt_row_options,
    check_row_options,
    check_saved_squares,
    row_rule,
)


class FactoredSGD(CheckedOptimizer):
    """Plain SGD on factored layers: exactly the steps of `torch.optim.SGD` on the dense weights of the layers.

        W = W - lr * (dL/dW + weight_decay * W)

    Use it beside an ordinary optimizer for the rest of the network. Learning-rate schedulers work as usual. Give
    `OneCycleLR` and `CyclicLR`, which can cycle momentum too, `cycle_momentum=False`. Momentum and adaptive rates would
    need a dense gradient and do not exist here.

    Under a `torch.amp.GradScaler`, `scaler.step(optimizer)` divides the recorded gradients by the scale and takes the
    step. If one has a NaN or an infinity, it drops all of them and takes no step. `scaler.update()` needs the gradients
    of an ordinary optimizer beside these: the scale follows them. To clip in between, see `unscale_`.

    Without a learning rate, the relative rate is 1, which suits the Z-loss for any number of classes, width and batch
    size: see `docs/guides/loss-and-rates.md`. A relative rate of 0.1 means that the first step changes W by a tenth of
    its norm. That fixes lr for all later steps, up to the factors of a schedule. It is kept in the state dict.

    Looked-up rows (`FactoredLinear.rows`, `TiedEmbedding`) are part of this step. With `row_lr` they follow a rule of
    their own, row-wise Adagrad, which has one number per class. The sum s of the gradients of all look-ups of a class
    changes its row by

        squares = squares + mean(s^2)
        W[c] = W[c] - row_lr * s / (sqrt(squares) + row_eps)

    and the rest of the step is as above. Clipping comes before the rule. The squares are in `state_dict()`.

    Args:
        layers: a layer, several layers, or parameter groups `{"layers": [...], "lr": ...}`.
        lr: the learning rate of `torch.optim.SGD`.
        relative_lr: the learning rate relative to `|W| / |dL/dW|` at the first step, in the place of `lr`. It needs a
            loss that does not change if all activations are multiplied by a number, such as `ZLoss`. In
            `param_groups` it is the number `lr`, which schedulers change.
        weight_decay: the L2 penalty, added to the gradient as `weight_decay * W`.
        row_lr: the learning rate of the rule for looked-up rows; None for plain SGD. Start from 0.3. It belongs to the
            rate that is given here: where a schedule changes the learning rate, it changes both in proportion.
        row_eps: the number that keeps the first steps of tiny gradients small, > 0.
        others: options of other optimizers, such as momentum. They are refused, with advice on what to use instead.

    >>> layer = zloss.FactoredLinear(8, 1000)
    >>> optimizer = FactoredSGD(layer)                              # or (layer, relative_lr=0.3), or (layer, lr=0.5)
    >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    >>> zloss.ZLoss(a=0.1, b=10)(layer(torch.randn(4, 8), torch.tensor([1, 2, 3, 4]))).backward()
    >>> optimizer.step()
    >>> scheduler.step()

    Tied embeddings and explicit scores by row-wise Adagrad, beside the Z-loss by SGD:

    >>> optimizer = FactoredSGD(layer, row_lr=0.3)
    """

    options = ("lr", "is_relative", "weight_decay", *ROW_OPTIONS)
    _shown_options = "lr or relative_lr, weight_decay, row_lr and row_eps"
    _instead = "momentum and adaptive rates need a dense gradient, which GramLinear under an ordinary optimizer has"
    # Asks GradScaler for the two attributes below. They exist while it calls `step`.
    _step_supports_amp_scaling = True
    grad_scale: Tensor | None  # None if `GradScaler.unscale_` was called
    found_inf: Tensor | int

    def __init__(
        self,
        layers: FactoredLinear | Iterable[FactoredLinear] | Iterable[dict[str, Any]],
        lr: float | None = None,
        *,
        relative_lr: float | None = None,
        weight_decay: float = 0.0,
        row_lr: float | None = None,
        row_eps: float = 1e-10,
        **others: Any,
    ) -> None:
        self._refuse(others)
        rate = relative_rate.chosen(lr, relative_lr)
        check_rates(rate["lr"], weight_decay)
        self._layers: dict[Tensor, FactoredLinear] = {}
        groups: list[Any] = listed(layers)
        if not groups:
            raise ValueError("FactoredSGD got no layers")
        if not isinstance(groups[0], dict):
            groups = [{"layers": groups}]
        own = {"weight_decay": weight_decay, "row_lr": row_lr, "row_eps": row_eps}
        super().__init__(groups, rate | own)

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
        self._refuse({"is_relative"} & group.keys())  # it follows from the name of the rate
        rates = {name: group.pop(name) for name in ("lr", "relative_lr") if name in group}
        for name, rate in rates.items():
            check_number(name, rate, least=0)
        if rates:
            group |= relative_rate.chosen(**rates)
        layers = listed(group.pop("layers"))
        for layer in layers:
            if not isinstance(layer, FactoredLinear):
                raise ValueError(
                    f"FactoredSGD trains FactoredLinear layers, got {type(layer).__name__}; "
                    "give other parameters to an ordinary optimizer; a head makes its own by head.sgd(lr)"
                )
        super().add_param_group(group | {"params": [layer.V for layer in layers]})
        self._layers |= {layer.V: layer for layer in layers}
        self.param_groups[-1]["first_lr"] = float(self.param_groups[-1]["lr"])
        self._attach(layers)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the options, the units of relative rates and the squares of looked-up rows.

        The state of a `torch.optim.SGD` will do. Its lr is an absolute one.
        """
        own, saved = self.param_groups, saved_groups(state_dict, self.param_groups)
        groups = [{"is_relative": False} | group for group in saved]
        for group, before in zip(groups, own, strict=True):
            adopt_row_options(group, before)
        relative_rate.check_saved(groups, state_dict["state"].values())
        check_saved_squares(groups, own, state_dict["state"])
        super().load_state_dict({**state_dict, "param_groups": groups})

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
                self._find_units()
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

    @property
    def units(self) -> list[float | None]:
        """The units of the relative rates of all layers: lr = relative rate * unit. None before the first step."""
        return [self.state.get(parameter, {}).get(relative_rate.UNIT) for parameter in self._layers]

    def _find_units(self) -> None:
        """Find the units of relative rates for layers that take their first step."""
        for group in self.param_groups:
            for parameter in group["params"] if group["is_relative"] else ():
                if relative_rate.UNIT not in self.state.get(parameter, {}):
                    has_row_rule = group["row_lr"] is not None
                    unit = relative_rate.unit_of(
                        self._layers[parameter], counts_rows=not has_row_rule
                    )
                    if unit is not None:
                        self.state[parameter][relative_rate.UNIT] = unit

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check_row_options(group)

    def _descend(self, parameter: Tensor, group: dict[str, Any]) -> None:
        unit = 1.0
        if group["is_relative"]:
            # Without a unit, the gradient is zero, or the layer refuses it.
            unit = self.state.get(parameter, {}).get(relative_rate.UNIT, 0.0)
        rule = row_rule(parameter, self.state, group, unit)
        lr, weight_decay = float(group["lr"]) * unit, group["weight_decay"]
        try:
            self._layers[parameter].step_(lr, weight_decay=weight_decay, row_rule=rule)
        except RefusedStepError as error:
            if group["is_relative"] and unit > 0:
                error.add_note(
                    f"lr = {error.safe_lr:.3g} is relative_lr = {error.safe_lr / unit:.3g}"
                )
            raise

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
