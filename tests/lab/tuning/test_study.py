"""Studies: they go on after whatever interrupts them, are shared by workers, and never look at the test split."""

import dataclasses
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.lab.tuning.tiny import SPACE, MadeUp, distance, tiny_corpus, tiny_plan
from zloss_lab.corpora import Corpus
from zloss_lab.runs import Run, RunError
from zloss_lab.training import Experiment
from zloss_lab.tuning import rounds, workers
from zloss_lab.tuning.evaluators import Ending, OneByOne, Together
from zloss_lab.tuning.plan import StudyPlan
from zloss_lab.tuning.study import TuningStudy
from zloss_lab.tuning.trials import Trial, ranked

ROOT = Path(__file__).parents[3]
ONLY_LR = {**SPACE, "search": {"training": {"lr": {"low": 1e-5, "high": 1.0, "log": True}}}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


def states(study: TuningStudy) -> list[str]:
    return [trial.state for trial in study.trials()]


def settings_of(study: TuningStudy) -> list[dict[str, Any]]:
    return [trial.settings for trial in study.trials()]


def made_up(
    corpus: Path, folder: Path, evaluator: MadeUp | None = None, *, at_once: int = 1, **asked: Any
) -> TuningStudy:
    study = TuningStudy.begin(folder, tiny_plan(corpus, **asked))
    study.run(evaluator or MadeUp(distance), at_once=at_once)
    return study


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same(corpus: Path, tmp_path: Path) -> None:
    one, other = (
        settings_of(made_up(corpus, tmp_path / name, trials=12)) for name in ("one", "other")
    )
    assert one == other
    assert settings_of(made_up(corpus, tmp_path / "third", trials=12, seed=1))[0] != one[0]


def test_going_on_is_as_if_nothing_had_happened(corpus: Path, tmp_path: Path) -> None:
    whole = made_up(corpus, tmp_path / "whole", trials=12)
    for trials in (5, 11, 12):
        parts = made_up(corpus, tmp_path / "parts", trials=trials)
    assert settings_of(parts) == settings_of(whole)


def test_the_search_finds_what_is_good(corpus: Path, tmp_path: Path) -> None:
    """Later trials lie closer to the best learning rate than the first ten, which are drawn blindly."""
    study = made_up(corpus, tmp_path / "it", trials=24, space=ONLY_LR, prunes=False)
    errors = [trial.value("top_1_error") or 1.0 for trial in study.trials()]
    assert statistics.median(errors[10:]) < 0.7 * statistics.median(errors[:10])


def test_trials_at_once_share_their_shape(corpus: Path, tmp_path: Path) -> None:
    evaluator = MadeUp(distance)
    made_up(corpus, tmp_path / "it", evaluator, at_once=5, trials=32)
    assert [len(experiments) for experiments in evaluator.rounds] == [5] * 6 + [2]
    shapes = [
        {(one.network.embedding, one.network.hidden) for one in experiments}
        for experiments in evaluator.rounds
    ]
    assert all(len(shape) == 1 for shape in shapes)
    assert len(set.union(*shapes)) > 2  # of four: no shape is that of all rounds
    rates = {one.training.lr for experiments in evaluator.rounds for one in experiments}
    assert len(rates) == 32


# ---- interruptions ---------------------------------------------------------------------------------------------------


def test_a_study_goes_on_after_an_exception(corpus: Path, tmp_path: Path) -> None:
    begun: list[int] = []

    def error(experiment: Experiment, epoch: int) -> float:
        begun.append(epoch)
        if len(begun) == 10:  # in the third trial
            raise KeyboardInterrupt
        return distance(experiment, epoch)

    with pytest.raises(KeyboardInterrupt):
        made_up(corpus, tmp_path / "it", MadeUp(error))
    assert states(TuningStudy.open(tmp_path / "it")) == ["complete", "complete", "interrupted"]
    assert states(made_up(corpus, tmp_path / "it")) == [
        "complete",
        "complete",
        "interrupted",
        "complete",
        "complete",
    ]
    assert (
        states(made_up(corpus, tmp_path / "it")).count("complete") == 4
    )  # and nothing is left to do


@pytest.mark.parametrize(
    ("moment", "state"), [(workers.WORKER, "interrupted"), ("curve", "complete")]
)
def test_ctrl_c_between_two_writes_waits(
    moment: str, state: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No trial is left that belongs to nobody when one is begun, and no result is lost when one ends."""
    set_attribute = optuna.Trial.set_user_attr

    def interrupting(self: optuna.Trial, key: str, value: Any) -> None:
        if key == moment:
            signal.raise_signal(signal.SIGINT)
        set_attribute(self, key, value)

    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus))
    monkeypatch.setattr(optuna.Trial, "set_user_attr", interrupting)
    with pytest.raises(KeyboardInterrupt):
        study.run(MadeUp(distance))
    assert states(study) == [state]


WORKER = """
import sys
from pathlib import Path
from zloss_lab.tuning.evaluators import OneByOne
from zloss_lab.tuning.plan import StudyPlan
from zloss_lab.tuning.study import TuningStudy
folder = Path(sys.argv[1])
plan = StudyPlan(**eval(sys.argv[2]))
TuningStudy.begin(folder, plan).run(OneByOne(folder), watch=lambda _: print("validated", flush=True))
"""


def worker(folder: Path, plan: StudyPlan) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", WORKER, str(folder), repr(dataclasses.asdict(plan))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)


def test_a_killed_worker_is_made_up_for(corpus: Path, tmp_path: Path) -> None:
    plan = tiny_plan(corpus, trials=3)
    with worker(tmp_path / "it", plan) as process:
        assert process.stdout is not None
        for _ in range(
            7
        ):  # four validations and an end of the first trial, two validations of the second
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert states(TuningStudy.open(tmp_path / "it"))[:2] == ["complete", "running"]
    assert [place.name for place in (tmp_path / "it").glob("running-*")] == ["running-00001"]
    study = TuningStudy.begin(tmp_path / "it", plan)
    study.run(OneByOne(study.folder))
    assert states(study) == ["complete", "interrupted", "complete", "complete"]
    assert files_of(study) == ["study.db", "study.json"]


def test_a_trial_whose_worker_was_killed_before_it_said_so(corpus: Path, tmp_path: Path) -> None:
    """It may be of any worker that is there; where none is, it is nobody's."""
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=2))
    study._study.ask(study.plan.searched.distributions)
    study._study.set_user_attr("elsewhere:1:0", time.time())
    study.run(MadeUp(distance))
    assert states(study) == ["running", "complete"]
    study._study.set_user_attr("elsewhere:1:0", time.time() - workers._SILENCE_S * 2)
    study.run(MadeUp(distance))
    assert states(study) == ["interrupted", "complete", "complete"]


