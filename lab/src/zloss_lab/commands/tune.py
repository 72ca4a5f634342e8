"""The commands `zloss tune run`, `show`, `best` and `transfer`."""

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from zloss.names import check_name
from zloss_lab.command_options import SCORE_HELP, AsJson, given_options, with_options
from zloss_lab.durable import write_file
from zloss_lab.evaluation import SCORES
from zloss_lab.experiments import preset_names
from zloss_lab.runs import RunError
from zloss_lab.terminal import INTERRUPTED, PlainConsole, console, errors, print_plainly
from zloss_lab.tuning.evaluators import Evaluator, OneByOne, Together
from zloss_lab.tuning.plan import PLAN_FILE, StudyPlan
from zloss_lab.tuning.recipe import train_command, train_config
from zloss_lab.tuning.space import PRESET_OF_SPACES, space_names, space_table
from zloss_lab.tuning.study import TuningStudy
from zloss_lab.tuning.study_display import (
    shown,
    summary,
    transfer_table,
    trial_row,
    trials_table,
    watching,
)
from zloss_lab.tuning.transfer import transfers
from zloss_lab.tuning.trial_storage import independent_of_place
from zloss_lab.tuning.trials import Trial, ranked

DEFAULT_SCORE = "top_10_error"
DEFAULT_TRIALS = 100
_WIDTH_WITHOUT_SCREEN = 160  # characters of a line in a file

