"""The page, its figures and the command: complete with any records, and nothing but itself."""

import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from reproduction.report import figures
from reproduction.report.documents import MARKDOWN_TABLES, markdown
from reproduction.report.evidence import Evidence
from reproduction.report.final_scores import (
    all_scores_tables,
    equal_time_table,
    final_tables,
    progress,
)
from reproduction.report.records import SOFTMAXES
from reproduction.report.report import build_report, write_report
from reproduction.report.results import close_calls, epochs_table, scores_table
from reproduction.report.scores import MINUS, TIMES
from reproduction.report.summary import HEADLINES
from reproduction.report.tables import Cell, Table
from tests.lab.command_line import zloss
from tests.reproduction.report import made_up
from zloss_lab.records import read_records
from zloss_lab.training.schedule import STAGES

EXPERIMENTS = ("figure2", "figure3", "figure4", "figure5", "table2")
COMMANDS = {name: f"zloss paper {name}" for name in EXPERIMENTS}
COMMANDS["table2"] += " --corpus FOLDER --budget SECONDS"


class Outline(HTMLParser):
    """Tags that do not close, and what the page would load or link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.sources: list[str] = []
        self.links: list[str] = []
        self.names: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        found = {name: value or "" for name, value in attrs}
        self.sources += [found["src"]] if "src" in found else []
        self.links += [found["href"]] if "href" in found else []
        self.names += [found["id"]] if "id" in found else []
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)


def test_the_page_needs_nothing_but_itself(page: str) -> None:
    outline = Outline(page)
    assert (outline.faults, outline.open) == ([], [])
    assert outline.tags.isdisjoint({"script", "link", "iframe", "object"})
    assert len(outline.sources) == len(figures.FIGURES)
    assert all(source.startswith("data:image/svg+xml;base64,") for source in outline.sources)
    assert "url(" not in page
    assert "@import" not in page


def test_links_lead_to_sections(page: str) -> None:
    outline = Outline(page)
    assert len(set(outline.names)) == len(outline.names)
    inside = {link.removeprefix("#") for link in outline.links if link.startswith("#")}
    assert inside <= set(outline.names)
    assert inside >= {"claims", "figure-3", "table-2", "methods", "slips", "missing"}


def test_what_records_say_is_escaped(tmp_path: Path) -> None:
    lines = list(made_up.models())
    for line in lines:
        line["corpus"] = f"<script>alert({line['corpus']})</script>"
        line["settings"] = {'"><b>': "<i>"}
    made_up.keep(tmp_path / "paper" / "table2.jsonl", lines)
    page = build_report(Evidence.read(tmp_path))
    assert "alert(fil8)" in page
    assert "<script" not in page
    assert "&lt;made up&gt;" in page
    assert "&quot;&gt;&lt;b&gt; = &lt;i&gt;" in page
    assert Outline(page).faults == []


def test_the_page_is_a_function_of_the_records(evidence: Evidence, page: str) -> None:
    assert build_report(evidence) == page


def test_the_page_says_what_was_not_made_on_penn_treebank(tmp_path: Path, page: str) -> None:
    lines = list(made_up.tuned(2))
    for line in lines:
        line["settings"] = {"corpus": "my text", **line["settings"]}
    made_up.keep(tmp_path / "paper" / "figure2.jsonl", lines)
    told = "Figures 2 to 5 were made on my text; those of the paper are of Penn Treebank."
    assert told in build_report(Evidence.read(tmp_path))
    assert "those of the paper are of" not in page


def test_the_page_says_how_it_was_done(tmp_path: Path, page: str) -> None:
    assert (
        f"net1 is [10 {TIMES} 512, 2048, 2048, 512], net2 is [10 {TIMES} 1024, 4096, 4096, 1024]."
        in page
    )
    assert f"linearly in {STAGES} stages" in page
    assert "batches of 200, extrapolated to the paper&#x27;s 150 million n-grams" in page
    assert "Test errors with b = 28, in %" in page
    lines = list(made_up.tuned(2))
    for line in lines:
        line["trials"] = {"z_loss": 96 if line["tuned_for"] == "mrr" else 48, "sigmoid": 24}.get(
            line["loss"], 60
        )
    made_up.keep(tmp_path / "paper" / "figure2.jsonl", lines)
    told = "squared error 60, Taylor softmax 60, spherical softmax 60, sigmoid 24, softmax 60, Z-loss 48 to 96 trials"
    assert told in build_report(Evidence.read(tmp_path))


def test_figure_4_is_not_told_as_the_effect_of_a_and_b(page: str) -> None:
    assert "Figure 4: trainings with settings for one error each" in page
    assert "it is not a and b alone that differ" in page


def test_nothing_is_left_to_run(page: str) -> None:
    assert "Every claim has its records." in page
    assert "not run yet" not in page


def test_without_any_record_the_page_says_what_to_run(nothing: Evidence) -> None:
    page = build_report(nothing)
    for command in COMMANDS.values():
        assert f"not run yet: <code>{command}</code>" in page
    assert "<code>zloss paper table2 --corpus FOLDER --converged</code> for claims" in page
    assert "zloss bench model --networks net1 --device cuda" in page
    assert len(Outline(page).sources) == 1  # figure 1 is computed


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_any_one_experiment_makes_a_page(tmp_path: Path, folder: Path, name: str) -> None:
    made_up.keep(
        tmp_path / "paper" / f"{name}.jsonl", read_records(folder / "paper" / f"{name}.jsonl")
    )
    page = build_report(Evidence.read(tmp_path))
    missing = [
        other for other in EXPERIMENTS if f"not run yet: <code>{COMMANDS[other]}</code>" in page
    ]
    assert missing == [other for other in EXPERIMENTS if other != name]


def test_one_seed_and_one_loss_make_a_page(tmp_path: Path) -> None:
    lines = [
        line
        for line in made_up.tuned(2, seeds=1)
        if line["loss"] == "z_loss" and line["tuned_for"] == "mrr"
    ]
    made_up.keep(tmp_path / "paper" / "figure2.jsonl", lines)
    made_up.keep(tmp_path / "paper" / "figure4.jsonl", made_up.curves(seeds=1))
    made_up.keep(tmp_path / "paper" / "figure3.jsonl", list(made_up.sweep(seeds=1))[:1])
    page = build_report(Evidence.read(tmp_path))
    assert len(Outline(page).sources) == 4
    assert f"{lines[0]['test']['mrr']:.4f}</span>" in page


# ---- tables ----------------------------------------------------------------------------------------------------------


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
        if isinstance(cell, Cell) and cell.kind == "best"
    ]
    assert len(best) == 7
    assert rows(table)["sigmoid"][0] in best
    assert re.fullmatch(r"7\d\.\d\d ± 0\.\d\d", rows(table)["sigmoid"][0])
    assert {row[-1] for row in rows(table).values()} == {"3"}


def test_close_calls_are_flagged_until_there_are_five_seeds(
    tmp_path: Path, evidence: Evidence
) -> None:
    assert "; top-5, top-50, top-100 (sigmoid, softmax, Z-loss)" in close_calls(evidence, 2)
    made_up.keep(tmp_path / "paper" / "figure2.jsonl", made_up.tuned(2, seeds=5))
    assert close_calls(Evidence.read(tmp_path), 2) == ""


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
    best = [[isinstance(cell, Cell) and cell.kind == "best" for cell in row] for row in table.rows]
    assert [sum(column) for column in zip(*best, strict=True)] == [0, *[1] * 7, 0, 0]
    assert re.match(r"Within a point, and needs 5 seeds: .*top-\d+ \(.*H-softmax net1, .*\)", note)
    assert "constant" not in note
    trained = evidence.models("fil8", "Z-loss net1", "fixed")
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
            getattr(one, split)["top_1_error"] for one in evidence.models(text, model, "fixed")
        )

    leads = []
    for text in ("fil8", "epd48"):
        rivals = [model for model in SOFTMAXES if evidence.models(text, model, "fixed")]
        rival = min(rivals, key=lambda model: mean(text, model, "valid"))
        leads.append(100 * (mean(text, "Z-loss net1", "test") - mean(text, rival, "test")))
    (headline,) = [one for one in HEADLINES if "the same time" in one.what]
    assert headline.ours(evidence).replace(MINUS, "-").startswith(f"{max(leads):+.2f} ±")


@pytest.mark.parametrize("name", MARKDOWN_TABLES)
def test_markdown_has_one_shape_or_says_what_to_run(
    name: str, folder: Path, tmp_path: Path
) -> None:
    tables = re.split(r"\n\n", markdown(name, folder))
    widths = [
        {len(re.findall(r"(?<!\\)\|", line)) for line in part.splitlines()}
        for part in tables
        if part[0] == "|"
    ]
    assert widths
    assert all(len(width) == 1 for width in widths)
    (tmp_path / "paper").mkdir()
    if name not in ("paper_claims", "paper_epochs"):
        assert re.fullmatch(r"not run yet: `zloss paper \w+( --.*)?`\.", markdown(name, tmp_path))


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_figure_1_is_the_z_loss(nothing: Evidence) -> None:
    axes: Any = figures.draw_z_loss(nothing).axes[0]
    asymptote, curve = axes.lines[:2]
    for z, loss in zip(*curve.get_data(), strict=True):
        assert loss == pytest.approx(math.log1p(math.exp(0.1 * (10 - z))) / 0.1)
    assert curve.get_xdata()[[0, -1]] == pytest.approx([-math.sqrt(999), math.sqrt(999)])
    assert (asymptote.get_xdata() + asymptote.get_ydata()) == pytest.approx(10.0)


def test_figure_2_shows_what_is_far_away_as_an_arrow(evidence: Evidence) -> None:
    panels: Any = figures.FIGURES["figure2"](evidence).axes
    shown = [panel for panel in panels if panel.get_visible()]
    assert [panel.get_title() for panel in shown][:2] == ["top-1 error, %", "top-5 error, %"]
    assert len(shown) == 7
    for panel in shown[:6]:
        texts = [text.get_text() for text in panel.texts]
        assert sum(text.endswith(" →") for text in texts) == 1, "squared error"
        assert len(texts) == 6


def test_figure_5_shows_all_losses(evidence: Evidence) -> None:
    for panel in figures.FIGURES["figure5"](evidence).axes:
        low, high = panel.get_xlim()
        assert len(panel.containers) == 5
        assert all(low < float(one.lines[0].get_xdata()[0]) < high for one in panel.containers)  # type: ignore[attr-defined]


def test_figure_3_marks_the_minima(evidence: Evidence) -> None:
    texts = [panel.texts[0].get_text() for panel in figures.FIGURES["figure3"](evidence).axes]
    assert texts == ["a = 0.05", "a = 0.2", "a = 0.2"]


def test_figure_4_names_every_curve_in_every_panel(evidence: Evidence) -> None:
    for panel in figures.FIGURES["figure4"](evidence).axes:
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
        line | {"budget": "9 epochs", "train_s": 1e4}
        for line in lines
        if line["budget"] == "converged"
    ]
    made_up.keep(tmp_path / "paper" / "table2.jsonl", lines)
    evidence = Evidence.read(tmp_path)
    panels: Any = figures.FIGURES["table2"](evidence).axes
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
        points for model, points in progress(evidence)["fil8"].items() if model == "Z-loss net1"
    )
    assert [point.trainings[0].budget for point in net1] == ["converged", "fixed", "9 epochs"]


@pytest.mark.parametrize(
    ("seconds", "told"), [((40, 200), ["1 min", "3 min"]), ((150, 250), ["2.44 min", "4.27 min"])]
)
def test_times_are_told_however_few_they_are(
    seconds: tuple[float, float], told: list[str], tmp_path: Path
) -> None:
    lines = [line for line in made_up.models() if line["budget"] == "fixed"]
    of_model = {
        model: seconds[number % 2]
        for number, model in enumerate(dict.fromkeys(one["model"] for one in lines))
    }
    made_up.keep(
        tmp_path / "paper" / "table2.jsonl",
        [line | {"train_s": of_model[line["model"]]} for line in lines],
    )
    for panel in figures.FIGURES["table2"](Evidence.read(tmp_path)).axes:
        assert [label.get_text() for label in panel.get_xticklabels()] == told


def test_without_times_nothing_moves(tmp_path: Path) -> None:
    """A page is made all the same, of the constant model alone or of trainings that shared their device."""
    lines = list(made_up.models())
    shared = [line | {"alone": False} for line in lines if line["budget"] == "converged"]
    for kept in ([line for line in lines if line["model"] == "constant"], shared):
        made_up.keep(tmp_path / "paper" / "table2.jsonl", kept)
        written = write_report(
            Evidence.read(tmp_path), tmp_path / "page.html", tmp_path / "pictures"
        )
        assert "table2.png" not in [path.name for path in written]


# ---- files and the command -------------------------------------------------------------------------------------------


def test_png_files_of_what_is_there(tmp_path: Path, nothing: Evidence) -> None:
    written = write_report(nothing, tmp_path / "page.html", tmp_path / "pictures")
    assert [path.name for path in written] == ["page.html", "figure1.png"]
    assert (tmp_path / "pictures" / "figure1.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_writes_the_page(
    tmp_path: Path, folder: Path, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "r [bold] [" / "x].html"  # no markup, though it looks like some
    assert zloss("report", "--to", place, "--records", folder) == 0
    assert place.read_text() == page
    told = capsys.readouterr().out
    assert told.startswith(f"wrote {place}\n")
    assert re.search(r"\d+ reproduced, 2 better, 2 partly, 1 not reproduced", told)


@pytest.mark.parametrize(("make", "complaint"), [(False, "no records in"), (True, "line 1: ")])
def test_mistakes_are_one_line(
    tmp_path: Path, make: bool, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if make:
        made_up.keep(tmp_path / "paper" / "figure3.jsonl", [{"figure": 3}])
    assert zloss("report", "--to", tmp_path / "r.html", "--records", tmp_path) == 1
    told = capsys.readouterr().err.strip()
    assert told.startswith("error: ")
    assert complaint in told
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "r.html").exists()