def files_of(study: TuningStudy) -> list[str]:
    return sorted(file.name for file in study.folder.iterdir())


def test_runs_that_somebody_trains_are_no_leftovers(corpus: Path, tmp_path: Path) -> None:
    """Of another worker, and of one that was given up, such as a process that was stopped for long and goes on."""
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=2))
    for _ in range(3):
        study._study.ask(study.plan.searched.distributions).set_user_attr(
            workers.WORKER, "elsewhere:1:0"
        )
    for number in (1, 2):
        study._study.tell(number, state=optuna.trial.TrialState.FAIL)
    for name in ("00000", "00001", "00002", "notes"):
        (study.folder / f"running-{name}").mkdir()
    with Run(study.folder / "running-00001").alone():
        study.run(MadeUp(distance))
    assert files_of(study) == [
        "running-00000",
        "running-00001",
        "running-notes",
        "study.db",
        "study.json",
    ]
    study.run(MadeUp(distance))
    assert files_of(study) == ["running-00000", "running-notes", "study.db", "study.json"]


def test_two_workers_on_one_study(corpus: Path, tmp_path: Path) -> None:
    plan = tiny_plan(corpus, trials=8, prunes=False)
    with worker(tmp_path / "it", plan) as one, worker(tmp_path / "it", plan) as other:
        for process in (one, other):
            process.communicate(timeout=120)
        assert (one.returncode, other.returncode) == (0, 0)
    study = TuningStudy.open(tmp_path / "it")
    # One more where both found the last place free at the same moment.
    assert states(study) in (["complete"] * 8, ["complete"] * 9)
    assert len({str(settings) for settings in settings_of(study)}) == len(study.trials())
    assert len(workers_of(study)) == 2


def workers_of(study: TuningStudy) -> set[str]:
    return {trial.user_attrs[workers.WORKER] for trial in study._study.get_trials()}


def test_a_worker_elsewhere_is_given_up_when_it_is_silent(corpus: Path, tmp_path: Path) -> None:
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=2))
    evaluator = MadeUp(distance)
    study._study.ask(study.plan.searched.distributions).set_user_attr(
        workers.WORKER, "elsewhere:1:0"
    )
    study.run(evaluator)
    assert states(study) == ["running", "complete"]
    study._study.set_user_attr("elsewhere:1:0", time.time() - workers._SILENCE_S / 2)
    study.run(evaluator)
    assert states(study) == ["running", "complete"]
    study._study.set_user_attr("elsewhere:1:0", time.time() - workers._SILENCE_S * 2)
    study.run(evaluator)
    assert states(study) == ["interrupted", "complete", "complete"]


