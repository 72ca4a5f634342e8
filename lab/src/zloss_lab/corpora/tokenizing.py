"""From text to words: white space, or a small tokeniser for plain English; line ends become boundary words.

All of it works on bytes of UTF-8 as far as it can: a corpus has a few hundred thousand different words and a billion
in all, and only the different ones need to be looked at closely.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from zloss_lab.corpora.errors import CorpusError

_TITLES = "mr|mrs|ms|messrs|dr|gen|col|capt|lieut|lt|hon|rev|st|jr|sr|gov|sen|rep"  # their full stop ends no sentence
_ABBREVIATED = re.compile(rf"\b(?:{_TITLES}|[a-z]|(?:[a-z]\.)+[a-z])\.$", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?]+[\"'”)\]]*(?P<gap>\s+)(?=[\"'“(\[]*[A-Z0-9])")
_WORD = re.compile(  # of a sentence in lower case
    rf"(?:[a-z]\.){{2,}}|\b(?:{_TITLES})\.|--|[^\W\d_]+(?:['-][^\W\d_]+)*|\d+(?:[.,:]\d+)*|[^\w\s]|_"
)
_PRINTED = {
    "\u2018": "'",
    "\u2019": "'",
    "\u2013": "-",
    "\u2014": "--",
}  # quotes and dashes, as typed
_BLANK_LINES = re.compile(rb"\n\s+")


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    r"""How a text is read as words.

    The boundary word stands for the end of each line; without one, lines mean nothing. Lines without a word are left
    out, or kept as a boundary alone. A boundary word that occurs in the text itself counts as a boundary.

    >>> TextFormat().words(b"no it was n't\n\nblack monday\n")
    [b'no', b'it', b'was', b"n't", b'<eos>', b'black', b'monday', b'<eos>']
    >>> TextFormat(boundary=None).words(b"anarchism originated\n as")
    [b'anarchism', b'originated', b'as']
    """

    tokenizer: str = "whitespace"  # or a key of TOKENIZERS
    boundary: str | None = "<eos>"
    keep_empty_lines: bool = False

    def __post_init__(self) -> None:
        if self.tokenizer != "whitespace" and self.tokenizer not in TOKENIZERS:
            names = ", ".join(("whitespace", *TOKENIZERS))
            raise CorpusError(f"there is no tokenizer {self.tokenizer!r}: choose one of {names}")

    def words(self, text: bytes, *, starts_line: bool = True) -> list[bytes]:
        """The words of a piece of text, which ends where a line or at least a word ends."""
        if self.tokenizer != "whitespace":
            text = TOKENIZERS[self.tokenizer](text.decode()).encode()
        if self.boundary is None:
            return text.split()
        if not self.keep_empty_lines:
            text = _BLANK_LINES.sub(b"\n", text)
            text = text.lstrip() if starts_line else text
        return text.replace(b"\n", f" {self.boundary} ".encode()).split()


def english(text: str) -> str:
    """Lower-case words and punctuation, separated by spaces, one sentence a line. Line ends end sentences too.

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
