"""Training of a stack: its trials learn as each would alone, and keep the weights of their best validations."""

import gc
import math
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.lab.sidebyside.small_trials import HOPELESS, trial, weights_of
from zloss_lab.evaluation import Evaluation
from zloss_lab.runs import Run
from zloss_lab.sidebyside import SideBySide
from zloss_lab.sidebyside.stacked_ranking import evaluate_stack
from zloss_lab.training import Trainer, TrainingProgress, fit


def test_trials_learn_as_they_would_alone(corpus: Path, tmp_path: Path) -> None:
    experiments = [
        trial(corpus, steps=200, seed=seed, lr=lr) for seed, lr in ((0, 0.1), (1, 0.1), (0, 0.01))
    ]
    outcomes = SideBySide(experiments).train()
    for number, outcome in enumerate(outcomes):
        run = fit(experiments[number], tmp_path / str(number))
        records = [record for record in run.metrics() if record["kind"] == "validation"]
        assert [validation.step for validation in outcome.validations] == [
            record["step"] for record in records
        ]
        for validation, record in zip(outcome.validations, records, strict=True):
            # Float32 sums are in another order, so that one example of 200 may have another prediction.
            assert validation.evaluation.top_k_error[1] == pytest.approx(
                record["top_1_error"], abs=0.006
            )
            assert validation.epoch == record["epoch"]
        assert outcome.best is not None
        assert outcome.best in outcome.validations
        errors = [validation.evaluation.top_k_error[1] for validation in outcome.validations]
        assert outcome.best.evaluation.top_k_error[1] == min(errors)
        assert not outcome.has_ended
    # Most words of the text follow from the words before.
    assert outcomes[0].validations[-1].evaluation.top_k_error[1] < 0.5


