"""The command `python -m reproduction report`."""

from pathlib import Path
from typing import Annotated

import typer

from reproduction.report.claims import judged_claims, verdict_counts
from reproduction.report.evidence import Evidence
from reproduction.report.full_report import write_report
from zloss_lab.terminal import console, print_plainly

RECORDS, TIMINGS = Path("reproduction/records"), Path("benchmarks/records")  # of a checkout


def report(
    page: Annotated[Path, typer.Option("--to", help="the HTML file to write")] = Path(
        "report.html"
    ),
    records: Annotated[
        Path | None,
        typer.Option(help="folder of the experiments' records", show_default=str(RECORDS)),
    ] = None,
    timings: Annotated[
        Path | None,
        typer.Option(help="folder of the benchmarks' records", show_default=str(TIMINGS)),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="folder for the figures as PNG files too")
    ] = None,
) -> None:
    """Write the reproduction of the paper as one HTML page, from the records alone: nothing is trained.

    \b
    python -m reproduction report --to report.html --figures figures
    """
    evidence = Evidence.read(records or RECORDS, timings or TIMINGS)
    for folder in (records, timings):
        if folder is not None and not folder.is_dir():  # else its claims would count as not run
            raise ValueError(f"no records in {folder}: there is no such folder")
    for path in write_report(evidence, page, figures):
        print_plainly(console, f"wrote {path}")
    counts = verdict_counts(judged_claims(evidence))
    verdicts = (f"{count} {verdict}" for verdict, count in counts.items() if count)
    console.print(", ".join(verdicts), highlight=False)
