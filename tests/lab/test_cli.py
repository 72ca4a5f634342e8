"""The command line as a user meets it: from a text file to predictions, and what mistakes say."""

import errno
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.lab.command_line import zloss
from tests.lab.pets import SENTENCES, pets_text
from zloss_lab import __main__ as command
from zloss_lab import runs
from zloss_lab.corpora import Corpus, prepare
from zloss_lab.corpora.catalogue import SPLITS
from zloss_lab.experiments import build_experiment, preset, preset_names
from zloss_lab.inspection.trained_model import TrainedModel
from zloss_lab.runs import Run
from zloss_lab.terminal import console
from zloss_lab.training import fit

SMALL = [
    "network.embedding=8",
    "network.hidden=[16]",
    "network.context=3",
    "network.head.b=2.0",
    "training.steps=40",
]
SMALL += [
    "training.output_lr=0.05",
    "training.validate_every=20",
    "training.batch_size=20",
    "training.log_every=10",
]
SETTINGS = [word for setting in SMALL for word in ("--set", setting)]
SEARCH = ("--corpus", "CORPUS", "--space", "z_loss")
NO_UTF_8 = os.fsdecode(b"\xff")  # as a name from Latin-1


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(pets_text(400))
    assert zloss("data", "prepare", tmp_path / "text.txt", "--to", tmp_path / "corpus") == 0
    assert (
        zloss("train", tmp_path / "runs" / "one", "--corpus", tmp_path / "corpus", *SETTINGS) == 0
    )
    return tmp_path / "runs" / "one"


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
        (("plot", "RUN", "--metric", "beauty"), "has no beauty; it has top_1_error, top_5_error"),
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
    assert out == ""  # no bar that has nothing to show
    assert "Traceback" not in error
    assert sorted(tmp_path.rglob("*")) == before


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
    """What the message says to do is done; a new run, which has no config, is told nothing of it."""
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
    """Those that are too large for a float32, too."""
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
    (run.parent / "new" / "metrics.jsonl").write_text("")
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
    row = list(json.loads(capsys.readouterr().out.splitlines()[-1])[0].values())
    assert zloss("runs", "runs") == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if "runs/one" in line)
    numbers = [f"{cell:.4g}" for cell in row if isinstance(cell, int | float)]
    assert line.split() == ["runs/one", *row[1:3], *numbers[:shown]]
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
            "metrics.jsonl, line 2, is no JSON",
        ),
        (
            "metrics.jsonl",
            b"{}\n",
            "metrics.jsonl, line 1, is no metrics with kind, step and epoch",
        ),
        ("metrics.jsonl", b"5\n", "metrics.jsonl, line 1, is no metrics with kind, step and epoch"),
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
    """And in the picture."""
    broken = run.parent / "broken"
    shutil.copytree(run, broken)
    (broken / file).write_bytes(content)
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
    """As where a name is mistyped: a comparison does not pass over it in silence."""
    capsys.readouterr()
    assert zloss("runs", run, tmp_path / "onne", "--json") == 1
    out, error = capsys.readouterr()
    assert [row["run"] for row in json.loads(out)] == [str(run)]
    assert error == f"left out: there are no runs in {tmp_path / 'onne'}\n"
    assert zloss("plot", run, tmp_path / "onne", "--to", tmp_path / "curves.png") == 1
    assert (tmp_path / "curves.png").exists()


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
    """None of them is markup of a terminal, or an emoji."""
    (tmp_path / "forum[b].txt").write_text("[/b] saw [red] .\n:cat: saw [/b] .\n" * 200)
    assert zloss("data", "prepare", tmp_path / "forum[b].txt", "--to", tmp_path / "corpus") == 0
    assert "forum[b]: " in capsys.readouterr().out
    run = tmp_path / "runs" / "one[b]"
    assert zloss("train", run, "--corpus", tmp_path / "corpus", *SETTINGS) == 0
    assert "one[b]" in capsys.readouterr().out.replace("\n", "").replace(" ", "")
    assert zloss("predict", run, "saw") == 0  # ten words, of which there are six
    shown = capsys.readouterr().out
    assert all(f" {word} " in shown for word in ("[/b]", "[red]", ":cat:", "saw", ".", "<eos>"))


