"""Checkpoints of a factored layer: a whole one loads exactly, and a wrong one changes nothing."""

from collections.abc import Callable
from math import inf, nan
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import zloss
from tests.layers.small_layers import CLASSES, HIDDEN, loss_of, make_layer, train
from tests.layers.twins import relative_error


def test_state_dict_is_plain_and_complete(device: torch.device, tmp_path: Path) -> None:
    layer = make_layer(device, bias=True)
    train(layer)
    state = layer.state_dict()
    assert set(state) == {"V", "U", "U_inv", "omega", "wbar", "gram"}
    save_file(state, tmp_path / "layer.safetensors")
    restored = make_layer(device, bias=True)
    restored.load_state_dict(load_file(tmp_path / "layer.safetensors", device=str(device)))
    torch.manual_seed(1)
    train(layer)
    torch.manual_seed(1)
    train(restored)
    assert torch.equal(restored.weight(), layer.weight()), "training goes on bit for bit"


def test_state_dict_tensors_stay_consistent_while_training(device: torch.device) -> None:
    layer = make_layer(device)
    state = layer.state_dict()
    train(layer)
    weight = state["V"] @ state["U"] + state["omega"]
    assert relative_error(weight, layer.weight()) < 1e-14


def test_loading_drops_the_recorded_gradient(device: torch.device) -> None:
    layer, other = make_layer(device), make_layer(device)
    loss_of(layer).backward()
    layer.load_state_dict(other.state_dict())
    layer.step_(20.0)
    assert torch.equal(layer.weight(), other.weight())


@pytest.mark.parametrize("assign", [True, False])
def test_a_checkpoint_in_half_precision_makes_one_matrix(
    assign: bool, device: torch.device
) -> None:
    """Factors that are rounded one by one do not fit each other: loading makes new ones from their product."""
    layer, other = make_layer(device, dtype=torch.float32), make_layer(device, dtype=torch.float32)
    train(layer)
    other.load_state_dict(
        {name: tensor.half() for name, tensor in layer.state_dict().items()}, assign=assign
    )
    assert other.V.dtype == torch.float32
    # Half precision has eps = 1e-3, and a product of two factors rounds twice.
    assert relative_error(other.weight(), layer.weight()) < 5e-3
    centred = other.weight().double() - other.weight().double().mean(0)
    assert relative_error(other.gram, centred.T @ centred) < 1e-6
    train(other)


def test_wrong_shapes_do_not_load(device: torch.device) -> None:
    layer = make_layer(device)
    train(layer)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"(?s)none of them was loaded.*size mismatch for V"):
        layer.load_state_dict(zloss.FactoredLinear(HIDDEN, CLASSES + 1).state_dict())
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


def test_a_part_of_the_factors_does_not_load(device: torch.device) -> None:
    """W = V U + 1 omega^T: with the V of another layer alone it would be the weights of neither."""
    layer = make_layer(device)
    train(layer)
    before = layer.weight()
    with pytest.raises(RuntimeError, match="none of them was loaded"):
        layer.load_state_dict({"V": torch.zeros_like(layer.V)}, strict=False)
    assert layer.load_state_dict({}, strict=False).missing_keys == [
        "V",
        "U",
        "U_inv",
        "omega",
        "wbar",
        "gram",
    ]
    assert torch.equal(layer.weight(), before)


DAMAGE: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "gram negated": ("gram", torch.neg),
    "gram not symmetric": ("gram", lambda gram: gram + gram.norm() * torch.ones_like(gram).triu(1)),
    "inverse too large": ("U_inv", lambda inverse: 1.5 * inverse),
    "inverse of another U": ("U_inv", lambda inverse: inverse.flip(0)),
    "mean row off": ("wbar", lambda wbar: 1.1 * wbar),
    "shift off": ("omega", lambda omega: omega + 1),
    **{
        f"{name} with a NaN": (
            name,
            lambda tensor: torch.where(tensor == tensor.max(), nan, tensor),
        )
        for name in ("V", "U", "U_inv", "omega", "wbar", "gram")
    },
    "V with an infinity": ("V", lambda V: torch.where(V.max() == V, inf, V)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_tensors_that_are_not_one_matrix_are_refused(damage: str, device: torch.device) -> None:
    layer, other = make_layer(device), make_layer(device)
    train(layer)
    train(other)
    name, damaged = DAMAGE[damage]
    state = layer.state_dict()
    before = other.weight()
    with pytest.raises(RuntimeError, match="V and its factors make one matrix"):
        other.load_state_dict(state | {name: damaged(state[name])})
    assert torch.equal(other.weight(), before)
    other.load_state_dict(state)
    assert torch.equal(other.weight(), layer.weight())


def test_equal_rows_load_although_rounding_makes_their_gram_negative() -> None:
    linear = nn.Linear(HIDDEN, CLASSES, bias=False)
    nn.init.constant_(linear.weight, 0.3)
    layer = zloss.FactoredLinear.from_linear(linear)
    state = layer.state_dict()
    negative = state["gram"] - 1e-18 * torch.eye(HIDDEN, dtype=torch.float64)
    other = zloss.FactoredLinear(HIDDEN, CLASSES)
    other.load_state_dict(state | {"gram": negative})
    assert torch.equal(other.weight(), linear.weight)


def test_a_checkpoint_without_memory_loads_into_a_layer_without_memory() -> None:
    layer, other = (zloss.FactoredLinear(HIDDEN, CLASSES, device="meta") for _ in range(2))
    other.load_state_dict(layer.state_dict())
    assert other.V.is_meta
