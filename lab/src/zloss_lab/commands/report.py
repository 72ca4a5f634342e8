"""The command `zloss report`."""

from pathlib import Path
from typing import Annotated

import typer

from zloss.names import check_name
from zloss_lab.command_options import SCORE_HELP
from zloss_lab.commands.runs_and_plot import Folders, end_with_faults
from zloss_lab.documents.html import html_of
from zloss_lab.documents.markdown import document_markdown
from zloss_lab.durable import write_file
from zloss_lab.evaluation import SCORES
from zloss_lab.inspection.run_facts import readable_facts
from zloss_lab.inspection.run_report import build_report
from zloss_lab.inspection.run_table import readable_runs
from zloss_lab.terminal import console, print_plainly

_RENDERERS = {".html": html_of, ".md": document_markdown}


def report(
    folders: Folders,
    page: Annotated[
        Path,
        typer.Option(
            "--to", help="the file to write: .html, or .md for Markdown, which has no pictures"
        ),
    ] = Path("runs.html"),
    metric: Annotated[
        str, typer.Option(help=f"score of the curves and of the comparison by time: {SCORE_HELP}")
    ] = "top_10_error",
) -> None:
    """Write a report on runs: settings, scores, curves by time and by epoch, seeds, machines, and what is missing.

    The page is one file, which needs no network. Folders that cannot be read are named, with exit code 1.

    \b
        zloss report runs --to runs.html
        zloss report runs/one runs/two --to runs.md --metric mrr
    """
    if page.suffix.lower() not in _RENDERERS:
        raise ValueError(
            f"a report is {' or '.join(_RENDERERS)}: name {page} so, such as runs.html"
        )
    check_name("score", metric, SCORES)
    found, faults = readable_runs(folders)
    facts, more_faults = readable_facts([run for run, _ in found])
    faults += more_faults
    if facts:
        document = build_report(facts, faults, metric)
        write_file(page, _RENDERERS[page.suffix.lower()](document).encode())
        print_plainly(console, f"wrote {page}")
    end_with_faults(faults)
