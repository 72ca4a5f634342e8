"""The schema of the records of `benchmarks.baselines`, `benchmarks.mean_rank` and `benchmarks.ngrams`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarks.training_records import Scores
from zloss_lab.records import Recordable, RecordKey

Task = Literal["yoochoose", "diginetica", "citeulike-t"]
TASK_TITLES: Mapping[Task, str] = {
    "yoochoose": "Yoochoose 1/64",
    "diginetica": "Diginetica",
    "citeulike-t": "citeulike-t",
}


@dataclass(frozen=True, kw_only=True)
class BaselineRecord(Recordable):
    """The scores of a way to rank classes, on all examples of a test."""

    suite: Literal["baselines"] = "baselines"
    task: Task
    method: str  # a baseline of the example by its name for readers, or a head by its name
    is_network: bool
    classes: int
    examples: int  # of the test
    scores: Mapping[str, float]
    epochs: float | None = None  # passes over the training data; None for a baseline
    train_s: float | None = None  # processor time of the training
    seed: int
    device: str
    versions: Mapping[str, str]
    commit: str

    @property
    def key(self) -> RecordKey:
        """The task, the method and the seed."""
        return self.task, self.method, self.seed


@dataclass(frozen=True, kw_only=True)
class Band:
    """Ranks of the targets in a band of words, which are numbered by frequency from 1."""

    first: int
    last: int
    share: float  # of all targets
    mean_rank: float
    median_rank: float


@dataclass(frozen=True, kw_only=True)
class MeanRankRecord(Recordable):
    """The ranks of a language model on the test split, over all words and by bands of their frequency."""

    suite: Literal["mean_rank"] = "mean_rank"
    corpus: str
    model: Literal["most-frequent", "trigram", "z_loss", "sampled"]
    beta: float | None = None  # of the weights f^-beta; None for a model without a training
    classes: int
    examples: int
    top_errors: Mapping[str, float]
    mean_rank: float
    median_rank: float
    bands: tuple[Band, ...]
    epochs: int | None = None
    seed: int
    device: str
    versions: Mapping[str, str]
    commit: str

    @property
    def key(self) -> RecordKey:
        """The model, its weights and the seed."""
        return self.model, self.beta, self.seed


@dataclass(frozen=True, kw_only=True)
class NgramRecord(Recordable):
    """The scores of an n-gram model on a test split."""

    suite: Literal["ngrams"] = "ngrams"
    corpus: str
    order: int
    classes: int
    scores: Scores
    seed: int  # of the sample
    device: str
    versions: Mapping[str, str]
    commit: str

    @property
    def key(self) -> RecordKey:
        """The corpus and the order."""
        return self.corpus, self.order
