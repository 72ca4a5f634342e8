"""Trials that end early, by the judge or because they diverge, change nothing for the others."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.lab.sidebyside.small_trials import HOPELESS, assert_same_trial, trial
from zloss_lab.evaluation import Evaluation
from zloss_lab.sidebyside import SideBySide


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_trials_that_end_change_nothing_for_the_others(dropout: float, corpus: Path) -> None:
    """One trial is ignored, then another one lets the stack shrink. The others are not changed by one bit."""
    network = {"dropout": dropout}
    experiments = [
        trial(corpus, seed=seed, lr=0.05 * (1 + seed), network=network) for seed in range(5)
    ]
    stack, whole = SideBySide(experiments), SideBySide(experiments)
    sizes, told = [], []

    def judge(epoch: int, evaluations: list[Evaluation | None]) -> Collection[int]:
        sizes.append(stack.network.weights.trials)
        told.append([evaluation is None for evaluation in evaluations])
        return {20: [1], 40: {0, 1}}[stack.step]

    outcomes = stack.train(judge)
    whole.train()
    assert sizes == [5, 5]
    assert stack.trials == [2, 3, 4]
    assert stack.network.weights.trials == 3
    assert told == [[False] * 5, [False, True, False, False, False]]
    assert [outcome.pruned for outcome in outcomes] == [True, True, False, False, False]
    assert [len(outcome.validations) for outcome in outcomes] == [2, 1, 3, 3, 3]
    for number in (2, 3, 4):
        assert_same_trial(stack, number, whole, number)
    assert all(result is not None for result in stack.evaluate("test")), "also of those that ended"


def test_a_trial_does_not_mind_its_neighbours(corpus: Path) -> None:
    """A trial is the same in another place of another stack and on its own, with dropout too."""
    ours = trial(corpus, seed=5, network={"dropout": 0.3})
    others = [
        trial(corpus, seed=seed, lr=0.3, network={"dropout": 0.1 * seed}) for seed in range(3)
    ]
    one, other, alone = (
        SideBySide([ours, *others]),
        SideBySide([others[0], ours]),
        SideBySide([ours]),
    )
    for stack in (one, other, alone):
        stack.train()
    assert_same_trial(one, 0, other, 1)
    assert_same_trial(one, 0, alone, 0)


@pytest.mark.parametrize(
    ("loss", "hopeless"),
    [  # The Z-loss does not depend on the scale of the output weights.
        ("z_loss", {"lr": HOPELESS}),
        ("softmax", {"lr": HOPELESS}),
        ("softmax", {"output_lr": HOPELESS}),
        ("squared_error", {"output_lr": HOPELESS}),
    ],
)
def test_a_trial_that_diverges_does_so_alone(
    loss: str, hopeless: dict[str, Any], corpus: Path
) -> None:
    good = [trial(corpus, loss=loss, seed=seed) for seed in range(4)]
    bad = trial(corpus, loss=loss, **hopeless)
    stack, sound = SideBySide([good[0], bad, *good[1:]]), SideBySide(good)
    told: list[list[Evaluation | None]] = []
    outcomes = stack.train(lambda _, evaluations: told.append(evaluations) or ())  # type: ignore[func-returns-value]
    sound.train()
    assert [outcome.diverged for outcome in outcomes] == [False, True, False, False, False]
    assert (outcomes[1].validations, outcomes[1].best) == ([], None)
    assert [evaluations[1] for evaluations in told] == [None, None]
    for number, other in ((0, 0), (2, 1), (3, 2), (4, 3)):
        assert_same_trial(stack, number, sound, other)
    assert [result is None for result in stack.evaluate("test")] == [
        False,
        True,
        False,
        False,
        False,
    ]


def test_weights_that_are_no_numbers_count_before_a_loss_shows_it(corpus: Path) -> None:
    """The only step of this trial has a finite loss and leaves infinite weights."""
    stack = SideBySide([trial(corpus, steps=1), trial(corpus, steps=1, output_lr=1e39)])
    outcomes = stack.train()
    assert stack.network.is_sound.all()
    assert [outcome.diverged for outcome in outcomes] == [False, True]
    assert stack.evaluate("test")[1] is None


def test_scores_that_overflow_count_before_weights_show_it(corpus: Path) -> None:
    """The only validation of this trial has infinite scores, but the weights and the loss are finite."""
    stack = SideBySide([trial(corpus, steps=1), trial(corpus, steps=1, lr=1e20, output_lr=1e20)])
    outcomes = stack.train()
    assert stack.network.weights.is_finite().all(), "not a test"
    assert [outcome.diverged for outcome in outcomes] == [False, True]
    assert outcomes[1].validations == []
    assert stack.evaluate("test")[1] is None


def test_nothing_is_done_when_all_have_ended(corpus: Path) -> None:
    stack = SideBySide([trial(corpus, seed=seed) for seed in range(2)])
    outcomes = stack.train(lambda *_: [0, 1])
    assert stack.step == 20
    assert all(outcome.pruned for outcome in outcomes)
    stack = SideBySide([trial(corpus, lr=HOPELESS)])
    stack.train()
    assert stack.step == 10, "where it was first looked at"
    assert stack.evaluate("test") == [None]


def test_a_judge_who_is_mistaken(corpus: Path) -> None:
    with pytest.raises(ValueError, match="the judge ended trial 2: there are trials 0 to 1"):
        SideBySide([trial(corpus, seed=seed) for seed in range(2)]).train(lambda *_: [2])
