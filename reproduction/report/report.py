"""The report: one page with verdicts on all claims, every figure and table beside the paper's, and how it was done."""

from collections.abc import Iterator
from pathlib import Path

from reproduction.report.claims import Judged, judged
from reproduction.report.evidence import Evidence, NotRunError
from reproduction.report.figures import FIGURES, picture
from reproduction.report.methods import provenance_table, settings_table, statements
from reproduction.report.page import Html, boxed, bullets, document, element, paragraph, section
from reproduction.report.published import ADDRESS, CITATION, SLIPS
from reproduction.report.results import claims_table
from reproduction.report.summary import summary
from reproduction.report.topics import TOPICS, topic_section
from reproduction.report.verdicts import RULES, Verdict
from zloss_lab.durable import write_file

TITLE = "The Z-loss, reproduced"


def write_report(evidence: Evidence, page: Path, figures: Path | None = None) -> list[Path]:
    """Write the page, and the figures as PNG files where a folder is given; returns what was written."""
    written = {page: build_report(evidence).encode()}
    if figures is not None:
        written |= {figures / f"{name}.png": data for name, data in _pngs(evidence)}
    for path, data in written.items():
        write_file(path, data)
    return list(written)


def _pngs(evidence: Evidence) -> Iterator[tuple[str, bytes]]:
    for name, draw in FIGURES.items():
        try:
            yield name, picture(draw, evidence, "png")
        except NotRunError:  # the page says so
            continue


def build_report(evidence: Evidence) -> str:
    """The page as text."""
    claims = judged(evidence)
    topics = [topic_section(evidence, claims, topic) for topic in TOPICS]
    return document(
        TITLE,
        _head(),
        summary(evidence, claims),
        _claims(claims),
        *topics,
        _methods(evidence),
        section(
            "Slips of the paper", bullets(f"{where}: {what}" for where, what in SLIPS), name="slips"
        ),
        _missing(claims),
        _settings(evidence),
    )


def _head() -> Html:
    links = [
        ("claims", "claims"),
        *((topic.name, topic.label) for topic in TOPICS),
        ("methods", "methods"),
    ]
    links += [
        ("slips", "slips of the paper"),
        ("missing", "what is not run"),
        ("settings", "settings"),
    ]
    items = [element("li", element("a", text, href=f"#{name}")) for name, text in links]
    source = element("a", CITATION, href=ADDRESS)
    lead = "Every claim, figure and table of the paper, measured again with this library. Built from the records alone."
    return element(
        "header",
        element("h1", TITLE),
        paragraph(lead),
        paragraph(source, css="note"),
        element("nav", element("ul", *items)),
    )


def _claims(claims: list[Judged]) -> Html:
    return section(
        "Claims",
        boxed(claims_table(claims), css="prose claims"),
        element("h3", "How verdicts are given"),
        bullets(RULES),
        name="claims",
    )


def _methods(evidence: Evidence) -> Html:
    return section(
        "Methods",
        bullets(statements(evidence)),
        element("h3", "Machines, versions and commits"),
        boxed(provenance_table(evidence), css="prose"),
        name="methods",
    )


def _settings(evidence: Evidence) -> Html:
    table = settings_table(evidence)
    shown = boxed(table, css="prose") if table.rows else paragraph("Nothing was trained yet.")
    return section("Settings", shown, name="settings")


def _missing(claims: list[Judged]) -> Html:
    """What to run, each command once, with the claims that wait for it."""
    waiting: dict[str, list[str]] = {}
    for one in claims:
        if one.finding.verdict is Verdict.NOT_RUN:
            waiting.setdefault(one.finding.ours, []).append(str(one.number))
    items = [
        Html(f"{element('code', command)} for claims {', '.join(numbers)}")
        for command, numbers in waiting.items()
    ]
    told = bullets(items) if items else paragraph("Every claim has its records.")
    return section("What is not run", told, name="missing")
