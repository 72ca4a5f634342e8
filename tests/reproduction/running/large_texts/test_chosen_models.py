"""The models of table 2 as data, and the experiments that a text and a budget make of them."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from reproduction.budgets import Budget
from reproduction.large_text_models import CONSTANT, MODELS
from reproduction.running.large_texts.chosen_models import (
    chosen_model,
    preset_of,
    with_rate,
)
from tests.reproduction.running.small import small_text
from zloss_lab.corpora import Corpus, prepare

NETWORKS = [model for model in MODELS if model != CONSTANT]


@pytest.mark.parametrize("model", NETWORKS)
def test_models_are_those_of_their_names(model: str, corpus: Path) -> None:
    chosen = chosen_model(model, Corpus.open(corpus), Budget(60.0), {"training.seed": 3})
    heads = {"softmax": "dense", "H-softmax": "hierarchical", "Z-loss": "factored"}
    title = MODELS[model].title
    kind, network = title.split()[0], title.split()[-1]
    head = chosen.experiment.network.head
    assert head.head == heads.get(kind, kind)
    assert head.loss == ("z_loss" if kind == "Z-loss" else "softmax")
    assert preset_of(model) == network
    assert model.endswith(network)
    assert chosen.experiment.network.hidden[-1] == {"net1": 512, "net2": 1024}[network]
    training = chosen.experiment.training
    tuned_for = re.search(r"top-(\d+)", title)
    assert training.score == f"top_{tuned_for[1] if tuned_for else 1}_error"
    assert (training.schedule, training.seconds, training.mode) == ("linear", 60.0, "sentence")
    assert chosen.settings["training.seconds"] == 60.0
    assert "training.seed" not in chosen.settings


def test_a_text_without_sentences_runs(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(small_text())
    corpus = prepare(tmp_path / "text.txt", tmp_path / "it", lines=False)
    assert (
        chosen_model("z_loss_net1", corpus, Budget(None), {}).experiment.training.mode == "running"
    )


def test_rates_keep_their_ratio(corpus: Path) -> None:
    chosen = chosen_model("z_loss_net1", Corpus.open(corpus), Budget(None), {"training.lr": 0.2})
    other = with_rate(chosen, 0.1)
    assert other.experiment.training.lr == other.settings["training.lr"] == 0.1
    assert other.settings["training.output_lr"] == chosen.settings["training.output_lr"] / 2
    assert chosen.experiment.training.schedule == "plateau"


def test_a_digest_is_of_all_that_decides(corpus: Path) -> None:
    def digest(changes: dict[str, Any], seed: int = 0) -> str:
        chosen = chosen_model("z_loss_net1", Corpus.open(corpus), Budget(60.0), changes)
        return dataclasses.replace(chosen, experiment=chosen.seeded(seed)).digest

    same = digest({})
    assert (
        digest({}, seed=7) == digest({"training.log_every": 7}) == digest({"device": "cpu"}) == same
    )
    assert len({digest({"network.context": 3}), digest({"training.patience": 3}), same}) == 3
