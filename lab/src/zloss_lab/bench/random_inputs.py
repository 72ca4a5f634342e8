"""Random inputs, which follow from a seed: hidden batches, targets (uniform or by Zipf's law) and texts."""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SEED = 0
Law = Literal["uniform", "zipf"]

# Hidden batches may be large, and their values matter less than the targets. So a few of them are used in turns.
_HIDDEN_BATCHES = 4
_STEPS = 200  # steps with different targets


def draw_targets(law: Law, classes: int, batch: int, generator: torch.Generator) -> Tensor:  # (B,)
    """Draw classes. All are equally likely, or class c in proportion to 1 / (c + 1), as words of a text are."""
    u = torch.rand(batch, generator=generator, dtype=torch.float64)
    # P(class < c) = log(c + 1) / log(C + 1) is close to the share of the classes k < c in the sum of all 1 / (k + 1).
    drawn = u * classes if law == "uniform" else (u * math.log(classes + 1)).exp() - 1
    return drawn.long().clamp(0, classes - 1)


def hidden_batches(
    *, batch: int, hidden: int, classes: int, law: Law, device: torch.device, steps: int = _STEPS
) -> list[tuple[Tensor, Tensor]]:
    """Return inputs of some steps: hidden batches (B, H) after a ReLU, and new targets (B,) in each step."""
    generator = torch.Generator().manual_seed(SEED)
    h = [
        torch.randn(batch, hidden, generator=generator).relu().to(device)
        for _ in range(min(steps, _HIDDEN_BATCHES))
    ]
    targets = [draw_targets(law, classes, batch, generator).to(device) for _ in range(steps)]
    return [(h[number % len(h)], target) for number, target in enumerate(targets)]


def zipf_tokens(words: int, classes: int) -> npt.NDArray[np.int32]:
    """Return a text as numbers of words. Word 0 occurs in about one of twenty places, as the end of a sentence."""
    drawn = draw_targets("zipf", classes, words, torch.Generator().manual_seed(SEED))
    return drawn.numpy().astype(np.int32)
