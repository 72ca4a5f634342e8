"""The figures of the report."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from reproduction.report.evidence import Evidence
from reproduction.report.figures import FIGURES
from reproduction.report.figures.z_loss_curve import draw_z_loss
from reproduction.report.full_report import write_report
from reproduction.report.large_text_tables import (
    trainings_by_time,
)
from tests.reproduction.report import made_up


def test_figure_1_is_the_z_loss(nothing: Evidence) -> None:
    axes: Any = draw_z_loss(nothing).axes[0]
    asymptote, curve = axes.lines[:2]
    for z, loss in zip(*curve.get_data(), strict=True):
        assert loss == pytest.approx(math.log1p(math.exp(0.1 * (10 - z))) / 0.1)
    assert curve.get_xdata()[[0, -1]] == pytest.approx([-math.sqrt(999), math.sqrt(999)])
    assert (asymptote.get_xdata() + asymptote.get_ydata()) == pytest.approx(10.0)


def test_figure_2_shows_what_is_far_away_as_an_arrow(evidence: Evidence) -> None:
    panels: Any = FIGURES["figure2"](evidence).axes
    shown = [panel for panel in panels if panel.get_visible()]
    assert [panel.get_title() for panel in shown][:2] == ["top-1 error, %", "top-5 error, %"]
    assert len(shown) == 7
    for panel in shown[:6]:
        texts = [text.get_text() for text in panel.texts]
        assert sum(text.endswith(" →") for text in texts) == 1, "squared error"
        assert len(texts) == 6


def test_figure_5_shows_all_losses(evidence: Evidence) -> None:
    for panel in FIGURES["figure5"](evidence).axes:
        low, high = panel.get_xlim()
        assert len(panel.containers) == 5
        assert all(low < float(one.lines[0].get_xdata()[0]) < high for one in panel.containers)  # type: ignore[attr-defined]


def test_figure_3_marks_the_minima(evidence: Evidence) -> None:
    texts = [panel.texts[0].get_text() for panel in FIGURES["figure3"](evidence).axes]
    assert texts == ["a = 0.05", "a = 0.2", "a = 0.2"]


def test_figure_4_names_every_curve_in_every_panel(evidence: Evidence) -> None:
    for panel in FIGURES["figure4"](evidence).axes:
        heights = sorted(text.xy[1] for text in panel.texts)  # type: ignore[attr-defined]
        assert {text.get_text().strip() for text in panel.texts} == {
            "top-1",
            "top-5",
            "top-10",
            "top-50",
        }
        low, high = panel.get_ylim()
        gaps = [(after - before) / (high - low) for before, after in pairwise(heights)]
        assert min(gaps) > 0.08


def test_models_on_large_texts_move_to_the_right(tmp_path: Path) -> None:
    """From the shortest training to the longest, which is not always the one until convergence."""
    lines = list(made_up.models())
    lines += [
        line | {"budget": "9_epochs", "train_s": 1e4}
        for line in lines
        if line.get("budget") == "converged"
    ]
    made_up.keep(tmp_path / "results" / "table2.jsonl", lines)
    evidence = made_up.read(tmp_path)
    panels: Any = FIGURES["table2"](evidence).axes
    assert [panel.get_title() for panel in panels][:2] == [
        "fil8: top-1 error, %",
        "fil8: top-100 error, %",
    ]
    assert len(panels) == 4
    for panel in panels:
        for drawn in panel.containers:
            seconds = list(drawn.lines[0].get_xdata())
            assert seconds == sorted(seconds)
            assert len(seconds) == 3
            assert seconds[-1] == 1e4
    (net1,) = (
        points
        for model, points in trainings_by_time(evidence)["fil8"].items()
        if model == made_up.NET1
    )
    assert [point.trainings[0].budget for point in net1] == ["converged", "fixed", "9_epochs"]


@pytest.mark.parametrize(
    ("seconds", "labels"), [((40, 200), ["1 min", "3 min"]), ((150, 250), ["2.44 min", "4.27 min"])]
)
def test_times_are_told_however_few_they_are(
    seconds: tuple[float, float], labels: list[str], tmp_path: Path
) -> None:
    lines = [line for line in made_up.models() if line.get("budget") == "fixed"]
    of_model = {
        model: seconds[number % 2]
        for number, model in enumerate(dict.fromkeys(one["model"] for one in lines))
    }
    made_up.keep(
        tmp_path / "results" / "table2.jsonl",
        [line | {"train_s": of_model[line["model"]]} for line in lines],
    )
    for panel in FIGURES["table2"](made_up.read(tmp_path)).axes:
        assert [label.get_text() for label in panel.get_xticklabels()] == labels


def test_without_times_nothing_moves(tmp_path: Path) -> None:
    """A page is made all the same, of the constant model alone or of trainings that shared their device."""
    lines = list(made_up.models())
    shared = [line | {"is_alone": False} for line in lines if line.get("budget") == "converged"]
    for kept in ([line for line in lines if line["model"] == "constant"], shared):
        made_up.keep(tmp_path / "results" / "table2.jsonl", kept)
        written = write_report(
            made_up.read(tmp_path), tmp_path / "page.html", tmp_path / "pictures"
        )
        assert "table2.png" not in [path.name for path in written]
