"""The Z-loss in the time of a softmax: which of its trainings are compared, and what is said of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from reproduction.report.corpus_checks import duel_of_models
from reproduction.report.evidence import Evidence, NotRunError
from reproduction.report.in_time import IN_TIME_NOTE, in_time_tables
from reproduction.report.results import difference_cell
from reproduction.report.scores import ERRORS, top
from reproduction.report.tables import Cell, Table
from tests.reproduction.report import made_up

SLOW, QUICK = (
    "Z-loss net2",
    "Z-loss net1",
)  # until converged; sampled softmax lies between them, hierarchical above


def evidence_of(folder: Path, lines: Iterable[dict[str, Any]]) -> Evidence:
    made_up.keep(folder / "paper" / "table2.jsonl", lines)
    return Evidence.read(folder)


def converged(valid: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Those of fil8 that converged, with validation scores by model."""
    lines = [
        line
        for line in made_up.models(seeds=5)
        if (line["corpus"], line["budget"]) == ("fil8", "converged")
    ]
    return [line | {"valid": line["valid"] | valid.get(line["model"], {})} for line in lines]


def table_of_fil8(evidence: Evidence, *, with_fixed: bool = True) -> Table:
    return dict(in_time_tables(evidence, with_fixed=with_fixed))["fil8, 213,271 classes"]


def cells(table: Table, start: str) -> list[Cell]:
    (row,) = (row for row in table.rows if str(row[0]).startswith(start))
    return [cell for cell in row if isinstance(cell, Cell)]


def expected(evidence: Evidence, model: str, softmax: str, score: str) -> Cell:
    first, second = (evidence.models("fil8", name, "converged") for name in (model, softmax))
    return difference_cell(duel_of_models(first, second, score))


def test_what_takes_longer_than_the_softmax_is_not_compared_with_it(tmp_path: Path) -> None:
    best = dict.fromkeys(ERRORS, 0.01)
    evidence = evidence_of(tmp_path, converged({SLOW: best, QUICK: dict.fromkeys(ERRORS, 0.02)}))
    table = table_of_fil8(evidence)
    for softmax, model in (("sampled softmax net1", QUICK), ("H-softmax net1", SLOW)):
        assert cells(table, softmax) == [
            expected(evidence, model, softmax, score) for score in ERRORS
        ]


def test_every_score_has_the_model_that_validates_best_at_it(tmp_path: Path) -> None:
    evidence = evidence_of(
        tmp_path,
        converged({SLOW: {top(1): 0.01, top(20): 0.9}, QUICK: {top(1): 0.9, top(20): 0.01}}),
    )
    found = dict(zip(ERRORS, cells(table_of_fil8(evidence), "H-softmax net1"), strict=True))
    assert found[top(1)] == expected(evidence, SLOW, "H-softmax net1", top(1))
    assert found[top(20)] == expected(evidence, QUICK, "H-softmax net1", top(20))


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
    assert [title for title, _ in in_time_tables(evidence)] == [
        "fil8, 213,271 classes",
        "epd48, 155,880 classes",
    ]


def test_a_fixed_time_that_ended_a_step_later_is_the_same_time(tmp_path: Path) -> None:
    late = [
        line | {"train_s": 120.5} if line["model"].startswith("Z-loss") else line
        for line in made_up.models()
        if line["budget"] in ("fixed", None)
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
    assert IN_TIME_NOTE.split("'")[0] in page
    with pytest.raises(NotRunError, match="zloss paper table2"):
        list(in_time_tables(nothing))
