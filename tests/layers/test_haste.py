"""The warning of frequent refactors: the rate that it names is safe, and the default rate of the Z-loss has none."""

import random
import re
import warnings
from typing import Any

import pytest
import torch

import zloss

STEPS = 80


def told_of_haste(
    *, width: int, classes: int, batch: int, occurring: int, loss: torch.nn.Module, lr: float | None
) -> str | None:
    """Train a layer, and return the first warning of frequent refactors."""
    torch.manual_seed(0)
    layer = zloss.FactoredLinear(width, classes)
    optimizer = zloss.FactoredSGD(layer, lr)
    codes = torch.randn(occurring, width).relu() + 0.1
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=".*refactors within")
        for _ in range(STEPS):
            target = torch.randint(occurring, (batch,))
            h = codes[target] + 0.1 * torch.randn(batch, width)
            try:
                loss(layer(h, target)).backward()
                optimizer.step()
            except ValueError:  # a rate that is far too large makes infinite numbers
                break
            if caught:
                return str(caught[0].message)
    return None


@pytest.mark.parametrize("seed", range(6))
def test_training_at_the_named_rate_does_not_warn(seed: int) -> None:
    """Rates are drawn until one warns. The squared error does, as its gradient does not shrink as W grows."""
    draw = random.Random(seed)
    for _ in range(50):
        case: dict[str, Any] = {
            "width": draw.choice([4, 16, 32]),
            "classes": draw.choice([2000, 5000, 20_000]),
            "batch": draw.choice([1, 8, 32]),
            "occurring": draw.choice([5, 100, 2000]),
            "loss": zloss.SquaredError(),
        }
        if told := told_of_haste(**case, lr=10 ** draw.uniform(-1, 1.5)):
            break
    else:
        pytest.fail("no rate has warned")
    named = re.search(r"lr=([0-9.e+-]+)$", told)
    assert named is not None
    assert told_of_haste(**case, lr=float(named[1])) is None


@pytest.mark.parametrize("seed", range(6))
def test_the_default_of_the_z_loss_does_not_warn(seed: int) -> None:
    draw = random.Random(seed)
    case: dict[str, Any] = {
        "width": draw.choice([8, 32, 64]),
        "classes": draw.choice([100, 1000, 10_000, 50_000]),
        "batch": draw.choice([4, 32, 200]),
        "occurring": draw.choice([5, 100]),
        "loss": zloss.ZLoss(),
    }
    assert told_of_haste(**case, lr=None) is None
