"""Figures 2 and 5 as tables: test scores of losses that were tuned for each score, and their differences."""

from collections.abc import Iterator
from statistics import fmean

from reproduction.paper_figures import FIGURE_LOSSES, FIGURE_SCORES, LOSS_TITLES
from reproduction.report.comparisons import compare
from reproduction.report.evidence import Evidence, NotRunError, experiment_command
from reproduction.report.score_texts import estimate_text, score_label
from reproduction.report.table_cells import (
    MARKS_NOTE,
    NOT_RUN,
    close_calls_text,
    difference_cell,
    seeds_text,
)
from reproduction.scores import is_error
from zloss_lab.documents.document import BEST, Block, Cell, Row, Table, paragraph
from zloss_lab.seed_intervals import estimate

_DIFFERENCES_NOTE = (
    "The numbers are differences of means with Welch's 95 % interval, for errors in points. Below zero the Z-loss is "
    f"better, except at MRR. {MARKS_NOTE}"
)


def loss_blocks(evidence: Evidence, figure: int) -> Iterator[Block]:
    """Yield all tables of a figure, with notes on differences and on close calls."""
    yield from score_blocks(evidence, figure)
    yield paragraph(_DIFFERENCES_NOTE, role="note")
    if note := close_calls(evidence, figure):
        yield paragraph(note)


def score_blocks(evidence: Evidence, figure: int) -> Iterator[Block]:
    """Yield the tables of a figure without notes: the scores of every loss, and the differences to the Z-loss."""
    yield scores_table(evidence, figure)
    yield differences_table(evidence, figure)


def losses_of(evidence: Evidence, figure: int) -> list[str]:
    """Return the losses that have results, in the order of the figure."""
    present = {result.loss for result in evidence.figure(figure)}
    if not present:
        raise NotRunError(experiment_command(f"figure{figure}"))
    return [loss for loss in FIGURE_LOSSES[figure] if loss in present]


def scores_table(evidence: Evidence, figure: int) -> Table:
    """Return the test scores of every loss, tuned for each score; the best mean of a column is marked."""
    scores = FIGURE_SCORES[figure]
    bests = {score: _best_loss(evidence, figure, score) for score in scores}
    rows: list[Row] = []
    for loss in losses_of(evidence, figure):
        cells = [
            _score_cell(evidence, figure, loss, score, is_best=loss == bests[score])
            for score in scores
        ]
        seeds = seeds_text(result for result in evidence.figure(figure) if result.loss == loss)
        rows.append([LOSS_TITLES[loss], *cells, seeds])
    return Table(("test error, %", *map(score_label, scores), "seeds"), rows)


def _score_cell(evidence: Evidence, figure: int, loss: str, score: str, *, is_best: bool) -> Cell:
    if not evidence.has_tuned(figure, loss, score):
        return NOT_RUN
    mean = estimate(evidence.tuned(figure, loss, score))
    return Cell(estimate_text(mean, score), BEST if is_best else "")


def _best_loss(evidence: Evidence, figure: int, score: str) -> str | None:
    means = {loss: fmean(values) for loss, values in _values(evidence, figure, score).items()}
    best = min if is_error(score) else max
    return best(means, key=lambda loss: means[loss]) if means else None


def _values(evidence: Evidence, figure: int, score: str) -> dict[str, list[float]]:
    """Return the test scores of all losses that were tuned for this score, one a seed."""
    return {
        loss: evidence.tuned(figure, loss, score)
        for loss in losses_of(evidence, figure)
        if evidence.has_tuned(figure, loss, score)
    }


def differences_table(evidence: Evidence, figure: int) -> Table:
    """Return the Z-loss minus every other loss, with Welch's interval."""
    scores = FIGURE_SCORES[figure]
    rows: list[Row] = [
        [LOSS_TITLES[loss], *(_difference_cell(evidence, figure, loss, score) for score in scores)]
        for loss in losses_of(evidence, figure)
        if loss != "z_loss"
    ]
    return Table((f"{LOSS_TITLES['z_loss']} minus", *map(score_label, scores)), rows)


def _difference_cell(evidence: Evidence, figure: int, loss: str, score: str) -> Cell:
    values = _values(evidence, figure, score)
    if "z_loss" not in values or loss not in values:
        return NOT_RUN
    return difference_cell(compare(values["z_loss"], values[loss], score))


def close_calls(evidence: Evidence, figure: int) -> str:
    """Return the losses that are within a point of each other and have too few seeds to tell, by score."""
    return close_calls_text(
        {
            score: {
                LOSS_TITLES[loss]: values
                for loss, values in _values(evidence, figure, score).items()
            }
            for score in FIGURE_SCORES[figure]
        }
    )
