"""The models of table 2 as data, models.toml, and the experiments that a text and a budget make of them."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from reproduction.experiments.chosen import Chosen
from reproduction.report.records import CONSTANT, CONVERGED, FIXED, MODELS, epochs_budget
from zloss.heads.config import check_name
from zloss_lab.configuration import dotted, from_table, overridden
from zloss_lab.corpora import Corpus
from zloss_lab.experiments import build_table
from zloss_lab.training import Experiment

# All but the full softmax, which trains for days where the others take minutes.
DEFAULT_MODELS = tuple(model for model in MODELS if model != "softmax net1")
RATES = ("training.lr", "training.output_lr")
# Fewer and larger lowerings than by default, as each costs a good part of a training; and more examples, whose top-1
# error is good to 0.35 points, so that chance lowers nothing early.
_CONVERGING = {
    "training.schedule": "plateau",
    "training.lr_factor": 0.25,
    "training.stop_after": 2,
    "training.validation_examples": 50_000,
}


@dataclass(frozen=True)
class Budget:
    """For how long a model is trained: so many seconds or epochs, the learning rates falling to zero over them, or,
    where there are neither, until lower learning rates bring no improvement.
    """

    seconds: float | None = None
    epochs: int | None = None

    @property
    def name(self) -> str:
        """As records have it."""
        if self.seconds is not None:
            return FIXED
        return CONVERGED if self.epochs is None else epochs_budget(self.epochs)

    @property
    def told(self) -> str:
        """As one says it."""
        if self.seconds is not None:
            return f"for {self.seconds:g} s"
        return "until it converges" if self.epochs is None else f"for {self.name}"

    @property
    def settings(self) -> dict[str, Any]:
        """What it makes of a training."""
        lengths = {"training.seconds": self.seconds, "training.epochs": self.epochs}
        given = {key: length for key, length in lengths.items() if length is not None}
        return {"training.schedule": "linear", **given} if given else dict(_CONVERGING)


def preset_of(model: str) -> str:
    """The network that it has, "net1" or "net2"."""
    check_name("model", model, [name for name in MODELS if name != CONSTANT])
    return str(_tables()[model]["preset"])


def chosen_model(model: str, corpus: Corpus, budget: Budget, changes: Mapping[str, Any]) -> Chosen:
    """A model for a text, with changes over what models.toml has, by dotted keys."""
    preset, table = (
        preset_of(model),
        {key: value for key, value in _tables()[model].items() if key != "preset"},
    )
    has_sentences = corpus.boundary is not None and corpus.padding is not None
    settings = {"training.mode": "sentence" if has_sentences else "running", **budget.settings}
    built = build_table(preset, [_tables()["every"], table], {"training.epochs": None, **settings})
    experiment = from_table(Experiment, {**built, "corpus": str(corpus.folder.resolve())})
    told = (_tables()["every"], table, overridden({}, settings))
    return Chosen.of(experiment, [key for part in told for key, _ in dotted(part)]).changed(changes)


def with_rate(chosen: Chosen, rate: float) -> Chosen:
    """The same with another learning rate; that of the output keeps its ratio to it."""
    training = chosen.experiment.training
    output_rate = float(
        f"{rate * training.output_lr / training.lr:.6g}"
    )  # no digits that nobody chose
    return chosen.changed(dict(zip(RATES, (rate, output_rate), strict=True)))


@cache
def _tables() -> dict[str, dict[str, Any]]:
    file = resources.files("reproduction.experiments").joinpath("models.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))
