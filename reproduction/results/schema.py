"""The schema of the records: a dataclass for each kind of training that a figure or table is made of.

The commands that run experiments write instances of these classes, and the report reads them: `to_record` and
`from_record` convert them to JSON and back. All scores that are errors are shares of 1.
"""

import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, Self

from reproduction.budgets import FIXED, is_budget_key
from reproduction.large_text_models import CONSTANT, MODELS
from reproduction.paper_figures import CURVE_ERRORS, FIGURE_LOSSES, PENN_TREEBANK
from reproduction.scores import PAPER_SCORES
from zloss_lab.evaluation import Evaluation, named_scores
from zloss_lab.records import Recordable, RecordKey

Choice = tuple[Hashable, ...]


@dataclass(frozen=True, kw_only=True)
class SplitScores:
    """The scores of a model on some examples of one split."""

    scores: Mapping[str, float]
    half_widths: Mapping[str, float] = field(default_factory=dict)  # where examples are a sample
    examples: int
    population: int  # examples of the split

    def __post_init__(self) -> None:
        _require_shares(self.scores, PAPER_SCORES)

    def __getitem__(self, score: str) -> float:
        """A score by name."""
        return self.scores[score]

    @classmethod
    def of(cls, evaluation: Evaluation) -> Self:
        """Return the scores of an evaluation to six digits. A hundredth of a point is the difference of ten examples.

        Scores that are not finite are left out, because JSON has no infinity.
        """
        widths = evaluation.half_widths
        return cls(
            scores=_rounded(named_scores(evaluation)),
            half_widths={} if widths is None else _rounded(named_scores(widths)),
            examples=evaluation.examples,
            population=evaluation.population,
        )


@dataclass(frozen=True, kw_only=True)
class TrainingResult(Recordable):
    """The part that the results of all trainings have."""

    seed: int
    settings: Mapping[str, Any]  # every setting that was tuned or set, by dotted key
    digest: str | None = None  # of all settings; early results have none
    device: str
    versions: Mapping[str, str]
    commit: str

    def __post_init__(self) -> None:
        _require_from_zero(self, ("seed",))

    @property
    def choice(self) -> Choice:
        """The values that all seeds of one choice have in common."""
        raise NotImplementedError

    @property
    def key(self) -> RecordKey:
        """The choice and the seed."""
        return *self.choice, self.seed

    @property
    def text(self) -> str:
        """The name of the corpus."""
        return str(self.settings.get("corpus", PENN_TREEBANK))

    def is_made_with(self, settings: Mapping[str, Any], digest: str | None) -> bool:
        """Return whether a training with these settings differs in its seed at most.

        Where both have a digest, the digest decides.
        """
        if self.digest is not None and digest is not None:
            return self.digest == digest
        return self.settings == settings


@dataclass(frozen=True, kw_only=True)
class TunedResult(TrainingResult):
    """Figures 2 and 5: a loss with the settings that were best for one score."""

    figure: Literal[2, 5]
    loss: str
    tuned_for: str
    epochs: float
    trials: int
    valid: SplitScores
    test: SplitScores

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_one_of(self, "loss", FIGURE_LOSSES[self.figure])
        _require_one_of(self, "tuned_for", PAPER_SCORES)
        _require_from_zero(self, ("epochs", "trials"))

    @property
    def choice(self) -> Choice:
        return self.loss, self.tuned_for


@dataclass(frozen=True, kw_only=True)
class SweepPoint(TrainingResult):
    """Figure 3: the network of the figure with one a and one b."""

    figure: Literal[3]
    a: float
    b: float
    valid: SplitScores
    test: SplitScores

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_from_zero(self, ("a", "b"))

    @property
    def choice(self) -> Choice:
        return self.a, self.b


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """A validation during a training."""

    epoch: float
    valid: SplitScores


@dataclass(frozen=True, kw_only=True)
class TrainingCurve(TrainingResult):
    """Figure 4: validation errors by epoch of the Z-loss with the settings, a and b among them, best for one error."""

    figure: Literal[4]
    tuned_for: str
    a: float
    b: float
    curve: tuple[CurvePoint, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_one_of(self, "tuned_for", CURVE_ERRORS)
        _require_from_zero(self, ("a", "b"))
        if not self.curve:
            raise ValueError('"curve" must be a list of points, got none')
        if any(before.epoch >= after.epoch for before, after in pairwise(self.curve)):
            raise ValueError('the epochs of "curve" must grow')

    @property
    def choice(self) -> Choice:
        return (self.tuned_for,)

    def best(self, score: str) -> float:
        """The lowest error of the curve: what early stopping would keep."""
        return min(point.valid[score] for point in self.curve)


@dataclass(frozen=True, kw_only=True)
class LargeTextResult(TrainingResult):
    """Table 2: a model on a large text. The constant model has None for all that is about training."""

    table: Literal[2]
    corpus: str
    classes: int
    model: str
    head: str | None = None
    loss: str | None = None
    network: str | None = None
    budget: str | None = None
    budget_s: float | None = None  # where the budget is a fixed time
    train_s: float | None = None
    epochs: float | None = None
    is_alone: bool | None = None  # on its device: otherwise `train_s` says nothing about the model
    rates_tried: tuple[float, ...] = ()
    valid: SplitScores
    test: SplitScores

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_one_of(self, "model", MODELS)
        _require_from_zero(self, ("classes",))
        if self.model == CONSTANT:
            return
        for name in ("head", "loss", "network", "budget", "is_alone"):
            if getattr(self, name) is None:
                raise ValueError(f'"{name}" is missing')
        _require_from_zero(self, ("train_s", "epochs"))
        if self.budget is not None and not is_budget_key(self.budget):
            raise ValueError(
                f'"budget" must be fixed, converged or a number of epochs, as in "2_epochs", got {self.budget!r}'
            )
        if self.budget == FIXED:
            _require_from_zero(self, ("budget_s",))

    @property
    def text(self) -> str:
        return self.corpus

    @property
    def choice(self) -> Choice:
        return self.corpus, self.model, self.budget

    @property
    def step_kind(self) -> Choice:
        """The values that decide how long a step takes; a, b and the score that it is tuned for do not."""
        return self.network, self.head, self.loss


def _rounded(scores: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.6g}") for name, value in scores.items() if math.isfinite(value)}


def _require_one_of(result: TrainingResult, name: str, allowed: Collection[str]) -> None:
    value = getattr(result, name)
    if value not in allowed:
        raise ValueError(f'"{name}" must be one of {", ".join(allowed)}, got {value!r}')


def _require_from_zero(result: TrainingResult, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(result, name)
        if value is None or not math.isfinite(value) or value < 0:
            raise ValueError(f'"{name}" must be a finite number from 0 on, got {value!r}')


def _require_shares(scores: Mapping[str, float], names: Iterable[str]) -> None:
    for name in names:
        share = scores.get(name)
        if share is None or not math.isfinite(share) or share < 0:
            raise ValueError(f'"{name}" must be a finite number from 0 on, got {share!r}')
        if share > 1:
            raise ValueError(
                f'"{name}" must be a share between 0 and 1, not a percentage, got {share}'
            )
