"""Cells and notes that several tables of the report have in common."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from reproduction.report.comparisons import ENOUGH_SEEDS, Comparison, Standing, compare
from reproduction.report.score_texts import difference_text, score_label
from reproduction.results.schema import Choice, TrainingResult
from zloss_lab.documents.document import EVEN, LOST, MISSING, WON, Cell

NOT_RUN = Cell("not run", MISSING)
NOT_PRINTED = "/"  # as in the paper
MARKS_NOTE = f"~ within noise; * within a point, and needs {ENOUGH_SEEDS} seeds."
_MEANINGS = {Standing.WON: WON, Standing.LOST: LOST, Standing.EVEN: EVEN}

ValuesByScore = Mapping[str, Mapping[str, Sequence[float]]]  # by the title of a loss or model


def difference_cell(comparison: Comparison) -> Cell:
    """Return a difference and how certain it is. `MARKS_NOTE` explains the marks."""
    noise = " ~" if comparison.standing is Standing.EVEN else ""
    seeds = " *" if comparison.needs_seeds else ""
    difference = difference_text(comparison.difference, comparison.score)
    return Cell(f"{difference}{noise}{seeds}", _MEANINGS.get(comparison.standing, ""))


def seeds_text(results: Iterable[TrainingResult]) -> str:
    """Return the number of seeds of a choice, or the least and the most of several choices."""
    counts: dict[Choice, int] = {}
    for result in results:
        counts[result.choice] = counts.get(result.choice, 0) + 1
    least, most = min(counts.values(), default=0), max(counts.values(), default=0)
    return str(least) if least == most else f"{least} to {most}"


def close_calls_text(values: ValuesByScore) -> str:
    """Return which values are too close to each other for their few seeds; "" if there are none."""
    scores: dict[str, list[str]] = {}  # by the titles that are too close at these scores
    for score, by_title in values.items():
        close: set[str] = set()
        for pair in combinations(by_title, 2):
            if compare(by_title[pair[0]], by_title[pair[1]], score).needs_seeds:
                close |= {title for title in pair if len(by_title[title]) < ENOUGH_SEEDS}
        if close:
            titles = ", ".join(title for title in by_title if title in close)
            scores.setdefault(titles, []).append(score_label(score))
    found = [f"{', '.join(labels)} ({titles})" for titles, labels in scores.items()]
    return f"Within a point, and needs {ENOUGH_SEEDS} seeds: {'; '.join(found)}." if found else ""