def test_the_words_before_are_those_that_training_would_give(tmp_path: Path) -> None:
    """Line ends are boundaries, and what stands before them is for the mode "running" only."""
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
    """It was saved after its last line of metrics."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(
        "".join(line for line in lines if json.loads(line)["step"] <= 30)
    )
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


# ---- preparation -----------------------------------------------------------------------------------------------------


def test_options_of_preparation(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"w{number % 50} w{number}\n" for number in range(200)))

    def prepared(name: str, *options: object) -> Corpus:
        assert zloss("data", "prepare", text, "--to", tmp_path / name, *options) == 0
        return Corpus.open(tmp_path / name)

    assert [len(prepared("cut", "--fractions", 0.2, 0.1).split(split)) for split in SPLITS] == [
        420,
        120,
        60,
    ]
    assert prepared("whole", "--fractions", 0, 0).splits == ("train",)
    assert prepared("train", "--no-whole-vocabulary").unknown is not None
    everything = prepared("all", "--whole-vocabulary")
    assert (everything.unknown, len(everything.vocabulary)) == (None, 201)


def test_files_of_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in SPLITS:
        (tmp_path / f"ptb.{split}.txt").write_text("the company said\n" * 10)
    command = ("data", "prepare", "ptb", "--from", tmp_path, "--to", tmp_path / "out")
    assert zloss(*command) == 1
    assert "ptb should have 929,589 words in its train split" in (error := capsys.readouterr().err)
    assert "--no-check-counts" in error
    assert zloss(*command, "--no-check-counts") == 0


def test_names_of_files_need_not_be_utf_8(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, corpus, picture = (tmp_path / f"{NO_UTF_8}{ending}" for ending in (".txt", "", ".png"))
    text.write_text(pets_text(400))
    for _ in range(2):  # to write it, and to find it there
        assert zloss("data", "prepare", text, "--to", corpus) == 0
    assert zloss("data", "info", corpus, "--json") == 0
    assert zloss("train", tmp_path / "new", "--corpus", corpus, *SETTINGS) == 0
    run.rename(run.with_name(NO_UTF_8))
    assert zloss("plot", run.parent, "--to", picture) == 0
    assert picture.exists()
    assert zloss("tune", "best", tmp_path / NO_UTF_8) == 1
    assert "is not a study" in capsys.readouterr().err


def test_text_in_zst(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
    text = "\n".join(SENTENCES * 50).encode()
    (tmp_path / "text.txt").write_bytes(text)
    frames = (zstandard.ZstdCompressor().compress(part) for part in (text[:777], text[777:]))
    (tmp_path / "text.txt.zst").write_bytes(b"".join(frames))
    for ending in ("", ".zst"):
        text_file = tmp_path / f"text.txt{ending}"
        assert zloss("data", "prepare", text_file, "--to", tmp_path / f"out{ending}") == 0
    plain, packed = (Corpus.open(tmp_path / name).manifest for name in ("out", "out.zst"))
    assert (plain["splits"], plain["vocabulary"]) == (packed["splits"], packed["vocabulary"])


# ---- experiments -----------------------------------------------------------------------------------------------------


# Context, width of an embedding and widths of the hidden layers, as the paper has them.
PAPER_SHAPES = {
    "ptb": (6, 128, (512, 256)),
    "net1": (10, 512, (2048, 2048, 512)),
    "net2": (10, 1024, (4096, 4096, 1024)),
}


def test_presets_are_those_of_the_paper() -> None:
    assert {"ptb", "net1", "net2", "small"} == set(preset_names())
    for name, shape in PAPER_SHAPES.items():
        built = build_experiment("corpus", preset_name=name).network
        assert (built.context, built.embedding, built.hidden) == shape
    assert preset("net1")["training"]["batch_size"] == 200
    assert preset("ptb")["training"]["batch_size"] == 250


def test_a_file_goes_over_the_preset_and_settings_over_both(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[training]\nlr = 0.7\nseed = 3\n[network.head]\na = 0.4\n")
    built = build_experiment(
        "c", preset_name="ptb", file=tmp_path / "mine.toml", settings=["training.seed=4"]
    )
    assert (built.training.lr, built.training.seed, built.training.batch_size) == (0.7, 4, 250)
    assert built.network.head.options["a"] == 0.4
    assert built.network.head.options["b"] == 10.0


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zloss_lab.cli", None)
    monkeypatch.delitem(sys.modules, "zloss_lab.cli")
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(
        SystemExit, match=r"the lab needs typer, which is not installed: pip install zloss-lab"
    ):
        command.main()


def test_ctrl_c_while_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    with pytest.raises(SystemExit) as end:
        command.main()
    assert (end.value.code, capsys.readouterr().err) == (130, "interrupted\n")
