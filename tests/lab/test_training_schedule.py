"""Learning rates and the end of a training: by scores, by steps and by time."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab.small_runs import experiment
from zloss_lab import stopwatch
from zloss_lab.runs import Run
from zloss_lab.training import (
    Schedule,
    Trainer,
    TrainingConfig,
    TrainingProgress,
    fit,
)


def test_rates_fall_when_the_score_stops_improving() -> None:
    config = TrainingConfig(patience=1, lr_factor=0.5, stop_after=2)
    schedule = Schedule()
    scores = (3.0, 2.0, 2.5, 2.0, 2.5, 1.0, 1.0, 1.0)
    assert [schedule.update(score, step, config) for step, score in enumerate(scores)] == [
        True, True, False, False, False, True, False, False,
    ]  # fmt: skip
    assert (schedule.factor, schedule.lowered, schedule.best, schedule.best_step) == (
        0.25,
        1,
        1.0,
        5,
    )


def test_rates_fall_linearly_to_the_end(corpus: Path, tmp_path: Path) -> None:
    """The rates fall in 20 stages. With such small rates the score does not improve, so plateau would end the run."""
    options: dict[str, Any] = {
        "schedule": "linear",
        "lr": 1e-9,
        "output_lr": 1e-9,
        "stop_after": 1,
        "log_every": 1,
    }
    run = fit(experiment(corpus, steps=60, validate_every=5, **options), tmp_path / "run")
    rates = {
        record["step"]: record["lr"] / 1e-9
        for record in run.metrics()
        if record["kind"] == "training"
    }
    assert rates == pytest.approx({step + 1: 1 - (step // 3) / 20 for step in range(60)})
    assert run.state().schedule.factor == pytest.approx(0.05)
    resumed = Trainer(experiment(corpus, steps=60, **options), run, lambda _: None)
    resumed.restore(run.load())
    groups = [group for optimizer in resumed.optimizers for group in optimizer.param_groups]
    assert [group["lr"] for group in groups] == pytest.approx([0.05 * 1e-9] * 3)


def test_the_scores_end_a_run_without_epochs(corpus: Path, tmp_path: Path) -> None:
    """With such small rates the score does not improve, so the run ends after two validations."""
    seen: list[TrainingProgress] = []
    options: dict[str, Any] = {
        "epochs": None,
        "steps": None,
        "lr": 1e-12,
        "output_lr": 1e-12,
        "stop_after": 1,
    }
    run = fit(
        experiment(corpus, validate_every=5, log_every=1, **options),
        tmp_path / "run",
        watch=seen.append,
    )
    assert run.metrics()[-1]["step"] == 10
    assert {progress.steps for progress in seen} == {math.inf}


def test_the_linear_schedule_needs_an_end() -> None:
    with pytest.raises(ValueError, match="give epochs, steps or seconds"):
        TrainingConfig(schedule="linear", epochs=None)
    assert TrainingConfig(schedule="linear", epochs=None, steps=7).last_step(100) == 7


@pytest.fixture
def seconds_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each call of the clock take a second."""
    clock = iter(range(10**9))
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))


@pytest.mark.usefixtures("seconds_pass")
def test_a_run_ends_when_its_time_is_up(corpus: Path, tmp_path: Path) -> None:
    """The clock is read once a step, and once more where something is logged. The first five steps are not timed."""
    seen: list[TrainingProgress] = []
    config = experiment(
        corpus, steps=10**6, seconds=40.0, validate_every=10**6, checkpoint_every=10**6
    )
    run = fit(config, tmp_path / "run", watch=seen.append)
    last, state = run.metrics()[-1], run.state()
    assert (last["kind"], last["step"], run.steps(), run.best_step) == ("validation", 41, [41], 41)
    assert 40 <= state.seconds <= 42
    assert seen[-1].step == seen[-1].steps == 41
    expected = [progress.steps for progress in seen if progress.validation is None]
    assert expected[-2] == pytest.approx(41, rel=0.2), "as far as can be told"


@pytest.mark.usefixtures("seconds_pass")
def test_rates_fall_with_the_time_that_is_spent(corpus: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"schedule": "linear", "lr": 1e-9, "output_lr": 1e-9, "log_every": 1}
    run = fit(experiment(corpus, steps=10**6, seconds=40.0, **options), tmp_path / "run")
    rates = [record["lr"] / 1e-9 for record in run.metrics() if record["kind"] == "training"]
    assert (rates[0], rates[-1]) == pytest.approx((1.0, 0.05))
    assert sorted(rates, reverse=True) == rates
    assert len(set(rates)) == 20


@pytest.mark.usefixtures("seconds_pass")
def test_a_resumed_run_has_the_time_that_is_left(corpus: Path, tmp_path: Path) -> None:
    def stop(progress: TrainingProgress) -> None:
        if progress.step == 30:
            raise RuntimeError("killed")

    config = experiment(corpus, steps=10**6, seconds=40.0)
    with pytest.raises(RuntimeError, match="killed"):
        fit(config, tmp_path / "run", watch=stop)
    spent = Run.open(tmp_path / "run").state().seconds
    assert 14 <= spent <= 17, "20 steps, less 5"
    run = fit(config, tmp_path / "run", resume=True)
    assert 40 <= run.state().seconds <= 42
    end = run.metrics()[-1]["step"]
    # The first five steps after a resume count for a mean step before it each, which took a second.
    assert end == pytest.approx(20 + (40 - spent), abs=3)
    fit(config, tmp_path / "run", resume=True)
    assert run.metrics()[-1]["step"] == end, "nothing is left"


@pytest.mark.usefixtures("seconds_pass")
@pytest.mark.parametrize("stops", [(), (33,), (9, 12, 25, 41)])
def test_metrics_have_the_time_of_training(
    stops: tuple[int, ...], corpus: Path, tmp_path: Path
) -> None:
    """A step takes a second, and the first five are not timed. However often the run is stopped, its time goes on."""
    config = experiment(corpus, steps=60, checkpoint_every=3, log_every=1, validate_every=20)
    left = list(stops)

    def stop(progress: TrainingProgress) -> None:
        if progress.step in left:
            left.remove(progress.step)
            raise RuntimeError("killed")

    while left:
        is_begun = (tmp_path / "run").exists()
        with pytest.raises(RuntimeError, match="killed"):
            fit(config, tmp_path / "run", resume=is_begun, watch=stop)
    run = fit(config, tmp_path / "run", resume=bool(stops))
    lines = run.metrics()
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds)
    assert seconds[:5] == [0.0] * 5
    # Seconds are rounded to a thousandth, and a stop before step 10 measures the pace by few steps.
    assert seconds[-1] == pytest.approx(55, abs=0.01 if not stops else 1.5)


def test_training_stops_early(corpus: Path, tmp_path: Path) -> None:
    config = experiment(
        corpus, steps=2000, validate_every=10, lr=1e-9, output_lr=1e-9, stop_after=2
    )
    run = fit(config, tmp_path / "run")
    assert run.metrics()[-1]["step"] <= 50
