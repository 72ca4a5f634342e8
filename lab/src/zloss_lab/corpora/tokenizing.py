"""Tokenizers, which split text into words at white space or by the rules of plain English.

The end of a line becomes a boundary word. Text stays UTF-8 bytes as long as possible. A corpus has a billion words but
only a few hundred thousand different words, so it is enough to decode the different words.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from zloss_lab.corpora.errors import CorpusError

# A full stop after these words does not end a sentence.
_TITLES = "mr|mrs|ms|messrs|dr|gen|col|capt|lieut|lt|hon|rev|st|jr|sr|gov|sen|rep"
_ABBREVIATED = re.compile(rf"\b(?:{_TITLES}|[a-z]|(?:[a-z]\.)+[a-z])\.$", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?]+[\"'”)\]]*(?P<gap>\s+)(?=[\"'“(\[]*[A-Z0-9])")
_WORD = re.compile(  # for sentences in lower case
    rf"(?:[a-z]\.){{2,}}|\b(?:{_TITLES})\.|--|[^\W\d_]+(?:['-][^\W\d_]+)*|\d+(?:[.,:]\d+)*|[^\w\s]|_"
)
# Printed quotes and dashes, and how people type them.
_PRINTED = {"\u2018": "'", "\u2019": "'", "\u2013": "-", "\u2014": "--"}
_BLANK_LINES = re.compile(rb"\n\s+")


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    r"""The rules by which a text is split into words.

    The boundary word stands for the end of each line. Without a boundary word the ends of lines have no meaning. Lines
    without a word are dropped, or kept as a single boundary word. If the boundary word occurs in the text itself, it
    counts as a boundary.

    >>> TextFormat().words(b"no it was n't\n\nblack monday\n")
    [b'no', b'it', b'was', b"n't", b'<eos>', b'black', b'monday', b'<eos>']
    >>> TextFormat(boundary=None).words(b"anarchism originated\n as")
    [b'anarchism', b'originated', b'as']
    """

    tokenizer: str = "whitespace"  # "whitespace" or a key of TOKENIZERS
    boundary: str | None = "<eos>"
    keep_empty_lines: bool = False

    def __post_init__(self) -> None:
        if self.tokenizer != "whitespace" and self.tokenizer not in TOKENIZERS:
            names = ", ".join(("whitespace", *TOKENIZERS))
            raise CorpusError(f"there is no tokenizer {self.tokenizer!r}: choose one of {names}")

    def words(self, text: bytes, *, starts_line: bool = True) -> list[bytes]:
        """Return the words of a piece of text, which must end at the end of a line or of a word."""
        if self.tokenizer != "whitespace":
            text = TOKENIZERS[self.tokenizer](text.decode()).encode()
        if self.boundary is None:
            return text.split()
        if not self.keep_empty_lines:
            text = _BLANK_LINES.sub(b"\n", text)
            text = text.lstrip() if starts_line else text
        return text.replace(b"\n", f" {self.boundary} ".encode()).split()


def english(text: str) -> str:
    """Return words in lower case and punctuation, separated by spaces, with one sentence on each line.

    The end of a line ends a sentence too.

    >>> english('Mr. Speaker, the U.S. Senate met. "Why?" They didn’t say--not in 1,790 words.')
    'mr. speaker , the u.s. senate met .\\n" why ? "\\nthey didn\\'t say -- not in 1,790 words .\\n'
    """
    for printed, typed in _PRINTED.items():
        text = text.replace(printed, typed)
    sentences = (sentence for paragraph in text.split("\n") for sentence in _sentences(paragraph))
    tokenised = (_WORD.findall(sentence.lower()) for sentence in sentences)
    return "".join(" ".join(words) + "\n" for words in tokenised if words)


def _sentences(paragraph: str) -> list[str]:
    found, start = [], 0
    for end in _SENTENCE_END.finditer(paragraph):
        if not _ABBREVIATED.search(paragraph, start, end.start() + 1):
            found.append(paragraph[start : end.start("gap")])
            start = end.end()
    return [*found, paragraph[start:]]


TOKENIZERS: dict[str, Callable[[str], str]] = {"english": english}
