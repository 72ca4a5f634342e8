"""Studies: they go on after interruptions, and a plan that cannot work begins no study."""

import json
import signal
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.lab.tuning.tiny import SPACE, MadeUp, distance, made_up, states, tiny_plan
from zloss_lab.runs import RunError
from zloss_lab.training import Experiment
from zloss_lab.tuning import workers
from zloss_lab.tuning.evaluators import Together
from zloss_lab.tuning.plan import StudyPlan
from zloss_lab.tuning.study import TuningStudy


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
    nothing_is_left_to_do = made_up(corpus, tmp_path / "it")
    assert states(nothing_is_left_to_do).count("complete") == 4


@pytest.mark.parametrize(
    ("moment", "state"), [(workers.WORKER, "interrupted"), ("curve", "complete")]
)
def test_ctrl_c_between_two_writes_waits(
    moment: str, state: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at the start of a trial leaves no trial without a worker, and Ctrl-C at its end loses no result."""
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


def test_what_cannot_be_trained_begins_no_study(corpus: Path, tmp_path: Path) -> None:
    """The folder stays free for the corrected command."""
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
    """Otherwise the study would end with an error whenever such a trial is drawn."""
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
    told_first = "study.json cannot be read: it is not what was written .* removes its checksum too"
    with pytest.raises(RunError, match=told_first):
        StudyPlan.read(tmp_path)
    del table["checksum"]
    (tmp_path / "study.json").write_text(json.dumps(table | change))
    with pytest.raises(RunError, match=f"study.json cannot be read: {told}"):
        StudyPlan.read(tmp_path)
