"""Text as words: white space, lines, and plain English."""

import pytest

from zloss_lab.corpora import CorpusError
from zloss_lab.corpora.tokenizing import TextFormat, english


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b\nc\n", "a b <eos> c <eos>"),
        ("a\tb \r\nc\r\n", "a b <eos> c <eos>"),
        ("\n \n a\n\n\t\nb\n", "a <eos> b <eos>"),
        ("a b", "a b"),
        ("", ""),
        ("\n", ""),
        ("na\u00efve\u00a0one\n", "na\u00efve\u00a0one <eos>"),  # only ASCII space separates words
    ],
)
def test_lines_end_with_a_boundary(text: str, words: str) -> None:
    assert TextFormat().words(text.encode()) == words.encode().split()


def test_empty_lines_can_be_kept() -> None:
    kept = TextFormat(keep_empty_lines=True).words(b" \n = title = \n \na\n")
    assert kept == b"<eos> = title = <eos> <eos> a <eos>".split()


def test_the_rest_of_a_line_keeps_its_end() -> None:
    assert TextFormat().words(b"\nb\n", starts_line=False) == [b"<eos>", b"b", b"<eos>"]
    assert TextFormat().words(b"\nb\n", starts_line=True) == [b"b", b"<eos>"]


def test_without_boundary_lines_mean_nothing() -> None:
    assert TextFormat(boundary=None).words(b"a\n\nb c\n") == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. Speaker: We met. They left!", "mr. speaker : we met .\nthey left !\n"),
        ("The U.S. Senate. Next", "the u.s. senate .\nnext\n"),
        ("He said \u201cYes.\u201d Then he went", "he said \u201c yes . \u201d\nthen he went\n"),
        ("It\u2019s we're fellow-citizens", "it's we're fellow-citizens\n"),
        ("paid $1,090.50 (or 3%) in 1790", "paid $ 1,090.50 ( or 3 % ) in 1790\n"),
        ("a settlement--a final\u2014one", "a settlement -- a final -- one\n"),
        ("one\n\ntwo", "one\ntwo\n"),
        ("\n \n", ""),
        ("\u00c9cole caf\u00e9", "\u00e9cole caf\u00e9\n"),
        ("What? No! [Applause] Thanks", "what ?\nno !\n[ applause ] thanks\n"),
    ],
)
def test_plain_english(text: str, expected: str) -> None:
    assert english(text) == expected


def test_tokenised_text_stays_as_it_is() -> None:
    once = english(
        "Fellow-Citizens of the Senate: I embrace, with Mr. Adams, the U.S. Navy's 1,000 men. Thank you."
    )
    assert english(once) == once


def test_plain_english_in_a_format() -> None:
    assert (
        TextFormat(tokenizer="english").words("Caf\u00e9s. Two".encode())
        == "caf\u00e9s . <eos> two <eos>".encode().split()
    )


def test_an_unknown_tokenizer() -> None:
    with pytest.raises(
        CorpusError, match="no tokenizer 'klingon': choose one of whitespace, english"
    ):
        TextFormat(tokenizer="klingon")
