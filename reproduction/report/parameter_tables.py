"""Figures 3 and 4 as tables: errors by a, and the lowest errors of the four trainings."""

from statistics import fmean

from reproduction.paper_figures import CURVE_ERRORS
from reproduction.report.claims.parameters import minimum
from reproduction.report.evidence import Evidence, estimates
from reproduction.report.score_texts import estimate_text, score_label
from reproduction.scores import ERRORS
from zloss_lab.documents.document import BEST, Cell, Row, Table
from zloss_lab.seed_intervals import estimate


def sweep_table(evidence: Evidence) -> Table:
    """Return the test errors of figure 3 by a; the lowest of a column is marked."""
    columns = {score: estimates(evidence.sweep(score)) for score in ERRORS}
    lowest = {score: minimum(evidence.sweep(score)) for score in ERRORS}
    rows: list[Row] = [
        [
            f"{a:g}",
            *(
                Cell(estimate_text(columns[score][a], score), BEST if a == lowest[score] else "")
                for score in ERRORS
            ),
            str(columns[ERRORS[0]][a].seeds),
        ]
        for a in columns[ERRORS[0]]
    ]
    return Table(("a", *map(score_label, ERRORS), "seeds"), rows)


def curves_table(evidence: Evidence) -> Table:
    """Return the lowest validation errors of the four models of figure 4; the best of a column is marked."""
    trainings = {model: evidence.curves(model) for model in CURVE_ERRORS}
    lowest = {
        score: {model: [one.best(score) for one in curves] for model, curves in trainings.items()}
        for score in CURVE_ERRORS
    }
    best = {score: min(map(fmean, by_model.values())) for score, by_model in lowest.items()}
    rows: list[Row] = []
    for model, curves in trainings.items():
        cells = [
            Cell(
                estimate_text(estimate(lowest[score][model]), score),
                BEST if fmean(lowest[score][model]) == best[score] else "",
            )
            for score in CURVE_ERRORS
        ]
        a, b = curves[0].a, curves[0].b
        rows.append([score_label(model), f"{a:g}", f"{b:g}", *cells, str(len(curves))])
    return Table(("tuned for", "a", "b", *map(score_label, CURVE_ERRORS), "seeds"), rows)
