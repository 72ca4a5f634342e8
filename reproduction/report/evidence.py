"""All that the report is built from, and what to run where something of it is missing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Literal, NamedTuple, TypeVar

from reproduction.report.intervals import Estimate, estimate
from reproduction.report.records import (
    CONVERGED,
    FIGURE_B,
    FIXED,
    PENN_TREEBANK,
    PaperRecords,
    Result,
    ScoredModel,
    Scores,
    SweepPoint,
    TrainingCurve,
    TunedResult,
    budget_order,
)
from reproduction.report.timings import Device, Part, Timings

Split = Literal["valid", "test"]
_BENCHES = {"model": "model --networks net1", "output": "output", "scaling": "scaling"}


class Variant(NamedTuple):
    """Figure 2 once more, with something changed: what the paper does not have, and what may explain a difference."""

    title: str
    setting: str  # over those that were found, for all losses


VARIANTS = {  # by the folder of their records, beside those of the figure
    "no_dropout": Variant("without dropout, as in 2016", "network.dropout=0"),
    "wide": Variant("with a wider last layer", "network.hidden=[512,1024]"),
}


class NotRunError(LookupError):
    """There is no record of it yet; the message is the command that makes it."""


def experiment_command(name: str) -> str:
    """What leaves the records of a figure or table.

    >>> experiment_command("figure3")
    'zloss paper figure3'
    """
    return f"zloss paper {name}"


def models_command(budget: str) -> str:
    """What leaves the records of table 2 with a budget; text and time are the reader's to choose.

    >>> models_command("converged")
    'zloss paper table2 --corpus FOLDER --converged'
    """
    option = {FIXED: "--budget SECONDS", CONVERGED: "--converged"}.get(budget, "--epochs N")
    return f"{experiment_command('table2')} --corpus FOLDER {option}"


def bench_command(suite: str, device: Device) -> str:
    """What leaves the timings of a suite on a device.

    >>> bench_command("scaling", "cuda")
    'zloss bench scaling --device cuda'
    """
    return f"zloss bench {_BENCHES[suite]} --device {device}"


@dataclass(frozen=True)
class Evidence:
    """Records of the experiments, and timings. Whatever it is asked for and has not raises `NotRunError`."""

    records: PaperRecords
    timings: Timings
    variants: Mapping[str, PaperRecords] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Evidence":
        """From `folder/paper` and `folder/records`."""
        if not any((folder / name).is_dir() for name in ("paper", "records")):
            raise ValueError(
                f"no records in {folder}: name the folder that has paper/ and records/ with --records"
            )
        paper = folder / "paper"
        variants = {name: PaperRecords.read(paper / name) for name in VARIANTS}
        return cls(PaperRecords.read(paper), Timings.read(folder / "records"), variants)

    def other_texts(self) -> list[str]:
        """The texts that figures 2 to 5 were made on, beside Penn Treebank, on which the paper has them."""
        records = self.records
        results: list[Result] = [
            *records.figure2,
            *records.figure3,
            *records.figure4,
            *records.figure5,
        ]
        return sorted({result.text for result in results} - {PENN_TREEBANK})

    def variant(self, name: str) -> "Evidence":
        """The same with a variant in place of figure 2."""
        records = self.variants.get(name, PaperRecords())
        if not records.figure2:
            places = f"--corpus FOLDER --settings-of reproduction/records --records reproduction/records/{name}"
            changed = f"--losses softmax,z_loss --set {quote(VARIANTS[name].setting)}"
            raise NotRunError(f"{experiment_command('figure2')} {places} {changed}")
        return replace(self, records=records)

    def tuned(self, figure: int, loss: str, score: str) -> list[float]:
        """Test scores of a loss that was tuned for this very score, one a seed."""
        results = self.figure(figure)
        found = [
            result.test[score]
            for result in results
            if (result.loss, result.tuned_for) == (loss, score)
        ]
        return _present(found, experiment_command(f"figure{figure}"))

    def has_tuned(self, figure: int, loss: str, score: str) -> bool:
        """Whether there is any."""
        return any(
            (result.loss, result.tuned_for) == (loss, score) for result in self.figure(figure)
        )

    def figure(self, figure: int) -> Sequence[TunedResult]:
        """The results of figure 2 or 5."""
        return {2: self.records.figure2, 5: self.records.figure5}[figure]

    def sweep(self, score: str, split: Split = "test") -> dict[float, list[float]]:
        """Figure 3: scores by a, one a seed."""
        return by_value(
            [point for point in self.records.figure3 if point.b == FIGURE_B], "a", score, split
        )

    def sweep_of_b(self, score: str) -> tuple[float, dict[float, list[float]]]:
        """The a at which most b were tried, that of the figure among them, and test scores by b there."""
        columns: dict[float, list[SweepPoint]] = {}
        for point in self.records.figure3:
            columns.setdefault(point.a, []).append(point)
        swept = {a: by_value(points, "b", score) for a, points in columns.items()}
        crossing = [a for a, values in swept.items() if FIGURE_B in values and len(values) > 1]
        if not crossing:
            raise NotRunError(
                f"{experiment_command('figure3')} --b {FIGURE_B / 2:g},{2 * FIGURE_B:g}"
            )
        longest = max(crossing, key=lambda a: len(swept[a]))
        return longest, swept[longest]

    def curves(self, tuned_for: str) -> list[TrainingCurve]:
        """Figure 4: the trainings of one of the four models."""
        found = [curve for curve in self.records.figure4 if curve.tuned_for == tuned_for]
        return _present(found, experiment_command("figure4"))

    def texts(self) -> list[str]:
        """Table 2: all texts."""
        return list(dict.fromkeys(model.corpus for model in self.records.table2))

    def epochs_budgets(self, corpus: str) -> list[str]:
        """Table 2: the budgets of so many epochs that a text has, the most first."""
        budgets = {
            one.budget
            for one in self.records.table2
            if one.corpus == corpus and one.budget is not None
        }
        return sorted(budgets - {FIXED, CONVERGED}, key=budget_order, reverse=True)

    def corpora(self, budget: str) -> list[str]:
        """Table 2: the texts that some model was trained on with a budget."""
        found = dict.fromkeys(
            model.corpus for model in self.records.table2 if model.budget == budget
        )
        return _present(list(found), models_command(budget))

    def models(self, corpus: str, model: str, budget: str) -> list[ScoredModel]:
        """Table 2: the trainings of a model; those of the constant one, whatever the budget.

        One that was not alone on its device has the time of its epochs at the pace of those that were; None without.
        """
        return [
            result if result.alone else replace(result, train_s=self._time_alone(result))
            for result in self.records.table2
            if (result.corpus, result.model) == (corpus, model) and result.budget in (budget, None)
        ]

    def _time_alone(self, training: ScoredModel) -> float | None:
        """At the pace of the longest training of this model on this text, whatever its budget.

        A model that was never alone has the pace of others of its kind.
        """
        paces = [
            (one.model == training.model, one.train_s, one.epochs)
            for one in self.records.table2
            if (one.corpus, one.kind) == (training.corpus, training.kind)
            and one.alone
            and one.train_s
            and one.epochs
        ]
        if not paces or training.epochs is None:
            return None
        _, train_s, epochs = max(paces)
        return training.epochs * train_s / epochs

    def ratio(self, part: Part, loss: str, device: Device) -> float:
        """Table 1: the time of a loss in times of the Z-loss."""
        ratio = self.timings.ratio(part, loss, device)
        if ratio is None:
            raise NotRunError(bench_command(part, device))
        return ratio


def by_value(
    points: Iterable[SweepPoint], name: Literal["a", "b"], score: str, split: Split = "test"
) -> dict[float, list[float]]:
    """Scores by a or by b, in order; `NotRunError` where there are none."""
    values: dict[float, list[float]] = {}
    for point in points:
        scores: Scores = getattr(point, split)
        values.setdefault(getattr(point, name), []).append(scores[score])
    if not values:
        raise NotRunError(experiment_command("figure3"))
    return dict(sorted(values.items()))


def estimates(values: dict[float, list[float]]) -> dict[float, Estimate]:
    """Of every point of a sweep."""
    return {place: estimate(scores) for place, scores in values.items()}


Found = TypeVar("Found")


def _present(found: list[Found], command: str) -> list[Found]:
    if not found:
        raise NotRunError(command)
    return found
