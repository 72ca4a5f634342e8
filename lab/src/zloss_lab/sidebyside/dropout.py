"""Random numbers for dropout, drawn for every trial from its own seed, as the order of its batches is.

So the masks of a trial do not depend on the other trials in the stack. Trials with different seeds have different
masks, in one stack or in two. Trials with the same seed and different rates use the same random numbers.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# Makes these numbers differ from the ones that the first weights of the same seed are drawn from.
_PURPOSE = 1


class DropoutNumbers:
    """Numbers in [0, 1) for T trials, B examples and the units of every hidden layer, new ones for every step.

    They are drawn outside of the step, which only reads them: a captured step cannot draw from generators of ours.

    Args:
        seeds: the seed of every trial.
        batch_size: B.
        widths: the number of units of every hidden layer.
        device: the device of the numbers.

    >>> numbers = DropoutNumbers([4, 5, 4], batch_size=10, widths=[6], device=torch.device("cpu"))
    >>> numbers.draw()
    >>> (layer,) = numbers.of_layers()
    >>> layer.shape, bool((layer[0] == layer[2]).all()), bool((layer[0] == layer[1]).any())
    (torch.Size([3, 10, 6]), True, False)
    """

    def __init__(
        self, seeds: Sequence[int], *, batch_size: int, widths: Sequence[int], device: torch.device
    ) -> None:
        distinct = sorted(set(seeds))
        self._generators = [
            torch.Generator(device).manual_seed(_seed_of_numbers(seed)) for seed in distinct
        ]
        self._layers = [
            torch.empty(len(distinct), batch_size, width, device=device) for width in widths
        ]
        self._seed_of_trial = torch.tensor([distinct.index(seed) for seed in seeds], device=device)

    def draw(self) -> None:
        """Draw the numbers of the next step in place, so that a CUDA graph reads the new ones."""
        for layer in self._layers:
            for numbers, generator in zip(layer, self._generators, strict=True):
                numbers.uniform_(generator=generator)

    def of_layers(self) -> list[Tensor]:  # (T, B, width) each
        """Return the numbers that were drawn last, one tensor for each hidden layer."""
        return [layer[self._seed_of_trial] for layer in self._layers]

    def keep_trials(self, rows: Tensor) -> None:
        """Keep only the trials of these rows."""
        self._seed_of_trial = self._seed_of_trial[rows]


def _seed_of_numbers(seed: int) -> int:
    return int(np.random.SeedSequence([seed, _PURPOSE]).generate_state(1, np.uint32)[0])
