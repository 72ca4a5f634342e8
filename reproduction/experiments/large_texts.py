"""Table 2: models with many classes on a large text, each for a fixed time, for some epochs or until it converges.

They are trained one after the other, or several at once (`at_once.py`), in runs that can be resumed. A model may be
given several learning rates to try: each for a short while, and the one that validates best is taken.
"""

import gc
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from reproduction.experiments.chosen import Chosen, digest_of
from reproduction.experiments.collecting import Collector, check_splits, say_nothing, scores_of
from reproduction.experiments.ledger import DIGEST, Ledger
from reproduction.experiments.models import RATES, Budget, chosen_model, preset_of, with_rate
from reproduction.report.records import CONSTANT
from zloss_lab.configuration import to_table
from zloss_lab.corpora import Corpus
from zloss_lab.durable import locked, tidied
from zloss_lab.evaluation import constant_classifier, cpu_sample, require_score
from zloss_lab.models import TrainedModel
from zloss_lab.networks import PRESETS
from zloss_lab.records import Record, provenance
from zloss_lab.runs import Run, RunError
from zloss_lab.training import (
    DivergedError,
    Experiment,
    Watcher,
    batches_of,
    build_network,
    build_optimizers,
    device_of,
    fit,
)
from zloss_lab.tuning.trials import cost

_RATE_SEED = 0
_LOOK_EVERY_S = 0.2  # whether others are done
_CONSTANT_LIKE = "Z-loss net1"  # whose examples the constant classifier is tested on
_FAULTS = (DivergedError, torch.OutOfMemoryError)  # of one training, after which others go on


@dataclass(frozen=True)
class Rates:
    """Learning rates to try, and for how long each."""

    values: Sequence[float]
    seconds: float


