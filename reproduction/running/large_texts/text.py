"""A text of table 2, with all that is equal for the models that are trained on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from reproduction.budgets import Budget
from reproduction.large_text_models import CONSTANT
from reproduction.results.schema import LargeTextResult
from reproduction.running.chosen import Chosen
from reproduction.running.collecting import Collector, check_splits
from reproduction.running.large_texts.chosen_models import chosen_model
from reproduction.running.large_texts.run_folders import LargeTextRuns
from reproduction.running.ledger import Ledger
from reproduction.running.messages import Tell, say_nothing
from zloss_lab.corpora import Corpus
from zloss_lab.evaluation import cpu_sample, require_score
from zloss_lab.experiments import preset_names, preset_network
from zloss_lab.runs import RunError
from zloss_lab.training import (
    DivergedError,
    Experiment,
    TrainingWatcher,
    build_network,
    build_optimizers,
    device_of,
)

FAULTS = (DivergedError, torch.OutOfMemoryError)  # of one training: the others go on
_MODEL_OF_CONSTANT = "z_loss_net1"  # the constant classifier is tested on its examples


@dataclass(frozen=True)
class RatesToTry:
    """Learning rates to try, and the time for each of them."""

    values: Sequence[float]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LargeText:
    """A prepared corpus, and how models are trained and tested on it."""

    folder: Path  # of the corpus
    budget: Budget
    collector: Collector
    runs: LargeTextRuns
    rates: RatesToTry | None = None
    changes: Mapping[str, Any]  # over the settings of all models, by dotted keys
    limit: int | None = None  # examples that models are tested on at most; see `sample`

    @cached_property
    def corpus(self) -> Corpus:
        """The opened corpus."""
        return Corpus.open(self.folder)

    @cached_property
    def ledger(self) -> Ledger:
        """The file of the table."""
        return self.collector.ledger("table2")

    @cached_property
    def sample(self) -> int | None:
        """The number of examples that models are tested on at most; None for all.

        Without a limit, a GPU ranks all examples. A CPU ranks the number of examples that takes the slowest of all
        models half a minute. So all models are tested on the same examples.
        """
        device = device_of(str(self.changes.get("device", "auto")))
        if self.limit is not None or device.type != "cpu":
            return self.limit
        widest = max(preset_network(name).sizes[-1] for name in preset_names())
        return cpu_sample(widest, len(self.corpus.vocabulary))

    def with_listeners(
        self, watch: TrainingWatcher | None = None, tell: Tell = say_nothing
    ) -> "LargeText":
        """Return the same text with other listeners. Without any, it is small enough to be sent to another process."""
        return replace(self, collector=replace(self.collector, watch=watch, tell=tell))

    def chosen(self, model: str) -> Chosen:
        """Return the experiment of a model, with the learning rate of its description."""
        name = _MODEL_OF_CONSTANT if model == CONSTANT else model
        return chosen_model(name, self.corpus, self.budget, self.changes)

    # ---- checks ------------------------------------------------------------------------------------------------------

    def check(self, models: Sequence[str]) -> None:
        """Refuse mistakes of the user before any model is trained."""
        check_splits([str(self.folder)])
        self._require_same_words()
        for model in models:
            self._require_trainable(self.chosen(model).experiment)

    def _require_same_words(self) -> None:
        """Refuse to mix with records of another text that has the same name."""
        classes = len(self.corpus.vocabulary)
        for result in self.ledger.results():
            if result.corpus == self.corpus.name and result.classes != classes:
                raise RunError(
                    f"{self.ledger.path} has records of {self.corpus.name} with {result.classes:,} classes, and "
                    f"{self.corpus.folder} has {classes:,}: choose another folder for --records"
                )

    def _require_trainable(self, experiment: Experiment) -> None:
        """Find faults with a network that needs no memory. Otherwise each of several processes would find them."""
        device_of(experiment.device)
        network = build_network(experiment, self.corpus, torch.device("meta"))
        require_score(experiment.training.score, is_likelihood=network.head.is_likelihood)
        build_optimizers(experiment, network)

    # ---- records -----------------------------------------------------------------------------------------------------

    def find(self, model: str, chosen: Chosen, seed: int | None) -> LargeTextResult | None:
        """Return the record of a model with these settings, of any seed if that is None."""
        found: LargeTextResult | None = self.ledger.find(
            self._choice(model), chosen.settings, seed, digest=chosen.digest
        )
        return found

    def is_up_to_date(self, result: LargeTextResult | None, *, tells: bool = False) -> bool:
        """Return whether a record exists and has as many test examples as it would have now."""
        if result is None:
            return False
        tested, wanted = result.test.examples, result.test.population
        if self.sample is not None:
            wanted = min(self.sample, wanted)
        if tells and tested != wanted:
            self.tell(
                result.model,
                f"the record of seed {result.seed} is of {tested:,} test examples, and {wanted:,} are wanted now: "
                f"it is made again, and the old one kept in {self.ledger.replaced}",
            )
        return tested == wanted

    def announce_replacements(self, model: str, choices: Sequence[Chosen]) -> None:
        """Announce the records that will be replaced, whichever of these settings is taken."""
        others = [
            self.ledger.count_others(self._choice(model), one.settings, digest=one.digest)
            for one in choices
        ]
        if number := min(others):
            self.tell(model, self.ledger.replacement_notice(number))

    def add(self, result: LargeTextResult) -> None:
        """Write a record, and report how many records with other settings it has replaced."""
        if dropped := self.ledger.add([result]):
            self.tell(result.model, f"replaced {dropped} records with other settings")

    def _choice(self, model: str) -> tuple[str, str, str]:
        return self.corpus.name, model, self.budget.key

    # ---- messages ----------------------------------------------------------------------------------------------------

    def tell(self, model: str, message: str) -> None:
        """Report something about a model."""
        self.collector.tell(f"table2, {self.corpus.name}: {model}, {message}")

    def fault(self, name: str, why: str) -> str:
        """Return one line about a training that failed."""
        return f"table2, {self.corpus.name}, {name}: {why.partition(chr(10))[0]}"