def test_scores_are_those_of_the_best_weights(corpus: Path) -> None:
    """The rates of the second trial are so high that its last validation is not its best."""
    stack = SideBySide(
        [trial(corpus, seed=1, validate_every=5), trial(corpus, output_lr=30.0, validate_every=5)]
    )
    seen: list[list[Tensor]] = []

    def note(_epoch: int, evaluations: list[Evaluation | None]) -> Collection[int]:
        seen.append([tensor.clone() for tensor in weights_of(stack, 1)])
        return ()

    outcomes = stack.train(note)
    best = outcomes[1].best
    assert best is not None
    assert best.step < stack.last_step, "not a test"
    on_validation = stack.evaluate("valid", limit=200)
    assert on_validation == [outcome.best.evaluation for outcome in outcomes if outcome.best]
    for now, then in zip(weights_of(stack, 1), seen[best.step // 5 - 1], strict=True):
        now.copy_(then)
    test = stack.evaluate("test")
    assert test[1] is not None
    assert test[1].examples == test[1].population
    batches = Trainer(outcomes[1].experiment, Run(Path("never written")), lambda _: None).validation
    assert evaluate_stack(stack.network, batches, limit=200)[1] == best.evaluation


@pytest.mark.parametrize("score", ["mrr", "top_5_error", "mean_rank"])
def test_the_best_is_the_best_by_the_score(score: str, corpus: Path) -> None:
    outcome = SideBySide([trial(corpus, score=score, output_lr=3.0, validate_every=5)]).train()[0]
    scores = [validation.evaluation.score(score) for validation in outcome.validations]
    assert len(set(scores)) > 1
    assert outcome.best is not None
    assert outcome.best.evaluation.score(score) == (max(scores) if score == "mrr" else min(scores))


def test_the_best_weights_by_several_scores(corpus: Path) -> None:
    """The weights that one training keeps are those of a training by each score alone."""
    scores = ("mean_rank", "mrr")
    # At such a high rate, each score has another best validation.
    options: dict[str, Any] = {"output_lr": 60.0, "validate_every": 5}
    experiments = [trial(corpus, seed=seed, **options) for seed in range(2)]
    stack = SideBySide(experiments, scores=scores)
    outcomes = stack.train()
    steps = {
        best.step for score in ("top_1_error", *scores) if (best := outcomes[0].best_by(score))
    }
    assert len(steps) > 1, "not a test"
    for score in scores:
        alone = SideBySide([trial(corpus, seed=seed, score=score, **options) for seed in range(2)])
        assert [outcome.best_by(score) for outcome in outcomes] == [
            outcome.best for outcome in alone.train()
        ]
        assert stack.evaluate("test", score=score) == alone.evaluate("test")
    assert stack.evaluate("test") == stack.evaluate("test", score="top_1_error")
    assert stack.evaluate("test", trials=[1]) == stack.evaluate("test")[1:]
    with pytest.raises(ValueError, match="the best weights by top_5_error are not there"):
        stack.evaluate("test", score="top_5_error")
    with pytest.raises(ValueError, match="unknown score: 'mmr'; did you mean 'mrr'"):
        SideBySide(experiments, scores=("mmr",))


def test_seeds_that_are_trained_apart_drop_other_units(corpus: Path) -> None:
    """Another seed drops other units, and the same seed the same ones every time."""
    drawn: list[Tensor] = []
    for seed in (0, 1, 0):
        stack = SideBySide([trial(corpus, seed=seed, network={"dropout": 0.3})])
        stack.take_step()
        assert stack._dropout is not None
        drawn.append(stack._dropout.of_layers()[0])
    assert torch.equal(drawn[0], drawn[2])
    assert ((drawn[0] < 0.3) == (drawn[1] < 0.3)).double().mean().item() == pytest.approx(
        0.58, abs=0.1
    )


def test_a_validation_an_epoch(corpus: Path) -> None:
    """By default there is one validation per epoch. The judge gets the epochs, except at the end."""
    epochs: list[int] = []
    stack = SideBySide([trial(corpus, validate_every=None, steps=None, epochs=3)])
    outcome = stack.train(lambda epoch, _: epochs.append(epoch) or ())[0]  # type: ignore[func-returns-value]
    length = len(stack.batches)
    assert [(v.step, v.epoch) for v in outcome.validations] == [
        (length, 1),
        (2 * length, 2),
        (3 * length, 3),
    ]
    assert epochs == [1, 2]


def test_a_stack_leaves_its_memory_when_it_goes(corpus: Path, device: torch.device) -> None:
    """The memory is free at once, because the next stack may need it."""
    stack = SideBySide([trial(corpus, device=str(device))])
    stack.train()
    weights = weakref.ref(stack.network.weights.output)
    gc.disable()
    try:
        del stack
        assert weights() is None
    finally:
        gc.enable()


def test_what_a_watcher_sees(corpus: Path) -> None:
    seen: list[TrainingProgress] = []
    stack = SideBySide([trial(corpus, lr=0.2), trial(corpus, lr=HOPELESS)], watch=seen.append)
    outcomes = stack.train()
    logged = [progress for progress in seen if progress.validation is None]
    assert [progress.step for progress in logged] == [10, 20, 30, 40, 50, 60]
    assert all(math.isfinite(progress.loss) for progress in logged)
    # After 10 of 60 steps, three of twenty stages are over, and the fourth has begun at the last of them.
    assert logged[0].lr == pytest.approx(0.2 * 0.85)
    validations = [validation.evaluation for validation in outcomes[0].validations]
    assert [progress.validation for progress in seen if progress.validation] == validations
    assert all(progress.words_per_second > 0 for progress in logged)


def test_factored_trials_are_dense_ones(corpus: Path, tmp_path: Path) -> None:
    experiment = trial(corpus, head={"head": "factored", "a": 0.5, "b": 2.0})
    outcome = SideBySide([experiment]).train()[0]
    records = [
        record
        for record in fit(experiment, tmp_path / "run").metrics()
        if record["kind"] == "validation"
    ]
    for validation, record in zip(outcome.validations, records, strict=True):
        assert validation.evaluation.mean_rank == pytest.approx(record["mean_rank"], abs=0.01)
