"""Half-precision activations, autocast and TF32 around a layer, and the data types of its state."""

import copy

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.layers.small_layers import CLASSES, HIDDEN, LOSS, batch, make_layer
from tests.layers.twins import relative_error


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_half_precision_activations(low: torch.dtype, device: torch.device) -> None:
    layer = make_layer(device, dtype=torch.float32)
    h = torch.randn(4, HIDDEN, device=device, dtype=low, requires_grad=True)
    target = torch.randint(CLASSES, (4,), device=device)
    stats = layer(h, target)
    assert stats.mean.dtype == torch.float32
    expected = zloss.SphericalStats.from_logits(layer.logits(h), target)
    assert relative_error(stats.scatter, expected.scatter) < 1e-5  # float32 sums of 50 terms
    LOSS(stats).backward()
    assert h.grad is not None
    assert h.grad.dtype == low
    assert h.grad.any()


def test_autocast_and_reduced_precision_do_not_reach_the_layer(device: torch.device) -> None:
    """Under autocast and TF32 the layer computes what it computes without them, bit for bit."""
    layer = make_layer(device, dtype=torch.float32, state_dtype=torch.float32)
    h, target = batch(layer, rows=8)

    def one_step(layer: zloss.FactoredLinear) -> tuple[Tensor, Tensor, Tensor]:
        stats = layer(h.detach(), target)
        LOSS(stats).backward()
        layer.step_(20.0)
        return stats.scatter.detach(), layer.weight(), layer.logits(h.detach())

    expected = one_step(copy.deepcopy(layer))
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast(device.type, dtype=torch.bfloat16):
            values = one_step(layer)
        assert torch.get_float32_matmul_precision() == "medium", "the user's setting is given back"
    finally:
        torch.set_float32_matmul_precision(precision)
    for value, reference in zip(values, expected, strict=True):
        assert torch.equal(value, reference)


def test_network_under_autocast_trains(device: torch.device) -> None:
    trunk = nn.Linear(5, HIDDEN, device=device)
    layer = make_layer(device, dtype=torch.float32)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        h = trunk(torch.randn(7, 5, device=device))
        assert h.dtype == torch.bfloat16
        loss = LOSS(layer(h, torch.randint(CLASSES, (7,), device=device)))
    loss.backward()
    assert trunk.weight.grad is not None
    assert trunk.weight.grad.dtype == torch.float32
    assert trunk.weight.grad.any()


def test_state_dtype_follows_the_device_and_the_weights(device: torch.device) -> None:
    layer = zloss.FactoredLinear(HIDDEN, CLASSES, device=device)
    assert layer.V.dtype == torch.float32
    train_free = layer.U.dtype
    if device.type == "cpu":
        assert train_free == torch.float64
    assert (
        zloss.FactoredLinear(4, 9, device=device, state_dtype=torch.float32).gram.dtype
        == torch.float32
    )
