"""What the Z-loss comes to in the time that a softmax takes: the question of whoever has so much time and no more.

A softmax is set against all Z-loss trainings of table 2 on its text that took no longer, whatever they spent the time
on: more epochs, or a larger network. Which of them stands for the Z-loss is decided at each score by validation, as
in figure 2, since a decides which scores it is good at.
"""

from collections.abc import Iterator, Mapping, Sequence

from reproduction.report.corpus_checks import duel_of_models, validating_best
from reproduction.report.evidence import Evidence, NotRunError, models_command
from reproduction.report.final_scores import Point, progress, text_title
from reproduction.report.records import FIXED, SOFTMAXES
from reproduction.report.results import MARKS_NOTE, difference_cell
from reproduction.report.scores import ERRORS, label
from reproduction.report.tables import Row, Table
from reproduction.report.timings import duration

_SAME_TIME = 1.01  # trainings of a fixed time end within a step of it

IN_TIME_NOTE = (
    "Points of test error with Welch's 95 % interval: below zero the Z-loss is better. Of its models that took no "
    "longer, among them net2, twice as wide as the net1 of all softmaxes, each score has the one that validates best "
    f"at it. {MARKS_NOTE}"
)


def in_time_tables(evidence: Evidence, *, with_fixed: bool = True) -> Iterator[tuple[str, Table]]:
    """The Z-loss minus every softmax, from the shortest training to the longest: a table for each text, with its title.

    Without `with_fixed` those that had a fixed time are left out.
    """
    columns = ("Z-loss in the time of", "that is", *map(label, ERRORS))
    tables = {
        corpus: Table(columns, list(_rows(models, with_fixed)))
        for corpus, models in progress(evidence).items()
    }
    if not any(table.rows for table in tables.values()):
        raise NotRunError(models_command(FIXED))
    for corpus, table in tables.items():
        if table.rows:
            yield text_title(evidence, corpus), table


def _rows(models: Mapping[str, Sequence[Point]], with_fixed: bool) -> Iterator[Row]:
    own = [point for model, points in models.items() if model not in SOFTMAXES for point in points]
    softmaxes = [(model, point) for model in SOFTMAXES for point in models.get(model, ())]
    for model, softmax in sorted(softmaxes, key=lambda named: named[1].seconds):
        affordable = [
            point.trainings for point in own if point.seconds <= _SAME_TIME * softmax.seconds
        ]
        if affordable and (with_fixed or softmax.trainings[0].budget != FIXED):
            cells = [
                difference_cell(
                    duel_of_models(validating_best(affordable, error), softmax.trainings, error)
                )
                for error in ERRORS
            ]
            yield [f"{model}, {_spent(softmax)}", duration(softmax.seconds), *cells]


def _spent(point: Point) -> str:
    """What the time went to."""
    budget = point.trainings[0].budget or ""
    return "fixed time" if budget == FIXED else budget
