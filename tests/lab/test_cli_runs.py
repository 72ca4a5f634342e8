"""The commands `zloss runs` and `zloss plot` on whole, broken and missing runs."""

import errno
import json
import shutil
from pathlib import Path

import pytest

from tests.lab.command_line import SETTINGS, prepared_run, zloss
from zloss_lab.runs import Run
from zloss_lab.score_table import score_text
from zloss_lab.terminal import console


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return prepared_run(tmp_path)


def test_what_is_shown_of_runs_fits_a_screen(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    head = (
        "--set",
        'network.head={head="hierarchical"}',
        "--set",
        "training.validation_examples=20",
    )
    assert (
        zloss("train", "runs/two", "--corpus", "corpus", *SETTINGS[:6], *SETTINGS[8:], *head) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    shown = [line for line in lines if line.startswith("epoch")]
    assert [line.count("perplexity") for line in shown] == [1, 1]
    assert zloss("runs", "runs") == 0
    lines += capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    table = " ".join(" ".join(lines[-6:]).split())
    assert "top 1 top 10 run head loss step error error mrr perplexity" in table
    assert "runs/two hierarchical softmax 40" in table


def test_a_run_that_has_nothing_to_plot_is_left_out(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, run.parent / "new")
    (run.parent / "new" / "metrics.jsonl").unlink()
    capsys.readouterr()
    assert zloss("plot", run.parent, "--to", tmp_path / "curves.png") == 0
    wrote, left_out = capsys.readouterr().out.splitlines()
    assert (wrote.split()[0], left_out) == (
        "wrote",
        f"left out, without top_10_error so far: {run.parent / 'new'}",
    )
    assert (tmp_path / "curves.png").exists()


@pytest.mark.parametrize(("columns", "shown"), [(40, 1), (60, 3), (80, 4)])
def test_a_narrow_screen_shows_fewer_numbers_and_cuts_none(
    columns: int,
    shown: int,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(console, "width", columns)
    monkeypatch.chdir(run.parent.parent)
    assert zloss("runs", "runs", "--json") == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])[0]
    assert zloss("runs", "runs") == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if "runs/one" in line)
    scores = [score_text(name, cell) for name, cell in row.items() if isinstance(cell, float)]
    assert line.split() == ["runs/one", row["head"], row["loss"], "40", *scores][: 3 + shown]
    assert ("no room for" in out) == (columns < 80)
    if columns == 60:
        assert "no room for mrr, perplexity: --json has all" in " ".join(out.split())


def test_a_run_that_is_named_twice_is_listed_once(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parent.parent)
    capsys.readouterr()
    assert zloss("runs", "runs/one", "runs", run, "--json") == 0
    assert [row["run"] for row in json.loads(capsys.readouterr().out)] == ["runs/one"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"{", "config.json cannot be read"),
        ("config.json", b"\xff", "config.json cannot be read"),
        (
            "config.json",
            b'{"architectures": ["another program"]}',
            "config.json is not the config of a run",
        ),
        ("config.json", b"[]", "config.json cannot be read: it must be one JSON object"),
        (
            "metrics.jsonl",
            b'{"kind": "training", "step": 1, "epoch": 0}\n{\n',
            "metrics.jsonl, line 8, is no JSON",
        ),
        (
            "metrics.jsonl",
            b"{}\n",
            "metrics.jsonl, line 7, is no metrics with kind, step and epoch",
        ),
        ("metrics.jsonl", b"5\n", "metrics.jsonl, line 7, is no metrics with kind, step and epoch"),
        (
            "checkpoints/000000040/state.json",
            b"[]",
            "checkpoints/000000040/state.json cannot be read: it must be",
        ),
    ],
)
def test_a_broken_run_leaves_the_others_in_the_table(
    file: str,
    content: bytes,
    message: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The plot shows it once, too."""
    broken = run.parent / "broken"
    shutil.copytree(run, broken)
    # The lines up to the last checkpoint have a checksum, the ones after it are judged by what they say.
    before = (broken / file).read_bytes() if file == "metrics.jsonl" else b""
    (broken / file).write_bytes(before + content)
    capsys.readouterr()
    assert zloss("runs", run.parent, "--json") == 1
    out, error = capsys.readouterr()
    assert [row["run"] for row in json.loads(out)] == [str(run)]
    assert error.startswith("left out: ")
    assert f"{broken}/{message}" in error
    assert zloss("runs", broken) == 1
    assert capsys.readouterr().out == ""
    for folder, is_drawn in ((broken, False), (run.parent, True)):
        assert zloss("plot", folder, "--to", tmp_path / "curves.png") == 1
        assert f"{broken}/{message}" in capsys.readouterr().err
        assert (tmp_path / "curves.png").exists() == is_drawn


@pytest.mark.parametrize("is_trained", [True, False])
def test_no_run_is_shown_under_a_wrong_name(
    is_trained: bool, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flipped bit in the name of a loss would be read as another loss."""
    if not is_trained:
        shutil.rmtree(run / "checkpoints")
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace('"z_loss"', '"squared_error"'))
    capsys.readouterr()
    assert zloss("runs", run) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("left out: ")
    assert str(run / "config.json") in error


def test_a_run_that_others_may_not_look_into_is_left_out(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, run.parent / "locked")
    steps = Run.steps

    def refused(self: Run) -> list[int]:
        if self.folder.name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", str(self.folder))
        return steps(self)

    monkeypatch.setattr(Run, "steps", refused)
    capsys.readouterr()
    assert zloss("runs", run.parent, "--json") == 1
    out, error = capsys.readouterr()
    assert [row["run"] for row in json.loads(out)] == [str(run)]
    assert error == f"left out: {run.parent / 'locked'}: Permission denied\n"


def test_a_folder_without_runs_is_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped name, for instance: the comparison does not ignore it silently."""
    capsys.readouterr()
    assert zloss("runs", run, tmp_path / "onne", "--json") == 1
    out, error = capsys.readouterr()
    assert [row["run"] for row in json.loads(out)] == [str(run)]
    assert error == f"left out: there are no runs in {tmp_path / 'onne'}\n"
    assert zloss("plot", run, tmp_path / "onne", "--to", tmp_path / "curves.png") == 1
    assert (tmp_path / "curves.png").exists()
