"""The way from wanted results to records: networks without a record are trained side by side.

A record stands for one seed of a choice, such as a loss that was tuned for a score. Several choices may have the same
settings: such a network is trained once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction.results.schema import Choice, TrainingResult
from reproduction.running.chosen import Chosen
from reproduction.running.ledger import Ledger
from reproduction.running.messages import Tell, say_nothing
from reproduction.running.stacks import TrainedNetwork, in_stacks, train_stack
from zloss_lab.corpora import Corpus
from zloss_lab.records import provenance
from zloss_lab.runs import RunError
from zloss_lab.training import Experiment, TrainingWatcher, device_of

# The fields that a result shares with the results of all trainings -> the result of a network.
ResultMaker = Callable[[TrainedNetwork, Mapping[str, Any]], TrainingResult]


@dataclass(frozen=True, kw_only=True)
class WantedResult:
    """A result that is wanted."""

    choice: Choice
    chosen: Chosen
    seed: int
    score: str | None  # the network is tested at its best validation by it; None for no test
    make: ResultMaker

    @property
    def experiment(self) -> Experiment:
        """The training that leads to the result."""
        return self.chosen.seeded(self.seed)

    def found_in(self, ledger: Ledger) -> TrainingResult | None:
        """Return the result, if the file has it."""
        found: TrainingResult | None = ledger.find(
            self.choice, self.chosen.settings, self.seed, digest=self.chosen.digest
        )
        return found

    def result_of(self, network: TrainedNetwork, origin: Mapping[str, Any]) -> TrainingResult:
        """Return the result of a network that was trained at this origin."""
        chosen = {"settings": dict(self.chosen.settings), "digest": self.chosen.digest}
        return self.make(network, {"seed": self.seed, **chosen, **origin})


@dataclass(frozen=True, kw_only=True)
class Collector:
    """The way to make records, and their folder."""

    folder: Path
    seeds: Sequence[int]
    at_once: int | None = None  # networks in a stack; None for as many as there is memory for
    watch: TrainingWatcher | None = None
    tell: Tell = say_nothing

    def ledger(self, name: str) -> Ledger:
        """Return the file of a figure or table."""
        return Ledger(self.folder, name)

    def collect(self, name: str, wanted: Sequence[WantedResult]) -> list[str]:
        """Make the missing records of "figure2" and so on; return messages about networks that diverged."""
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

    def warn(self, ledger: Ledger, wanted: Iterable[WantedResult]) -> None:
        """Announce which records will be replaced by the wanted ones."""
        choices = {one.choice: one.chosen for one in wanted}
        others = {
            choice: number
            for choice, chosen in choices.items()
            if (number := ledger.count_others(choice, chosen.settings, digest=chosen.digest))
        }
        if others:
            names = "; ".join(", ".join(map(str, choice)) for choice in others)
            notice = ledger.replacement_notice(f"{sum(others.values())}: {names}")
            self.tell(f"{ledger.name}: {notice}")

    def _collect_stack(
        self, ledger: Ledger, stack: list[Experiment], wanted: Sequence[WantedResult]
    ) -> list[str]:
        """Train networks together, and keep their results when the whole stack is trained."""
        loss = stack[0].network.head.loss
        stack_size = "1 network" if len(stack) == 1 else f"{len(stack)} networks side by side"
        record_count = "1 record" if len(wanted) == 1 else f"{len(wanted)} records"
        self.tell(f"{ledger.name}: {loss}, {stack_size} for {record_count}")
        scores = [
            _scores(one for one in wanted if one.experiment == experiment) for experiment in stack
        ]
        origin = provenance(device_of(stack[0].device))  # before: the checkout may change meanwhile
        networks = train_stack(stack, scores, self.watch)
        results, faults = [], []
        for one in wanted:
            network = networks[stack.index(one.experiment)]
            if network.diverged:
                name = f"{ledger.name}, {', '.join(map(str, one.choice))}, seed {one.seed}"
                faults.append(f"{name}: it diverged")
            else:
                results.append(one.result_of(network, origin))
        if results and (dropped := ledger.add(results)):
            self.tell(f"{ledger.name}: replaced {dropped} records with other settings")
        return faults


def check_splits(corpora: Iterable[str]) -> None:
    """Refuse a corpus that lacks a split, before anything is trained on it."""
    for folder in dict.fromkeys(corpora):
        lacking = {"train", "valid", "test"}.difference(Corpus.open(folder).splits)
        if lacking:
            raise RunError(
                f"{folder} has no {' and no '.join(sorted(lacking))} split: all three are needed here"
            )


def _scores(wanted: Iterable[WantedResult]) -> list[str]:
    return list(dict.fromkeys(one.score for one in wanted if one.score is not None))


def _distinct(experiments: Iterable[Experiment]) -> list[Experiment]:
    found: list[Experiment] = []
    for experiment in experiments:
        if experiment not in found:  # they can be compared, but not hashed
            found.append(experiment)
    return found