@dataclass(frozen=True)
class Rated:
    """A model with its learning rate, and those that were tried for it."""

    chosen: Chosen
    tried: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class LargeText:
    """What is to be done with models on a text."""

    folder: Path  # of the prepared corpus
    budget: Budget
    collector: Collector
    runs: Path  # a folder for runs while they are needed
    keeps_runs: bool = False
    is_alone: bool = True  # on its device: only then the time that a training takes says something
    rates: Rates | None = None
    changes: Mapping[str, Any]  # of all models, by dotted keys
    limit: int | None = None  # examples that models are tested on at most; see `sample`

    def collect(self, models: Sequence[str]) -> list[str]:
        """Make the records of these models that are missing; returns what could not be trained."""
        self.check(models)
        with tidied(self.runs):
            return [fault for model in models for fault in self._collect_model(model)]

    def heard_by(
        self, watch: Watcher | None = None, tell: Callable[[str], None] = say_nothing
    ) -> "LargeText":
        """The same, heard by others. Where that is nobody, it is small, and can be sent to another process."""
        return replace(self, collector=replace(self.collector, watch=watch, tell=tell))

    def check(self, models: Sequence[str]) -> None:
        """Before any of them is trained: a mistake shows here."""
        check_splits([str(self.folder)])
        self._require_same_words()
        for model in models:
            self._require_trainable(self._chosen(model).experiment)

    def _require_same_words(self) -> None:
        """Refuse records of another text of this name: they would pass for those of this one."""
        for record, result in self.ledger.entries():
            if result.choice[0] == self.corpus.name and record["classes"] != len(
                self.corpus.vocabulary
            ):
                raise RunError(
                    f"{self.ledger.path} has records of {self.corpus.name} with {record['classes']:,} classes, and "
                    f"{self.corpus.folder} has {len(self.corpus.vocabulary):,}: choose another folder for --records"
                )

    def _require_trainable(self, experiment: Experiment) -> None:
        """Let a network without memory find what is wrong: else each of several processes would."""
        device_of(experiment.device)
        network = build_network(experiment, self.corpus, torch.device("meta"))
        require_score(experiment.training.score, is_likelihood=network.head.is_likelihood)
        build_optimizers(experiment, network)

    @cached_property
    def corpus(self) -> Corpus:
        """The text."""
        return Corpus.open(self.folder)

    @cached_property
    def ledger(self) -> Ledger:
        """The file of the table."""
        return self.collector.ledger("table2")

    @cached_property
    def sample(self) -> int | None:
        """Examples that models are tested on, at most; None for all, as on a GPU where nobody says how many.

        On a CPU as many as the slowest of all models ranks in half a minute, so that all are tested on the same ones.
        """
        if (
            self.limit is not None
            or device_of(str(self.changes.get("device", "auto"))).type != "cpu"
        ):
            return self.limit
        return cpu_sample(
            max(config.sizes[-1] for config in PRESETS.values()), len(self.corpus.vocabulary)
        )

    def _chosen(self, model: str) -> Chosen:
        return chosen_model(
            _CONSTANT_LIKE if model == CONSTANT else model, self.corpus, self.budget, self.changes
        )

    def _collect_model(self, model: str) -> list[str]:
        if model == CONSTANT:
            self.collect_constant()
            return []
        try:
            rated = self.known_rate(model) or self.try_rates(model)
        except _FAULTS as error:
            return [self.fault(model, str(error))]
        faults = []
        for seed in self.missing(model, rated):
            try:
                self.train(model, rated, seed)
            except _FAULTS as error:
                faults.append(self.fault(f"{model}, seed {seed}", str(error)))
        if not faults:
            self.forget_rates(model)
        return faults

    def fault(self, what: str, why: str) -> str:
        """What could not be trained, in a line."""
        return f"table2, {self.corpus.name}, {what}: {why.partition(chr(10))[0]}"

    def _record(self, model: str, chosen: Chosen, seed: int | None) -> Record | None:
        return self.ledger.find(self._choice(model), chosen.settings, seed, digest=chosen.digest)

    def missing(self, model: str, rated: "Rated") -> list[int]:
        """The seeds that have no record, or one of other test examples, which is told."""
        records = {seed: self._record(model, rated.chosen, seed) for seed in self.collector.seeds}
        return [seed for seed, record in records.items() if not self._is_there(record, tells=True)]

    def _is_there(self, record: Record | None, *, tells: bool = False) -> bool:
        """Whether that is a record, and of as many test examples as would be taken now, where it says how many."""
        if record is None or "examples" not in record["test"]:
            return record is not None
        tested, population = (record["test"].get(name) for name in ("examples", "population"))
        wanted = min(number for number in (self.sample, population or tested) if number is not None)
        if tells and tested != wanted:
            self.tell(
                record["model"],
                f"the record of seed {record['seed']} is of {tested:,} test examples, and {wanted:,} are wanted now: "
                f"it is made again, and the old one kept in {self.ledger.replaced}",
            )
        return bool(tested == wanted)

    def _choice(self, model: str) -> tuple[str, str, str]:
        return self.corpus.name, model, self.budget.name

    def _forget(self, run: Path) -> None:
        """What has its record."""
        if not self.keeps_runs:
            shutil.rmtree(run, ignore_errors=True)
            _sharing_mark(run).unlink(missing_ok=True)

    def _warn(self, model: str, choices: Sequence[Chosen]) -> None:
        """Say which records will give way, whichever of these is taken."""
        others = [
            self.ledger.others(self._choice(model), one.settings, digest=one.digest)
            for one in choices
        ]
        if number := min(others):
            self.tell(model, f"its {self.ledger.will_give_way(number)}")

    # ---- learning rates ----------------------------------------------------------------------------------------------

    def known_rate(self, model: str) -> "Rated | None":
        """The model with the learning rate that its records have, or its own; None where several are to be tried.

        Says which records will give way, whichever is taken.
        """
        choices = self._choices(model)
        self._warn(model, choices)
        return Rated(choices[0]) if self.rates is None else self._begun(model, choices)

    def try_rates(self, model: str) -> "Rated":
        """The model with the learning rate that validates best."""
        assert self.rates is not None
        choices = self._choices(model)
        with _alone_in(
            self._place_of_rates(model)
        ):  # others that try the same wait, and find these runs
            if begun := self._begun(model, choices):
                return begun
            costs = [self._try(model, one, self.rates.seconds) for one in choices]
        if not math.isfinite(min(costs)):
            raise DivergedError("it diverges with all learning rates")
        return Rated(choices[costs.index(min(costs))], tried=list(self.rates.values))

    def _choices(self, model: str) -> list[Chosen]:
        """The model with each of its learning rates."""
        chosen = self._chosen(model)
        return (
            [chosen]
            if self.rates is None
            else [with_rate(chosen, rate) for rate in self.rates.values]
        )

    def _begun(self, model: str, choices: Sequence[Chosen]) -> "Rated | None":
        for one in choices:
            if record := self._record(model, one, seed=None):
                self.tell(model, f"{_rates_told(one)}, as in its records; no others are tried")
                return Rated(one, tried=record["rates_tried"])
        return None

    def _try(self, model: str, chosen: Chosen, seconds: float) -> float:
        """The cost at the best validation of a run whose whole schedule is so short; infinity where it diverges."""
        self.tell(model, f"trying {_rates_told(chosen)} for {seconds:g} s")
        short = chosen.changed(Budget(seconds).settings).seeded(_RATE_SEED)
        try:
            return _cost(self._run(short, self._place_of_rates(model) / digest_of(to_table(short))))
        except DivergedError:
            return math.inf

    def _place_of_rates(self, model: str) -> Path:
        """The folder of the runs that try rates for a model."""
        return self.runs / "-".join(
            (self.corpus.name, *model.split(), *self.budget.name.split(), "rates")
        )

    def forget_rates(self, model: str) -> None:
        """What was tried, unless another process is at it. Whoever comes later finds the rate in the records."""
        if self.rates is None or self.keeps_runs:
            return
        folder = self._place_of_rates(model)
        with suppress(FileNotFoundError), locked(folder, waits=False) as is_ours:
            if is_ours:
                shutil.rmtree(folder, ignore_errors=True)

    # ---- trainings ---------------------------------------------------------------------------------------------------

    def train(self, model: str, rated: "Rated", seed: int) -> None:
        """Make the record of a seed, unless it is there by now."""
        if not self._is_there(self._record(model, rated.chosen, seed)):
            self._forget(self._collect_seed(model, rated, seed))

    def _collect_seed(self, model: str, rated: "Rated", seed: int) -> Path:
        """Train, test and write down; returns the folder of the run."""
        chosen = rated.chosen
        self.tell(model, f"seed {seed}, {self.budget.told}")
        origin = provenance(
            device_of(chosen.experiment.device)
        )  # now: the checkout may change before the end
        experiment = chosen.seeded(seed)
        place = self._place(model, experiment)
        if not self.is_alone:
            place.parent.mkdir(parents=True, exist_ok=True)
            _sharing_mark(place).touch()
        run = self._run(experiment, place)
        trained = TrainedModel.load(run.folder)
        scores = {
            split: trained.evaluate(split, limit=self.sample)["this run"]
            for split in ("valid", "test")
        }
        head = trained.experiment.network.head
        told = {
            "head": head.head,
            "loss": head.loss,
            "network": preset_of(model),
            "budget": self.budget.name,
            "budget_s": self.budget.seconds,
            "train_s": run.state()["seconds"],
            "alone": not _sharing_mark(place).exists(),
            "epochs": run.metrics()[-1]["epoch"],
            "rates_tried": list(rated.tried),
            "seed": seed,
            "settings": dict(chosen.settings),
            DIGEST: chosen.digest,
        }
        told |= {split: scores_of(evaluation) for split, evaluation in scores.items()}
        if dropped := self.ledger.add([self._described(model) | told | origin]):
            self.tell(model, f"its {dropped} records with other settings have given way")
        return run.folder

    def collect_constant(self) -> None:
        """Words by their frequency, tested on the examples of the others."""
        experiment = self._chosen(CONSTANT).experiment
        settings = {
            "network.context": experiment.network.context,
            "training.mode": experiment.training.mode,
        }
        if self._is_there(
            self.ledger.find((self.corpus.name, CONSTANT, None), settings, 0), tells=True
        ):
            return
        self.tell(CONSTANT, "words by their frequency")
        device, scores = device_of(experiment.device), {}
        origin = provenance(device)
        for split in ("valid", "test"):
            batches = batches_of(self.corpus, split, experiment, device, shuffle=False)
            scores[split] = scores_of(
                constant_classifier(self.corpus.vocabulary.counts, batches, limit=self.sample)
            )
        self.ledger.add(
            [self._described(CONSTANT) | {"seed": 0, "settings": settings} | scores | origin]
        )

    def _described(self, model: str) -> Record:
        return {
            "table": 2,
            "corpus": self.corpus.name,
            "classes": len(self.corpus.vocabulary),
            "model": model,
        }

    def _run(self, experiment: Experiment, folder: Path) -> Run:
        """A run of this very experiment, begun or continued."""
        is_begun = (folder / "config.json").exists()
        gc.collect()  # the one before, which may be large and refers to itself
        return fit(experiment, folder, resume=is_begun, watch=self.collector.watch)

    def _place(self, model: str, experiment: Experiment) -> Path:
        words = (
            self.corpus.name,
            *model.split(),
            *self.budget.name.split(),
            digest_of(to_table(experiment)),
        )
        return self.runs / "-".join(words)

    def tell(self, model: str, what: str) -> None:
        """Say something of a model."""
        self.collector.tell(f"table2, {self.corpus.name}: {model}, {what}")


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Have a folder to oneself. It is made where there is none: whoever had it until now may well remove it."""
    while True:
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                is_ours = stack.enter_context(locked(folder, waits=False))
            except FileNotFoundError:
                continue
            if is_ours:
                yield
                return
        time.sleep(
            _LOOK_EVERY_S
        )  # not in the lock, where a process does not hear that it is to stop (`processes.py`)


def _sharing_mark(run: Path) -> Path:
    """A file beside a run that has shared its device: stopped and resumed alone, its time says nothing still."""
    return run.with_name(f"{run.name}.shared")


def _rates_told(chosen: Chosen) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {chosen.settings[key]:g}" for key in RATES)


def _cost(run: Run) -> float:
    """Its best validation by the score that decides, as something to be made small."""
    score = run.config["training"]["score"]
    return min(cost(record, score) for record in run.metrics() if record["kind"] == "validation")
