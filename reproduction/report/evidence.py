"""The evidence of the report: results and timings, or the command that makes what is missing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Literal, NamedTuple, TypeVar

from reproduction.budgets import CONVERGED, FIXED, budget_order
from reproduction.paper_figures import FIGURE_3_B, PENN_TREEBANK
from reproduction.report.timings import Timings
from reproduction.results.paper_results import PaperResults
from reproduction.results.schema import (
    LargeTextResult,
    SplitScores,
    SweepPoint,
    TrainingCurve,
    TrainingResult,
    TunedResult,
)
from reproduction.timed_parts import Device, Part, bench_command
from zloss_lab.seed_intervals import Estimate, estimate

Split = Literal["valid", "test"]
ScoresByValue = dict[float, list[float]]  # scores, one a seed, by a or by b
Trainings = Sequence[LargeTextResult]  # of one model with one budget, one a seed
TrainingsByModel = Mapping[str, Trainings]  # on one text


class Variant(NamedTuple):
    """Figure 2 once more with one setting changed, which the paper does not have and which may explain a difference."""

    title: str
    setting: str  # over the settings that were found, for all losses


VARIANTS = {  # by the folder of their records, beside the records of the figure
    "no_dropout": Variant("without dropout, as in 2016", "network.dropout=0"),
    "wide": Variant("with a wider last layer", "network.hidden=[512,1024]"),
}


class NotRunError(LookupError):
    """A record is missing; the message is the command that makes it."""


def experiment_command(name: str) -> str:
    """Return the command that makes the records of a figure or table.

    >>> experiment_command("figure3")
    'python -m reproduction run figure3'
    """
    return f"python -m reproduction run {name}"


def models_command(budget: str) -> str:
    """Return the command that makes the records of table 2 with a budget. Readers choose text and time themselves.

    >>> models_command("converged")
    'python -m reproduction run table2 --corpus FOLDER --converged'
    """
    option = {FIXED: "--budget SECONDS", CONVERGED: "--converged"}.get(budget, "--epochs N")
    return f"{experiment_command('table2')} --corpus FOLDER {option}"


@dataclass(frozen=True)
class Evidence:
    """Results of the experiments, and timings. A method that finds none raises `NotRunError`."""

    results: PaperResults
    timings: Timings
    variants: Mapping[str, PaperResults] = field(default_factory=dict)

    @classmethod
    def read(cls, results: Path, timings: Path) -> "Evidence":
        """Read the folder of the results and the folder of the timings, of which one may be missing."""
        if not results.is_dir() and not timings.is_dir():
            raise ValueError(
                f"no records in {results} and no timings in {timings}: "
                "name the folders with --records and --timings"
            )
        variants = {name: PaperResults.read(results / name) for name in VARIANTS}
        return cls(PaperResults.read(results), Timings.read(timings), variants)

    def other_texts(self) -> list[str]:
        """Return the texts of figures 2 to 5 beside Penn Treebank, the only text of these figures in the paper."""
        results: list[TrainingResult] = [
            *self.results.figure2,
            *self.results.figure3,
            *self.results.figure4,
            *self.results.figure5,
        ]
        return sorted({result.text for result in results} - {PENN_TREEBANK})

    def variant(self, name: str) -> "Evidence":
        """Return the evidence with a variant in place of figure 2."""
        results = self.variants.get(name, PaperResults())
        if not results.figure2:
            places = f"--corpus FOLDER --settings-of reproduction/records --records reproduction/records/{name}"
            changed = f"--losses softmax,z_loss --set {quote(VARIANTS[name].setting)}"
            raise NotRunError(f"{experiment_command('figure2')} {places} {changed}")
        return replace(self, results=results)

    # ---- figures 2 to 5 ----------------------------------------------------------------------------------------------

    def figure(self, figure: int) -> Sequence[TunedResult]:
        """Return the results of figure 2 or 5."""
        return {2: self.results.figure2, 5: self.results.figure5}[figure]

    def tuned(self, figure: int, loss: str, score: str) -> list[float]:
        """Return the test scores of a loss that was tuned for this very score, one a seed."""
        found = [
            result.test[score]
            for result in self.figure(figure)
            if (result.loss, result.tuned_for) == (loss, score)
        ]
        return _present(found, experiment_command(f"figure{figure}"))

    def has_tuned(self, figure: int, loss: str, score: str) -> bool:
        """Return whether a loss was tuned for this score."""
        return any(
            (result.loss, result.tuned_for) == (loss, score) for result in self.figure(figure)
        )

    def sweep(self, score: str, split: Split = "test") -> ScoresByValue:
        """Return the scores of figure 3 by a."""
        points = [point for point in self.results.figure3 if point.b == FIGURE_3_B]
        return scores_by(points, "a", score, split)

    def sweep_of_b(self, score: str) -> tuple[float, ScoresByValue]:
        """Return the a with the most values of b, the b of the figure among them, and test scores by b at this a."""
        columns: dict[float, list[SweepPoint]] = {}
        for point in self.results.figure3:
            columns.setdefault(point.a, []).append(point)
        swept = {a: scores_by(points, "b", score) for a, points in columns.items()}
        crossing = [a for a, values in swept.items() if FIGURE_3_B in values and len(values) > 1]
        if not crossing:
            raise NotRunError(
                f"{experiment_command('figure3')} --b {FIGURE_3_B / 2:g},{2 * FIGURE_3_B:g}"
            )
        longest = max(crossing, key=lambda a: len(swept[a]))
        return longest, swept[longest]

    def curves(self, tuned_for: str) -> list[TrainingCurve]:
        """Return the trainings of one of the four models of figure 4."""
        found = [curve for curve in self.results.figure4 if curve.tuned_for == tuned_for]
        return _present(found, experiment_command("figure4"))

    # ---- tables 1 and 2 ----------------------------------------------------------------------------------------------

    def ratio(self, part: Part, loss: str, device: Device) -> float:
        """Return the time of a loss divided by the time of the Z-loss, as in table 1."""
        ratio = self.timings.ratio(part, loss, device)
        if ratio is None:
            raise NotRunError(bench_command(part, device))
        return ratio

    def texts(self) -> list[str]:
        """Return all texts of table 2."""
        return list(dict.fromkeys(one.corpus for one in self.results.table2))

    def texts_with(self, budget: str) -> list[str]:
        """Return the texts of table 2 that some model was trained on with a budget."""
        found = dict.fromkeys(one.corpus for one in self.results.table2 if one.budget == budget)
        return _present(list(found), models_command(budget))

    def epochs_budgets(self, corpus: str) -> list[str]:
        """Return the budgets of a text of table 2 that are numbers of epochs, the largest first."""
        budgets = {
            one.budget
            for one in self.results.table2
            if one.corpus == corpus and one.budget is not None
        }
        return sorted(budgets - {FIXED, CONVERGED}, key=budget_order, reverse=True)

    def trainings(self, corpus: str, model: str, budget: str) -> list[LargeTextResult]:
        """Return the trainings of a model of table 2. The constant model has the same for every budget."""
        return [
            one
            for one in self.results.table2
            if (one.corpus, one.model) == (corpus, model) and one.budget in (budget, None)
        ]

    def train_s(self, training: LargeTextResult) -> float | None:
        """Return the time of a training of table 2, as if it had been alone on its device.

        A training that shared its device has the time of its epochs at another pace. This is the pace of the longest
        training of the same model on the same text that was alone. If there is none, other models with the same kind of
        steps give the pace. Without these the time is unknown: None.
        """
        if training.is_alone is not False:
            return training.train_s
        paces = [
            (one.model == training.model, one.train_s, one.epochs)
            for one in self.results.table2
            if (one.corpus, one.step_kind) == (training.corpus, training.step_kind)
            and one.is_alone
            and one.train_s
            and one.epochs
        ]
        if not paces or training.epochs is None:
            return None
        _, train_s, epochs = max(paces)
        return training.epochs * train_s / epochs


def scores_by(
    points: Iterable[SweepPoint], name: Literal["a", "b"], score: str, split: Split = "test"
) -> ScoresByValue:
    """Return scores by a or by b, in order; `NotRunError` if there are none."""
    values: ScoresByValue = {}
    for point in points:
        scores: SplitScores = getattr(point, split)
        values.setdefault(getattr(point, name), []).append(scores[score])
    if not values:
        raise NotRunError(experiment_command("figure3"))
    return dict(sorted(values.items()))


def estimates(values: ScoresByValue) -> dict[float, Estimate]:
    """Return mean and interval at every point of a sweep."""
    return {value: estimate(scores) for value, scores in values.items()}


Found = TypeVar("Found")


def _present(found: list[Found], command: str) -> list[Found]:
    if not found:
        raise NotRunError(command)
    return found
