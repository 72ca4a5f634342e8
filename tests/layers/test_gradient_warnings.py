"""Warnings about recorded gradients that are clipped, dropped or lost without effect, and uses without a warning."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.layers.seeded_layers import assert_knows_itself, seeded_batch, seeded_layer, train_seeded
from tests.layers.small_layers import CLASSES, HIDDEN, LOSS, loss_of, make_layer
from tests.layers.twins import make_twins


def test_clipping_by_torch_does_not_drop_the_record(device: torch.device) -> None:
    layer, other = make_layer(device), nn.Linear(2, 2, device=device)
    loss_of(layer).backward()
    other(torch.ones(1, 2, device=device)).sum().backward()
    expected = torch.nn.utils.get_total_norm(
        [p.grad for p in other.parameters() if p.grad is not None]
    )
    norm = torch.nn.utils.clip_grad_norm_([*other.parameters(), *layer.parameters()], 1e-3)
    assert torch.equal(norm.to(expected), expected), "the mark adds nothing to it"
    with pytest.warns(UserWarning, match=r"use zloss\.clip_grad_norm_ or scale_grad_"):
        assert layer.recorded_gradient() is not None
    layer.zero_grad()
    loss_of(layer).backward()
    # A norm below the limit: torch multiplies every gradient by 1, without a check.
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    with pytest.warns(UserWarning, match=r"use zloss\.clip_grad_norm_ or scale_grad_"):
        assert layer.recorded_gradient() is not None


@pytest.mark.parametrize(
    "clip",
    [
        lambda parameters: nn.utils.clip_grad_value_(parameters, 1e-3),
        lambda parameters: nn.utils.clip_grad_norm_(parameters, 1e6),
        lambda parameters: nn.utils.clip_grad_norm_(parameters, 1e-30),
    ],
)
def test_clipping_that_does_not_reach_the_layer_is_pointed_out(
    clip: Callable[[Any], object], device: torch.device
) -> None:
    layer = seeded_layer(device)
    LOSS(layer(*seeded_batch(layer))).backward()
    norm = layer.grad_norm()
    clip(layer.parameters())
    with pytest.warns(UserWarning, match="use zloss.clip_grad_norm_"):
        assert torch.equal(layer.grad_norm(), norm)


def test_zero_grad_of_another_optimizer_before_the_step_is_pointed_out(
    device: torch.device,
) -> None:
    layer = make_layer(device)
    loss_of(layer).backward()
    torch.optim.SGD(layer.parameters(), 0.1).zero_grad()
    with pytest.warns(UserWarning, match="take all steps first"):
        layer.step_(20.0)


def test_training_with_another_optimizer_over_all_parameters(device: torch.device) -> None:
    """`model.parameters()` may go to any optimizer: it passes over V, which only FactoredSGD moves."""
    twins = make_twins(HIDDEN, CLASSES, device=device, synchronous=True)
    layer = twins.factored
    before = layer.weight()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adam = torch.optim.Adam(layer.parameters(), lr=0.1, weight_decay=0.1)
        loss_of(layer).backward()
        adam.step()
    assert torch.equal(layer.weight(), before)


def test_many_passes_before_a_step_are_an_accumulation(
    device: torch.device, recwarn: pytest.WarningsRecorder
) -> None:
    """The layer has taken a step before."""
    layer = train_seeded(seeded_layer(device), 1)
    for _ in range(150):
        LOSS(layer(*seeded_batch(layer))).backward()
    layer.step_(1e-3)
    assert not recwarn


def test_a_gradient_that_is_lost_by_a_write_is_pointed_out(device: torch.device) -> None:
    layer = seeded_layer(device)
    LOSS(layer(*seeded_batch(layer))).backward()
    nn.init.normal_(layer.V)
    weight = layer.V.detach().clone()
    with pytest.warns(UserWarning, match="step first"):
        layer.refactor()
    layer.step_(1.0)
    assert_knows_itself(layer, weight)


def test_a_gradient_that_is_lost_by_a_move_is_pointed_out(device: torch.device) -> None:
    layer = seeded_layer(device)
    LOSS(layer(*seeded_batch(layer))).backward()
    with pytest.warns(UserWarning, match="step first"):
        layer.double()


def test_a_gradient_that_was_dropped_is_not_lost_by_a_move(
    device: torch.device, recwarn: pytest.WarningsRecorder
) -> None:
    layer = seeded_layer(device)
    LOSS(layer(*seeded_batch(layer))).backward()
    nn.Sequential(layer).zero_grad()
    layer.double()
    assert not recwarn


def test_moving_it_to_where_it_is_keeps_the_gradient(device: torch.device) -> None:
    layer = make_layer(device)
    loss_of(layer).backward()
    norm = layer.grad_norm()
    assert norm > 0
    layer.to(device).to(layer.V.dtype)
    assert torch.equal(layer.grad_norm(), norm)
    with pytest.warns(UserWarning, match="step first"):
        layer.to(torch.float32)
    assert layer.grad_norm() == 0
