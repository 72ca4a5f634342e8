"""The command `zloss data prepare`: options, other versions, names of files and compressed text."""

import os
import re
from pathlib import Path

import pytest

from tests.lab.command_line import NO_UTF_8, SETTINGS, prepared_run, zloss
from tests.lab.pets import SENTENCES, pets_text
from zloss_lab.corpora import Corpus
from zloss_lab.corpora.catalogue import SPLITS


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return prepared_run(tmp_path)


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
    for _ in range(2):  # the second call finds the corpus
        assert zloss("data", "prepare", text, "--to", corpus) == 0
    assert zloss("data", "info", corpus, "--json") == 0
    assert zloss("train", tmp_path / "new", "--corpus", corpus, *SETTINGS) == 0
    run.rename(run.with_name(NO_UTF_8))
    assert zloss("plot", run.parent, "--to", picture) == 0
    assert picture.exists()
    assert zloss("tune", "best", tmp_path / NO_UTF_8) == 1
    assert "is not a study" in capsys.readouterr().err


def test_tokens_that_changed_on_the_disk(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flipped bit is found by every command that reads the tokens, and not taken for a wrong learning rate."""
    assert zloss("data", "info", tmp_path / "corpus", "--verify") == 0
    shown = capsys.readouterr().out
    manifest = Corpus.open(tmp_path / "corpus").manifest
    for entry in (manifest["vocabulary"], *manifest["splits"].values()):
        told = f"{entry['words']:,} words, sha256 {entry['sha256']}"
        assert f"verified {entry['file']}: {told}" in shown
    tokens = tmp_path / "corpus" / "train.tokens"
    content = bytearray(tokens.read_bytes())
    for bit, told in (
        (1, "its sha256 differs"),
        (0x80, "has class 32[0-9]{3}, and the vocabulary"),
    ):
        changed = content.copy()
        changed[101] ^= bit  # the high byte of the word at position 50
        tokens.write_bytes(changed)
        for command in (
            ("train", tmp_path / "new", "--corpus", tmp_path / "corpus", *SETTINGS),
            ("train", run, "--resume"),
            ("evaluate", run),
            ("data", "info", tmp_path / "corpus"),
        ):
            assert zloss(*command) == 1
            error = capsys.readouterr().err
            assert re.search(rf"train\.tokens is not what was written .*{told}", error)
            assert "Remove the folder and prepare the corpus again" in error
            assert "learning rate" not in error
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
@pytest.mark.parametrize("option", ["", "--valid", "--test"])
def test_a_pipe_is_no_text(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a writer, reading it would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text.txt").write_text(pets_text(400))
    text = [tmp_path / "text.txt", option, tmp_path / "pipe"] if option else [tmp_path / "pipe"]
    assert zloss("data", "prepare", *text, "--to", tmp_path / "out") == 1
    assert "pipe is a pipe or a device, not a file: write its content to" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_link_to_itself_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "text.txt").write_text(pets_text(400))
    for command in (
        (tmp_path / "loop", "--to", tmp_path / "out"),
        (tmp_path / "text.txt", "--to", tmp_path / "loop" / "out"),
        (tmp_path / "text.txt", "--to", tmp_path / "out", "--valid", tmp_path / "loop"),
    ):
        assert zloss("data", "prepare", *command) == 1
        assert "loop" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop", "text.txt"]


def test_names_do_not_reach_the_terminal_as_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "\x1b[31mred\x07.txt"
    text.write_text(pets_text(400))
    assert zloss("data", "prepare", text, "--to", tmp_path / "out") == 0
    assert zloss("data", "info", tmp_path / "out") == 0
    shown = capsys.readouterr()
    assert "[31mred" in shown.out
    assert not {"\x1b", "\x07"} & set(shown.out + shown.err)


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
