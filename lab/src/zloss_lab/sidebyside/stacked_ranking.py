"""Evaluation of all networks of a stack at once: `zloss_lab.evaluation` for many trials."""

import torch

from zloss_lab.evaluation import Evaluation
from zloss_lab.ngrams import NgramBatches
from zloss_lab.sidebyside.network import StackedNetwork

# Scores held at a time, over all trials and classes: 1 GiB in float32 on a GPU, 64 MiB on a CPU.
_SCORES = {"cuda": 2**28, "cpu": 2**24}


def evaluate_stack(
    network: StackedNetwork, batches: NgramBatches, *, limit: int | None = None
) -> list[Evaluation]:
    """Rank the targets of a text among all classes, for every trial. There is no perplexity.

    Args:
        network: the stack. Afterwards `is_sound` is true for the trials that had a finite score for every target; the
            other trials have diverged.
        batches: batches of the text.
        limit: the most examples to take, in the same sample as `zloss_lab.evaluation.evaluate` takes; None for all.
    """
    held = _SCORES.get(batches.device.type, _SCORES["cpu"]) // (
        network.weights.trials * network.num_classes
    )
    wanted = batches.examples if limit is None else min(limit, batches.examples)
    chosen = batches.sampled(wanted, batch_size=max(1, held))
    ranks = torch.cat([network.rank(context, target) for context, target in chosen], 1)
    return [Evaluation.of_ranks(of_trial, population=batches.population) for of_trial in ranks]
