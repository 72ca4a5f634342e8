"""Commands that cannot go on: damaged or missing corpora, a full disk, numbers beyond reason, and Ctrl-C."""

import errno
import json
import shutil
from pathlib import Path

import pytest

from tests.lab.command_line import SETTINGS, prepared_run, zloss
from tests.lab.pets import SENTENCES
from zloss_lab import runs
from zloss_lab.runs import Run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return prepared_run(tmp_path)


def test_a_corpus_that_cannot_be_read(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus" / "train.tokens").write_bytes(b"cut short")
    for arguments in (
        ("train", tmp_path / "new", "--corpus", tmp_path / "corpus"),
        ("train", run, "--resume"),
        ("predict", run, "a"),
    ):
        assert zloss(*arguments) == 1
        assert "train.tokens has 9 bytes, expected" in capsys.readouterr().err
    (tmp_path / "corpus" / "manifest.json").unlink()
    assert zloss("evaluate", run) == 1
    assert "corpus is no prepared corpus: there is no manifest.json" in capsys.readouterr().err
    assert Run.open(run).steps() == [20, 40]


def test_a_corpus_that_has_moved(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The advice in the message works. A new run, which has no config yet, does not get this advice."""
    (tmp_path / "corpus").rename(tmp_path / "elsewhere")
    commands = (
        ("evaluate", run, "--limit", 20),
        ("train", run, "--resume"),
        ("predict", run, "the cat"),
    )
    for arguments in commands:
        assert zloss(*arguments) == 1
        advice = f"Make one with `zloss data prepare`, or change `corpus` in {run / 'config.json'} where it has moved"
        assert advice in capsys.readouterr().err
    assert zloss("train", tmp_path / "new", "--corpus", tmp_path / "corpus") == 1
    assert "config.json" not in capsys.readouterr().err
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"corpus": str(tmp_path / "elsewhere")}))
    assert [zloss(*arguments) for arguments in commands] == [0, 0, 0]


def test_another_vocabulary_than_that_of_the_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(tmp_path / "corpus")
    (tmp_path / "text.txt").write_text("\n".join(sentence.upper() for sentence in SENTENCES * 100))
    assert zloss("data", "prepare", tmp_path / "text.txt", "--to", tmp_path / "corpus") == 0
    for arguments in (("train", run, "--resume"), ("evaluate", run), ("predict", run, "THE CAT")):
        assert zloss(*arguments) == 1
        assert "is not the corpus that the run was trained on" in capsys.readouterr().err


def test_a_full_disk_while_training(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runs, "save_file", full)
    assert zloss("train", tmp_path / "new", "--corpus", tmp_path / "corpus", *SETTINGS) == 1
    error = capsys.readouterr().err.replace("\n", " ")
    assert (
        f"error: the checkpoint of step 20 of {tmp_path / 'new'} could not be written, the disk is full"
        in error
    )
    monkeypatch.undo()
    assert zloss("train", tmp_path / "new", "--resume") == 0


@pytest.mark.parametrize(
    "setting",
    [
        "training.lr=1e30",
        "training.lr=1e300",
        "training.weight_decay=1e300",
        "network.head.a=1e300",
    ],
)
def test_numbers_beyond_reason(
    setting: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """This includes numbers that are too large for a float32."""
    wild = (*SETTINGS, "--set", setting)
    assert zloss("train", tmp_path / "new", "--corpus", tmp_path / "corpus", *wild) == 1
    assert (
        "Lower the learning rates (lr, output_lr) or clip the gradient" in capsys.readouterr().err
    )


def test_after_ctrl_c_it_says_how_to_go_on(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("zloss_lab.commands.train.fit", interrupted)
    assert zloss("train", run, "--resume") == 130
    assert "step 40 is saved. Go on with: zloss train" in capsys.readouterr().err
    assert zloss("train", tmp_path / "new", "--corpus", tmp_path / "corpus") == 130
    assert "stopped before anything was saved" in capsys.readouterr().err


def test_ctrl_c_where_nothing_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("zloss_lab.commands.data.prepare", interrupted)
    assert zloss("data", "prepare", "ptb", "--to", tmp_path / "ptb") == 130
    assert capsys.readouterr().err == "\ninterrupted\n"
