"""The commands `zloss tune`: from a space to a training, and the messages for mistakes."""

import json
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.lab.command_line import zloss
from tests.lab.tuning.tiny import MadeUp, distance, tiny_plan
from zloss_lab.training import Experiment
from zloss_lab.tuning.evaluators import Ending, Judge, OneByOne
from zloss_lab.tuning.study import TuningStudy


def test_from_a_space_to_a_training(
    corpus: Path,
    space: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    def printed(*command: object) -> str:
        assert zloss(*command) == 0
        return capsys.readouterr().out

    asked = ("tune", "run", "it", "--corpus", corpus, "--space", space, "--score", "top_1_error")
    assert "3 of 3 trials: 3 complete" in printed(*asked, "--no-prune", "--trials", 3)
    nothing_is_left = printed(*asked, "--no-prune", "--trials", 3)
    assert "trial 3" not in nothing_is_left
    more = printed("tune", "run", "it", "--resume", "--trials", 5, "--at-once", 2)
    assert "trial 4 complete" in more

    trials = json.loads(printed("tune", "show", "it", "--json"))
    assert len(trials) == 5
    assert [trial["value"] for trial in trials] == sorted(trial["value"] for trial in trials)
    assert "5 of 5 trials: 5 complete" in printed("tune", "show", "it")

    transfers = json.loads(printed("tune", "transfer", "it", "--json"))
    assert {one["trials"] for one in transfers} == {5}
    assert "rank correlation" in printed("tune", "transfer", "it", "--score", "mrr")

    best = json.loads(
        printed("tune", "best", "it", "--score", "mrr", "--to", "best.toml", "--json")
    )
    assert best["value"] == max(
        trial["scores"]["mrr"] for trial in trials if trial["trial"] == best["trial"]
    )
    printed(*shlex.split(best["command"])[1:])
    printed("train", "two", "--corpus", corpus, "--preset", "ptb", "--config", "best.toml")
    one, other = json.loads(printed("runs", "runs/best", "two", "--json"))
    assert one["mrr"] == other["mrr"]
    if best["trial"] < 3:  # the others were trained side by side, up to rounding
        assert one["mrr"] == best["value"]


def test_what_to_do_next_can_be_copied(
    corpus: Path, space: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a study [red]"
    assert zloss("tune", "run", folder, "--corpus", corpus, "--space", space, "--trials", 1) == 0
    assert capsys.readouterr().out.endswith(f": zloss tune best '{folder}'\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run NEW --corpus CORPUS", "a new study needs --corpus FOLDER and --space NAME"),
        ("run NEW --corpus CORPUS --space z_los", "unknown space: 'z_los'; did you mean 'z_loss'?"),
        ("run NEW --corpus CORPUS --space MISSING.toml", "cannot be read as TOML"),
        ("run NEW --corpus NOWHERE --space SPACE", "NOWHERE is no prepared corpus"),
        ("run NEW --corpus CORPUS --space SPACE --score mmr", "did you mean 'mrr'"),
        ("run NEW --corpus CORPUS --space SPACE --preset ptp", "did you mean 'ptb'"),
        ("run NEW --corpus CORPUS --space SPACE --set training.lrr=1", "did you mean 'lr'"),
        ("run NEW --corpus CORPUS --space SPACE --trials 0", "--trials must be at least 1"),
        (
            "run NEW --corpus CORPUS --space SPACE --at-once 2 --keep-runs",
            "--keep-runs is for trials that are trained one by one",
        ),
        ("run CORPUS --corpus CORPUS --space SPACE", "is not empty and not a study"),
        ("run STUDY --corpus CORPUS --space SPACE --score mrr", "a study that differs in score"),
        ("run STUDY --resume --score mrr", "leave out --score"),
        ("run NOWHERE --resume", "NOWHERE is not a study: there is no study.json in it"),
        ("show NOWHERE", "is not a study"),
        ("best STUDY --score beauty", "unknown score: 'beauty'; known: top_1_error"),
        ("show STUDY --score top_1_eror", "did you mean 'top_1_error'?"),
        ("transfer STUDY --score beauty", "unknown score: 'beauty'"),
        ("best STUDY --score perplexity", "has been judged by perplexity yet"),
        ("transfer STUDY", "it takes 3 complete trials"),
        (
            "run NEW --corpus CORPUS --space SPACE --storage sqlite:///:memory:",
            "the storage sqlite:///:memory: is in memory, and gone with the worker: name a file",
        ),
    ],
)
def test_mistakes_end_with_a_line_and_no_traceback(
    command: str,
    message: str,
    corpus: Path,
    space: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = tiny_plan(corpus, space=tomllib.loads(space.read_text()), trials=1, name="study")
    TuningStudy.begin(tmp_path / "study", plan).run(MadeUp(distance))
    places = {"CORPUS": corpus, "SPACE": space, "STUDY": "study"}
    monkeypatch.chdir(tmp_path)
    assert zloss("tune", *(places.get(word, word) for word in command.split())) == 1
    error = capsys.readouterr().err
    assert message in error.replace("\n", " ")
    assert "Traceback" not in error
    assert sorted(file.name for file in tmp_path.iterdir()) == ["study"]


def test_a_storage_is_found_from_another_folder(
    corpus: Path, space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    asked = (
        "--corpus",
        corpus,
        "--space",
        space,
        "--storage",
        "sqlite:///shared.db",
        "--trials",
        1,
    )
    assert zloss("tune", "run", tmp_path / "study", *asked) == 0
    assert zloss("tune", "run", tmp_path / "study", *asked) == 0  # the same command again
    monkeypatch.chdir(tmp_path / "there")
    assert zloss("tune", "show", tmp_path / "study") == 0
    assert list(Path.cwd().iterdir()) == []


def test_ctrl_c_keeps_what_is_there(
    corpus: Path,
    space: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun: list[int] = []
    evaluate = MadeUp(distance).evaluate

    def interrupted(
        self: OneByOne, experiments: Mapping[int, Experiment], judge: Judge
    ) -> dict[int, Ending]:
        begun.extend(experiments)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return evaluate(experiments, judge)

    monkeypatch.setattr(OneByOne, "evaluate", interrupted)
    folder = tmp_path / "it"
    assert zloss("tune", "run", folder, "--corpus", corpus, "--space", space, "--trials", 3) == 130
    error = capsys.readouterr().err.replace("\n", "")
    assert "stopped; 1 of 3 trials: 1 complete, 1 interrupted" in error
    assert f"zloss tune run {folder} --resume" in error
    assert zloss("tune", "run", folder, "--resume") == 0
    assert [trial.state for trial in TuningStudy.open(folder).trials()] == [
        "complete",
        "interrupted",
    ] + ["complete"] * 2
