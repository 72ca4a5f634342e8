"""The command `zloss train`."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from zloss_lab.command_options import Settings, given_options, with_options
from zloss_lab.experiments import (
    DEFAULT_PRESET,
    build_experiment,
    head_changes,
    preset_names,
)
from zloss_lab.inspection.run_table import run_row, runs_table
from zloss_lab.progress_bars import training_bar
from zloss_lab.runs import CONFIG, Run, RunError
from zloss_lab.terminal import INTERRUPTED, console, errors, print_plainly
from zloss_lab.training import Experiment, changed_keys, fit, resumed


@dataclass(frozen=True, kw_only=True)
class NewRunOptions:
    """The options that describe a new run."""

    corpus: Annotated[Path | None, typer.Option(help="folder of a prepared corpus")] = None
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"settings to start from: {', '.join(preset_names())}", show_default=DEFAULT_PRESET
        ),
    ] = None
    config: Annotated[
        Path | None, typer.Option(help="a TOML file that changes settings of the preset")
    ] = None
    settings: Settings = None


@with_options
def train(
    folder: Annotated[Path, typer.Argument(help="folder of the run")],
    options: NewRunOptions,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="continue the run in the folder with its own config"),
    ] = False,
) -> None:
    """Train a network, or continue a training. Ctrl-C saves a checkpoint first.

    \b
        zloss train runs/one --corpus data/ptb --preset ptb
        zloss train runs/two --corpus data/ptb --preset ptb --set network.head.a=0.3 --set training.lr=0.5
        zloss train runs/two --resume
        zloss train runs/softmax --corpus data/ptb --preset ptb --set network.head=sampled
    """
    experiment = _resumed(folder, options) if resume else _new_experiment(options)
    for change in changed_keys(folder) if resume else ():
        print_plainly(console, change)
    try:
        with training_bar(console) as watch:
            run = fit(experiment, folder, resume=resume, watch=watch)
    except KeyboardInterrupt:
        print_plainly(errors, f"\n{_how_to_go_on(folder)}")
        sys.exit(INTERRUPTED)
    console.print(runs_table([run_row(run)], console.width))


def _resumed(folder: Path, options: NewRunOptions) -> Experiment:
    if ignored := given_options(options):
        raise RunError(
            f"--resume goes on with the config that the run has, in {folder / CONFIG}: leave out "
            f"{' and '.join(ignored)}, or start a new run in another folder"
        )
    return resumed(folder)


def _new_experiment(options: NewRunOptions) -> Experiment:
    if options.corpus is None:
        raise RunError(
            "a new run needs --corpus FOLDER, a prepared corpus: see `zloss data prepare --help`"
        )
    preset, settings = options.preset or DEFAULT_PRESET, options.settings or []
    experiment = build_experiment(
        # So that the run can be used from another folder. `Path.resolve` ends in a RuntimeError for a link to itself.
        os.path.realpath(options.corpus),
        preset_name=preset,
        file=options.config,
        settings=settings,
    )
    for line in head_changes(preset, file=options.config, settings=settings):
        print_plainly(console, line)
    return experiment


def _how_to_go_on(folder: Path) -> str:
    """Return advice after Ctrl-C, which may come before anything is saved."""
    steps = Run(folder).steps()
    if not steps:
        return "stopped before anything was saved"
    return f"stopped; step {steps[-1]:,} is saved. Go on with: zloss train {quote(str(folder))} --resume"
