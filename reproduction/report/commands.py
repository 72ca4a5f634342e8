"""The command line of the report: `zloss report`."""

from pathlib import Path
from typing import Annotated

import typer

from reproduction.report.claims import counts, judged
from reproduction.report.evidence import Evidence
from reproduction.report.report import write_report
from zloss_lab.terminal import console, print_plainly


def report(
    page: Annotated[Path, typer.Option("--to", help="the HTML file to write")] = Path(
        "report.html"
    ),
    records: Annotated[Path, typer.Option(help="folder with paper/ and records/")] = Path(
        "benchmarks"
    ),
    figures: Annotated[
        Path | None, typer.Option(help="folder for the figures as PNG files too")
    ] = None,
) -> None:
    """The reproduction of the paper as one HTML page, from the records alone: nothing is trained.

    \b
    zloss report --to report.html --figures figures
    """
    evidence = Evidence.read(records)
    for path in write_report(evidence, page, figures):
        print_plainly(console, f"wrote {path}")
    told = (f"{count} {verdict}" for verdict, count in counts(judged(evidence)).items() if count)
    console.print(", ".join(told), highlight=False)
