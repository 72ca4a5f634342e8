"""Random numbers for dropout: every trial has those of its own seed, as it has the order of its batches.

So the masks of a trial do not depend on who else is in the stack, those of two seeds differ wherever they are trained,
and trials of one seed that differ in their rates differ in nothing else.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# Sets the numbers apart from those that the first weights of the same seed are drawn from.
_PURPOSE = 1


class DropoutNumbers:
    """Numbers in [0, 1) for T trials, B examples and the units of every hidden layer; drawn anew for every step.

    They are drawn outside of the step and read by it: a captured one can use no random numbers but torch's own.

    Args:
        seeds: of the trials.
        batch_size: B.
        widths: of the hidden layers.
        device: where they are needed.

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
        """Those of the next step, in place: a CUDA graph that reads them sees the new ones."""
        for layer in self._layers:
            for numbers, generator in zip(layer, self._generators, strict=True):
                numbers.uniform_(generator=generator)

    def of_layers(self) -> list[Tensor]:  # (T, B, width) each
        """What was drawn, trial by trial."""
        return [layer[self._seed_of_trial] for layer in self._layers]

    def keep_trials(self, rows: Tensor) -> None:
        """Go on with some of the trials only."""
        self._seed_of_trial = self._seed_of_trial[rows]


def _seed_of_numbers(seed: int) -> int:
    return int(np.random.SeedSequence([seed, _PURPOSE]).generate_state(1, np.uint32)[0])
