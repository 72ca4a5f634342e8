"""All pairs of a head and a loss, and small heads that are built by name."""

from typing import Any

import pytest
import torch
from torch import Tensor

import zloss
from zloss.heads.config import HEADS, LOSSES

HIDDEN, CLASSES = 8, 40
COUNTS = torch.randperm(CLASSES, generator=torch.Generator().manual_seed(0)) + 1
PAIRS = [(head, loss) for head in HEADS for loss in LOSSES]
every_head_name = pytest.mark.parametrize("name", HEADS)


def build(device: torch.device | str = "cpu", **values: Any) -> Any:
    return zloss.HeadConfig.from_dict(values).build(HIDDEN, CLASSES, counts=COUNTS, device=device)


def batch(device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    return torch.randn(6, HIDDEN, device=device), torch.tensor(
        [0, 39, 7, 7, -100, 21], device=device
    )
