"""`zloss tune` as a user meets it: from a space to a training, and what mistakes say."""

import io
import itertools
import json
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from tests.lab.command_line import zloss
from tests.lab.tuning.tiny import SPACE, MadeUp, distance, tiny_corpus, tiny_plan
from zloss_lab.configuration import to_table
from zloss_lab.experiments import build_experiment
from zloss_lab.training import Experiment
from zloss_lab.tuning.evaluators import Ending, Judge, OneByOne
from zloss_lab.tuning.recipe import toml_value, train_command, train_config
from zloss_lab.tuning.space import space_table
from zloss_lab.tuning.study import TuningStudy
from zloss_lab.tuning.study_display import Board, trials_table, watching
from zloss_lab.tuning.trials import Trial


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("space") / "tiny.toml"
    path.write_text("".join(f"{part} = {toml_value(table)}\n" for part, table in SPACE.items()))
    return path


def test_from_a_space_to_a_training(
    corpus: Path,
    space: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = (
        "tune",
        "run",
        "it",
        "--corpus",
        corpus,
        "--space",
        space,
        "--score",
        "top_1_error",
        "--no-prune",
    )
    assert zloss(*asked, "--trials", 3) == 0
    assert "3 of 3 trials: 3 complete" in capsys.readouterr().out
    assert zloss(*asked, "--trials", 3) == 0  # nothing is left to do
    assert "trial 3" not in capsys.readouterr().out
    assert zloss("tune", "run", "it", "--resume", "--trials", 5, "--at-once", 2) == 0
    assert "trial 4 complete" in capsys.readouterr().out

    assert zloss("tune", "show", "it", "--json") == 0
    trials = json.loads(capsys.readouterr().out)
    assert len(trials) == 5
    assert [trial["value"] for trial in trials] == sorted(trial["value"] for trial in trials)
    assert zloss("tune", "show", "it") == 0
    assert "5 of 5 trials: 5 complete" in capsys.readouterr().out

    assert zloss("tune", "transfer", "it", "--json") == 0
    assert {one["trials"] for one in json.loads(capsys.readouterr().out)} == {5}
    assert zloss("tune", "transfer", "it", "--score", "mrr") == 0
    assert "rank correlation" in capsys.readouterr().out

    assert zloss("tune", "best", "it", "--score", "mrr", "--to", "best.toml", "--json") == 0
    best = json.loads(capsys.readouterr().out)
    assert best["value"] == max(
        trial["scores"]["mrr"] for trial in trials if trial["trial"] == best["trial"]
    )
    command = shlex.split(best["command"])
    assert zloss(*command[1:]) == 0
    assert (
        zloss("train", "two", "--corpus", corpus, "--preset", "ptb", "--config", "best.toml") == 0
    )
    capsys.readouterr()
    assert zloss("runs", "runs/best", "two", "--json") == 0
    one, other = json.loads(capsys.readouterr().out)
    assert one["mrr"] == other["mrr"]
    if best["trial"] < 3:  # the others were trained side by side, up to rounding
        assert one["mrr"] == best["value"]


def test_what_to_do_next_can_be_copied(
    corpus: Path, space: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a study [red]"
    assert zloss("tune", "run", folder, "--corpus", corpus, "--space", space, "--trials", 1) == 0
    assert capsys.readouterr().out.endswith(f": zloss tune best '{folder}'\n")


@pytest.mark.parametrize("name", ["z_loss", "softmax", "spherical_softmax"])
def test_a_trial_as_a_training(name: str, corpus: Path, tmp_path: Path) -> None:
    """The command and the file give the same experiment, whatever the head of the preset was."""
    plan = tiny_plan(
        corpus, space=space_table(name), settings=["training.epochs=3"], first=7, name="two\nlines"
    )
    settings = next(plan.searched.examples())
    trial = Trial(0, "complete", settings, [], "", None)
    words = shlex.split(train_command(plan, trial, "mrr"))
    sets = [value for flag, value in itertools.pairwise(words) if flag == "--set"]
    by_command = build_experiment(
        words[words.index("--corpus") + 1], preset_name="ptb", settings=sets
    )
    (tmp_path / "it.toml").write_text(train_config(plan, trial, "mrr"))
    by_file = build_experiment(str(corpus), preset_name="ptb", file=tmp_path / "it.toml")
    assert to_table(by_command) == to_table(by_file)
    assert to_table(by_file)["network"]["head"]["loss"] == name
    assert (by_file.training.epochs, by_file.training.score, by_file.training.validate_every) == (
        3,
        "mrr",
        None,
    )
    assert by_file.training.lr == settings["training.lr"]


def test_a_config_with_another_head_takes_none_of_the_options_of_the_preset(tmp_path: Path) -> None:
    def head(text: str) -> dict[str, object]:
        (tmp_path / "it.toml").write_text(text)
        experiment = build_experiment("nowhere", preset_name="ptb", file=tmp_path / "it.toml")
        return experiment.network.head.to_dict()

    kept = {"reduction": "mean", "ignore_index": -100}
    assert head("[network.head]\nb = 5.0") == kept | {
        "head": "factored",
        "loss": "z_loss",
        "a": 0.2,
        "b": 5.0,
    }
    assert head('[network.head]\nloss = "z_loss"\nb = 5.0')["a"] == 0.2
    assert head('[network.head]\nhead = "dense"') == kept | {"head": "dense", "loss": "softmax"}
    assert head('[network.head]\nloss = "squared_error"') == kept | {
        "head": "factored",
        "loss": "squared_error",
    }


def test_toml_values_are_read_back() -> None:
    value = {
        "text": 'a "b"',
        "list": [1, 2.5, [True]],
        "tiny": 1e-30,
        "large": 1e30,
        "table": {"inner": -3},
    }
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("run", "NEW", "--corpus", "CORPUS"),
            "a new study needs --corpus FOLDER and --space NAME",
        ),
        (
            ("run", "NEW", "--corpus", "CORPUS", "--space", "z_los"),
            "unknown space: 'z_los'; did you mean 'z_loss'?",
        ),
        (("run", "NEW", "--corpus", "CORPUS", "--space", "MISSING.toml"), "cannot be read as TOML"),
        (
            ("run", "NEW", "--corpus", "NOWHERE", "--space", "SPACE"),
            "NOWHERE is no prepared corpus",
        ),
        (
            ("run", "NEW", "--corpus", "CORPUS", "--space", "SPACE", "--score", "mmr"),
            "did you mean 'mrr'",
        ),
        (
            ("run", "NEW", "--corpus", "CORPUS", "--space", "SPACE", "--preset", "ptp"),
            "did you mean 'ptb'",
        ),
        (
            ("run", "NEW", "--corpus", "CORPUS", "--space", "SPACE", "--set", "training.lrr=1"),
            "did you mean 'lr'",
        ),
        (
            ("run", "NEW", "--corpus", "CORPUS", "--space", "SPACE", "--trials", "0"),
            "--trials must be at least 1",
        ),
        (
            (
                "run",
                "NEW",
                "--corpus",
                "CORPUS",
                "--space",
                "SPACE",
                "--at-once",
                "2",
                "--keep-runs",
            ),
            "--keep-runs is for trials that are trained one by one",
        ),
        (
            ("run", "CORPUS", "--corpus", "CORPUS", "--space", "SPACE"),
            "is not empty and not a study",
        ),
        (
            ("run", "STUDY", "--corpus", "CORPUS", "--space", "SPACE", "--score", "mrr"),
            "a study that differs in score",
        ),
        (("run", "STUDY", "--resume", "--score", "mrr"), "leave out --score"),
        (("run", "NOWHERE", "--resume"), "NOWHERE is not a study: there is no study.json in it"),
        (("show", "NOWHERE"), "is not a study"),
        (("best", "STUDY", "--score", "beauty"), "unknown score: 'beauty'; known: top_1_error"),
        (("show", "STUDY", "--score", "top_1_eror"), "did you mean 'top_1_error'?"),
        (("transfer", "STUDY", "--score", "beauty"), "unknown score: 'beauty'"),
        (("best", "STUDY", "--score", "perplexity"), "has been judged by perplexity yet"),
        (("transfer", "STUDY"), "it takes 3 complete trials"),
        (
            (
                "run",
                "NEW",
                "--corpus",
                "CORPUS",
                "--space",
                "SPACE",
                "--storage",
                "sqlite:///:memory:",
            ),
            "the storage sqlite:///:memory: is in memory, and gone with the worker: name a file",
        ),
    ],
)
def test_mistakes_end_with_a_line_and_no_traceback(
    arguments: tuple[str, ...],
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
    assert zloss("tune", *(places.get(word, word) for word in arguments)) == 1
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


def test_tables_of_trials(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole words on a narrow screen for the Z-loss with layers that are set, and one line for a trial in a file."""
    layers = ["network.embedding=8", "network.hidden=[16]"]
    plan = tiny_plan(corpus, space=space_table("z_loss"), settings=layers, trials=1, name="it")
    keys = plan.searched.search
    study = TuningStudy.begin(tmp_path / "it", plan)
    study.run(MadeUp(distance))
    screen = Console(width=80, file=io.StringIO())
    screen.print(trials_table(study.trials(), keys, plan.score))
    words = screen.file.getvalue().split()  # type: ignore[attr-defined]
    assert {"complete", "output", "dropout", "embedding", "scale"} <= set(words)
    capsys.readouterr()
    assert zloss("tune", "show", tmp_path / "it") == 0
    (row,) = (
        line
        for line in capsys.readouterr().out.splitlines()
        if "complete" in line and "of 1" not in line
    )
    assert len(row.split()) == len(keys) + 4


def test_what_a_screen_shows(corpus: Path, tmp_path: Path) -> None:
    """The best trials, those that run, counts and time; and no control codes where there is no screen."""
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus, trials=12, prunes=False))
    board = Board(study)
    seen: list[str] = []

    def watch(trials: Sequence[Trial]) -> None:
        board.update(trials)
        console = Console(width=120, file=io.StringIO())
        console.print(board)
        seen.append(console.file.getvalue())  # type: ignore[attr-defined]

    study.run(MadeUp(distance), watch=watch)
    assert "running" in seen[0]
    assert "1 of 12 trials: 1 running" in seen[0]
    assert "12 of 12 trials: 12 complete" in seen[-1]
    best = min(trial.value("top_1_error") or 1.0 for trial in study.trials())
    assert f"{best:.2%}" in seen[-1]
    file = tmp_path / "out.txt"
    with file.open("w") as stream, watching(study, Console(file=stream, width=60)) as tell:
        tell(study.trials())
    lines = file.read_text().splitlines()
    assert len(lines) == 12
    assert lines[0].startswith("trial 0 complete  ")
    assert "\x1b" not in file.read_text()


def test_a_screen_tells_what_was_given_up(corpus: Path, tmp_path: Path) -> None:
    """In a line that stays: the board has no place for it."""
    study = TuningStudy.begin(tmp_path / "it", tiny_plan(corpus))
    screen = Console(width=120, file=io.StringIO(), force_terminal=True)
    with watching(study, screen) as tell:
        tell(
            [
                Trial(3, "running", {}, [], "", None),
                Trial(4, "interrupted", {}, [], "nobody knows why", None),
            ]
        )
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "trial 4 interrupted  nobody knows why" in shown
    assert "trial 3" not in shown
