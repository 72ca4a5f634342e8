"""Copies of a layer: each has its own weights, its own gradient and its own record of writes."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

import zloss
from tests.layers.seeded_layers import assert_knows_itself, seeded_layer, train_seeded
from tests.layers.small_layers import LOSS, batch, loss_of, make_layer, train


def test_a_copy_is_independent_and_has_no_gradient(device: torch.device) -> None:
    """`deepcopy` leaves behind the gradients of torch's own layers, too."""
    layer = make_layer(device)
    loss_of(layer).backward()
    twin = copy.deepcopy(layer)
    before = twin.weight()
    layer.step_(20.0)
    assert torch.equal(twin.weight(), before)
    assert twin.recorded_gradient() is None
    twin.step_(20.0)
    assert torch.equal(twin.weight(), before)
    train(twin)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_knows_its_own_writes(
    copied: Callable[..., zloss.FactoredLinear], device: torch.device
) -> None:
    layer = make_layer(device)
    train(layer)
    twin = copied(layer)
    h, target = batch(layer)
    for each in (layer, twin):
        LOSS(each(h, target)).backward()
        each.step_(20.0)
    assert torch.equal(layer.weight(), twin.weight())


def test_a_copy_goes_its_own_way(device: torch.device) -> None:
    """A copy with weights of its own is a new layer, so an initialiser may write to it."""
    twin = copy.deepcopy(train_seeded(seeded_layer(device)))
    twin.reset_parameters()
    nn.init.normal_(twin.V)
    assert_knows_itself(twin, twin.V.detach().clone())
