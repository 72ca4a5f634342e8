"""The check that the factors of a layer make one weight matrix."""

import copy

import pytest
import torch

from tests.layers.seeded_layers import seeded_layer, train_seeded


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [False, True])
def test_training_leaves_one_matrix(bias: bool, dtype: torch.dtype, device: torch.device) -> None:
    layer = train_seeded(seeded_layer(device, bias=bias, dtype=dtype), 300, lr=20.0)
    assert layer.matrix.is_consistent()


def test_the_look_has_its_own_precision(device: torch.device) -> None:
    """On a GPU, products in TF32 have errors as large as the check tolerates."""
    layer = train_seeded(seeded_layer(device), 100)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        copy.deepcopy(layer).weight()
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", ["V", "U", "omega", "wbar", "gram"])
def test_every_part_is_looked_at(name: str, device: torch.device) -> None:
    """A change by a hundredth of the values, or of the spread of W, is seen in each part."""
    layer = train_seeded(seeded_layer(device), 100)
    spread = layer.weight().std().item()
    getattr(layer, name).data.mul_(1.01).add_(0.01 * spread if name in ("omega", "wbar") else 0)
    assert not layer.matrix.is_consistent()
