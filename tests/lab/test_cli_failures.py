"""Commands that cannot go on: damaged or missing corpora, a full disk, numbers beyond reason, and Ctrl-C."""

import errno
import json
import shutil
from pathlib import Path

import pytest

from tests.lab.command_line import SETTINGS, prepared_run, zloss
from tests.lab.pets import SENTENCES
from tests.lab.small_runs import edit_state
from zloss_lab import checkpoints
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

    monkeypatch.setattr(checkpoints, "save_file", full)
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


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_word_that_the_vocabulary_does_not_have(
    split: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a fault of the corpus, which other learning rates would not mend."""
    path = tmp_path / "corpus" / f"{split}.tokens"
    tokens = bytearray(path.read_bytes())
    tokens[-2:] = b"\xff\x7f"
    path.write_bytes(tokens)
    new = ("train", tmp_path / "new", "--corpus", tmp_path / "corpus", *SETTINGS)
    evaluation = ("evaluate", run, "--split", split)
    for command in (evaluation,) if split == "test" else (new, evaluation):
        assert zloss(*command) == 1
        error = capsys.readouterr().err
        assert "Lower the learning rates" not in error
        assert f"{split}" in error
        assert "prepare the corpus again" in error


@pytest.mark.parametrize("number", [0, 5])
def test_no_word_can_be_left_out_of_a_training(
    number: int, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*SETTINGS, "--set", f"network.head.ignore_index={number}")
    assert zloss("train", tmp_path / "new", "--corpus", tmp_path / "corpus", *words) == 1
    error = capsys.readouterr().err
    assert f"head.ignore_index={number} would leave out a word of the vocabulary" in error
    assert "learning rates" not in error
    assert not (tmp_path / "new").exists()


def test_a_mistake_that_no_learning_rate_would_mend(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def changed(*_: object, **__: object) -> None:
        raise ValueError("word 99 of a context is out of range")

    monkeypatch.setattr("zloss_lab.networks.NgramNetwork.learn", changed)
    assert zloss("train", tmp_path / "new", "--corpus", tmp_path / "corpus", *SETTINGS) == 1
    error = capsys.readouterr().err
    assert "step 0: word 99 of a context is out of range; the run stays as it was" in error
    assert "learning rates" not in error


def test_what_was_changed_in_a_config_is_shown(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands that print results for scripts tell it as a message."""
    config = json.loads((run / "config.json").read_text())
    config["training"]["steps"] = 50
    (run / "config.json").write_text(json.dumps(config))
    told = f"training.steps is 50 in {run / 'config.json'}, and was 40 so far\n"
    for command in (("evaluate", run, "--limit", 20, "--json"), ("predict", run, "a", "--json")):
        capsys.readouterr()
        assert zloss(*command) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)
        assert told in err
    assert zloss("train", run, "--resume") == 0
    assert told in capsys.readouterr().out


def test_links_to_themselves(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    search = ("--space", "z_loss", "--trials", 1)
    for command in (
        ("train", "new", "--corpus", "loop"),
        ("train", "loop", "--corpus", "corpus"),
        ("train", "loop", "--resume"),
        ("train", "new", "--corpus", "corpus", "--config", "loop"),
        ("evaluate", "loop"),
        ("predict", "loop", "a"),
        ("runs", "loop"),
        ("plot", "loop"),
        ("plot", run, "--to", "loop/a.svg"),
        ("tune", "run", "new", "--corpus", "loop", *search),
        ("tune", "run", "loop", "--corpus", "corpus", *search),
        ("tune", "run", "new", "--corpus", "corpus", "--space", "loop"),
        ("tune", "show", "loop"),
    ):
        capsys.readouterr()
        assert zloss(*command) == 1, command
        error = capsys.readouterr().err
        assert error.startswith("error: "), command
        assert "loop" in error, command
    assert not Path("new").exists()
    assert zloss("runs", "runs", "loop", "runs/one") == 1  # the run is found twice, and shown once
    assert capsys.readouterr().out.count("runs/one") == 1


@pytest.mark.filterwarnings("always:the best checkpoint")
def test_the_advice_about_a_damaged_best_checkpoint_works(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if Run.open(run).best_step == 40:
        edit_state(Run.open(run), lambda state: state["schedule"].update(best_step=20))
    damaged = run / "checkpoints" / "000000020"
    (damaged / "tensors.safetensors").write_bytes(b"nonsense")
    capsys.readouterr()
    assert zloss("evaluate", run, "--limit", 20) == 1
    assert "remove its folder to go on from step 40" in capsys.readouterr().err
    shutil.rmtree(damaged)
    assert zloss("evaluate", run, "--limit", 20) == 0
    told = f"the best checkpoint of {run}, of step 20, is gone: the last one is used, of step 40"
    assert told in capsys.readouterr().err
    assert zloss("train", run, "--resume") == 0


def test_the_values_of_a_damaged_config_are_named(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "config.json").write_bytes(b"\xff")
    for command in (("train", run, "--resume"), ("evaluate", run), ("predict", run, "a")):
        assert zloss(*command) == 1
        state = run / "checkpoints" / "000000040" / "state.json"
        told = f"restore it, {state} has its values under `config`"
        assert told in capsys.readouterr().err
    (run / "config.json").write_text(json.dumps(json.loads(state.read_text())["config"]))
    assert zloss("train", run, "--resume") == 0
    shutil.rmtree(run / "checkpoints")
    (run / "config.json").write_bytes(b"\xff")
    assert zloss("train", run, "--resume") == 1
    assert "config.json cannot be read: no UTF-8" in (error := capsys.readouterr().err)
    assert "; start a new run, nothing is lost" in error
