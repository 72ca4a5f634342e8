"""The batches of every trial at once, each in the order of its own seed.

A trial sees the very batches that `NgramBatches` would give it alone. The order of an epoch is listed beforehand, once
for every seed: 8 bytes an example, so that a batch is a few operations for all trials, and all of it on the device.
"""

import torch
from torch import Tensor

from zloss_lab.ngrams import NgramBatch, NgramBatches
from zloss_lab.permutation import Permutation


class StackedBatches:
    """NgramBatch after batch of n-grams for T trials; shape letters otherwise as in `zloss_lab.ngrams`.

    Args:
        batches: of any of the trials; it gives the text and the size of a batch.
        seeds: of the trials.

    >>> batches = NgramBatches(torch.arange(100), context=3, batch_size=10, seed=5)
    >>> stacked = StackedBatches(batches, seeds=[4, 5])
    >>> stacked.start(epoch=2)
    >>> _, target = stacked.next()
    >>> target.shape, bool((target[1] == batches.batch(epoch=2, index=0)[1]).all())
    (torch.Size([2, 10]), True)
    """

    def __init__(self, batches: NgramBatches, *, seeds: list[int]) -> None:
        device, distinct = batches.device, sorted(set(seeds))
        self.ngrams, self.batch_size = batches.ngrams, batches.batch_size
        self._length = len(batches)
        self._permutations = [
            Permutation(len(self.ngrams), seed=seed, device=device) for seed in distinct
        ]
        self._positions = torch.arange(self._length * self.batch_size, device=device)
        self._examples = self._positions.repeat(
            len(distinct), 1
        )  # in the order of the epoch, a row for every seed
        self._seed_of_trial = torch.tensor([distinct.index(seed) for seed in seeds], device=device)
        self._next = torch.zeros(
            (), dtype=torch.long, device=device
        )  # on the device, where a captured step counts it

    def __len__(self) -> int:
        """Batches an epoch."""
        return self._length

    def start(self, epoch: int) -> None:
        """Go to the first batch of an epoch."""
        for permutation, examples in zip(self._permutations, self._examples, strict=True):
            permutation.start(epoch)
            examples.copy_(permutation(self._positions))
        self._next.zero_()

    def next(self) -> NgramBatch:  # (T, B, n), (T, B)
        """The next batch of the epoch that was started."""
        positions = self._next * self.batch_size + self._positions[: self.batch_size]
        examples = self._examples[:, positions][self._seed_of_trial]
        self._next.add_(1)
        context, target = self.ngrams.read(examples.flatten())
        return context.reshape(*examples.shape, -1), target.reshape(examples.shape)

    def keep_trials(self, rows: Tensor) -> None:
        """Go on with some of the trials only."""
        self._seed_of_trial = self._seed_of_trial[rows]
