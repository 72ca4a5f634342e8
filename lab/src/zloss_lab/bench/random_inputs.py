"""Made-up inputs: hidden batches, targets uniform or by Zipf's law, and texts. All are functions of a seed."""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SEED = 0
Law = Literal["uniform", "zipf"]

_HIDDEN_BATCHES = (
    4  # that take turns: they may be large, and what they hold matters less than the targets
)
_STEPS = 200  # that have targets of their own


def draw_targets(law: Law, classes: int, batch: int, generator: torch.Generator) -> Tensor:  # (B,)
    """Classes, all equally likely or the c-th in proportion to 1 / (c + 1), as words are."""
    u = torch.rand(batch, generator=generator, dtype=torch.float64)
    # P(class < c) = log(c + 1) / log(C + 1) is what sums of 1 / (c + 1) come to.
    drawn = u * classes if law == "uniform" else (u * math.log(classes + 1)).exp() - 1
    return drawn.long().clamp(0, classes - 1)


def hidden_batches(
    *, batch: int, hidden: int, classes: int, law: Law, device: torch.device, steps: int = _STEPS
) -> list[tuple[Tensor, Tensor]]:
    """For so many steps hidden batches (B, H), as ReLU leaves them, each time with other targets (B,)."""
    generator = torch.Generator().manual_seed(SEED)
    h = [
        torch.randn(batch, hidden, generator=generator).relu().to(device)
        for _ in range(min(steps, _HIDDEN_BATCHES))
    ]
    targets = [draw_targets(law, classes, batch, generator).to(device) for _ in range(steps)]
    return [(h[number % len(h)], target) for number, target in enumerate(targets)]


def zipf_tokens(words: int, classes: int) -> npt.NDArray[np.int32]:
    """A text as numbers. Word 0, about one in twenty, may stand for the end of a sentence."""
    drawn = draw_targets("zipf", classes, words, torch.Generator().manual_seed(SEED))
    return drawn.numpy().astype(np.int32)
