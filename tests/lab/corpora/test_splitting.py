"""Splits of a corpus: files of their own, or cut off the end of the text."""

from pathlib import Path

import pytest

from tests.lab.corpora.definition import (
    names_in,
    sentences,
    text_of,
    words_of,
    write,
)
from tests.lab.corpora.small_texts import TRAIN
from zloss_lab.corpora import CorpusError, prepare


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
