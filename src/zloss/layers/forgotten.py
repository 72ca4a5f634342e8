"""Forgotten steps: an error where others take steps, and no optimizer applies the gradient of a factored layer.

Ordinary optimizers pass over a factored layer, as its parameters have no `.grad` for them. With
`Adam(model.parameters())` alone, the layers below would train, and the output layer would never move.

A layer asks for attention here when it has recorded a gradient and no optimizer is there that knows it. From then on
torch calls `_judge` at the steps of all optimizers. A program that trains its layers never comes here.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, Protocol
from weakref import WeakSet

from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from zloss.layers.gradient import PendingGradient

_WHAT_TO_DO = (
    "make one optimizer for the whole model, zloss.Optimizer(model, torch.optim.AdamW, ...), or a zloss.FactoredSGD "
    "for this layer beside your own. If the layer is not to learn, freeze it: layer.requires_grad_(False)"
)


class RecordingLayer(Protocol):
    """A layer that records its gradient."""

    @property
    def pending(self) -> PendingGradient:
        """The gradient that waits for a step."""

    def parameters(self) -> Iterable[Tensor]:
        """Return the parameters that other optimizers may hold."""


_WAITING: WeakSet[Any] = WeakSet()  # layers with a gradient that nobody will apply


def expect_step(layer: RecordingLayer) -> None:
    """Watch a layer without an optimizer, or raise an error if others took a step since its last gradient."""
    if layer.pending.is_passed_over:
        raise ValueError(
            f"an optimizer took a step, and none is there for the gradient of {layer}, which has not moved: "
            f"{_WHAT_TO_DO}. To look at gradients alone, drop them by layer.zero_grad() before such a step"
        )
    _WAITING.add(layer)
    _watch_steps()


@cache
def _watch_steps() -> None:
    register_optimizer_step_pre_hook(_judge)
    register_optimizer_step_post_hook(_judge)  # a closure computes the gradients in the step


def _judge(optimizer: Optimizer, *_: Any) -> None:
    """Raise an error if this optimizer holds a layer that it cannot train, and no other optimizer is there for it."""
    for layer in list(_WAITING):
        if layer.pending.is_awaited() or not layer.pending.exists():
            _WAITING.discard(layer)
            continue
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if any(id(parameter) in held for parameter in layer.parameters()):
            raise ValueError(
                f"{type(optimizer).__name__} holds the parameters of {layer}, but passes over them: their gradient is "
                f"no .grad, and the layer would never move. Instead, {_WHAT_TO_DO}"
            )
        layer.pending.is_passed_over = True
