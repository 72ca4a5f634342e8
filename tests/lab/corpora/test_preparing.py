"""Preparation against its slow definition: once, twice, with wrong options, and with progress."""

import gzip
import json
import lzma
import os
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
from tests.lab.corpora.interruptions import interrupt_at
from tests.lab.corpora.small_texts import TRAIN
from zloss_lab.corpora import Corpus, CorpusError, building, prepare, reading


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


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
    # This file has two members.
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text[:900]) + gzip.compress(text[900:]))
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


# ---- again -----------------------------------------------------------------------------------------------------------


def test_preparing_twice_does_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.txt": TRAIN * 30}) / "a.txt"
    before = state_of(prepare(path, tmp_path / "out").folder)
    assert state_of(prepare(path, tmp_path / "out", progress=interrupt_at("read")).folder) == before
    os.utime(path, (1, 1))  # a new time, the same content
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
    assert list(dict.fromkeys(stage for stage, _, _ in reports)) == [
        "read",
        "count",
        "write",
        "verify",
    ]
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
