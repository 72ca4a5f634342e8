"""The command line as a user meets it: from a text file to predictions, and what mistakes say."""

import json
import random
import sys
from pathlib import Path

import pytest

from zloss.lab import __main__ as command
from zloss.lab import cli
from zloss.lab.experiments import build_experiment, preset, preset_names
from zloss.lab.networks import PRESETS

SENTENCES = ("the cat sat on the mat .", "the dog ate the cat .", "a bird saw the dog on a mat .", "a cat saw a bird .")
SMALL = ["network.embedding=8", "network.hidden=[16]", "network.context=3", "network.head.b=2.0", "training.steps=40"]
SMALL += ["training.output_lr=0.05", "training.validate_every=20", "training.batch_size=20", "training.log_every=10"]


def zloss(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["zloss", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    code = end.value.code
    return code if isinstance(code, int) else 0


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    chance = random.Random(0)
    (tmp_path / "text.txt").write_text("\n".join(chance.choice(SENTENCES) for _ in range(400)) + "\n")
    assert zloss(monkeypatch, "data", "prepare", tmp_path / "text.txt", "--to", tmp_path / "corpus") == 0
    settings = [word for setting in SMALL for word in ("--set", setting)]
    assert zloss(monkeypatch, "train", tmp_path / "runs" / "one", "--corpus", tmp_path / "corpus", *settings) == 0
    return tmp_path / "runs" / "one"


def test_from_text_to_predictions(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert zloss(monkeypatch, "data", "info", tmp_path / "corpus", "--json") == 0
    assert json.loads(capsys.readouterr().out)["splits"].keys() == {"train", "valid", "test"}
    assert zloss(monkeypatch, "predict", run, "the cat", "--top", 3, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert zloss(monkeypatch, "evaluate", run, "--split", "valid", "--json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores.keys() == {"this run", "most frequent words"}
    assert 0 <= scores["this run"]["top_1_error"] <= 1
    assert zloss(monkeypatch, "runs", run.parent, "--json") == 0
    assert [row["step"] for row in json.loads(capsys.readouterr().out)] == [40]
    assert zloss(monkeypatch, "plot", run, "--to", tmp_path / "curves.png") == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert zloss(monkeypatch, "train", run, "--resume") == 0  # nothing left to do


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "RUN", "--corpus", "CORPUS"), "is not empty: resume the run that is there"),
        (("train", "NEW"), "a new run needs --corpus"),
        (("train", "NEW", "--corpus", "CORPUS", "--preset", "net3"), "unknown preset: 'net3'; did you mean 'net"),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--set", "training.lrr=1"),
            "[training] unknown key: 'lrr'; did you mean 'lr'",
        ),
        (("train", "NEW", "--corpus", "CORPUS", "--set", "nonsense"), "write NAME=VALUE"),
        (("train", "NEW", "--corpus", "CORPUS", "--config", "MISSING.toml"), "cannot be read as TOML"),
        (("train", "NEW", "--corpus", "NOWHERE"), "NOWHERE"),
        (("train", "NOWHERE", "--resume"), "is not a run"),
        (("evaluate", "NOWHERE"), "is not a run"),
        (("runs", "NOWHERE"), "no runs in"),
        (("plot", "RUN", "--metric", "beauty"), "has no validation with beauty"),
        (("data", "info", "NOWHERE"), "NOWHERE"),
        (("train", "NEW", "--corpus", "CORPUS", "--set", "device=abacus"), "there is no device 'abacus'"),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--set", "training.score=mmr"),
            "unknown score: 'mmr'; did you mean 'mrr'",
        ),
        (("train", "NEW", "--corpus", "CORPUS", "--set", "training.score=perplexity"), "no perplexity"),
        (("evaluate", "RUN", "--split", "nothing"), "nothing"),
        (("predict", "RUN", "the cat", "--top", "0"), "k must be between 1"),
        (("plot", "RUN", "--to", "text.txt/curve.png"), "text.txt"),
    ],
)
def test_mistakes_end_with_a_line_and_no_traceback(
    arguments: tuple[str, ...],
    message: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"RUN": run, "CORPUS": tmp_path / "corpus"}
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert zloss(monkeypatch, *(places.get(word, word) for word in arguments)) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert sorted(tmp_path.rglob("*")) == before


def test_presets_are_those_of_the_paper() -> None:
    assert {"ptb", "net1", "net2", "small"} == set(preset_names())
    for name, network in PRESETS.items():
        built = build_experiment("corpus", preset_name=name).network
        assert (built.context, built.embedding, built.hidden) == (network.context, network.embedding, network.hidden)
    assert preset("net1")["training"]["batch_size"] == 200
    assert preset("ptb")["training"]["batch_size"] == 250


def test_a_file_goes_over_the_preset_and_settings_over_both(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[training]\nlr = 0.7\nseed = 3\n[network.head]\na = 0.4\n")
    built = build_experiment("c", preset_name="ptb", file=tmp_path / "mine.toml", settings=["training.seed=4"])
    assert (built.training.lr, built.training.seed, built.training.batch_size) == (0.7, 4, 250)
    assert built.network.head.options["a"] == 0.4
    assert built.network.head.options["b"] == 10.0


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zloss.lab.cli", None)
    monkeypatch.delitem(sys.modules, "zloss.lab.cli")
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r"the lab needs typer, which is not installed: pip install 'zloss\[lab\]'"):
        command.main()
