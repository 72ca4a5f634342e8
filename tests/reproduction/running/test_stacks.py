"""Networks side by side: how many at once, and with which weights they are tested."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reproduction.running import stacks
from reproduction.running.stacks import in_stacks, most_side_by_side, train_stack
from tests.lab.sidebyside.small_trials import trial
from zloss_lab.evaluation import Evaluation
from zloss_lab.sidebyside import SideBySide

# So high a rate that no two scores agree in the best validation.
LEAPS: dict[str, Any] = {"output_lr": 30.0, "validate_every": 5}
# Validated once or more before it grows beyond all bounds; without hidden units, which would die instead.
DIVERGES_LATER: dict[str, Any] = {
    "loss": "squared_error",
    "lr": 1000.0,
    "output_lr": 1000.0,
    "validate_every": 1,
    "network": {"hidden": ()},
}


def test_stacks_are_of_one_shape_and_no_larger_than_asked(corpus: Path) -> None:
    narrow = [trial(corpus, seed=seed) for seed in range(5)]
    wide = [trial(corpus, seed=seed, network={"hidden": (64,)}) for seed in range(2)]
    found = list(in_stacks([*narrow, *wide], scores=1, at_once=2))
    assert found == [narrow[:2], narrow[2:4], narrow[4:], wide]
    assert list(in_stacks([*narrow, *wide], scores=1)) == [narrow, wide], (
        "which all fit into memory"
    )


def test_as_many_networks_as_there_is_memory_for(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = trial(corpus)
    large = replace(small, network=replace(small.network, embedding=800))
    assert (
        most_side_by_side(small)
        > most_side_by_side(small, scores=7)
        > most_side_by_side(large, scores=7)
    )
    monkeypatch.setattr(stacks, "_CPU_BYTES", 1)
    assert most_side_by_side(small) == 1


def test_every_network_is_tested_at_its_best_by_its_own_scores(corpus: Path) -> None:
    experiments = [trial(corpus, seed=seed, **LEAPS) for seed in range(2)]
    trained = train_stack(experiments, [["mrr", "top_5_error"], ["mean_rank"]])
    assert [list(network.test) for network in trained] == [["mrr", "top_5_error"], ["mean_rank"]]
    assert trained[0].best["mrr"].step != trained[0].best["top_5_error"].step, "not a test"
    for network, experiment in zip(trained, experiments, strict=True):
        for score, test in network.test.items():
            alone = SideBySide(
                [replace(experiment, training=replace(experiment.training, score=score))]
            )
            assert network.best[score] == alone.train()[0].best
            assert alone.evaluate("test") == [test]


def test_one_validation_is_tested_once(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only one is the best by all scores."""
    asked = []
    evaluate = SideBySide.evaluate

    def noted(
        self: SideBySide, split: str, *, score: str, trials: list[int]
    ) -> list[Evaluation | None]:
        asked.append((split, score, trials))
        return evaluate(self, split, score=score, trials=trials)

    monkeypatch.setattr(SideBySide, "evaluate", noted)
    experiments = [trial(corpus, seed=seed, steps=20) for seed in range(3)]
    trained = train_stack(experiments, [["mrr", "top_5_error"], [], ["top_5_error"]])
    assert asked == [("test", "mrr", [0]), ("test", "top_5_error", [2])]
    assert trained[0].test["mrr"] == trained[0].test["top_5_error"]
    assert (trained[1].test, len(trained[1].curve)) == ({}, 1)


def test_one_that_diverges_has_nothing(corpus: Path) -> None:
    trained = train_stack([trial(corpus), trial(corpus, lr=1e30)], [["mrr"], ["mrr"]])
    assert [bool(network.curve) for network in trained] == [True, False]
    assert [network.diverged for network in trained] == [False, True]
    assert (trained[1].best, trained[1].test) == ({}, {})


def test_one_that_diverges_later_has_nothing_either(corpus: Path) -> None:
    """What it had reached before is no result of its settings."""
    (network,) = train_stack([trial(corpus, **DIVERGES_LATER)], [["mrr"]])
    assert network.curve, "not a test"
    assert network.diverged
    assert (network.best, network.test) == ({}, {})
