"""The report as a document: verdicts on all claims, every figure and table beside the paper's, and the methods."""

from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

from reproduction.report.claim_tables import claims_table
from reproduction.report.claims import JudgedClaim, judged_claims
from reproduction.report.evidence import Evidence, NotRunError
from reproduction.report.figures import FIGURES
from reproduction.report.figures.canvas import drawing
from reproduction.report.methods import methods_section, settings_section
from reproduction.report.published import ADDRESS, CITATION, SLIPS
from reproduction.report.summary import summary_section
from reproduction.report.topics import TOPICS
from reproduction.report.verdicts import RULES, Verdict
from zloss_lab.documents.document import (
    Block,
    Bullets,
    Code,
    Document,
    Heading,
    Link,
    Section,
    bullets,
    paragraph,
)
from zloss_lab.documents.html import html_of
from zloss_lab.durable import write_file


def write_report(evidence: Evidence, page: Path, figures: Path | None = None) -> list[Path]:
    """Write the page, and the figures as PNG files where a folder is given; return the written files."""
    written = {page: html_of(build_report(evidence)).encode()}
    if figures is not None:
        written |= {figures / f"{name}.png": png for name, png in _png_files(evidence)}
    for path, data in written.items():
        write_file(path, data)
    return list(written)


def _png_files(evidence: Evidence) -> Iterator[tuple[str, bytes]]:
    for name, draw in FIGURES.items():
        try:
            yield name, drawing(draw, evidence, "png")
        except NotRunError:  # the page has the command to run
            continue


def build_report(evidence: Evidence) -> Document:
    """Return the report."""
    claims = judged_claims(evidence)
    slips = bullets(f"{place}: {slip}" for place, slip in SLIPS)
    return Document(
        title="The Z-loss, reproduced",
        introduction=(
            paragraph(
                "Every claim, figure and table of the paper, measured again with this library. "
                "Built from the records alone."
            ),
            paragraph(Link(CITATION, ADDRESS), role="note"),
        ),
        links=(
            Link("claims", "#claims"),
            *(Link(topic.label, f"#{topic.key}") for topic in TOPICS),
            Link("methods", "#methods"),
            Link("slips of the paper", "#slips"),
            Link("what is not run", "#missing"),
            Link("settings", "#settings"),
        ),
        sections=(
            summary_section(evidence, claims),
            _claims_section(claims),
            *(topic.section(evidence, claims) for topic in TOPICS),
            methods_section(evidence),
            Section("slips", "Slips of the paper", (slips,)),
            _missing_section(claims),
            settings_section(evidence),
        ),
        style=resources.files("reproduction.report").joinpath("claims.css").read_text("utf-8"),
    )


def _claims_section(claims: Sequence[JudgedClaim]) -> Section:
    blocks = (
        claims_table(claims, role="prose claims"),
        Heading("How verdicts are given"),
        bullets(RULES),
    )
    return Section("claims", "Claims", blocks)


def _missing_section(claims: Sequence[JudgedClaim]) -> Section:
    """Return the commands to run, each once, with the claims that wait for it."""
    waiting: dict[str, list[str]] = {}
    for one in claims:
        if one.finding.verdict is Verdict.NOT_RUN:
            waiting.setdefault(one.finding.ours, []).append(str(one.number))
    items = tuple(
        (Code(command), f" for claims {', '.join(numbers)}") for command, numbers in waiting.items()
    )
    block: Block = Bullets(items) if items else paragraph("Every claim has its records.")
    return Section("missing", "What is not run", (block,))
