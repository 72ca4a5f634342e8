"""Wanted records: those that are made, and messages about networks that diverged."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reproduction.results.schema import SplitScores, TunedResult
from reproduction.running import collecting
from reproduction.running.chosen import Chosen
from reproduction.running.collecting import Collector, WantedResult
from reproduction.running.stacks import TrainedNetwork, train_stack
from tests.lab.sidebyside.small_trials import trial
from tests.reproduction.running.test_stacks import DIVERGES_LATER
from zloss_lab.records import read_records
from zloss_lab.training import Experiment


def wanted(experiment: Experiment, loss: str) -> WantedResult:
    """Return the wish for a record of figure 2."""

    def result(network: TrainedNetwork, shared: Mapping[str, Any]) -> TunedResult:
        return TunedResult(
            figure=2,
            loss=loss,
            tuned_for="mrr",
            epochs=network.curve[-1].epoch,
            trials=1,
            valid=SplitScores.of(network.best["mrr"].evaluation),
            test=SplitScores.of(network.test["mrr"]),
            **shared,
        )

    chosen = Chosen.of(experiment, ["training.lr"])
    return WantedResult(choice=(loss, "mrr"), chosen=chosen, seed=0, score="mrr", make=result)


def test_records_name_the_commit_that_was_trained(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZLOSS_COMMIT", "before")

    def changing(*asked: object) -> list[TrainedNetwork]:
        monkeypatch.setenv("ZLOSS_COMMIT", "after")
        return train_stack(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(collecting, "train_stack", changing)
    Collector(folder=tmp_path, seeds=range(1)).collect("figure2", [wanted(trial(corpus), "z_loss")])
    assert [record["commit"] for record in read_records(tmp_path / "figure2.jsonl")] == ["before"]


def test_replacements_are_announced_before_the_training(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    collector = Collector(folder=tmp_path, seeds=range(1), tell=told.append)
    collector.collect("figure2", [wanted(trial(corpus), "z_loss")])
    assert not any("records with other settings" in line for line in told)
    before = read_records(tmp_path / "figure2.jsonl")

    def interrupted(*_: object) -> list[TrainedNetwork]:
        told.append("training")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(collecting, "train_stack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            collector.collect("figure2", [wanted(trial(corpus, lr=0.01), "z_loss")])
    (warning,) = [line for line in told if "new records will replace" in line]
    assert "(1: z_loss, mrr); these are kept in " in warning
    assert told.index(warning) < told.index("training")
    assert read_records(tmp_path / "figure2.jsonl") == before
    collector.collect("figure2", [wanted(trial(corpus, lr=0.01), "z_loss")])
    assert read_records(tmp_path / "figure2.replaced.jsonl") == before


def test_one_that_diverges_after_a_validation_has_no_record(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves: list[int] = []

    def noted(*asked: object) -> list[TrainedNetwork]:
        networks = train_stack(*asked)  # type: ignore[arg-type]
        curves.extend(len(network.curve) for network in networks)
        return networks

    monkeypatch.setattr(collecting, "train_stack", noted)
    asked = [
        wanted(trial(corpus, **DIVERGES_LATER), "squared_error"),
        wanted(trial(corpus), "z_loss"),
    ]
    faults = Collector(folder=tmp_path, seeds=range(1)).collect("figure2", asked)
    assert faults == ["figure2, squared_error, mrr, seed 0: it diverged"]
    assert [record["loss"] for record in read_records(tmp_path / "figure2.jsonl")] == ["z_loss"]
    assert min(curves) > 0, "not a test"
