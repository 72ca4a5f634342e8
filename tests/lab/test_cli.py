"""The command line for a user: from a text file to predictions, and the messages about mistakes."""

import json
from pathlib import Path

import pytest

from tests.lab.command_line import NO_UTF_8, SETTINGS, SMALL, prepared_run, zloss
from tests.lab.pets import pets_text
from zloss_lab.corpora import prepare
from zloss_lab.experiments import build_experiment
from zloss_lab.inspection.trained_model import TrainedModel
from zloss_lab.training import fit

SEARCH = ("--corpus", "CORPUS", "--space", "z_loss")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return prepared_run(tmp_path)


def test_from_text_to_predictions(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert zloss("data", "info", tmp_path / "corpus", "--json") == 0
    assert json.loads(capsys.readouterr().out)["splits"].keys() == {"train", "valid", "test"}
    assert zloss("predict", run, "the cat", "--top", 3, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert zloss("evaluate", run, "--split", "valid", "--json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores.keys() == {"this run", "most frequent words"}
    assert 0 <= scores["this run"]["top_1_error"] <= 1
    assert zloss("runs", run.parent, "--json") == 0
    assert [row["step"] for row in json.loads(capsys.readouterr().out)] == [40]
    assert zloss("plot", run, "--to", tmp_path / "curves.png") == 0
    assert zloss("plot", run, "--to", tmp_path / "curves.svg") == 0
    assert "<svg" in (tmp_path / "curves.svg").read_text()
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert zloss("plot", run, "--to", tmp_path / "[red].png") == 0
    assert capsys.readouterr().out == f"wrote {tmp_path / '[red].png'}\n"
    assert zloss("train", run, "--resume") == 0  # nothing left to do


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "RUN", "--corpus", "CORPUS"), "is not empty: resume the run that is there"),
        (("train", "text.txt", "--corpus", "CORPUS"), "text.txt is a file, a run is a folder"),
        (("train", "NEW"), "a new run needs --corpus"),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--preset", "net3"),
            "unknown preset: 'net3'; did you mean 'net",
        ),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--set", "training.lrr=1"),
            "[training] unknown key: 'lrr'; did you mean 'lr'",
        ),
        (("train", "NEW", "--corpus", "CORPUS", "--set", "nonsense"), "write NAME=VALUE"),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--set", "lr=1"),
            "unknown key: 'lr'; did you mean 'training.lr'?",
        ),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--set", "training.lr=fast"),
            "training.lr must be float, got 'fast'",
        ),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--set", "training.epochs=1.5"),
            "training.epochs must be int or none, got 1.5",
        ),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--set", "network.hidden=9"),
            "network.hidden must be a list of int",
        ),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--set", "corpus=x"),
            "name the corpus by --corpus FOLDER",
        ),
        (
            ("train", "RUN", "--resume", "--set", "training.lr=2", "--preset", "ptb"),
            "the config that the run has, in RUN/config.json: leave out --preset and --set, or start a new run",
        ),
        (
            ("train", "NEW", "--corpus", "text.txt"),
            "text.txt is no prepared corpus: there is no manifest.json. Make one",
        ),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--config", "MISSING.toml"),
            "cannot be read as TOML: No such",
        ),
        (("train", "NEW", "--corpus", "NOWHERE"), "NOWHERE"),
        (("train", "NOWHERE", "--resume"), "is not a run"),
        (("evaluate", "NOWHERE"), "is not a run"),
        (("runs", "NOWHERE"), "no runs in"),
        (
            ("plot", "RUN", "--metric", "beauty"),
            "unknown score: 'beauty'; known: top_1_error, top_5_error",
        ),
        (("data", "info", "NOWHERE"), "NOWHERE"),
        (
            ("data", "prepare", "ptbb", "--to", "NEW"),
            "no corpus of that name; did you mean 'ptb'? The named ones are",
        ),
        (
            ("data", "prepare", "NOWHERE", "--to", "NEW"),
            "no corpus of that name; the named ones are",
        ),
        (
            ("data", "prepare", "text.txt", "--to", "text.txt/new"),
            "text.txt/new: the file text.txt is in the way",
        ),
        (
            ("data", "prepare", "ptb", "--to", "text.txt/in/new"),
            "text.txt/in/new: the file text.txt is in the way",
        ),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--set", "device=abacus"),
            "there is no device 'abacus'",
        ),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--set", "device=meta"),
            "there is no device 'meta' to train on",
        ),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--set", "training.lr_factor=2"),
            "lr_factor must be below 1",
        ),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--set", f"training.seed={10**23}"),
            "seed must be from 0 to 2^63",
        ),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--set", "training.score=mmr"),
            "unknown score: 'mmr'; did you mean 'mrr'",
        ),
        (
            ("train", "NEW", "--corpus", "CORPUS", "--set", "training.score=perplexity"),
            "no perplexity",
        ),
        (("evaluate", "RUN", "--split", "nothing"), "nothing"),
        (("predict", "RUN", "the cat", "--top", "0"), "k must be between 1"),
        (("plot", "RUN", "--to", "text.txt/curve.png"), "text.txt"),
        (("plot", "RUN", "--to", "here.png"), "error: here.png: Is a directory"),
        (("plot", "RUN", "--to", "curve.txt"), "a picture is .png, .svg, .pdf: name curve.txt so"),
        (("bench", "show", "NOWHERE.jsonl"), "error: NOWHERE.jsonl: No such file"),
        (
            ("train", f"new{NO_UTF_8}", "--corpus", "CORPUS"),
            "error: the name new? is not UTF-8, as it must be here: choose",
        ),
        (("tune", "run", f"new{NO_UTF_8}", *SEARCH), "error: the name new? is not UTF-8"),
        (("tune", "run", "new", *SEARCH, "--name", NO_UTF_8), "error: the name ? is not"),
        (("predict", "RUN", f"the {NO_UTF_8}"), r"error: 'the \udcff' is not UTF-8 text"),
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
    (tmp_path / "here.png").mkdir()
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert zloss(*(places.get(word, word) for word in arguments)) == 1
    out, error = capsys.readouterr()
    assert message.replace("RUN", str(run)) in error
    assert out == ""  # no empty progress bar
    assert "Traceback" not in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("config", "message"),
    [("{}", "missing key: 'corpus'"), ('{"corpus": 5}', "corpus must be str, got 5")],
)
def test_a_config_that_was_edited_by_hand(
    config: str, message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "config.json").write_text(config)
    for arguments in (("train", run, "--resume"), ("evaluate", run)):
        capsys.readouterr()
        assert zloss(*arguments) == 1
        assert capsys.readouterr().err == f"error: {run / 'config.json'}: {message}\n"


