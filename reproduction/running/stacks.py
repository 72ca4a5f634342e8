"""Networks that are trained side by side in stacks, as many at once as there is memory for. Only their scores are kept.

Networks that differ in shape stand in different stacks. For every requested score, the weights of the best validation
are kept until the network has been tested with them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from zloss_lab.corpora import Corpus
from zloss_lab.evaluation import Evaluation
from zloss_lab.runs import RunError
from zloss_lab.sidebyside import SideBySide, TrialOutcome, Validation, grouped
from zloss_lab.training import Experiment, TrainingWatcher, device_of

_SHARE_OF_GPU = 1 / 3  # of its memory for a stack: other processes may need the rest
_CPU_BYTES = 3 * 2**30  # for a stack on a CPU, where a larger one is no faster
_LOGITS = 3  # tensors of the size of the logits that a step holds, approximately


@dataclass(frozen=True)
class TrainedNetwork:
    """A network after its training: validations and tests, but no weights."""

    experiment: Experiment
    curve: Sequence[Validation]  # if it diverged, those before
    best: Mapping[str, Validation]  # by score; empty if it diverged, even after good validations
    test: Mapping[str, Evaluation]  # by score, with the weights of the best validation
    diverged: bool = False


def train_stack(
    experiments: Sequence[Experiment],
    scores: Sequence[Sequence[str]],
    watch: TrainingWatcher | None = None,
) -> list[TrainedNetwork]:
    """Train networks of one shape, and test each with its best weights by the scores that are listed for it."""
    try:
        stack = SideBySide(experiments, scores=_distinct(scores), watch=watch)
        outcomes = stack.train()
        bests = [_bests(outcome, wanted) for outcome, wanted in zip(outcomes, scores, strict=True)]
        tests = _tests(stack, bests)
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"{len(experiments)} networks at once are too many for the device: use --at-once"
        ) from error
    return [
        TrainedNetwork(
            outcome.experiment,
            outcome.validations,
            best,
            {score: tests[place, validation.step] for score, validation in best.items()},
            outcome.diverged,
        )
        for place, (outcome, best) in enumerate(zip(outcomes, bests, strict=True))
    ]


def _bests(outcome: TrialOutcome, scores: Sequence[str]) -> dict[str, Validation]:
    if outcome.diverged:
        return {}
    return {score: best for score in scores if (best := outcome.best_by(score))}


def _tests(
    stack: SideBySide, bests: Sequence[Mapping[str, Validation]]
) -> dict[tuple[int, int], Evaluation]:
    """Return tests by network and step. A validation that is the best by several scores is tested once."""
    tests: dict[tuple[int, int], Evaluation] = {}
    for score in _distinct(bests):
        steps = {place: best[score].step for place, best in enumerate(bests) if score in best}
        new = [place for place, step in steps.items() if (place, step) not in tests]
        results = stack.evaluate("test", score=score, trials=new) if new else []
        tests |= {
            (place, steps[place]): result
            for place, result in zip(new, results, strict=True)
            if result
        }
    return tests


def _distinct(scores: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(score for some in scores for score in some))


def in_stacks(
    experiments: Sequence[Experiment], *, scores: int, at_once: int | None = None
) -> Iterator[list[Experiment]]:
    """Yield stacks of at most `at_once` experiments. Without a number, memory is the limit."""
    for group in grouped(experiments):
        size = at_once or most_side_by_side(experiments[group[0]], scores=scores)
        for start in range(0, len(group), size):
            yield [experiments[number] for number in group[start : start + size]]


def most_side_by_side(experiment: Experiment, *, scores: int = 0) -> int:
    """Return the number of networks of this shape that fit into a stack which keeps the best weights by some scores."""
    classes, network = len(Corpus.open(experiment.corpus).vocabulary), experiment.network
    hidden = sum(below * above for below, above in pairwise(network.sizes))
    weights = classes * (network.embedding + network.sizes[-1]) + hidden
    logits = experiment.training.batch_size * classes
    # Weights are held once to be trained, once by `training.score`, and once while they are copied.
    bytes_each = 4 * (_LOGITS * logits + (3 + scores) * weights)
    return max(1, _bytes_to_take(device_of(experiment.device)) // bytes_each)


def _bytes_to_take(device: torch.device) -> int:
    if device.type == "cuda":
        return int(_SHARE_OF_GPU * torch.cuda.get_device_properties(device).total_memory)
    return _CPU_BYTES
