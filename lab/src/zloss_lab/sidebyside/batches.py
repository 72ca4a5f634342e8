"""Batches of n-grams for all trials at once, each trial in the order of its own seed.

A trial sees exactly the batches that `NgramBatches` would give it alone. At the start of an epoch, the order of its
examples is written to the device, once for every seed: 8 bytes an example. So a batch of all trials takes a few
operations, and all of them run on the device.
"""

import torch
from torch import Tensor

from zloss_lab.ngrams import NgramBatch, NgramBatches
from zloss_lab.permutation import Permutation


class StackedBatches:
    """Batches of n-grams for T trials. Other shape letters are those in `zloss_lab.ngrams`: batch B, context n.

    Args:
        batches: batches of any trial, which have the text and the size of a batch.
        seeds: the seed of every trial.

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
        # Examples in the order of the epoch, one row for every seed.
        self._examples = self._positions.repeat(len(distinct), 1)
        self._seed_of_trial = torch.tensor([distinct.index(seed) for seed in seeds], device=device)
        # The index of the next batch. It lies on the device, where a captured step can count it up.
        self._next = torch.zeros((), dtype=torch.long, device=device)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._length

    def start(self, epoch: int) -> None:
        """Go to the first batch of an epoch."""
        for permutation, examples in zip(self._permutations, self._examples, strict=True):
            permutation.start(epoch)
            examples.copy_(permutation(self._positions))
        self._next.zero_()

    def next(self) -> NgramBatch:  # (T, B, n), (T, B)
        """Return the next batch of the epoch."""
        positions = self._next * self.batch_size + self._positions[: self.batch_size]
        examples = self._examples[:, positions][self._seed_of_trial]
        self._next.add_(1)
        context, target = self.ngrams.read(examples.flatten())
        return context.reshape(*examples.shape, -1), target.reshape(examples.shape)

    def keep_trials(self, rows: Tensor) -> None:
        """Keep only the trials of these rows."""
        self._seed_of_trial = self._seed_of_trial[rows]