tune = typer.Typer(
    help="Search for hyper-parameters with one worker or many, and show the best by any score.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Folder = Annotated[Path, typer.Argument(help="folder of the study")]
Score = Annotated[str | None, typer.Option(help=SCORE_HELP, show_default="the score of the study")]
OneScore = Annotated[
    str | None, typer.Option("--score", help=SCORE_HELP, show_default="all scores")
]


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options that describe a new study."""

    corpus: Annotated[Path | None, typer.Option(help="folder of a prepared corpus")] = None
    space: Annotated[
        str | None,
        typer.Option(
            help=f"hyper-parameters to search: {', '.join(space_names())}, or a TOML file"
        ),
    ] = None
    score: Annotated[
        str | None,
        typer.Option(
            help=f"score to improve on the validation split: {SCORE_HELP}; mrr is maximized, others minimized",
            show_default=DEFAULT_SCORE,
        ),
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"values of all keys that the space does not name: {', '.join(preset_names())}",
            show_default=PRESET_OF_SPACES,
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="fix a key; it is then not searched; repeatable"
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option(min=0, help="seed of the search", show_default="0")
    ] = None
    first: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS",
            help="number of steps after which each trial is validated and ended",
            show_default="none: trials are whole trainings",
        ),
    ] = None
    no_prune: Annotated[
        bool, typer.Option("--no-prune", help="train bad trials to their end too")
    ] = False
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="database for the trials, as a URL for Optuna",
            show_default="SQLite in the folder",
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            help="name of the study in the database", show_default="the name of the folder"
        ),
    ] = None

    def plan(self, folder: Path, trials: int | None) -> StudyPlan:
        """Return the plan of a new study in this folder."""
        if self.corpus is None or self.space is None:
            raise RunError(
                "a new study needs --corpus FOLDER and --space NAME; an existing one goes on with --resume"
            )
        return StudyPlan(
            # Workers may start in another folder. `Path.resolve` ends in a RuntimeError for a link to itself.
            corpus=os.path.realpath(self.corpus),
            space=space_table(self.space),
            score=self.score or DEFAULT_SCORE,
            preset=self.preset or PRESET_OF_SPACES,
            settings=self.settings or [],
            trials=DEFAULT_TRIALS if trials is None else trials,
            seed=self.seed or 0,
            prunes=not self.no_prune,
            first=self.first,
            storage=None if self.storage is None else independent_of_place(self.storage),
            name=self.name or os.path.basename(os.path.realpath(folder)),
        )


@tune.command()
@with_options
def run(
    folder: Folder,
    options: StudyOptions,
    trials: Annotated[
        int | None,
        typer.Option(
            help="number of trials of the study, of all workers together",
            show_default=str(DEFAULT_TRIALS),
        ),
    ] = None,
    at_once: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="number of trials with layers of equal size to train side by side in this process; for GPUs",
        ),
    ] = 1,
    keep_runs: Annotated[
        bool, typer.Option("--keep-runs", help="keep the training runs in the folder")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="continue the study in the folder")
    ] = False,
) -> None:
    """Search for hyper-parameters, or continue a search. Ctrl-C keeps all trials that have ended.

    \b
    zloss tune run studies/z --corpus data/ptb --space z_loss --score top_10_error --trials 100
    zloss tune run studies/z --resume --trials 200
    zloss tune run studies/z --resume --at-once 64
    """
    plan = _resumed(folder, options, trials) if resume else options.plan(folder, trials)
    if at_once > 1 and keep_runs:
        raise RunError(
            "--keep-runs is for trials that are trained one by one: leave it out, or --at-once"
        )
    evaluator = Together() if at_once > 1 else OneByOne(folder, keeps_runs=keep_runs)
    _work(TuningStudy.begin(folder, plan, evaluator), evaluator, at_once)


@tune.command()
def show(folder: Folder, score: Score = None, as_json: AsJson = False) -> None:
    """Show all trials of a study, the best first. Trials without this score stand at the end."""
    study = TuningStudy.open(folder)
    score = study.plan.score if score is None else _checked_score(score)
    trials = study.trials()
    judged = ranked(trials, score)
    trials = judged + [trial for trial in trials if trial not in judged]
    if as_json:
        print(json.dumps([trial_row(trial, score) for trial in trials]))
        return
    _print_trials(study, trials, score)
    console.print(summary(trials, study.plan.trials), highlight=False)


@tune.command()
def best(
    folder: Folder,
    score: Score = None,
    file: Annotated[
        Path | None, typer.Option("--to", help="TOML file to write, for `zloss train --config`")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the best trial by any score, and the command that trains it in full.

    \b
    zloss tune best studies/z --score mrr --to best.toml
    """
    study = TuningStudy.open(folder)
    score = study.plan.score if score is None else _checked_score(score)
    trial = _best(study, score)
    if file is not None:
        write_file(file, train_config(study.plan, trial, score))
    command = train_command(study.plan, trial, score)
    if as_json:
        print(json.dumps(trial_row(trial, score) | {"command": command}))
        return
    _print_trials(study, [trial], score)
    print_plainly(console, command)  # on one line, so that it can be copied


@tune.command()
def transfer(folder: Folder, score: OneScore = None, as_json: AsJson = False) -> None:
    """Show how well early validations predict the final order. It needs complete trials: search with --no-prune."""
    found = transfers(
        TuningStudy.open(folder).trials(), [] if score is None else [_checked_score(score)]
    )
    if as_json:
        print(json.dumps([dataclasses.asdict(one) for one in found]))
    else:
        console.print(transfer_table(found))


# ---- shared by the commands ------------------------------------------------------------------------------------------


def _resumed(folder: Path, options: StudyOptions, trials: int | None) -> StudyPlan:
    plan = StudyPlan.read(folder)
    if ignored := given_options(options):
        raise RunError(
            f"--resume continues the study by its plan in {folder / PLAN_FILE}: leave out "
            f"{' and '.join(ignored)}, or begin a new study in another folder"
        )
    return plan if trials is None else dataclasses.replace(plan, trials=trials)


def _work(study: TuningStudy, evaluator: Evaluator, at_once: int) -> None:
    try:
        with watching(study, console) as watch:
            study.run(evaluator, at_once=at_once, watch=watch)
    except KeyboardInterrupt:
        errors.print(f"\nstopped; {summary(study.trials(), study.plan.trials)}", highlight=False)
        hint = f"go on with: zloss tune run {quote(str(study.folder))} --resume"
        print_plainly(errors, hint)
        sys.exit(INTERRUPTED)
    console.print(summary(study.trials(), study.plan.trials), highlight=False)
    if judged := ranked(study.trials(), study.plan.score):
        value = shown(study.plan.score, judged[0].value(study.plan.score))
        hint = f"the best is trial {judged[0].number} with {value}: zloss tune best {quote(str(study.folder))}"
        print_plainly(console, hint)


def _checked_score(score: str) -> str:
    """Return the name of a score. `ValueError` for an unknown one."""
    check_name("score", score, SCORES)
    return score


def _print_trials(study: TuningStudy, trials: Sequence[Trial], score: str) -> None:
    screen = console if console.is_terminal else PlainConsole(width=_WIDTH_WITHOUT_SCREEN)
    screen.print(trials_table(trials, study.plan.searched.search, score))


def _best(study: TuningStudy, score: str) -> Trial:
    judged = ranked(study.trials(), score)
    if not judged:
        raise RunError(
            f"no trial of {study.folder} has been judged by {score} yet: go on with "
            f"`zloss tune run {quote(str(study.folder))} --resume`"
        )
    return judged[0]
