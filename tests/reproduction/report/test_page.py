"""The page: complete with any records, and independent of anything else."""

from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from reproduction.report.evidence import Evidence
from reproduction.report.figures import FIGURES
from reproduction.report.full_report import build_report
from reproduction.report.score_texts import TIMES
from tests.reproduction.report import made_up
from tests.test_language import dialect_faults, sentence_faults
from zloss_lab.documents.document import (
    Block,
    Bullets,
    Headlines,
    Inline,
    Paragraph,
    Picture,
)
from zloss_lab.documents.html import html_of
from zloss_lab.records import read_records
from zloss_lab.training.schedule import STAGES

EXPERIMENTS = ("figure2", "figure3", "figure4", "figure5", "table2")
COMMANDS = {name: f"python -m reproduction run {name}" for name in EXPERIMENTS}
COMMANDS["table2"] += " --corpus FOLDER --budget SECONDS"


def page_of(evidence: Evidence) -> str:
    return html_of(build_report(evidence))


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
    assert len(outline.sources) == len(FIGURES)
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
    made_up.keep(tmp_path / "results" / "table2.jsonl", lines)
    page = page_of(made_up.read(tmp_path))
    assert "alert(fil8)" in page
    assert "<script" not in page
    assert "&lt;made up&gt;" in page
    assert "&quot;&gt;&lt;b&gt; = &lt;i&gt;" in page
    assert Outline(page).faults == []


def test_the_page_is_a_function_of_the_records(evidence: Evidence, page: str) -> None:
    assert page_of(evidence) == page


def test_the_page_says_what_was_not_made_on_penn_treebank(tmp_path: Path, page: str) -> None:
    lines = list(made_up.tuned(2))
    for line in lines:
        line["settings"] = {"corpus": "my text", **line["settings"]}
    made_up.keep(tmp_path / "results" / "figure2.jsonl", lines)
    warning = "Figures 2 to 5 were made on my text; the paper has them on Penn Treebank."
    assert warning in page_of(made_up.read(tmp_path))
    assert "the paper has them on" not in page


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
    made_up.keep(tmp_path / "results" / "figure2.jsonl", lines)
    trials = "squared error 60, Taylor softmax 60, spherical softmax 60, sigmoid 24, softmax 60, Z-loss 48 to 96 trials"
    assert trials in page_of(made_up.read(tmp_path))


def test_the_prose_of_the_page_is_plain(evidence: Evidence) -> None:
    blocks = [block for section in build_report(evidence).sections for block in section.blocks]
    texts = [text for block in blocks for text in prose_of(block)]
    assert len(texts) > 60
    lists_of_names = ("Within a point, and needs",)
    for text in texts:
        if not text.startswith(lists_of_names):
            assert [*sentence_faults(text), *dialect_faults(text)] == [], text


def prose_of(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(content):
            yield plain(content)
        case Bullets(items):
            yield from map(plain, items)
        case Picture():
            yield from (block.alternative, block.caption)
        case Headlines(items):
            yield from (item.about for item in items)


def plain(content: Iterable[Inline]) -> str:
    return "".join(part if isinstance(part, str) else part.text for part in content)


def test_figure_4_is_not_told_as_the_effect_of_a_and_b(page: str) -> None:
    assert "Figure 4: trainings with settings for one error each" in page
    assert "it is not a and b alone that differ" in page


def test_nothing_is_left_to_run(page: str) -> None:
    assert "Every claim has its records." in page
    assert "not run yet" not in page


def test_without_any_record_the_page_says_what_to_run(nothing: Evidence) -> None:
    page = page_of(nothing)
    for command in COMMANDS.values():
        assert f"not run yet: <code>{command}</code>" in page
    assert (
        "<code>python -m reproduction run table2 --corpus FOLDER --converged</code> for claims"
        in page
    )
    assert "zloss bench model --networks net1 --device cuda" in page
    assert len(Outline(page).sources) == 1  # figure 1 is computed


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_any_one_experiment_makes_a_page(tmp_path: Path, folder: Path, name: str) -> None:
    made_up.keep(
        tmp_path / "results" / f"{name}.jsonl", read_records(folder / "results" / f"{name}.jsonl")
    )
    page = page_of(made_up.read(tmp_path))
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
    made_up.keep(tmp_path / "results" / "figure2.jsonl", lines)
    made_up.keep(tmp_path / "results" / "figure4.jsonl", made_up.curves(seeds=1))
    made_up.keep(tmp_path / "results" / "figure3.jsonl", list(made_up.sweep(seeds=1))[:1])
    page = page_of(made_up.read(tmp_path))
    assert len(Outline(page).sources) == 4
    assert f"{lines[0]['test']['scores']['mrr']:.4f}</span>" in page
