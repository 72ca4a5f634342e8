"""The states and the scores of trials, from made-up trainings and real ones."""

import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.lab.tuning.tiny import (
    ONLY_LR,
    SPACE,
    MadeUp,
    distance,
    files_of,
    made_up,
    states,
    tiny_plan,
)
from zloss_lab.corpora import Corpus
from zloss_lab.runs import Run
from zloss_lab.training import Experiment
from zloss_lab.tuning import rounds
from zloss_lab.tuning.evaluators import Ending, OneByOne, Together
from zloss_lab.tuning.study import TuningStudy
from zloss_lab.tuning.trials import Trial, ranked


def test_trials_that_lie_behind_are_pruned(corpus: Path, tmp_path: Path) -> None:
    evaluator = MadeUp(distance)
    study = made_up(corpus, tmp_path / "it", evaluator, trials=30)
    pruned = [trial for trial in study.trials() if trial.state == "pruned"]
    assert {trial.number for trial in pruned} == evaluator.stopped.keys()
    assert 3 < len(pruned) < 22
    # The eighth trial is the first that can be compared with enough others.
    assert min(evaluator.stopped) >= 7
    # The error is a function of the learning rate, so that bad trials are found at the first chance.
    assert set(evaluator.stopped.values()) == {2}
    assert {len(trial.curve) for trial in pruned} == {2}
    final = sorted(
        trial.value("top_1_error") or 1.0 for trial in study.trials() if trial.state == "complete"
    )
    assert max(final[:5]) < min(trial.value("top_1_error") or 1.0 for trial in pruned)
    assert "pruned" not in states(made_up(corpus, tmp_path / "all", trials=30, prunes=False))


def test_pruned_trainings_stop(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        rounds, "behind", lambda numbers, costs: {one for one in numbers if len(costs[one]) == 2}
    )
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=2))
    study.run(OneByOne(study.folder, keeps_runs=True))
    assert states(study) == ["pruned", "pruned"]
    for number in (0, 1):
        assert Run.open(study.folder / "runs" / f"{number:05d}").metrics()[-1]["step"] == 20


def test_scores_and_curves_of_a_real_training(corpus: Path, tmp_path: Path) -> None:
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=1))
    study.run(OneByOne(study.folder, keeps_runs=True))
    (trial,) = study.trials()
    run = Run.open(study.folder / "runs" / "00000")
    logged = [record for record in run.metrics() if record["kind"] == "validation"]
    names = ("epoch", "top_1_error", "top_100_error", "mrr", "mean_rank")
    assert [[scores[name] for name in names] for scores in trial.curve] == [
        [record[name] for name in names] for record in logged
    ]
    best = next(record for record in logged if record["step"] == run.best_step)
    assert trial.value("top_1_error") == best["top_1_error"] == study._study.best_value
    assert run.config["network"]["hidden"] == trial.settings["network.hidden"]


def test_the_mean_reciprocal_rank_is_made_large(corpus: Path, tmp_path: Path) -> None:
    study = made_up(corpus, tmp_path / "it", trials=24, space=ONLY_LR, prunes=False, score="mrr")
    values = [trial.value("mrr") or 0.0 for trial in study.trials()]
    assert ranked(study.trials(), "mrr")[0].value("mrr") == max(values) == study._study.best_value
    assert statistics.median(values[10:]) > statistics.median(values[:10])


def test_the_best_by_any_score() -> None:
    def trial(number: int, state: Any, *curve: tuple[float, float | None]) -> Trial:
        return Trial(
            number,
            state,
            {},
            [{"epoch": i, "mrr": x, "perplexity": y} for i, (x, y) in enumerate(curve)],
            "",
            None,
        )

    trials = [
        trial(0, "complete", (0.1, 90.0), (0.3, 80.0), (0.2, 85.0)),
        trial(1, "complete", (0.2, 50.0), (0.25, None)),
        trial(2, "pruned", (0.05, 99.0)),
        trial(3, "diverged", (0.9, 1.0)),
        trial(4, "running", (0.8, 2.0)),
        trial(5, "complete"),
    ]  # fmt: skip
    assert [trial.number for trial in ranked(trials, "mrr")] == [0, 1, 2]
    assert [trial.number for trial in ranked(trials, "perplexity")] == [1, 0, 2]
    assert trials[0].best("mrr") == {"epoch": 1, "mrr": 0.3, "perplexity": 80.0}
    assert ranked(trials, "beauty") == []


def test_what_breaks_off_does_not_end_the_study(corpus: Path, tmp_path: Path) -> None:
    def ending(experiment: Experiment) -> Ending:
        return (
            Ending("diverged", "the loss is nan")
            if experiment.training.lr > 0.3
            else Ending("ended")
        )

    study = made_up(
        corpus, tmp_path / "it", MadeUp(distance, ending=ending), trials=20, prunes=False
    )
    diverged = [trial for trial in study.trials() if trial.state == "diverged"]
    assert diverged
    assert {trial.why for trial in diverged} == {"the loss is nan"}
    assert all(trial.settings["training.lr"] > 0.3 for trial in diverged)
    assert set(states(study)) == {"complete", "diverged"}
    assert len(study.trials()) == 20
    assert all(
        trial.settings["training.lr"] <= 0.3 for trial in ranked(study.trials(), "top_1_error")
    )


def test_a_training_that_diverges(corpus: Path, tmp_path: Path) -> None:
    space = {**SPACE, "search": {"training": {"lr": {"choices": [1e30, 0.1]}}}}
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=4, space=space))
    study.run(OneByOne(study.folder))
    for trial in study.trials():
        assert trial.state == ("diverged" if trial.settings["training.lr"] == 1e30 else "complete")
        assert trial.why.startswith("step ") == (trial.state == "diverged")
        assert "checkpoint" not in trial.why, "there is none left"
    assert set(states(study)) == {"complete", "diverged"}


def test_first_steps_only(corpus: Path, tmp_path: Path) -> None:
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=2, first=15))
    study.run(OneByOne(study.folder, keeps_runs=True))
    assert states(study) == ["complete", "complete"]
    run = Run.open(study.folder / "runs" / "00001")
    assert [record["step"] for record in run.metrics() if record["kind"] == "validation"] == [15]
    assert run.config["training"]["steps"] == 40  # the schedule is that of the whole training
    whole = study.plan.experiment(study.trials()[0].settings)
    assert whole.training.validate_every == 10


def test_runs_that_are_not_kept_leave_nothing(corpus: Path, tmp_path: Path) -> None:
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=2))
    study.run(OneByOne(study.folder))
    assert states(study) == ["complete"] * 2
    assert files_of(study) == ["study.db", "study.json"]


@pytest.mark.parametrize("at_once", [1, 3])
def test_the_test_split_is_not_touched(
    at_once: int, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: set[str] = set()
    split = Corpus.split

    def watched(self: Corpus, name: str) -> Any:
        asked_for.add(name)
        assert name != "test"
        return split(self, name)

    monkeypatch.setattr(Corpus, "split", watched)
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=3))
    study.run(Together() if at_once > 1 else OneByOne(study.folder), at_once=at_once)
    assert states(study) == ["complete"] * 3
    assert asked_for == {"train", "valid"}
