"""The words of a corpus with their counts. Class c is the c-th most frequent word of the training split, from 0."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from zloss_lab.corpora.errors import CorpusError
from zloss_lab.corpora.reading import content_of

Counts = npt.NDArray[np.int64]


class Vocabulary:
    r"""Words with their counts in the training split, the most frequent first, and equal counts in alphabetical order.

    >>> vocabulary = Vocabulary(["the", "<unk>", "company"], [5, 3, 1], unknown="<unk>")
    >>> len(vocabulary), vocabulary.id_of("company"), vocabulary.encode("the companies")
    (3, 2, [0, 1])
    """

    words: list[str]
    counts: Counts  # (C,)
    unknown: str | None  # the word that replaces words outside of the vocabulary

    def __init__(
        self, words: Sequence[str], counts: Sequence[int] | Counts, *, unknown: str | None = None
    ) -> None:
        self.words, self.counts, self.unknown = (
            list(words),
            np.array(counts, dtype=np.int64),
            unknown,
        )
        self._ids = {word: index for index, word in enumerate(self.words)}
        if len(self._ids) != len(self.words) or len(self.counts) != len(self.words):
            raise CorpusError(
                f"expected different words and a count for each, got {len(self.words)} words, {len(self._ids)} of them "
                f"different, and {len(self.counts)} counts"
            )
        if (self.counts < 0).any():
            raise CorpusError(f"expected counts from 0 on, got {self.counts.min()}")
        if unknown is not None and unknown not in self._ids:
            raise CorpusError(f"the unknown word {unknown!r} is not in the vocabulary")

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def id_of(self, word: str) -> int | None:
        """Return the class of a word, or None if it is not in the vocabulary."""
        return self._ids.get(word)

    def encode(self, text: str) -> list[int]:
        """Return the classes of words that are separated by ASCII white space.

        A word outside of the vocabulary becomes the unknown word. Without an unknown word it is an error.
        """
        return [self._id_or_unknown(word.decode()) for word in text.encode().split()]

    def _id_or_unknown(self, word: str) -> int:
        index = self._ids.get(word if word in self._ids or self.unknown is None else self.unknown)
        if index is None:
            raise CorpusError(
                f"{word!r} is not among the {len(self)} words of this vocabulary, which has no unknown word"
            )
        return index

    def to_bytes(self) -> bytes:
        """Return lines with a word, a tab and its count."""
        lines = (
            f"{word}\t{count}\n"
            for word, count in zip(self.words, self.counts.tolist(), strict=True)
        )
        return "".join(lines).encode()

    @classmethod
    def load(
        cls, path: Path, *, unknown: str | None = None, sha256: str | None = None
    ) -> "Vocabulary":
        """Read a file of `word TAB count` lines. If a checksum is given, a file with another one is refused."""
        data = content_of(path)
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise CorpusError(f"the vocabulary {path} is not what was written (its sha256 differs)")
        try:
            return cls.from_bytes(data, unknown=unknown)
        # Also a UnicodeDecodeError, and an OverflowError for a count beyond 64 bits.
        except (ValueError, OverflowError) as error:
            raise CorpusError(f"the vocabulary {path} is damaged: {error}") from error

    @classmethod
    def from_bytes(cls, data: bytes, *, unknown: str | None = None) -> "Vocabulary":
        """Return the vocabulary from the bytes that `to_bytes` made.

        Only a newline ends a line, because words may contain other line separators of Unicode.
        """
        lines = data.decode().removesuffix("\n").split("\n")
        pairs = [line.rpartition("\t") for line in lines]
        return cls(
            [word for word, _, _ in pairs], [int(count) for _, _, count in pairs], unknown=unknown
        )


@dataclass(frozen=True, kw_only=True)
class Tally:
    """All words of a corpus with their counts, before rare words are dropped."""

    numbering: Mapping[bytes, int]  # word to number, from 0 on, in order
    in_training: Counts  # (W,)
    elsewhere: Counts  # (W,) in the other splits


@dataclass(frozen=True, kw_only=True)
class WordChoice:
    """The rules by which words become classes. All words named here must be in the tally, maybe with a count of 0."""

    required: frozenset[bytes]
    unknown: bytes  # becomes a class if it is required or occurs in the text, or if another word is dropped
    min_count: int = 1
    max_words: int | None = None
    whole_vocabulary: bool = False  # min_count and max_words look at the counts of all splits


def choose(tally: Tally, choice: WordChoice) -> tuple[Vocabulary, npt.NDArray[np.uint32]]:
    """Return the vocabulary, and the class of every word of the tally."""
    words, unknown = list(tally.numbering), tally.numbering[choice.unknown]
    kept = _kept(words, tally, choice)
    counts = tally.in_training.copy()
    counts[unknown] += counts[~kept].sum()
    order = _by_frequency(words, counts, kept)
    classes = np.zeros(len(words), dtype=np.uint32)
    classes[order] = np.arange(len(order))
    if kept[unknown]:
        classes[~kept] = classes[unknown]
    chosen = [words[number].decode() for number in order]
    return Vocabulary(
        chosen, counts[order], unknown=choice.unknown.decode() if kept[unknown] else None
    ), classes


def _kept(words: list[bytes], tally: Tally, choice: WordChoice) -> npt.NDArray[np.bool_]:
    """Return a mask of the words of the tally that become classes."""
    everywhere = tally.in_training + tally.elsewhere
    basis = everywhere if choice.whole_vocabulary else tally.in_training
    unknown = tally.numbering[choice.unknown]
    special = np.zeros(len(words), dtype=bool)
    special[[tally.numbering[word] for word in choice.required]] = True
    special[unknown] |= everywhere[unknown] > 0
    kept = special | (basis >= choice.min_count)
    limit = choice.max_words or len(words)
    if kept.sum() > limit or everywhere[~kept].any():
        special[unknown] = kept[unknown] = True
    if kept.sum() > limit:
        if special.sum() >= limit:
            raise CorpusError(
                f"max_words={limit} leaves no room beside the {special.sum()} special words"
            )
        ordinary = _by_frequency(words, basis, kept & ~special)
        kept[ordinary[limit - special.sum() :]] = False
    return kept


def _by_frequency(
    words: list[bytes], counts: Counts, among: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """Return the numbers of the words, the most frequent first, and equal counts in alphabetical order."""
    alphabetical = np.array(
        sorted(np.flatnonzero(among).tolist(), key=words.__getitem__), dtype=np.int64
    )
    return alphabetical[np.argsort(-counts[alphabetical], kind="stable")]
