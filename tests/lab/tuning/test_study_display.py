"""Tables of trials, and the progress of a study on a screen and in a file."""

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from tests.lab.command_line import zloss
from tests.lab.tuning.tiny import MadeUp, distance, tiny_plan
from zloss_lab.tuning.space import space_table
from zloss_lab.tuning.study import TuningStudy
from zloss_lab.tuning.study_display import Board, trials_table, watching
from zloss_lab.tuning.trials import Trial


def test_tables_of_trials(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a narrow screen, words are not broken if the layers are fixed. In a file, a trial has one line."""
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
    """A screen shows the best and the running trials, counts and time. A file has no control codes."""
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
    """An interrupted trial is printed as a line, because the live table does not show it."""
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
