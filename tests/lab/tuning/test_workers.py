"""Workers: several on one study, killed ones, silent ones, and trials that others have given up."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.lab.tuning.tiny import (
    MadeUp,
    distance,
    files_of,
    settings_of,
    states,
    tiny_plan,
)
from zloss_lab.runs import Run
from zloss_lab.training import Experiment
from zloss_lab.tuning import workers
from zloss_lab.tuning.evaluators import OneByOne
from zloss_lab.tuning.plan import StudyPlan
from zloss_lab.tuning.study import TuningStudy
from zloss_lab.tuning.trials import Trial

ROOT = Path(__file__).parents[3]
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
    sources = os.pathsep.join(str(ROOT / folder) for folder in ("src", "lab/src"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": sources}
    command = [sys.executable, "-c", WORKER, str(folder), repr(dataclasses.asdict(plan))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)


def test_a_killed_worker_is_made_up_for(corpus: Path, tmp_path: Path) -> None:
    plan = tiny_plan(corpus, trials=3)
    with worker(tmp_path / "it", plan) as process:
        assert process.stdout is not None
        # Four validations and the end of the first trial, and two validations of the second.
        for _ in range(7):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert states(TuningStudy.open(tmp_path / "it"))[:2] == ["complete", "running"]
    assert [place.name for place in (tmp_path / "it").glob("running-*")] == ["running-00001"]
    study = TuningStudy.begin(tmp_path / "it", plan)
    study.run(OneByOne(study.folder))
    assert states(study) == ["complete", "interrupted", "complete", "complete"]
    assert files_of(study) == ["study.db", "study.json"]


def test_a_trial_whose_worker_was_killed_before_it_said_so(corpus: Path, tmp_path: Path) -> None:
    """The trial may be that of any living worker. If there is none, it is abandoned."""
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=2))
    study._study.ask(study.plan.searched.distributions)
    study._study.set_user_attr("elsewhere:1:0", time.time())
    study.run(MadeUp(distance))
    assert states(study) == ["running", "complete"]
    study._study.set_user_attr("elsewhere:1:0", time.time() - workers._SILENCE_S * 2)
    study.run(MadeUp(distance))
    assert states(study) == ["interrupted", "complete", "complete"]


def test_runs_that_somebody_trains_are_no_leftovers(corpus: Path, tmp_path: Path) -> None:
    """A run stays if its worker is alive, or if a worker that was given up still holds its lock."""
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
    # There is one more trial if both workers took the last one at the same moment.
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
    """Mark the first trial as failed, as another worker does after a long silence of this one."""
    study._study.tell(0, state=optuna.trial.TrialState.FAIL)


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("epoch", [1, 4])
def test_a_trial_that_others_have_given_up_is_let_go(
    at_once: int, epoch: int, corpus: Path, tmp_path: Path
) -> None:
    """The worker notices it at the first validation or at the last, and runs another trial in its place."""
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
