"""Stacks from the first step to the last: what becomes of their trials, and that none of them minds the others."""

import gc
import math
import weakref
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.lab.sidebyside.pretended_graph import pretend_captured_stacks
from tests.lab.sidebyside.small_trials import trial
from zloss_lab.evaluation import Evaluation
from zloss_lab.runs import Run
from zloss_lab.sidebyside import SideBySide
from zloss_lab.sidebyside.dropout import DropoutNumbers
from zloss_lab.sidebyside.stacked_ranking import evaluate_stack
from zloss_lab.training import Experiment, Trainer, TrainingProgress, fit

HOPELESS = 1e30  # a learning rate


def weights_of(stack: SideBySide, number: int) -> list[Tensor]:
    """Those of a trial, wherever it stands by now."""
    row = stack.trials.index(number)
    return [tensor[row] for tensor in stack.network.weights.tensors()]


def assert_same_trial(stack: SideBySide, number: int, other: SideBySide, other_number: int) -> None:
    """Bit for bit, weights and validations."""
    pairs = zip(weights_of(stack, number), weights_of(other, other_number), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    ours, theirs = stack.outcomes[number], other.outcomes[other_number]
    assert (ours.validations, ours.best) == (theirs.validations, theirs.best)


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
            # Float32 in another order, so that one close call in 200 examples may go the other way.
            assert validation.evaluation.top_k_error[1] == pytest.approx(
                record["top_1_error"], abs=0.006
            )
            assert validation.epoch == record["epoch"]
        assert outcome.best is not None
        assert outcome.best in outcome.validations
        errors = [validation.evaluation.top_k_error[1] for validation in outcome.validations]
        assert outcome.best.evaluation.top_k_error[1] == min(errors)
        assert not outcome.has_ended
    assert (
        outcomes[0].validations[-1].evaluation.top_k_error[1] < 0.5
    )  # most words follow from the ones before


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
    """Kept in one training, they are those of a training by each score alone."""
    scores = ("mean_rank", "mrr")
    options: dict[str, Any] = {
        "output_lr": 30.0,
        "validate_every": 5,
    }  # so high that no two scores agree in the best
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
    """Not those of another seed, but the same ones every time."""
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


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_trials_that_end_change_nothing_for_the_others(dropout: float, corpus: Path) -> None:
    """One is pruned and ignored, another goes and the stack shrinks; the rest go on to the last bit as with them."""
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
    """In another place of another stack it is the same, dropout included, and also without neighbours."""
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
    [  # The Z-loss does not mind how large the weights of the output are.
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
    """The only step of this trial leaves infinite weights, and had a finite loss."""
    stack = SideBySide([trial(corpus, steps=1), trial(corpus, steps=1, output_lr=1e39)])
    outcomes = stack.train()
    assert stack.network.is_sound.all()
    assert [outcome.diverged for outcome in outcomes] == [False, True]
    assert stack.evaluate("test")[1] is None


def test_scores_that_overflow_count_before_weights_show_it(corpus: Path) -> None:
    """At the only validation of this trial, which is its last: all its weights are finite, and its loss was."""
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


def test_a_validation_an_epoch(corpus: Path) -> None:
    """Where nobody says how often; the judge is told the epochs, and is not asked at the end."""
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
    """At once: the next one may need it."""
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


def test_a_judge_who_is_mistaken(corpus: Path) -> None:
    with pytest.raises(ValueError, match="the judge ended trial 2: there are trials 0 to 1"):
        SideBySide([trial(corpus, seed=seed) for seed in range(2)]).train(lambda *_: [2])


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


# ---- captured --------------------------------------------------------------------------------------------------------

# Between what rounding makes and what a mistake does. On a CPU, 300 stacks as below whose weights were moved by up to
# two units in the last place before every step came apart by 2e-14 at most; a single step with the random numbers of
# the one before moves weights by 1.7e-3 or more. Small trials in float32 would not tell the two apart: the gradient of
# the Z-loss is divided by the deviation of the logits, of which there is little where dropout leaves next to nothing of
# 12 units. There the last bit has decided what 48 of 200 examples were taken for, and on a GPU it is another one every
# time, as the embeddings add up rows in no fixed order.
SAME = 1e-9


class FollowedStack(SideBySide):
    """Keeps the losses and the weights of every step, without waiting for the device."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        super().__init__(experiments)
        self.history: list[list[Tensor]] = []

    def take_step(self) -> Tensor:
        losses = super().take_step()
        self.history.append(
            [tensor.clone() for tensor in (losses, *self.network.weights.tensors())]
        )
        return losses


@pytest.fixture
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def shrunk_stack(
    corpus: Path, device: torch.device, dropout: float, *, graph: bool
) -> FollowedStack:
    """Of four trials, then two, then one, for 20 steps each, of which a graph replays all but the first three."""
    network = {"dropout": dropout, "hidden": (64, 64)}
    experiments = [
        trial(corpus, seed=seed, network=network, device=str(device), graph=graph)
        for seed in range(4)
    ]
    stack = FollowedStack(experiments)
    stack.train(lambda *_: {20: [1, 3], 40: [0]}[stack.step])
    assert [len(losses) for losses, *_ in stack.history] == [4] * 20 + [2] * 20 + [1] * 20
    assert all(tensor.dtype == torch.float64 for tensor in stack.history[-1])
    return stack


def deviations(stack: FollowedStack, other: FollowedStack) -> Tensor:  # (steps,)
    """The largest of every step."""
    steps = zip(stack.history, other.history, strict=True)
    return torch.tensor(
        [[(x - y).abs().max().item() for x, y in zip(*step, strict=True)] for step in steps]
    ).amax(1)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_captured_stack_shrinks(
    dropout: float, corpus: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And takes every step of one that is not captured, before and after."""
    if device.type == "cpu":
        pretend_captured_stacks(monkeypatch)
    plain, captured = (
        shrunk_stack(corpus, device, dropout, graph=graph) for graph in (False, True)
    )
    assert deviations(captured, plain).max() < SAME
    for ours, theirs in zip(captured.outcomes, plain.outcomes, strict=True):
        assert (ours.pruned, ours.validations) == (theirs.pruned, theirs.validations)


@pytest.mark.usefixtures("float64")
def test_a_graph_that_reads_old_random_numbers_is_noticed(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test of the one above: the new ones are not put where those before them were, as they have to be."""
    pretend_captured_stacks(monkeypatch)
    draw = DropoutNumbers.draw

    def draw_elsewhere(numbers: DropoutNumbers) -> None:
        numbers._layers = [torch.empty_like(layer) for layer in numbers._layers]
        draw(numbers)

    monkeypatch.setattr(DropoutNumbers, "draw", draw_elsewhere)
    plain, captured = (
        shrunk_stack(corpus, torch.device("cpu"), 0.4, graph=graph) for graph in (False, True)
    )
    found = deviations(captured, plain)
    assert found[:4].max() < SAME, "the first steps are not replayed"
    assert found[4:].min() > 1e-3
