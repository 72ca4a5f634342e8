"""Preparation against its slow definition; twice, interrupted, without room, with wrong options."""

import errno
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.corpora.definition import (
    by_frequency,
    classes,
    names_in,
    pairs,
    sentences,
    text_of,
    words_of,
    write,
)
from zloss_lab.corpora import Corpus, CorpusError, building, prepare, reading
from zloss_lab.corpora.encoding import Encoder
from zloss_lab.corpora.tokenizing import TextFormat

TRAIN = "the cat sat on the mat\n\n the dog saw the cat \nno end"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks and many chunks from little text."""
    monkeypatch.setattr(reading, "BLOCK_BYTES", 32)
    monkeypatch.setattr(building, "_CHUNK_WORDS", 7)


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def interrupt_at(stage: str) -> Any:
    def progress(now: str, done: int, total: int) -> None:
        if now == stage:
            raise KeyboardInterrupt

    return progress


# ---- what comes out --------------------------------------------------------------------------------------------------

LINES = st.lists(
    st.lists(st.sampled_from(["the", "cat", "dog", "na\u00efve", "x", "<unk>"]), max_size=6),
    min_size=1,
)


@given(train=LINES, valid=LINES, min_count=st.integers(1, 3), block=st.integers(8, 60))
def test_it_is_what_the_definition_says(
    tmp_path_factory: pytest.TempPathFactory, train: Any, valid: Any, min_count: int, block: int
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    texts = {
        split: "\n".join(" ".join(line) for line in lines)
        for split, lines in (("train", train), ("valid", valid))
    }
    words = {split: words_of(text) for split, text in texts.items()}
    write(folder / "in", {f"{split}.txt": text for split, text in texts.items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK_BYTES", block)
        patch.setattr(building, "_CHUNK_WORDS", 5)
        if not all(words.values()):
            with pytest.raises(
                CorpusError, match=r"there are no words for the (train|valid) split"
            ):
                prepare(folder / "in", folder / "out", fractions=(0, 0), min_count=min_count)
            return
        corpus = prepare(folder / "in", folder / "out", fractions=(0, 0), min_count=min_count)
    expected = classes(words, min_count=min_count)
    assert {split: text_of(corpus, split) for split in corpus.splits} == expected
    counts = Counter(expected["train"])
    if "<unk>" in expected["valid"]:
        counts["<unk>"] += 0  # a class without an example
    assert pairs(corpus) == by_frequency(counts)
    Corpus.open(corpus.folder, verify=True)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("workers", [0, 2])
def test_any_number_of_workers_gives_the_same(workers: int, tmp_path: Path) -> None:
    text = sentences(f"w{(7 * i * i) % 61}" for i in range(1500))
    corpus = prepare(write(tmp_path, {"a.txt": text}) / "a.txt", tmp_path / "out", workers=workers)
    assert [word for split in corpus.splits for word in text_of(corpus, split)] == [
        word if word in corpus.vocabulary else "<unk>" for word in words_of(text)
    ]


def test_compressed_files_give_the_same(tmp_path: Path) -> None:
    text = sentences(f"w{i % 17}" for i in range(400)).encode()
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "a.txt.gz").write_bytes(
        gzip.compress(text[:900]) + gzip.compress(text[900:])
    )  # two members
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(text))
    corpora = [
        prepare(tmp_path / f"a.txt{end}", tmp_path / f"out{end}") for end in ("", ".gz", ".xz")
    ]
    told = [
        (corpus.name, corpus.manifest["splits"], corpus.manifest["vocabulary"])
        for corpus in corpora
    ]
    assert told[0] == told[1] == told[2]


def test_many_words_take_wider_integers(tmp_path: Path) -> None:
    text = sentences(f"w{i}" for i in range(2**16))
    corpus = prepare(
        write(tmp_path, {"a.txt": text}) / "a.txt", tmp_path / "out", whole_vocabulary=True
    )
    assert len(corpus.vocabulary) == 2**16 + 1
    assert (corpus.manifest["dtype"], corpus.unknown) == ("uint32", None)
    assert sorted(
        np.unique(np.concatenate([corpus.split(split) for split in corpus.splits]))
    ) == list(range(2**16 + 1))


# ---- splits ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_pieces")
def test_splits_are_cut_at_the_end_of_a_line(tmp_path: Path) -> None:
    text = sentences((f"w{i % 30}" for i in range(1000)), length=9)
    corpus = prepare(
        write(tmp_path, {"a.txt": text}) / "a.txt", tmp_path / "out", fractions=(0.2, 0.1)
    )
    words = {split: text_of(corpus, split) for split in corpus.splits}
    assert [*words["train"], *words["valid"], *words["test"]] == words_of(text)
    assert all(split[-1] == "<eos>" for split in words.values())
    total = len(words_of(text))
    assert 0 <= len(words["train"]) - 0.7 * total <= 10
    assert 0 <= len(words["train"]) + len(words["valid"]) - 0.9 * total <= 10


@pytest.mark.usefixtures("small_pieces")
def test_a_desert_of_spaces_has_no_words(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "a" + " " * 500 + "\n" * 100 + " " * 300 + "b\n"})
    corpus = prepare(tmp_path / "a.txt", tmp_path / "out", fractions=(0, 0))
    assert text_of(corpus, "train") == ["a", "<eos>", "b", "<eos>"]
    assert corpus.vocabulary.words == ["<eos>", "a", "b"]


def test_text_without_lines_is_cut_anywhere(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": " ".join(f"w{i % 30}" for i in range(1000))})
    corpus = prepare(tmp_path / "a.txt", tmp_path / "out", lines=False)
    assert [len(corpus.split(split)) for split in ("train", "valid", "test")] == [900, 50, 50]
    assert (corpus.boundary, corpus.padding, corpus.unknown) == (None, None, None)
    assert corpus.manifest["splits"]["train"]["lines"] is None


def test_files_for_some_splits(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": sentences(f"w{i % 30}" for i in range(600)), "v.txt": "w1 w99\n"})
    corpus = prepare(
        tmp_path / "a.txt", tmp_path / "out", valid=tmp_path / "v.txt", fractions=(0.5, 0.1)
    )
    assert text_of(corpus, "valid") == ["w1", "<unk>", "<eos>"]
    assert len(corpus.split("test")) == 72
    other = prepare(
        tmp_path / "a.txt", tmp_path / "other", test=tmp_path / "v.txt", fractions=(0.1, 0.5)
    )
    assert other.splits == corpus.splits == ("train", "valid", "test")
    assert (len(other.split("valid")), len(other.split("test"))) == (72, 3)


def test_no_splits(tmp_path: Path) -> None:
    corpus = prepare(
        write(tmp_path, {"a.txt": TRAIN}) / "a.txt", tmp_path / "out", fractions=(0, 0)
    )
    assert corpus.splits == ("train",)


def test_too_few_lines_to_cut(tmp_path: Path) -> None:
    with pytest.raises(
        CorpusError,
        match=r"text of 3 words has too few lines to cut off valid and test: .*lines=False",
    ):
        prepare(write(tmp_path, {"a.txt": "one line"}) / "a.txt", tmp_path / "out")
    assert names_in(tmp_path) == ["a.txt"]


def test_a_folder_without_splits_is_one_text_in_the_order_of_names(tmp_path: Path) -> None:
    write(
        tmp_path / "in",
        {"b.txt": "three\n", "a/z.txt": "one", "a.txt": "zero\n", ".hidden": "no", ".git/c": "no"},
    )
    corpus = prepare(tmp_path / "in", tmp_path / "out", fractions=(0, 0))
    assert text_of(corpus, "train") == ["one", "<eos>", "zero", "<eos>", "three", "<eos>"]


def test_a_folder_with_splits(tmp_path: Path) -> None:
    write(
        tmp_path / "in",
        {
            "x.train.1.txt": "a\n",
            "x.train.2.txt": "b\n",
            "x.valid.txt": "a\n",
            "README.md": "not text",
        },
    )
    corpus = prepare(tmp_path / "in", tmp_path / "out", fractions=(0, 0))
    assert (corpus.splits, corpus.vocabulary.words) == (("train", "valid"), ["<eos>", "a", "b"])


def test_plain_text(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "Mr. Speaker, we met. They left."})
    corpus = prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer="english", fractions=(0, 0))
    assert " ".join(text_of(corpus, "train")) == "mr. speaker , we met . <eos> they left . <eos>"
    assert corpus.encode("They MET.") == corpus.vocabulary.encode("they met .")


# ---- again -----------------------------------------------------------------------------------------------------------


def test_preparing_twice_does_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"
    before = state_of(prepare(path, tmp_path / "out").folder)
    assert state_of(prepare(path, tmp_path / "out", progress=interrupt_at("read")).folder) == before
    os.utime(path, (1, 1))  # touched, not changed
    assert state_of(prepare(path, tmp_path / "out", progress=interrupt_at("read")).folder) == before


def test_other_options_or_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"
    before = state_of(prepare(path, tmp_path / "out").folder)
    with pytest.raises(
        CorpusError,
        match=r"prepared otherwise: min_count 1 \(now 2\)\. Choose another folder or remove",
    ):
        prepare(path, tmp_path / "out", min_count=2)
    path.write_text(TRAIN * 30 + "!")
    with pytest.raises(CorpusError, match="was prepared from other files than there are now"):
        prepare(path, tmp_path / "out")
    with pytest.raises(CorpusError, match=r"name 'a' .now 'b'"):
        prepare(write(tmp_path, {"b.txt": TRAIN}) / "b.txt", tmp_path / "out")
    assert state_of(tmp_path / "out") == before


def test_a_damaged_corpus_is_not_taken_for_done(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"
    (prepare(path, tmp_path / "out").folder / "train.tokens").write_bytes(b"")
    with pytest.raises(
        CorpusError, match=r"train.tokens has 0 bytes, expected \d+\. Remove the folder"
    ):
        prepare(path, tmp_path / "out")


def test_a_folder_that_is_no_corpus_is_left_alone(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30, "out/thesis.txt": "precious"}) / "a.txt"
    for place in (tmp_path / "out", path):
        with pytest.raises(
            CorpusError, match="is there and is no prepared corpus: it is left alone"
        ):
            prepare(path, place)
    assert names_in(tmp_path / "out") == ["thesis.txt"]
    (tmp_path / "empty").mkdir()
    assert prepare(path, tmp_path / "empty").splits == ("train", "valid", "test")


# ---- interrupted -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "workers"), [("read", 0), ("read", 1), ("count", 0), ("write", 0)]
)
def test_interruption_leaves_nothing(stage: str, workers: int, tmp_path: Path) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"
    with pytest.raises(KeyboardInterrupt):
        prepare(path, tmp_path / "made" / "out", workers=workers, progress=interrupt_at(stage))
    assert names_in(tmp_path) == ["a.txt"]


PREPARE_AND_WAIT = """
import multiprocessing, signal, sys, time
from zloss_lab.corpora import prepare

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored

