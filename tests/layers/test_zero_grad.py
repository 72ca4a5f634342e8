"""Every `zero_grad` that reaches the parameters of a layer drops its recorded gradient."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import zloss
from tests.layers.small_layers import LOSS, batch, loss_of, make_layer

ZERO_GRADS: dict[str, Callable[[zloss.FactoredLinear], None]] = {
    "of the layer": lambda layer: layer.zero_grad(),
    "of a model around it": lambda layer: nn.Sequential(layer).zero_grad(),
    "of its optimizer": lambda layer: zloss.FactoredSGD(layer, 1.0).zero_grad(),
    "of another optimizer": lambda layer: torch.optim.Adam(layer.parameters()).zero_grad(),
    "of a model, in place": lambda layer: nn.Sequential(layer).zero_grad(set_to_none=False),
    "of another optimizer, in place": lambda layer: torch.optim.Adam(layer.parameters()).zero_grad(
        set_to_none=False
    ),
}


@pytest.mark.parametrize("zero_grad", ZERO_GRADS.values(), ids=ZERO_GRADS.keys())
def test_zero_grad_from_anywhere_drops_the_record(
    zero_grad: Callable[[zloss.FactoredLinear], None], device: torch.device
) -> None:
    layer = make_layer(device)
    twin = copy.deepcopy(layer)
    loss_of(layer).backward()
    zero_grad(layer)
    assert layer.recorded_gradient() is None
    assert layer.grad_norm() == 0
    h, target = batch(layer)
    for each in (layer, twin):
        LOSS(each(h, target)).backward()
        each.step_(20.0)
    assert torch.equal(layer.weight(), twin.weight()), "only the later gradient counts"


def test_a_mark_serves_until_somebody_writes_to_it(device: torch.device) -> None:
    layer = make_layer(device)
    marks = []
    for set_to_none in (True, True, False, True):
        loss_of(layer).backward()
        marks.append(layer.gradient_mark.grad)
        nn.Sequential(layer).zero_grad(set_to_none=set_to_none)
    assert marks[0] is marks[1] is marks[2], "no launch for a new one"
    assert marks[3] is not marks[2]
    assert marks[3] is not None
    assert marks[3].all()


def test_zeros_written_to_the_data_of_gradients_drop_it() -> None:
    layer = make_layer(torch.device("cpu"))
    loss_of(layer).backward()
    for parameter in layer.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()
    assert layer.grad_norm() == 0
