"""The Z-loss in the time of a softmax: the trainings that are compared, and the table of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from reproduction.large_text_models import model_title
from reproduction.report.comparisons import compare_models
from reproduction.report.evidence import Evidence, NotRunError
from reproduction.report.same_time_tables import SAME_TIME_NOTE, same_time_tables
from reproduction.report.table_cells import difference_cell
from reproduction.scores import ERRORS, top
from tests.reproduction.report import made_up
from tests.reproduction.report.judging import with_records
from tests.reproduction.report.made_up import HIERARCHICAL, SAMPLED, Line
from zloss_lab.documents.document import Cell, Table

# To converge, sampled softmax takes longer than the quick one, and hierarchical softmax longer than the slow one.
SLOW, QUICK = made_up.NET2, made_up.NET1


def evidence_of(folder: Path, lines: Iterable[Line]) -> Evidence:
    return with_records(folder, "table2", lines)


def converged(valid: Mapping[str, Mapping[str, float]]) -> list[Line]:
    """Return the lines of fil8 that converged, with validation scores by model."""
    lines = [
        line
        for line in made_up.models(seeds=5)
        if (line["corpus"], line.get("budget")) == ("fil8", "converged")
    ]
    return [made_up.with_scores(line, "valid", **valid.get(line["model"], {})) for line in lines]


def table_of_fil8(evidence: Evidence, *, with_fixed: bool = True) -> Table:
    return dict(same_time_tables(evidence, with_fixed=with_fixed))["fil8, 213,271 classes"]


def cells(table: Table, start: str) -> list[Cell]:
    (row,) = (row for row in table.rows if str(row[0]).startswith(start))
    return [cell for cell in row if isinstance(cell, Cell)]


def expected(evidence: Evidence, model: str, softmax: str, score: str) -> Cell:
    first, second = (evidence.trainings("fil8", name, "converged") for name in (model, softmax))
    return difference_cell(compare_models(first, second, score))


def test_what_takes_longer_than_the_softmax_is_not_compared_with_it(tmp_path: Path) -> None:
    best = dict.fromkeys(ERRORS, 0.01)
    evidence = evidence_of(tmp_path, converged({SLOW: best, QUICK: dict.fromkeys(ERRORS, 0.02)}))
    table = table_of_fil8(evidence)
    for softmax, model in ((SAMPLED, QUICK), (HIERARCHICAL, SLOW)):
        assert cells(table, model_title(softmax)) == [
            expected(evidence, model, softmax, score) for score in ERRORS
        ]


def test_every_score_has_the_model_that_validates_best_at_it(tmp_path: Path) -> None:
    evidence = evidence_of(
        tmp_path,
        converged({SLOW: {top(1): 0.01, top(20): 0.9}, QUICK: {top(1): 0.9, top(20): 0.01}}),
    )
    found = dict(zip(ERRORS, cells(table_of_fil8(evidence), "H-softmax net1"), strict=True))
    assert found[top(1)] == expected(evidence, SLOW, HIERARCHICAL, top(1))
    assert found[top(20)] == expected(evidence, QUICK, HIERARCHICAL, top(20))


def test_softmaxes_stand_from_the_shortest_training_to_the_longest_with_what_their_time_went_to(
    evidence: Evidence,
) -> None:
    rows = [
        ("H-softmax net1, fixed time", "2 min"),
        ("sampled softmax net1, fixed time", "2 min"),
        ("sampled softmax net1, converged", "4.17 min"),
        ("H-softmax net1, converged", "6.67 min"),
    ]
    assert [(row[0], row[1]) for row in table_of_fil8(evidence).rows] == rows
    assert [(row[0], row[1]) for row in table_of_fil8(evidence, with_fixed=False).rows] == rows[2:]
    assert [title for title, _ in same_time_tables(evidence)] == [
        "fil8, 213,271 classes",
        "epd48, 155,880 classes",
    ]


def test_a_fixed_time_that_ended_a_step_later_is_the_same_time(tmp_path: Path) -> None:
    late = [
        line | {"train_s": 120.5} if line["model"].startswith("z_loss") else line
        for line in made_up.models()
        if line.get("budget") in ("fixed", None)
    ]
    assert len(table_of_fil8(evidence_of(tmp_path, late)).rows) == 2


def test_a_softmax_that_was_done_before_any_z_loss_has_no_row(tmp_path: Path) -> None:
    lines = [
        line | ({"train_s": 50.0} if "sampled" in line["model"] else {}) for line in converged({})
    ]
    (row,) = table_of_fil8(evidence_of(tmp_path, lines)).rows
    assert str(row[0]).startswith("H-softmax net1")


def test_the_page_has_it_where_there_are_times(page: str, nothing: Evidence) -> None:
    assert "The Z-loss in the time of a softmax" in page
    assert SAME_TIME_NOTE.split("'")[0] in page
    with pytest.raises(NotRunError, match="python -m reproduction run table2"):
        list(same_time_tables(nothing))
