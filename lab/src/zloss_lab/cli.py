"""The command line `zloss`, assembled from the modules in `zloss_lab.commands`.

A mistake of the user ends a command with exit code 1 and one line that says what to do. Ctrl-C ends it with code 130.
"""

from pathlib import Path
from typing import Annotated

import typer

from zloss_lab.commands.baseline import baseline
from zloss_lab.commands.bench_commands import bench
from zloss_lab.commands.data import data
from zloss_lab.commands.evaluate import evaluate
from zloss_lab.commands.predict import predict
from zloss_lab.commands.report import report
from zloss_lab.commands.runs_and_plot import plot, runs
from zloss_lab.commands.train import train
from zloss_lab.commands.tune import tune
from zloss_lab.demo import run_demo
from zloss_lab.terminal import console, run_commands

app = typer.Typer(
    help="Classifiers with a huge number of classes: train and compare word-level language models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for group, name in ((data, "data"), (bench, "bench"), (tune, "tune")):
    app.add_typer(group, name=name)
for command in (train, evaluate, baseline, predict, runs, plot, report):
    app.command()(command)


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Option(help="folder for the corpus, the run and the plot")
    ] = Path("demo"),
) -> None:
    """Train on real text for a few minutes, compare with guessing, and predict."""
    run_demo(folder, console)


def main() -> None:
    """Run the command line."""
    run_commands(app)
