"""The commands `zloss runs` and `zloss plot`, which compare runs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from zloss_lab.command_options import SCORE_HELP, AsJson
from zloss_lab.inspection.plotting import plot_runs
from zloss_lab.inspection.run_table import readable_runs, runs_table
from zloss_lab.terminal import console, errors, print_plainly

Folders = Annotated[
    list[Path], typer.Argument(help="folders of runs, or folders that contain runs")
]


def runs(folders: Folders, as_json: AsJson = False) -> None:
    """Compare runs in a table, each at its best validation. Folders that cannot be read are named, with exit code 1."""
    found, faults = readable_runs(folders)
    rows = [row for _, row in found]
    if as_json:
        print(json.dumps(rows))
    elif rows:
        console.print(runs_table(rows, console.width))
    end_with_faults(faults)


def plot(
    folders: Folders,
    output: Annotated[
        Path, typer.Option("--to", help="the file to write, .png, .svg or .pdf")
    ] = Path("runs.png"),
    metric: Annotated[str, typer.Option(help=SCORE_HELP)] = "top_10_error",
    x: Annotated[
        str,
        typer.Option(
            help="what to plot against: seconds of training steps without validations, epochs or steps"
        ),
    ] = "epochs",
) -> None:
    """Plot validation curves of runs. Folders that cannot be read are named, with exit code 1.

    \b
        zloss plot runs --x seconds --to time.svg   # what each run has reached after equal time
    """
    found, faults = readable_runs(folders)
    readable = [run for run, _ in found]
    left_out = plot_runs(readable, output, metric, x) if readable else []
    if readable:
        print_plainly(console, f"wrote {output}")
    for run in left_out:
        print_plainly(console, f"left out, without {metric} so far: {run.folder}")
    end_with_faults(faults)


def end_with_faults(faults: list[str]) -> None:
    """Print the folders that were left out. If there are any, end with exit code 1."""
    for fault in faults:
        print_plainly(errors, f"left out: {fault}")
    if faults:
        raise typer.Exit(1)
