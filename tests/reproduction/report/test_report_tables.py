"""The tables of the report, and the excerpts for the documents."""

import re
from pathlib import Path
from statistics import fmean

import pytest

from reproduction.large_text_models import SOFTMAXES
from reproduction.report.epoch_tables import epochs_table
from reproduction.report.evidence import Evidence
from reproduction.report.excerpts import EXCERPTS, excerpt_markdown
from reproduction.report.large_text_tables import (
    all_scores_tables,
    equal_time_table,
    final_tables,
)
from reproduction.report.loss_tables import close_calls, scores_table
from reproduction.report.score_texts import MINUS
from reproduction.report.summary import KEY_NUMBERS
from tests.reproduction.report import made_up
from zloss_lab.documents.document import Cell, Table


def rows(table: Table) -> dict[str, list[str]]:
    texts = [[cell.text if isinstance(cell, Cell) else cell for cell in row] for row in table.rows]
    return {row[0]: row[1:] for row in texts}


def test_table_1_has_the_paper_beside_ours(evidence: Evidence) -> None:
    table = epochs_table(evidence)
    gpu = table.columns.index("GPU, output: paper") - 1
    assert rows(table)["softmax"][gpu : gpu + 2] == ["4.44 days", "16.7 h"]
    assert rows(table)["Z-loss"][gpu : gpu + 2] == ["1.24 h", "12.5 min"]
    assert rows(table)["H-softmax / Z-loss"][gpu : gpu + 2] == [
        "8.77\N{MULTIPLICATION SIGN}",
        "9\N{MULTIPLICATION SIGN}",
    ]
    assert rows(table)["H-softmax"][0] == "/"


def test_losses_have_means_intervals_and_seeds(evidence: Evidence) -> None:
    table = scores_table(evidence, 2)
    best = [
        cell.text
        for row in table.rows
        for cell in row
        if isinstance(cell, Cell) and cell.meaning == "best"
    ]
    assert len(best) == 7
    assert rows(table)["sigmoid"][0] in best
    assert re.fullmatch(r"7\d\.\d\d ± 0\.\d\d", rows(table)["sigmoid"][0])
    assert {row[-1] for row in rows(table).values()} == {"3"}


def test_close_calls_are_flagged_until_there_are_five_seeds(
    tmp_path: Path, evidence: Evidence
) -> None:
    assert "; top-5, top-50, top-100 (sigmoid, softmax, Z-loss)" in close_calls(evidence, 2)
    made_up.keep(tmp_path / "results" / "figure2.jsonl", made_up.tuned(2, seeds=5))
    assert close_calls(made_up.read(tmp_path), 2) == ""


def test_table_2_has_every_text_and_budget(evidence: Evidence) -> None:
    tables = dict(final_tables(evidence))
    assert list(tables) == [
        "fil8, 213,271 classes, 2 min of training each",
        "epd48, 155,880 classes, 2 min of training each",
        "fil8, 213,271 classes, trained until converged",
        "epd48, 155,880 classes, trained until converged",
    ]
    found = rows(tables["fil8, 213,271 classes, trained until converged"])
    assert found["constant"][0::2][:3] == ["95.44", "65.58", "/"]
    assert found["H-softmax net1"][4:6] == ["4.08 days", "6.67 min"]
    assert found["softmax net1"][1] == "not run"
    assert found["Z-loss net1"][-1] == "3"


def test_all_scores_of_table_2_mark_the_best_of_every_column(evidence: Evidence) -> None:
    title, table, note = next(all_scores_tables(evidence))
    assert title == "fil8, 213,271 classes, 2 min of training each"
    best = [
        [isinstance(cell, Cell) and cell.meaning == "best" for cell in row] for row in table.rows
    ]
    assert [sum(column) for column in zip(*best, strict=True)] == [0, *[1] * 7, 0, 0]
    assert re.match(r"Within a point, and needs 5 seeds: .*top-\d+ \(.*H-softmax net1, .*\)", note)
    assert "constant" not in note
    trained = evidence.trainings("fil8", made_up.NET1, "fixed")
    mean = 100 * sum(one.test["top_50_error"] for one in trained) / len(trained)
    assert rows(table)["Z-loss net1"][4].startswith(f"{mean:.2f} ±")


def test_texts_stand_side_by_side_at_equal_time(evidence: Evidence) -> None:
    table = equal_time_table(evidence)
    assert table.columns[1:] == tuple(
        f"{text}: top-{k}" for text in ("fil8", "epd48") for k in (1, 10, 100)
    )
    (_, whole, _), (_, other, _), *_ = all_scores_tables(evidence)
    for model, cells in rows(table).items():
        assert cells == [rows(text)[model][place] for text in (whole, other) for place in (0, 2, 5)]


def test_the_headline_of_equal_time_is_about_the_best_softmax_on_the_closest_text(
    evidence: Evidence,
) -> None:
    def mean(text: str, model: str, split: str) -> float:
        return fmean(
            getattr(one, split)["top_1_error"] for one in evidence.trainings(text, model, "fixed")
        )

    leads = []
    for text in ("fil8", "epd48"):
        rivals = [model for model in SOFTMAXES if evidence.trainings(text, model, "fixed")]
        rival = min(rivals, key=lambda model: mean(text, model, "valid"))
        leads.append(100 * (mean(text, made_up.NET1, "test") - mean(text, rival, "test")))
    (number,) = [one for one in KEY_NUMBERS if "the same time" in one.about]
    assert number.ours(evidence).replace(MINUS, "-").startswith(f"{max(leads):+.2f} ±")


@pytest.mark.parametrize("name", EXCERPTS)
def test_markdown_has_one_shape_or_says_what_to_run(
    name: str, folder: Path, tmp_path: Path
) -> None:
    tables = re.split(r"\n\n", excerpt_markdown(name, made_up.read(folder)))
    widths = [
        {len(re.findall(r"(?<!\\)\|", line)) for line in part.splitlines()}
        for part in tables
        if part[0] == "|"
    ]
    assert widths
    assert all(len(width) == 1 for width in widths)
    (tmp_path / "results").mkdir()
    if name not in ("paper_claims", "paper_epochs"):
        command = r"`python -m reproduction run \w+( --.*)?`"
        missing = excerpt_markdown(name, made_up.read(tmp_path)).replace("\n", " ")
        assert re.fullmatch(rf"not run yet: {command}\.", missing)