def wait(stage, done, total):
    if multiprocessing.active_children():
        print(multiprocessing.active_children()[0].pid, flush=True)
        time.sleep(60)

if __name__ == "__main__":
    prepare(sys.argv[1], sys.argv[2], workers=1, progress=wait)
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_ended(sent: signal.Signals, tmp_path: Path) -> None:
    """Its worker ends with it; after Ctrl-C nothing is left, after a kill nothing that the next run does not remove."""
    path = (
        write(
            tmp_path,
            {
                "in/a.txt": sentences(f"w{i % 99}" for i in range(4 * 10**5)),
                "wait.py": PREPARE_AND_WAIT,
            },
        )
        / "in"
    )
    command = [sys.executable, str(tmp_path / "wait.py"), str(path), str(tmp_path / "made" / "out")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        assert len(names_in(tmp_path / "made")) == 1
        process.send_signal(sent)
    assert process.returncode == -sent
    wait_for_the_end_of(worker)
    assert (tmp_path / "made").exists() == (sent == signal.SIGKILL)
    prepare(path, tmp_path / "made" / "out")
    assert names_in(tmp_path / "made") == ["out"]


def wait_for_the_end_of(process: int) -> None:
    for _ in range(300):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail(f"process {process} is still there")


def test_a_worker_that_dies(tmp_path: Path) -> None:
    text = TRAIN * 30

    class Deadly(str):
        """A tokeniser's name that ends the process that reads it."""

        def __reduce__(self) -> Any:
            return os._exit, (3,)

    path = write(tmp_path, {"a.txt": text}) / "a.txt"
    encoder = Encoder(TextFormat(), workers=1)
    object.__setattr__(encoder.text, "boundary", Deadly("<eos>"))
    with (
        pytest.raises(
            CorpusError, match=r"a worker process ended unexpectedly: .*Try fewer workers"
        ),
        encoder,
    ):
        list(encoder.encode(reading.SourceFile(path).blocks(lambda _: None)))


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"

    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(building, "_write_split", full)
    with pytest.raises(CorpusError, match=r"the disk of .*out is full\. Nothing was left there"):
        prepare(path, tmp_path / "out")
    assert names_in(tmp_path) == ["a.txt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_disk_that_is_really_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"
    monkeypatch.setattr(building, "_NUMBERS", "/dev/full")
    with pytest.raises(CorpusError, match=r"the disk of .*out is full"):
        prepare(path, tmp_path / "out")
    assert names_in(tmp_path) == ["a.txt"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"
    with pytest.raises(
        CorpusError, match=r"cannot write the corpus .*a.txt/out: the file .*a.txt is in the way"
    ):
        prepare(path, path / "out")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match=r"cannot write the corpus .*link/out: "):
        prepare(path, tmp_path / "link" / "out")
    assert names_in(tmp_path) == ["a.txt", "link"]


# ---- wrong input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_count": 0}, "min_count must be a whole number from 1 on, got 0"),
        ({"max_words": 2.5}, "max_words must be a whole number from 1 on, got 2.5"),
        ({"fractions": (0.5, 0.5)}, "two numbers from 0 on whose sum is below 1, got 0.5 and 0.5"),
        ({"fractions": (-0.1, 0.5)}, "two numbers from 0 on whose sum is below 1"),
        ({"max_words": 2}, "max_words=2 leaves no room beside the 2 special words"),
        ({"tokenizer": "klingon"}, "there is no tokenizer 'klingon'"),
        (
            {"source": "somewhere"},
            "source \\(--from\\) is not an option for .*a.txt, which is no named corpus",
        ),
        ({"workers": -1}, "workers must be a number of processes from 0 to 256, got -1"),
        ({"valid": "nowhere.txt"}, "there is no file nowhere.txt"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"
    with pytest.raises(CorpusError, match=message):
        prepare(path, tmp_path / "out", **options)
    assert names_in(tmp_path) == ["a.txt"]


def test_no_such_corpus(tmp_path: Path) -> None:
    message = r"no file or folder ptp, and no corpus of that name; did you mean 'ptb'\? The named ones are: ptb, lm1b"
    with pytest.raises(CorpusError, match=message):
        prepare("ptp", tmp_path / "out")


def test_a_corpus_among_its_texts_is_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sat\n" * 50)
    once = prepare(tmp_path, tmp_path / "small").manifest
    assert prepare(tmp_path, tmp_path / "small").manifest == once, "preparing twice does nothing"
    assert (
        prepare(tmp_path, tmp_path / "smaller", max_words=4).manifest["sources"] == once["sources"]
    )
    with pytest.raises(CorpusError, match="except hidden files and files of prepared corpora"):
        prepare(tmp_path / "small", tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"\n \n\n", b"\xef\xbb\xbf"])
def test_an_empty_text(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(CorpusError, match=r"there are no words for the train split in .*a.txt"):
        prepare(tmp_path / "a.txt", tmp_path / "out")
    (tmp_path / "none").mkdir()
    with pytest.raises(CorpusError, match="there is no file in the folder"):
        prepare(tmp_path / "none", tmp_path / "out")
    assert names_in(tmp_path) == ["a.txt", "none"]


@pytest.mark.parametrize("workers", [0, 1])
def test_text_in_another_encoding(workers: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(TRAIN.encode() * 30 + "caf\u00e9".encode("latin1"))
    with pytest.raises(CorpusError, match=r"a.txt is not UTF-8 text: byte 0xe9 at position 1,563"):
        prepare(tmp_path / "a.txt", tmp_path / "out", workers=workers)
    assert names_in(tmp_path) == ["a.txt"]


# ---- progress --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_pieces")
def test_progress_goes_up_to_the_end(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"
    reports: list[tuple[str, int, int]] = []
    corpus = prepare(path, tmp_path / "out", progress=lambda *report: reports.append(report))
    assert list(dict.fromkeys(stage for stage, _, _ in reports)) == ["read", "count", "write"]
    for stage, total in _totals(reports):
        done = [report[1] for report in reports if report[0] == stage]
        assert done == sorted(done)
        assert done[-1] == total
    assert dict(_totals(reports))["read"] == path.stat().st_size
    words = sum(
        told["words"]
        for told in json.loads((corpus.folder / "manifest.json").read_text())["splits"].values()
    )
    assert dict(_totals(reports))["write"] == 2 * words


def _totals(reports: list[tuple[str, int, int]]) -> Iterator[tuple[str, int]]:
    yield from {stage: total for stage, _, total in reports}.items()
