"""Conversion of `nn.Linear` and its checkpoints into a factored layer and back."""

import pytest
import torch
from torch import nn

import zloss
from tests.layers.small_layers import CLASSES, HIDDEN, batch, make_layer, train
from tests.layers.twins import relative_error


def test_from_linear_stays_where_the_weights_are(device: torch.device) -> None:
    linear = nn.Linear(3, 7, device=device)
    assert zloss.FactoredLinear.from_linear(linear).V.device == device
    assert zloss.FactoredLinear.from_linear(linear, device=None).V.device == device


def test_from_linear_takes_device_and_options(device: torch.device) -> None:
    layer = zloss.FactoredLinear.from_linear(
        nn.Linear(3, 7, bias=False), device=device, dtype=torch.float64, ignore_index=-1
    )
    assert layer.V.device == device
    assert layer.V.dtype == torch.float64
    assert layer.ignore_index == -1
    centred = layer.weight() - layer.weight().mean(0)
    assert relative_error(layer.gram, centred.T @ centred) < 1e-14


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_round_trip_is_exact(bias: bool, dtype: torch.dtype, device: torch.device) -> None:
    linear = nn.Linear(HIDDEN, CLASSES, bias=bias, dtype=dtype, device=device)
    back = zloss.FactoredLinear.from_linear(linear).to_linear()
    assert torch.equal(back.weight, linear.weight)
    assert back.weight.dtype == dtype
    assert back.weight.requires_grad
    assert (back.bias is None) == (not bias)
    if bias:
        assert torch.equal(back.bias, linear.bias)


@pytest.mark.parametrize("bias", [False, True])
def test_trained_layer_exports_what_it_computes(bias: bool, device: torch.device) -> None:
    layer = make_layer(device, bias=bias)
    train(layer)
    h, target = batch(layer)
    logits = layer.to_linear()(h)
    assert relative_error(layer.logits(h), logits) < 1e-13
    stats, expected = layer(h, target), zloss.SphericalStats.from_logits(logits, target)
    for name in ("target", "sum", "sumsq", "variance", "z"):
        assert relative_error(getattr(stats, name), getattr(expected, name)) < 1e-12, name


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
def test_the_checkpoint_of_a_linear_loads(
    bias: bool, dtype: torch.dtype, assign: bool, device: torch.device
) -> None:
    """The checkpoint is of a model with an `nn.Linear` in the place of this layer."""
    linear = nn.Linear(HIDDEN, CLASSES, bias=bias, dtype=dtype, device=device)
    checkpoint = nn.Sequential(nn.Linear(3, HIDDEN, device=device), linear).state_dict()
    layer = make_layer(device, bias=bias)
    train(layer)
    model = nn.Sequential(nn.Linear(3, HIDDEN, device=device), layer)
    assert model.load_state_dict(checkpoint, assign=assign) == ([], [])
    assert torch.equal(layer.weight(), linear.weight.double())
    loaded_bias = layer.bias()
    assert (loaded_bias is None) == (not bias)
    assert loaded_bias is None or torch.equal(loaded_bias, linear.bias.double())
    expected = zloss.FactoredLinear.from_linear(linear.double())
    for each in (layer, expected):
        torch.manual_seed(1)
        train(each)
    assert relative_error(layer.weight(), expected.weight()) < 1e-13


def test_the_checkpoint_of_a_linear_loads_where_there_is_no_memory_yet() -> None:
    linear = nn.Linear(HIDDEN, CLASSES, bias=False)
    layer = zloss.FactoredLinear(HIDDEN, CLASSES, device="meta")
    layer.load_state_dict(linear.state_dict(), assign=True)
    assert torch.equal(layer.weight(), linear.weight)
    train(layer)


@pytest.mark.parametrize(
    ("linear", "told"),
    [
        (
            nn.Linear(HIDDEN, CLASSES + 1, bias=False),
            rf"shape \({CLASSES + 1}, {HIDDEN}\) instead of \({CLASSES}, {HIDDEN}\)",
        ),
        (nn.Linear(HIDDEN, CLASSES), "it has a bias: build this layer with bias=True"),
    ],
)
def test_the_checkpoint_of_another_linear_does_not_load(
    linear: nn.Linear, told: str, device: torch.device
) -> None:
    layer = make_layer(device)
    train(layer)
    before = layer.weight()
    with pytest.raises(RuntimeError, match=told) as refused:
        layer.load_state_dict(linear.state_dict())
    assert "key" not in str(refused.value), "one reason is enough"
    assert torch.equal(layer.weight(), before)


def test_initial_weights_are_distributed_as_those_of_linear(device: torch.device) -> None:
    layer = zloss.FactoredLinear(64, 2000, device=device)
    bound = 64**-0.5
    assert layer.V.abs().max() <= bound
    # Standard deviation of 128,000 uniform numbers: 1 % is more than four standard errors.
    assert layer.V.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)
