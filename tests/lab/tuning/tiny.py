"""A study that takes a second: a tiny corpus, a tiny space, and an evaluator that trains nothing."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from tests.lab.pets import pets_corpus
from zloss_lab.evaluation import Evaluation
from zloss_lab.training import Experiment
from zloss_lab.tuning.evaluators import Ending, Judge
from zloss_lab.tuning.plan import StudyPlan
from zloss_lab.tuning.study import TuningStudy

SPACE: dict[str, Any] = {
    "fixed": {
        "network": {"context": 3, "head": {"head": "factored", "loss": "z_loss", "b": 2.0}},
        "training": {
            "schedule": "linear",
            "batch_size": 20,
            "steps": 40,
            "validate_every": 10,
            "validation_examples": 100,
            "log_every": 10,
        },
    },
    "search": {
        "training": {
            "lr": {"low": 0.01, "high": 1.0, "log": True},
            "output_lr": {"low": 0.001, "high": 1.0, "log": True},
        },
        "network": {
            "embedding": {"choices": [4, 8]},
            "hidden": {"choices": [[8], [16, 8]]},
            "head": {"a": {"low": 0.1, "high": 1.0, "log": True}},
        },
    },
}
ONLY_LR = {**SPACE, "search": {"training": {"lr": {"low": 1e-5, "high": 1.0, "log": True}}}}


def tiny_corpus(place: Path) -> Path:
    return pets_corpus(place, lines=300)


def tiny_plan(corpus: Path, **changes: Any) -> StudyPlan:
    asked: dict[str, Any] = {
        "corpus": str(corpus),
        "space": SPACE,
        "score": "top_1_error",
        "preset": "ptb",
        "settings": [],
        "trials": 4,
        "seed": 0,
        "prunes": True,
        "first": None,
        "storage": None,
        "name": "tiny",
    }
    return StudyPlan(**asked | changes)


def evaluation(error: float) -> Evaluation:
    """Return an evaluation in which this share of 1,000 targets has rank 2."""
    ranks = torch.ones(1000, dtype=torch.long)
    ranks[: round(1000 * error)] = 2
    return Evaluation.of_ranks(ranks)


class MadeUp:
    """An evaluator whose scores are a function of the experiment and the epoch."""

    def __init__(
        self,
        error: Callable[[Experiment, int], float],
        *,
        epochs: int = 4,
        ending: Callable[[Experiment], Ending] = lambda _: Ending("ended"),
    ) -> None:
        self.error, self.epochs, self.ending = error, epochs, ending
        self.rounds: list[list[Experiment]] = []
        self.stopped: dict[int, int] = {}  # the last epoch of each stopped trial, by its number

    def check(self, experiment: Experiment) -> None:
        pass

    def is_shared(self, key: str) -> bool:
        return key in ("network.embedding", "network.hidden")

    def evaluate(self, experiments: Mapping[int, Experiment], judge: Judge) -> dict[int, Ending]:
        self.rounds.append(list(experiments.values()))
        going, endings = (
            dict(experiments),
            {number: self.ending(one) for number, one in experiments.items()},
        )
        for epoch in range(1, self.epochs + 1):
            validations = {
                number: evaluation(self.error(one, epoch)) for number, one in going.items()
            }
            for number in judge(epoch, validations):
                if epoch < self.epochs:
                    self.stopped[number], endings[number] = epoch, Ending("stopped")
                    del going[number]
        return endings


def distance(experiment: Experiment, epoch: int = 1) -> float:
    """Return an error that is least at the learning rate 0.1, and falls with the epochs."""
    from_best = abs(torch.tensor(experiment.training.lr).log10().item() + 1)  # 0.1 is best
    return min(1.0, 0.1 + 0.4 * from_best + 0.1 / epoch)


def states(study: TuningStudy) -> list[str]:
    return [trial.state for trial in study.trials()]


def settings_of(study: TuningStudy) -> list[dict[str, Any]]:
    return [trial.settings for trial in study.trials()]


def made_up(
    corpus: Path, folder: Path, evaluator: MadeUp | None = None, *, at_once: int = 1, **asked: Any
) -> TuningStudy:
    study = TuningStudy.begin(folder, tiny_plan(corpus, **asked))
    study.run(evaluator or MadeUp(distance), at_once=at_once)
    return study


def files_of(study: TuningStudy) -> list[str]:
    return sorted(file.name for file in study.folder.iterdir())
