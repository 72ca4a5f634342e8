"""The Z-loss in the time that a softmax takes: the comparison for readers with a limited time for training.

Each softmax of table 2 is compared with all Z-loss trainings on its text that took no longer. These may have spent the
time on more epochs, or on a larger network. At each score the Z-loss model is chosen by validation, as in figure 2,
because a decides which scores it is good at.
"""

from collections.abc import Iterator, Mapping, Sequence

from reproduction.budgets import FIXED, budget_title
from reproduction.large_text_models import SOFTMAXES, model_title
from reproduction.report.comparisons import compare_models, validating_best
from reproduction.report.evidence import Evidence, NotRunError, models_command
from reproduction.report.large_text_tables import TimedTrainings, text_title, trainings_by_time
from reproduction.report.score_texts import score_label
from reproduction.report.table_cells import MARKS_NOTE, difference_cell
from reproduction.report.timings import duration
from reproduction.scores import ERRORS
from zloss_lab.documents.document import Row, Table

_SAME_TIME = 1.01  # trainings of a fixed time end within a step of it

SAME_TIME_NOTE = (
    "The numbers are points of test error with Welch's 95 % interval. Below zero the Z-loss is better. At each score, "
    "the Z-loss is the model with the best validation of all that took no longer. One of them is net2, twice as wide "
    f"as the net1 of all softmaxes. {MARKS_NOTE}"
)


def same_time_tables(evidence: Evidence, *, with_fixed: bool = True) -> Iterator[tuple[str, Table]]:
    """Yield the Z-loss minus every softmax, from the shortest training to the longest: a titled table for each text.

    Without `with_fixed`, trainings with a fixed time are left out.
    """
    columns = ("Z-loss in the time of", "that is", *map(score_label, ERRORS))
    tables = {
        corpus: Table(columns, list(_rows(models, with_fixed)))
        for corpus, models in trainings_by_time(evidence).items()
    }
    if not any(table.rows for table in tables.values()):
        raise NotRunError(models_command(FIXED))
    for corpus, table in tables.items():
        if table.rows:
            yield text_title(evidence, corpus), table


def _rows(models: Mapping[str, Sequence[TimedTrainings]], with_fixed: bool) -> Iterator[Row]:
    own = [timed for model, found in models.items() if model not in SOFTMAXES for timed in found]
    softmaxes = [(model, timed) for model in SOFTMAXES for timed in models.get(model, ())]
    for model, softmax in sorted(softmaxes, key=lambda named: named[1].seconds):
        affordable = [
            timed.trainings for timed in own if timed.seconds <= _SAME_TIME * softmax.seconds
        ]
        if affordable and (with_fixed or softmax.trainings[0].budget != FIXED):
            cells = [
                difference_cell(
                    compare_models(validating_best(affordable, error), softmax.trainings, error)
                )
                for error in ERRORS
            ]
            title = f"{model_title(model)}, {_budget_text(softmax)}"
            yield [title, duration(softmax.seconds), *cells]


def _budget_text(timed: TimedTrainings) -> str:
    budget = timed.trainings[0].budget or ""
    return "fixed time" if budget == FIXED else budget_title(budget)
