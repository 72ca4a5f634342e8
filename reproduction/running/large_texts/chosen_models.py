"""The experiments that a text and a budget make of the models of table 2."""

from collections.abc import Mapping
from typing import Any

from reproduction.budgets import Budget
from reproduction.large_text_models import COMMON_SETTINGS, CONSTANT, MODELS
from reproduction.running.chosen import Chosen
from zloss.names import check_name
from zloss_lab.configuration import dotted, from_table, overridden
from zloss_lab.corpora import Corpus
from zloss_lab.experiments import build_table
from zloss_lab.training import Experiment

# All but the full softmax, which trains for days where the others take minutes.
DEFAULT_MODELS = tuple(model for model in MODELS if model != "softmax_net1")
RATES = ("training.lr", "training.output_lr")


def preset_of(model: str) -> str:
    """Return the network of a model, "net1" or "net2"."""
    check_name("model", model, [key for key in MODELS if key != CONSTANT])
    return str(MODELS[model].preset)


def chosen_model(model: str, corpus: Corpus, budget: Budget, changes: Mapping[str, Any]) -> Chosen:
    """Return a model for a text, with changes over large_text_models.toml by dotted keys."""
    preset, table = preset_of(model), MODELS[model].settings
    has_sentences = corpus.boundary is not None and corpus.padding is not None
    settings = {"training.mode": "sentence" if has_sentences else "running", **budget.settings}
    built = build_table(preset, [COMMON_SETTINGS, table], {"training.epochs": None, **settings})
    experiment = from_table(Experiment, {**built, "corpus": str(corpus.folder.resolve())})
    were_set = (COMMON_SETTINGS, table, overridden({}, settings))
    keys = [key for part in were_set for key, _ in dotted(part)]
    return Chosen.of(experiment, keys).changed(changes)


def with_rate(chosen: Chosen, rate: float) -> Chosen:
    """Return the same model with another learning rate. The rate of the output keeps its ratio to it."""
    training = chosen.experiment.training
    assert training.output_lr is not None, "the presets of these models have a number"
    # Six digits: more would look as if somebody had chosen them.
    output_rate = float(f"{rate * training.output_lr / training.lr:.6g}")
    return chosen.changed(dict(zip(RATES, (rate, output_rate), strict=True)))
