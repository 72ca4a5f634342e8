"""A synthetic classification task with any number of classes, made in memory from a seed.

Every class has a random code; an input is the code of its class plus noise. Classes occur with Zipf's frequencies, the
c-th in proportion to `1 / (c + 1)`, as words do: a few make up most examples, and most occur hardly ever.

Shape letters: B examples, C classes, D inputs.
"""

import torch
from torch import Tensor


class ZipfCodes:
    """The task. Class 0 is the most frequent one.

    >>> task = ZipfCodes(classes=1000, inputs=8, noise=0.1, seed=0)
    >>> x, target = task.draw(4, torch.Generator().manual_seed(1))
    >>> x.shape, target.shape
    (torch.Size([4, 8]), torch.Size([4]))
    """

    def __init__(self, *, classes: int, inputs: int, noise: float, seed: int) -> None:
        self.noise = noise
        self.codes = torch.randn(
            classes, inputs, generator=torch.Generator().manual_seed(seed)
        )  # (C, D)
        frequencies = 1 / torch.arange(1, classes + 1, dtype=torch.float64)
        self.cumulative = frequencies.cumsum(0)  # (C,)

    def draw(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:  # (B, D), (B,)
        """Inputs and targets of `size` new examples."""
        place = torch.rand(size, generator=generator, dtype=torch.float64) * self.cumulative[-1]
        target = torch.searchsorted(self.cumulative, place).clamp_max(len(self.codes) - 1)
        noise = torch.randn(size, self.codes.shape[1], generator=generator)
        return self.codes[target] + self.noise * noise, target
