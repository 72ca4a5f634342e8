"""The schema of the records of training runs: `benchmarks.language_model` and `benchmarks.long_run` write them.

The tables of the documents read them. A record holds keys; `SCORED_TITLES` and `LAYER_TITLES` have the names for
readers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from zloss_lab.configuration import from_table
from zloss_lab.evaluation import Evaluation, finite
from zloss_lab.records import Recordable, RecordKey

Part = Literal["speed", "ptb", "fil8"]
Layer = Literal["factored", "dense", "factored-float32-state"]
LAYER_TITLES: Mapping[Layer, str] = {
    "factored": "factored",
    "dense": "dense",
    "factored-float32-state": "factored, state in float32",
}
# The fields of `ComparedScores`. `TrainedModel.compare` has the same names for readers.
SCORED_TITLES: Mapping[Literal["run", "constant"], str] = {
    "run": "this run",
    "constant": "most frequent words",
}


@dataclass(frozen=True, kw_only=True)
class TrainingRecord(Recordable):
    """The part that the records of both programs have: the loss, the seed, and where it was measured."""

    loss: str
    classes: int
    seed: int
    device: str
    versions: Mapping[str, str]
    commit: str


@dataclass(frozen=True, kw_only=True)
class LongRunRecord(TrainingRecord):
    """The distance of a layer from dense float64 SGD after many steps."""

    suite: Literal["long_run"] = "long_run"
    layer: Layer
    hidden: int
    batch: int
    steps: int
    lr: float
    first_loss: float  # of the reference, as the next two
    last_loss: float  # mean of the last 100 steps
    weights_moved: float  # norm of the change of the weights, relative to their norm at the start
    weight_error: float
    largest_loss_error: float
    finite: bool  # whether all weights are
    refactors: int | None = None  # None for a dense layer, as the next two
    drift: float | None = None
    product_dtype: str | None = None

    @property
    def key(self) -> RecordKey:
        """The layer."""
        return (self.layer,)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores on the test split. Where examples are a sample, each score has the half-width of its interval."""

    top_1_error: float
    top_5_error: float
    top_10_error: float
    top_20_error: float
    top_50_error: float
    top_100_error: float
    mrr: float
    mean_rank: float
    perplexity: float | None = None  # None if infinite, or without probabilities
    top_1_error_half_width: float | None = None
    top_5_error_half_width: float | None = None
    top_10_error_half_width: float | None = None
    top_20_error_half_width: float | None = None
    top_50_error_half_width: float | None = None
    top_100_error_half_width: float | None = None
    mrr_half_width: float | None = None
    mean_rank_half_width: float | None = None
    perplexity_half_width: float | None = None
    examples: int
    population: int  # examples of the split

    @property
    def top_errors(self) -> tuple[float, ...]:
        """The share of targets that are not among the best k classes, in the order of k."""
        return (
            self.top_1_error,
            self.top_5_error,
            self.top_10_error,
            self.top_20_error,
            self.top_50_error,
            self.top_100_error,
        )


@dataclass(frozen=True, kw_only=True)
class ComparedScores:
    """The scores of a trained network, beside a classifier that ignores the context."""

    run: Scores
    constant: Scores  # always predicts the most frequent words

    @classmethod
    def of(cls, compared: Mapping[str, Evaluation]) -> Self:
        """Return the scores that `TrainedModel.compare` found."""
        return cls(
            **{
                key: from_table(Scores, finite(compared[title].to_record()))
                for key, title in SCORED_TITLES.items()
            }
        )

    @property
    def by_title(self) -> Mapping[str, Scores]:
        """The scores with their names for readers."""
        return {title: getattr(self, key) for key, title in SCORED_TITLES.items()}


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The time of the training steps of a head."""

    time_ms: float  # median of a step
    time_ms_range: tuple[float, float]
    words_per_second: int
    epoch_steps: int
    epoch_s: float  # of the steps, without validations
    losses: tuple[float, ...]  # after each turn
    refactors: int | None = None  # counted in older records only
    ratio_to_factored: float  # of the medians
    ratio_of_all_time: float
    turns: int
    burst: int


@dataclass(frozen=True, kw_only=True)
class Learning:
    """The course and the result of a training run."""

    steps: int
    epochs: float
    best_step: int | None  # None if no checkpoint was the best
    validation: tuple[tuple[int, float], ...]  # steps with their scores
    test: ComparedScores
    seconds: float | None = None  # None in older records, as the fields below
    refactors: int | None = None
    refactor_ms: float | None = None
    refactor_share: float | None = None  # of the time of the run


@dataclass(frozen=True, kw_only=True)
class MeasuredNetwork:
    """The fields of a `NetworkConfig`. Older records lack the settings that did not exist then."""

    context: int
    embedding: int
    hidden: tuple[int, ...]
    dropout: float
    embedding_scale: float | None = None
    output_scale: float | None = None
    precision: str
    head_precision: str | None = None
    head: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The layers below the head, as the paper writes them."""
        widths = ", ".join(map(str, self.hidden))
        return f"[{self.context} * {self.embedding}, {widths}]"


@dataclass(frozen=True, kw_only=True)
class LanguageModelRecord(TrainingRecord):
    """A measurement of a language model: either the time of its steps or a training run."""

    suite: Literal["language_model"] = "language_model"
    part: Part
    head: str  # the name of the head in its config
    corpus: str
    training_words: int
    preset: str
    network: MeasuredNetwork
    training: Mapping[str, Any]  # the settings of the training
    speed: Speed | None = None
    learning: Learning | None = None

    def __post_init__(self) -> None:
        if (self.speed is None) == (self.learning is None):
            raise ValueError("a record must have one of speed and learning")

    @property
    def what(self) -> Literal["speed", "learning"]:
        """The kind of the measurement."""
        return "learning" if self.speed is None else "speed"

    @property
    def key(self) -> RecordKey:
        """The part, the kind of the measurement and the head."""
        return self.part, self.what, self.head