def test_workers_show_that_they_are_there(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_EVERY_S", 0.01)
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus))
    with workers.signs_of_life(study._study):
        first = study._study.user_attrs[workers.own_name()]
        deadline = time.monotonic() + 10
        while study._study.user_attrs[workers.own_name()] == first:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_workers_go_on_showing_it_after_a_failure(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_EVERY_S", 0.01)
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus))._study
    set_attribute, failures = optuna.Study.set_user_attr, iter(range(3))

    def failing(self: optuna.Study, key: str, value: Any) -> None:
        if next(failures, None) is not None:
            raise optuna.exceptions.StorageInternalError("database is locked")
        set_attribute(self, key, value)

    study.set_user_attr(workers.own_name(), 0.0)
    with workers.signs_of_life(study):
        monkeypatch.setattr(optuna.Study, "set_user_attr", failing)
        first, deadline = study.user_attrs[workers.own_name()], time.monotonic() + 10
        while study.user_attrs[workers.own_name()] == first:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert next(failures, None) is None, "not a test"


def give_up(study: TuningStudy) -> None:
    """What another worker does with the first trial, when it has not heard of us for long."""
    study._study.tell(0, state=optuna.trial.TrialState.FAIL)


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("epoch", [1, 4])
def test_a_trial_that_others_have_given_up_is_let_go(
    at_once: int, epoch: int, corpus: Path, tmp_path: Path
) -> None:
    """At the first validation or at the last, alone or among trials that go on; this worker makes up for it."""
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=3))
    others, told = TuningStudy.open(tmp_path / "it"), dict[int, Trial]()

    def error(experiment: Experiment, now: int) -> float:
        if now == epoch and states(others)[0] == "running":
            give_up(others)
        return distance(experiment, now)

    evaluator = MadeUp(error)
    study.run(
        evaluator,
        at_once=at_once,
        watch=lambda trials: told.update({one.number: one for one in trials}),
    )
    assert states(study) == ["interrupted", "complete", "complete", "complete"]
    assert [(one.state, one.why) for one in told.values() if one.why] == [
        ("interrupted", workers.GIVEN_UP)
    ]
    assert evaluator.stopped == ({0: 1} if epoch == 1 else {}), "nobody goes on training it"


@pytest.mark.parametrize("is_before", [True, False])
def test_a_trial_that_others_give_up_while_its_end_is_written(
    is_before: bool, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=2))
    others, set_attribute = TuningStudy.open(tmp_path / "it"), optuna.Trial.set_user_attr

    def given_up(self: optuna.Trial, key: str, value: Any) -> None:
        is_moment = key == "curve" and self.number == 0
        if is_moment and is_before:
            give_up(others)
        set_attribute(self, key, value)
        if is_moment and not is_before:
            give_up(others)

    monkeypatch.setattr(optuna.Trial, "set_user_attr", given_up)
    study.run(MadeUp(distance))
    assert states(study) == ["interrupted", "complete", "complete"]


def test_another_study_in_the_folder(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "it"
    TuningStudy.begin(folder, tiny_plan(corpus))
    narrower = SPACE | {"search": {"training": SPACE["search"]["training"]}}
    with pytest.raises(RunError, match="a study that differs in space: go on with it by --resume"):
        TuningStudy.begin(folder, tiny_plan(corpus, space=narrower))
    with pytest.raises(RunError, match="differs in score, seed"):
        TuningStudy.begin(folder, tiny_plan(corpus, score="mrr", seed=3))
    assert StudyPlan.read(folder) == tiny_plan(corpus)
    TuningStudy.begin(folder, tiny_plan(corpus, trials=7))
    assert StudyPlan.read(folder).trials == 7


def test_a_storage_that_is_shared(corpus: Path, tmp_path: Path) -> None:
    """Two folders, as on two machines, and one database, as on a server."""
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    made_up(corpus, tmp_path / "one", trials=3, storage=storage)
    assert len(made_up(corpus, tmp_path / "other", trials=5, storage=storage).trials()) == 5
    with pytest.raises(
        RunError, match="'tiny' in the storage was begun with another score: choose another --name"
    ):
        made_up(corpus, tmp_path / "third", storage=storage, score="mrr")
    assert (
        len(
            made_up(corpus, tmp_path / "fourth", storage=storage, score="mrr", name="mine").trials()
        )
        == 4
    )


@pytest.mark.parametrize(
    "storage", ["sqlite:////nowhere/at/all.db", "nonsense", "postgresql+nothing://host/db"]
)
def test_a_storage_that_cannot_be_used(storage: str, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="storage"):
        TuningStudy.begin(tmp_path / "studies" / "it", tiny_plan(corpus, storage=storage))
    assert list(tmp_path.iterdir()) == [], "no empty folder stays"


@pytest.mark.parametrize(
    ("module", "package"),
    [("psycopg2", "psycopg2-binary"), ("psycopg", "'psycopg[binary]'"), ("pymysql", "pymysql")],
)
def test_a_driver_that_is_missing(
    module: str, package: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    storage = f"{'mysql' if module == 'pymysql' else 'postgresql'}+{module}://host/db"
    with pytest.raises(RunError, match=re.escape(f"Get it with: pip install {package}") + "$"):
        TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, storage=storage))
    TuningStudy.begin(tmp_path / "it", tiny_plan(corpus))  # nothing is in the way of doing better


