"""Factored layers with the default options, whose initial weights and batches depend on seeds only."""

from typing import Any

import torch
from torch import Tensor

import zloss
from tests.layers.small_layers import LOSS
from tests.layers.twins import relative_error

HIDDEN, CLASSES = 16, 300
REFUSED = r"no longer make one weight matrix: average weight\(\) instead"


def seeded_layer(device: torch.device, **options: Any) -> zloss.FactoredLinear:
    torch.manual_seed(0)
    return zloss.FactoredLinear(HIDDEN, CLASSES, device=device, **options)


def seeded_batch(layer: zloss.FactoredLinear, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(8, HIDDEN, generator=generator)
    target = torch.randint(CLASSES, (8,), generator=generator)
    return h.to(layer.V), target.to(layer.V.device)


def train_seeded(
    layer: zloss.FactoredLinear, steps: int = 20, lr: float = 5.0
) -> zloss.FactoredLinear:
    for step in range(steps):
        LOSS(layer(*seeded_batch(layer, step))).backward()
        layer.step_(lr)
    return layer


def assert_knows_itself(layer: zloss.FactoredLinear, weight: Tensor) -> None:
    """Assert that the layer has this weight, and computes its statistics from it."""
    h, target = seeded_batch(layer)
    logits = h.double() @ weight.double().T
    stats = layer(h, target)
    assert relative_error(layer.weight(), weight) < 1e-6
    assert (
        relative_error(stats.scatter, (logits - logits.mean(1, keepdim=True)).square().sum(1))
        < 1e-5
    )