def test_words_and_names_are_shown_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Brackets are not markup of a terminal, and colons do not make an emoji."""
    (tmp_path / "forum[b].txt").write_text("[/b] saw [red] .\n:cat: saw [/b] .\n" * 200)
    assert zloss("data", "prepare", tmp_path / "forum[b].txt", "--to", tmp_path / "corpus") == 0
    assert "forum[b]: " in capsys.readouterr().out
    run = tmp_path / "runs" / "one[b]"
    assert zloss("train", run, "--corpus", tmp_path / "corpus", *SETTINGS) == 0
    assert "one[b]" in capsys.readouterr().out.replace("\n", "").replace(" ", "")
    assert zloss("predict", run, "saw") == 0  # ten words are wanted, and the corpus has six
    shown = capsys.readouterr().out
    assert all(f" {word} " in shown for word in ("[/b]", "[red]", ":cat:", "saw", ".", "<eos>"))


def test_words_and_names_give_the_terminal_no_orders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts of other people may have colors, titles of windows and worse among their words."""
    (tmp_path / "text.txt").write_text("the \x1b[31mred \x1b]0;title\x07 cat .\n" * 200)
    assert zloss("data", "prepare", tmp_path / "text.txt", "--to", tmp_path / "corpus") == 0
    run = tmp_path / "runs" / "\x1b[2J"
    assert zloss("train", run, "--corpus", tmp_path / "corpus", *SETTINGS) == 0
    for command in (("predict", run, "the"), ("runs", run), ("evaluate", tmp_path / "\x1b[2J")):
        zloss(*command)
    shown = "".join(capsys.readouterr())
    assert not {"\x1b", "\x07"} & set(shown)
    assert r"\x1b[31mred" in shown


def test_the_words_before_are_those_that_training_would_give(tmp_path: Path) -> None:
    """Line ends in the text are boundaries. The words before them count in the mode "running" only."""
    (tmp_path / "text.txt").write_text(pets_text(400))
    corpus = prepare(tmp_path / "text.txt", tmp_path / "corpus", tokenizer="english").folder
    predicted = {}
    for mode in ("running", "sentence"):
        settings = [*SMALL, f"training.mode={mode}"]
        run = fit(build_experiment(str(corpus), settings=settings), tmp_path / mode)
        model = TrainedModel.load(run.folder)
        texts = ("The", "A bird saw. The", "a bird saw .\nthe\n", "A bird saw the")
        predicted[mode] = [model.predict(text, 3) for text in texts]
    alone, two_sentences, two_lines, one_sentence = predicted["running"]
    assert two_sentences == two_lines
    assert two_lines not in (alone, one_sentence)
    alone, two_sentences, two_lines, one_sentence = predicted["sentence"]
    assert alone == two_sentences == two_lines
    assert one_sentence != alone


def test_the_step_of_a_run_that_was_stopped(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last checkpoint is later than the last line of metrics, of which there is none here."""
    (run / "metrics.jsonl").unlink()
    capsys.readouterr()
    assert zloss("runs", run, "--json") == 0
    assert [row["step"] for row in json.loads(capsys.readouterr().out)] == [40]


def test_a_run_can_be_used_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert zloss("train", "runs/two", "--corpus", "corpus", *SETTINGS) == 0
    monkeypatch.chdir(tmp_path / "runs")
    assert zloss("predict", "two", "the cat") == 0
