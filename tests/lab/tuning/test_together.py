"""Trials that are trained side by side in one process."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from tests.lab.tuning.tiny import SPACE, settings_of, tiny_plan
from zloss_lab.tuning import rounds
from zloss_lab.tuning.evaluators import OneByOne, Together
from zloss_lab.tuning.study import TuningStudy


def test_side_by_side_is_as_one_by_one(corpus: Path, tmp_path: Path) -> None:
    """The trials are the same, and the scores nearly so: rounding may change the ranks of some targets."""
    search = {
        "training": SPACE["search"]["training"],
        "network": {"head": SPACE["search"]["network"]["head"]},
    }
    plan = tiny_plan(
        corpus,
        trials=4,
        space={**SPACE, "search": search},
        settings=["network.embedding=4", "network.hidden=[8]"],
    )
    together, one_by_one = (
        TuningStudy.begin(tmp_path / name, plan) for name in ("together", "one by one")
    )
    together.run(Together(), at_once=4)
    one_by_one.run(OneByOne(one_by_one.folder))
    assert settings_of(together) == settings_of(one_by_one)
    for one, other in zip(together.trials(), one_by_one.trials(), strict=True):
        assert len(one.curve) == len(other.curve) == 4
        for validation, expected in zip(one.curve, other.curve, strict=True):
            assert validation == pytest.approx(expected, abs=0.03)


def first_of(numbers: Collection[int], costs: Mapping[int, Sequence[float]]) -> set[int]:
    """Stop the first trial after its first validation."""
    return {min(numbers)} if len(costs[min(numbers)]) == 1 else set()


def test_side_by_side_trials_are_pruned_and_diverge(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "behind", first_of)
    space = {**SPACE, "search": {"training": {"lr": {"choices": [1e30, 0.1]}}}}
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=8, space=space))
    study.run(Together(), at_once=8)
    going = [trial for trial in study.trials() if trial.settings["training.lr"] == 0.1]
    assert [(trial.state, len(trial.curve)) for trial in going] == [("pruned", 1)] + [
        ("complete", 4)
    ] * (len(going) - 1)
    assert 1 < len(going) < 8
    assert {trial.state for trial in study.trials() if trial not in going} == {"diverged"}


def test_what_cannot_be_trained_side_by_side_is_refused(corpus: Path, tmp_path: Path) -> None:
    study = TuningStudy.begin(
        tmp_path / "it", tiny_plan(corpus, settings=["training.schedule=plateau"])
    )
    with pytest.raises(ValueError, match="schedule must be 'linear'"):
        study.run(Together(), at_once=2)
    assert study.trials() == []


def test_what_must_be_shared() -> None:
    keys = (
        "training.lr",
        "network.dropout",
        "network.head.a",
        "network.head.b",
        "network.embedding",
        "network.hidden",
    )
    assert [key for key in keys if Together().is_shared(key)] == [
        "network.embedding",
        "network.hidden",
    ]
    assert not any(OneByOne(Path("it")).is_shared(key) for key in keys)
