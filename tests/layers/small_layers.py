"""Small factored layers in float64 that report faults at once, random batches for them, and their training."""

import torch
from torch import Tensor

import zloss

HIDDEN, CLASSES = 6, 50
LOSS = zloss.ZLoss(a=0.2, b=8.0)


def make_layer(device: torch.device, **options: object) -> zloss.FactoredLinear:
    options = {"dtype": torch.float64, "synchronous": True} | options
    return zloss.FactoredLinear(HIDDEN, CLASSES, device=device, **options)  # type: ignore[arg-type]


def batch(layer: zloss.FactoredLinear, rows: int = 4) -> tuple[Tensor, Tensor]:
    h = torch.randn(rows, HIDDEN, dtype=layer.V.dtype, device=layer.V.device, requires_grad=True)
    return h, torch.randint(CLASSES, (rows,), device=layer.V.device)


def loss_of(layer: zloss.FactoredLinear, rows: int = 4) -> Tensor:
    value: Tensor = LOSS(layer(*batch(layer, rows)))
    return value


def train(layer: zloss.FactoredLinear, steps: int = 5, lr: float = 20.0) -> None:
    for _ in range(steps):
        loss_of(layer).backward()
        layer.step_(lr)
