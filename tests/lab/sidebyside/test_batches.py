"""Every trial sees the batches of its own seed."""

from typing import Any

import pytest
import torch

from zloss_lab.ngrams import NgramBatches
from zloss_lab.sidebyside.batches import StackedBatches

SEEDS = [3, 0, 3, 11]
TOKENS = torch.randint(50, (500,), generator=torch.Generator().manual_seed(0))


def alone(seed: int, device: torch.device, mode: Any = "running") -> NgramBatches:
    options: dict[str, Any] = {
        "mode": mode,
        "boundary": 0,
        "padding": 1,
        "device": device,
        "seed": seed,
    }
    return NgramBatches(TOKENS, context=3, batch_size=32, **options)


@pytest.mark.parametrize("mode", ["running", "sentence"])
def test_batches_are_those_of_every_trial_alone(mode: str, device: torch.device) -> None:
    trials = [alone(seed, device, mode) for seed in SEEDS]
    stacked = StackedBatches(trials[1], seeds=SEEDS)
    assert len(stacked) == len(trials[0])
    for epoch in (0, 1, 5):
        stacked.start(epoch)
        for index in range(len(stacked)):
            context, target = stacked.next()
            for trial, batches in enumerate(trials):
                expected = batches.batch(epoch, index)
                assert torch.equal(context[trial], expected[0])
                assert torch.equal(target[trial], expected[1])


def test_some_trials_go_on_as_before(device: torch.device) -> None:
    stacked, whole = (StackedBatches(alone(0, device), seeds=SEEDS) for _ in range(2))
    for batches in (stacked, whole):
        batches.start(0)
        batches.next()
    rows = torch.tensor([2, 3], device=device)
    stacked.keep_trials(rows)
    for epoch in (0, 1):
        for ours, theirs in zip(stacked.next(), whole.next(), strict=True):
            assert torch.equal(ours, theirs[rows])
        stacked.start(epoch + 1)
        whole.start(epoch + 1)
