"""An n-gram model with interpolated Kneser-Ney smoothing: what counting alone makes of a text.

    model = KneserNey.count(Ngrams(corpus.split("train"), context=2), num_classes=len(corpus.vocabulary))
    model.probabilities([17, 4])        # (C,) of the word after the words 17 and 4
    result = evaluate_counts(model, NgramBatches(corpus.split("test"), context=2, batch_size=256, shuffle=False))

The probability of a word w after a context h is

    p(w | h) = max(c(h w) - D, 0) / c(h) + D n(h) / c(h) p(w | h')

where h' is h without its first word and n(h) is the number of different words after h. For the whole context, c(h w)
is the number of times that w follows h. For shorter ones it is the number of different words that stand before h w, and
c(h) is its sum over w. A context that never occurs leaves all to h'. Below the empty context all words are equally
likely. The discount of each length is D = n1 / (n1 + 2 n2), where n1 and n2 are the numbers of counts 1 and 2 (Ney,
Essen and Kneser 1994; Chen and Goodman 1999 compare it with others).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from zloss_lab.evaluation import TOP_K, CountWatcher, Evaluation, evaluation_of
from zloss_lab.ngrams import NgramBatch, NgramBatches, Ngrams

Numbers = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]
Word = TypeVar("Word", int, Tensor)

_CHUNK = 1 << 20  # n-grams that are read and sorted together, at least
# Probabilities that a CPU computes in about half a minute.
_CPU_PROBABILITIES = 5e9
_LEAST_SAMPLE = 1000


@dataclass(frozen=True)
class ContextTable:
    """The words that follow each context of one length, with their counts."""

    contexts: Numbers  # (N,) sorted; a context is one number, see `_number`
    starts: Numbers  # (N + 1,) where the words of each context begin
    words: npt.NDArray[np.int32]  # (E,)
    counts: npt.NDArray[np.int32]  # (E,)
    discount: float

    @classmethod
    def of(cls, ngrams: Numbers, counts: Numbers, num_classes: int) -> "ContextTable":
        """Return the table of sorted n-grams, each one number, and their counts."""
        contexts, starts = np.unique(ngrams // num_classes, return_index=True)
        words = (ngrams % num_classes).astype(np.int32)
        once, twice = int((counts == 1).sum()), int((counts == 2).sum())
        return cls(
            contexts,
            np.append(starts, len(ngrams)),
            words,
            counts.astype(np.int32),
            once / (once + 2 * twice) if once else 0.5,  # a discount of 0 would leave nothing to h'
        )

    def refine(self, shorter: Probabilities, context: int) -> Probabilities:
        """Return the probabilities after a context, from those after the context without its first word."""
        place = int(np.searchsorted(self.contexts, context))
        if place == len(self.contexts) or self.contexts[place] != context:
            return shorter
        those = slice(self.starts[place], self.starts[place + 1])
        counts = self.counts[those]
        total = int(counts.sum(dtype=np.int64))
        probabilities = shorter * (self.discount * len(counts) / total)
        probabilities[self.words[those]] += (counts - self.discount).clip(0) / total
        return probabilities


class KneserNey:
    """The n-gram model at the top of this file. `KneserNey.count` makes one from a text.

    >>> text = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 1])
    >>> model = KneserNey.count(Ngrams(text, context=1), num_classes=4)
    >>> model.probabilities([0]).round(3).tolist()
    [0.015, 0.965, 0.015, 0.006]
    """

    def __init__(self, num_classes: int, tables: Sequence[ContextTable]) -> None:
        self.num_classes = num_classes
        self._tables = tables[1:]
        uniform = np.full(num_classes, 1 / num_classes)
        self._without_context = tables[0].refine(uniform, 0)

    @property
    def order(self) -> int:
        """The length n of the n-grams."""
        return len(self._tables) + 1

    @classmethod
    def count(
        cls, ngrams: Ngrams, num_classes: int, *, progress: CountWatcher | None = None
    ) -> "KneserNey":
        """Count the n-grams of a text, and return the model.

        Memory is about 120 bytes for each different n-gram, and 200 MB besides, however long the text is.
        """
        order = ngrams.context + 1
        if num_classes**order > np.iinfo(np.int64).max:
            raise ValueError(
                f"{num_classes:,} classes are too many for n-grams of {order} words: an n-gram must fit into 64 bits; "
                "take a smaller order"
            )
        found, counts = _counted(ngrams, num_classes, progress)
        tables = [ContextTable.of(found, counts, num_classes)]
        for length in range(order - 1, 0, -1):
            # Without its first word an n-gram has as many counts as different words were before it.
            found, counts = np.unique(found % num_classes**length, return_counts=True)
            tables.append(ContextTable.of(found, counts, num_classes))
        return cls(num_classes, tables[::-1])

    def probabilities(self, context: Sequence[int]) -> Probabilities:  # (C,)
        """Return the probabilities of all words after a context of n - 1 words."""
        if len(context) != self.order - 1:
            raise ValueError(f"the context must have {self.order - 1} words, got {len(context)}")
        found = self._without_context
        for length, table in enumerate(self._tables, start=1):
            found = table.refine(found, _number(context[-length:], self.num_classes, 0))
        return found

    def judge(self, batch: NgramBatch) -> tuple[Tensor, Tensor]:
        """Return the ranks of the targets of a batch, and their log-probabilities."""
        contexts, targets = (part.tolist() for part in batch)
        ranks, chosen = [], []
        for context, target in zip(contexts, targets, strict=True):
            found = self.probabilities(context)
            ranks.append(1 + int(np.count_nonzero(found > found[target])))
            chosen.append(float(found[target]))
        return torch.tensor(ranks), torch.tensor(chosen, dtype=torch.double).log()


def evaluate_counts(
    model: KneserNey,
    batches: NgramBatches,
    *,
    ks: Sequence[int] = TOP_K,
    limit: int | None = None,
    progress: CountWatcher | None = None,
) -> Evaluation:
    """Rank the targets of a text among all words, as `evaluate` does for a network.

    Args:
        model: the n-gram model.
        batches: the n-grams of the text, with as many words of context as the model has.
        ks: the values of k for the top-k errors.
        limit: the largest number of examples, a random sample that is the same every time. The default takes a CPU
            about half a minute.
        progress: called after each batch with the number of examples done and their total number.
    """
    if limit is None:
        limit = max(_LEAST_SAMPLE, int(_CPU_PROBABILITIES / model.num_classes))
    return evaluation_of(model.judge, batches, ks, limit, progress)


def _counted(
    ngrams: Ngrams, num_classes: int, progress: CountWatcher | None
) -> tuple[Numbers, Numbers]:
    """Return the different n-grams in order, each as one number, and how often each occurs."""
    found, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    end = 0
    while end < len(ngrams):
        # In growing parts, so that the numbers found so far are not merged too often.
        start, end = end, min(end + max(_CHUNK, len(found) // 4), len(ngrams))
        context, target = ngrams.read(torch.arange(start, end))
        words = (*context.T, target)
        new, new_counts = np.unique(
            _number(words, num_classes, torch.zeros_like(target)).numpy(), return_counts=True
        )
        merged, places = np.unique(np.concatenate([found, new]), return_inverse=True)
        counts = np.bincount(
            places, np.concatenate([counts, new_counts]), minlength=len(merged)
        ).astype(np.int64)
        found = merged
        if progress is not None:
            progress(end, len(ngrams))
    return found, counts


def _number(words: Iterable[Word], num_classes: int, empty: Word) -> Word:
    """Return words as the digits of one number to the base C. Tensors of words give a tensor of numbers."""
    return reduce(lambda number, word: number * num_classes + word, words, empty)