# ---- trials ----------------------------------------------------------------------------------------------------------


def test_trials_that_lie_behind_are_pruned(corpus: Path, tmp_path: Path) -> None:
    evaluator = MadeUp(distance)
    study = made_up(corpus, tmp_path / "it", evaluator, trials=30)
    pruned = [trial for trial in study.trials() if trial.state == "pruned"]
    assert {trial.number for trial in pruned} == evaluator.stopped.keys()
    assert 3 < len(pruned) < 22
    assert min(evaluator.stopped) >= 7  # the eighth: until then there is too little to compare with
    assert set(evaluator.stopped.values()) == {
        2
    }  # what is a function of the learning rate shows at once
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


# ---- side by side ----------------------------------------------------------------------------------------------------


def test_side_by_side_is_as_one_by_one(corpus: Path, tmp_path: Path) -> None:
    """The same trials, and nearly the same scores: rounding differs, and so may the rank of a target here and there."""
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
    """After the first validation, the first of those that have one."""
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


def test_runs_that_are_not_kept_leave_nothing(corpus: Path, tmp_path: Path) -> None:
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=2))
    study.run(OneByOne(study.folder))
    assert states(study) == ["complete"] * 2
    assert files_of(study) == ["study.db", "study.json"]


def test_what_cannot_be_trained_begins_no_study(corpus: Path, tmp_path: Path) -> None:
    """So that the folder is free for the corrected command."""
    wrong = tiny_plan(corpus, settings=["training.optimizer=adam"])
    with pytest.raises(ValueError, match="must be 'sgd', got 'adam'"):
        TuningStudy.begin(tmp_path / "it", wrong, Together())
    one_of_them = {**SPACE, "search": {"training": {"clip": {"choices": ["none", 1.0]}}}}
    with pytest.raises(ValueError, match=r"clip must be none, got 1\.0"):
        TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, space=one_of_them), Together())
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"network": {"context": {"choices": [4, 9999]}}}, "no example with 9999 words of context"),
        ({"training": {"batch_size": {"choices": [20, 9999]}}}, "too few for one batch of 9999"),
    ],
)
def test_a_text_that_is_too_short_begins_no_study(
    search: dict[str, Any], message: str, corpus: Path, tmp_path: Path
) -> None:
    """Else it would end when such a trial is drawn, and whenever that happens again."""
    with pytest.raises(ValueError, match=message):
        TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, space={**SPACE, "search": search}))
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"trials": "many"}, "trials must be int, got 'many'"),
        ({"settings": None}, "settings must be a list of str, got None"),
        ({"space": []}, r"space must be a table, got \[\]"),
        ({"wings": 2}, "unknown key: 'wings'"),
    ],
)
def test_a_plan_that_was_edited_by_hand(
    change: dict[str, Any], told: str, corpus: Path, tmp_path: Path
) -> None:
    tiny_plan(corpus).write(tmp_path)
    table = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps(table | change))
    with pytest.raises(RunError, match=f"study.json cannot be read: {told}"):
        StudyPlan.read(tmp_path)


def test_a_study_without_its_trials_is_not_taken_for_a_new_one(
    corpus: Path, tmp_path: Path
) -> None:
    TuningStudy.begin(tmp_path / "it", tiny_plan(corpus))
    (tmp_path / "it" / "study.db").unlink()
    with pytest.raises(RunError, match=r"the trials of .* are gone: restore its study\.db"):
        TuningStudy.open(tmp_path / "it")
    assert not (tmp_path / "it" / "study.db").exists()


def test_looking_at_a_study_writes_nothing(corpus: Path, tmp_path: Path) -> None:
    """So that one can be looked at which lies where nobody may write."""
    TuningStudy.begin(tmp_path / "it", tiny_plan(corpus)).run(MadeUp(distance))
    before = (tmp_path / "it" / "study.db").read_bytes()
    assert len(TuningStudy.open(tmp_path / "it").trials()) == 4
    assert (tmp_path / "it" / "study.db").read_bytes() == before


def test_a_storage_without_the_study_is_no_new_one(corpus: Path, tmp_path: Path) -> None:
    shared = f"sqlite:///{tmp_path}/shared.db"
    TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, storage=shared))
    optuna.delete_study(study_name="tiny", storage=shared)
    with pytest.raises(RunError, match="its storage has no study 'tiny'"):
        TuningStudy.open(tmp_path / "it")
