"""From records that are wanted to records: what is there already is left alone, the rest is trained side by side.

A record stands for one seed of a choice, such as a loss that was tuned for a score. Choices may well come to the same
settings: such a network is trained once.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reproduction.experiments.chosen import Chosen
from reproduction.experiments.ledger import DIGEST, Ledger
from reproduction.experiments.stacks import Trained, in_stacks, train_stack
from reproduction.report.records import Choice
from zloss_lab.corpora import Corpus
from zloss_lab.evaluation import Evaluation, finite
from zloss_lab.records import Record, provenance
from zloss_lab.runs import RunError
from zloss_lab.training import Experiment, Watcher, device_of


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A record that is wanted."""

    choice: Choice  # as `reproduction.report.records` tells it from others
    chosen: Chosen
    seed: int
    score: str | None  # by which the network is to be tested at its best; None for no test
    record: Callable[[Trained], Record]  # what is to be told of it, beside what every record has

    @property
    def experiment(self) -> Experiment:
        """What is to be trained for it."""
        return self.chosen.seeded(self.seed)

    def found_in(self, ledger: Ledger) -> Record | None:
        """The record, where it is there."""
        return ledger.find(self.choice, self.chosen.settings, self.seed, digest=self.chosen.digest)


def say_nothing(_: str) -> None:
    """What tells those who do not listen. It has a name, by which another process knows it."""


@dataclass(frozen=True, kw_only=True)
class Collector:
    """How records are made, and where they go."""

    folder: Path
    seeds: Sequence[int]
    at_once: int | None = None  # networks in a stack; None for as many as there is memory for
    watch: Watcher | None = None
    tell: Callable[[str], None] = say_nothing

    def ledger(self, name: str) -> Ledger:
        """The file of a figure or table."""
        return Ledger(self.folder, name)

    def collect(self, name: str, wanted: Sequence[Wanted]) -> list[str]:
        """Make the records of "figure2" and so on that are missing; returns what diverged, and has none."""
        ledger = self.ledger(name)
        missing = [one for one in wanted if not one.found_in(ledger)]
        self.tell(f"{name}: {len(wanted) - len(missing)} of {len(wanted)} records are there")
        self.warn(ledger, missing)
        experiments = _distinct(one.experiment for one in missing)
        check_splits(experiment.corpus for experiment in experiments)
        faults: list[str] = []
        for stack in in_stacks(experiments, scores=len(_scores(missing)), at_once=self.at_once):
            served = [one for one in missing if one.experiment in stack]
            faults += self._collect_stack(ledger, stack, served)
        return faults

    def warn(self, ledger: Ledger, wanted: Iterable[Wanted]) -> None:
        """Say which records will give way to those that are wanted."""
        choices = {one.choice: one.chosen for one in wanted}
        others = {
            choice: number
            for choice, chosen in choices.items()
            if (number := ledger.others(choice, chosen.settings, digest=chosen.digest))
        }
        if others:
            told = "; ".join(", ".join(map(str, choice)) for choice in others)
            self.tell(f"{ledger.name}: {ledger.will_give_way(f'{sum(others.values())}: {told}')}")

    def _collect_stack(
        self, ledger: Ledger, stack: list[Experiment], wanted: Sequence[Wanted]
    ) -> list[str]:
        """Of networks that are trained together; they are kept when the stack is through."""
        loss = stack[0].network.head.loss
        networks_told = "1 network" if len(stack) == 1 else f"{len(stack)} networks side by side"
        records_told = "1 record" if len(wanted) == 1 else f"{len(wanted)} records"
        self.tell(f"{ledger.name}: {loss}, {networks_told} for {records_told}")
        scores = [
            _scores(one for one in wanted if one.experiment == experiment) for experiment in stack
        ]
        origin = provenance(
            device_of(stack[0].device)
        )  # now: the checkout may change before the end
        networks = train_stack(stack, scores, self.watch)
        records, faults = [], []
        for one in wanted:
            network = networks[stack.index(one.experiment)]
            if network.diverged:
                faults.append(
                    f"{ledger.name}, {', '.join(map(str, one.choice))}, seed {one.seed}: it diverged"
                )
            else:
                told = {
                    "seed": one.seed,
                    "settings": dict(one.chosen.settings),
                    DIGEST: one.chosen.digest,
                }
                records.append(one.record(network) | told | origin)
        if records and (dropped := ledger.add(records)):
            self.tell(f"{ledger.name}: {dropped} records with other settings have given way")
        return faults


def check_splits(corpora: Iterable[str]) -> None:
    """Refuse a corpus that has not all splits, before anything is trained on it."""
    for folder in dict.fromkeys(corpora):
        lacking = {"train", "valid", "test"}.difference(Corpus.open(folder).splits)
        if lacking:
            raise RunError(
                f"{folder} has no {' and no '.join(sorted(lacking))} split: all three are needed here"
            )


def scores_of(evaluation: Evaluation) -> Record:
    """As a record has them, to six digits: a hundredth of a point is the difference of some ten examples."""
    return {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in finite(evaluation.to_record()).items()
    }


def _scores(wanted: Iterable[Wanted]) -> list[str]:
    return list(dict.fromkeys(one.score for one in wanted if one.score is not None))


def _distinct(experiments: Iterable[Experiment]) -> list[Experiment]:
    found: list[Experiment] = []
    for experiment in experiments:
        if experiment not in found:  # they can be compared, and not be hashed
            found.append(experiment)
    return found
