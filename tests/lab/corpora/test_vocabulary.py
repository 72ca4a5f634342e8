"""Vocabularies: order, counts, unknown words, files, and the choice of words."""

from pathlib import Path

import numpy as np
import pytest

from zloss_lab.corpora import CorpusError, Vocabulary
from zloss_lab.corpora.vocabulary import Tally, WordChoice, choose

WORDS = {
    b"<eos>": (4, 2),
    b"<unk>": (0, 0),
    b"the": (9, 1),
    b"a": (3, 0),
    b"b": (3, 0),
    b"rare": (1, 0),
    b"new": (0, 1),
}


def tally(words: dict[bytes, tuple[int, int]] = WORDS) -> Tally:
    train, elsewhere = np.array(list(words.values()), dtype=np.int64).T
    return Tally(
        numbering=dict(zip(words, range(len(words)), strict=True)),
        in_training=train,
        elsewhere=elsewhere,
    )


def chosen(**options: object) -> dict[str, int]:
    """Return words and counts, after a check that every word got its own class or the unknown class."""
    choice = WordChoice(required=frozenset({b"<eos>"}), unknown=b"<unk>", **options)  # type: ignore[arg-type]
    vocabulary, classes = choose(tally(), choice)
    for word, index in zip(WORDS, classes, strict=True):
        own = vocabulary.id_of(word.decode())
        if own is not None:
            assert own == index
        elif sum(WORDS[word]):
            assert vocabulary.words[index] == "<unk>"
    counts = vocabulary.counts.tolist()
    assert counts == sorted(counts, reverse=True)
    return dict(zip(vocabulary.words, counts, strict=True))


def test_all_words_of_the_training_split_and_an_unknown_word_for_those_of_others() -> None:
    assert list(chosen().items()) == [
        ("the", 9),
        ("<eos>", 4),
        ("a", 3),
        ("b", 3),
        ("rare", 1),
        ("<unk>", 0),
    ]


def test_rare_words_become_unknown() -> None:
    assert chosen(min_count=2) == {"the": 9, "<eos>": 4, "a": 3, "b": 3, "<unk>": 1}
    assert chosen(min_count=4) == {"the": 9, "<unk>": 7, "<eos>": 4}


def test_the_most_frequent_words_ties_by_the_alphabet() -> None:
    assert chosen(max_words=4) == {"the": 9, "<eos>": 4, "<unk>": 4, "a": 3}
    assert chosen(max_words=3, min_count=2) == {"the": 9, "<unk>": 7, "<eos>": 4}
    assert chosen(max_words=1000) == chosen()


def test_words_of_all_splits() -> None:
    assert chosen(whole_vocabulary=True) == {
        "the": 9,
        "<eos>": 4,
        "a": 3,
        "b": 3,
        "rare": 1,
        "new": 0,
    }


def test_no_room() -> None:
    with pytest.raises(CorpusError, match="max_words=2 leaves no room beside the 2 special words"):
        chosen(max_words=2)


def test_an_unknown_word_of_the_text_itself() -> None:
    words = {**WORDS, b"<unk>": (7, 0), b"new": (0, 0)}
    choice = WordChoice(required=frozenset({b"<eos>"}), unknown=b"<unk>", min_count=2)
    vocabulary, _ = choose(tally(words), choice)
    assert vocabulary.counts[vocabulary.id_of("<unk>")] == 8
    assert vocabulary.unknown == "<unk>"


def test_encoding() -> None:
    vocabulary = Vocabulary(["the", "<unk>"], [2, 1], unknown="<unk>")
    assert vocabulary.encode(" the\tcompany\n") == [0, 1]
    assert ("the" in vocabulary, "company" in vocabulary, vocabulary.id_of("company")) == (
        True,
        False,
        None,
    )
    with pytest.raises(
        CorpusError,
        match="'company' is not among the 1 words of this vocabulary, which has no unknown",
    ):
        Vocabulary(["the"], [2]).encode("the company")


def test_a_file_and_back(tmp_path: Path) -> None:
    words = ["the", "na\u00efve", "line\u2028separator", "next\x85line", "<unk>"]
    (tmp_path / "v.tsv").write_bytes(Vocabulary(words, [5, 4, 3, 2, 0], unknown="<unk>").to_bytes())
    again = Vocabulary.load(tmp_path / "v.tsv", unknown="<unk>")
    assert (again.words, again.counts.tolist()) == (words, [5, 4, 3, 2, 0])
    assert again.counts.dtype == np.int64


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"the\tmany\n", "v.tsv is damaged: invalid literal for int"),
        (b"the\n", "v.tsv is damaged"),
        (b"the\t-1\n", "v.tsv is damaged: expected counts from 0 on, got -1"),
        (b"the\t99999999999999999999\n", "v.tsv is damaged"),
        (b"the\t1\nthe\t1\n", "2 words, 1 of them different"),
        (b"\xff\t1\n", "v.tsv is damaged: 'utf-8' codec"),
    ],
)
def test_damaged_files(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "v.tsv").write_bytes(data)
    with pytest.raises(CorpusError, match=message):
        Vocabulary.load(tmp_path / "v.tsv")


def test_a_missing_file_and_a_missing_unknown_word(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"there is no file .*v.tsv"):
        Vocabulary.load(tmp_path / "v.tsv")
    with pytest.raises(CorpusError, match="the unknown word '<unk>' is not in the vocabulary"):
        Vocabulary(["the"], [1], unknown="<unk>")
