"""Cases of `zloss bench data`: the preparation of a text, and batches of n-grams from it."""

import tempfile
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import ClassVar

import torch

from zloss_lab.bench.cases import Case
from zloss_lab.bench.gate import require
from zloss_lab.bench.random_inputs import SEED, zipf_tokens
from zloss_lab.bench.schema import DATA_TITLES, BenchRecord, DataRecord, DataTask
from zloss_lab.bench.timing import Work
from zloss_lab.corpora import prepare
from zloss_lab.ngrams import NgramBatches
from zloss_lab.records import Record

CONTEXT = 10  # words, as in the networks of the paper
_WORDS_OF_A_LINE = 20
_WORDS_OF_A_CHECK = 2000


@dataclass(frozen=True, kw_only=True)
class DataCase(Case):
    """A case with a text, made up by Zipf's law."""

    suite: ClassVar[str] = "data"
    record_kind: ClassVar[type[BenchRecord]] = DataRecord
    task: ClassVar[DataTask]
    words: int

    @property
    def name(self) -> str:
        return DATA_TITLES[self.task]

    @property
    def group(self) -> Hashable:
        return self.task

    @property
    def gate(self) -> Hashable:
        return self.task

    def description(self) -> Record:
        return super().description() | {"hidden": None, "task": self.task, "words": self.words}

    @property
    def size(self) -> str:
        return f"{self.words:,} words"


@dataclass(frozen=True, kw_only=True)
class PreparationCase(DataCase):
    """The preparation of a corpus from a file of text."""

    task: ClassVar[DataTask] = "preparation"

    def bytes_needed(self) -> int:
        return 64 * self.words

    def check(self, device: torch.device) -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_text(Path(folder, "text.txt"), _WORDS_OF_A_CHECK, self.classes)
            corpus = prepare(Path(folder, "text.txt"), Path(folder, "corpus"), fractions=(0.0, 0.0))
            tokens = torch.from_numpy(corpus.split("train").astype("int64"))
            lines = -(-_WORDS_OF_A_CHECK // _WORDS_OF_A_LINE)
            require(
                len(tokens) == _WORDS_OF_A_CHECK + lines,
                f"{len(tokens)} words were read of {_WORDS_OF_A_CHECK + lines}",
            )

    @contextmanager
    def prepared(self, device: torch.device) -> Iterator[Work]:
        with tempfile.TemporaryDirectory() as folder:
            text, numbers = Path(folder, "text.txt"), count()
            write_text(text, self.words, self.classes)
            yield Work(lambda: prepare(text, Path(folder, f"corpus{next(numbers)}")))

    def results(self, time_ms: float) -> Record:
        return {"words_per_s": round(1000 * self.words / time_ms)}


@dataclass(frozen=True, kw_only=True)
class BatchesCase(DataCase):
    """A batch of n-grams from a text, in shuffled order."""

    task: ClassVar[DataTask] = "batches"

    def bytes_needed(self) -> int:
        return 16 * self.words

    def check(self, device: torch.device) -> None:
        tokens = zipf_tokens(_WORDS_OF_A_CHECK, self.classes).tolist()
        known = {(*words_before(tokens, place), token) for place, token in enumerate(tokens)}
        context, target = self._batches(_WORDS_OF_A_CHECK, device).batch(0, 0)
        ngrams = torch.cat([context, target[:, None]], 1).tolist()
        require(
            all(tuple(ngram) in known for ngram in ngrams),
            "an n-gram of a batch is not in the text",
        )

    @contextmanager
    def prepared(self, device: torch.device) -> Iterator[Work]:
        batches = self._batches(self.words, device)
        yield Work(
            lambda index: batches.batch(0, index), [(index,) for index in range(len(batches))]
        )

    def _batches(self, words: int, device: torch.device) -> NgramBatches:
        return NgramBatches(
            zipf_tokens(words, self.classes),
            context=CONTEXT,
            batch_size=min(self.batch, words),
            mode="sentence",
            boundary=0,
            padding=0,
            device=device,
            seed=SEED,
        )

    def results(self, time_ms: float) -> Record:
        return {
            "batches_per_s": round(1000 / time_ms),
            "ngrams_per_s": round(1000 * self.batch / time_ms),
        }


def words_before(tokens: list[int], place: int) -> list[int]:
    """Return the last CONTEXT words of a sentence before a place, with 0 in front if there are fewer."""
    words: list[int] = []
    for token in reversed(tokens[max(0, place - CONTEXT) : place]):
        if token == 0:
            break
        words.insert(0, token)
    return [0] * (CONTEXT - len(words)) + words


def write_text(path: Path, words: int, classes: int) -> None:
    """Write a text whose words occur by Zipf's law."""
    names = [f"w{number}" for number in zipf_tokens(words, classes).tolist()]
    lines = (
        " ".join(names[start : start + _WORDS_OF_A_LINE])
        for start in range(0, words, _WORDS_OF_A_LINE)
    )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def data_cases(*, words: int, batch: int, classes: int) -> list[Case]:
    """Return one case for the preparation of a text and one for batches from it."""
    if batch > words:
        raise ValueError(f"--batch must be at most the words of the text, {words:,}, got {batch:,}")
    return [
        kind(words=words, batch=batch, hidden=0, classes=classes)
        for kind in (PreparationCase, BatchesCase)
    ]
