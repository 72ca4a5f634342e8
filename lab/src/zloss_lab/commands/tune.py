"""The commands `zloss tune run`, `show`, `best` and `transfer`."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.console import Console

from zloss.names import check_name
from zloss_lab.command_options import AsJson, given_options, with_options
from zloss_lab.durable import write_file
from zloss_lab.evaluation import SCORES
from zloss_lab.experiments import preset_names
from zloss_lab.runs import RunError
from zloss_lab.terminal import INTERRUPTED, console, errors, print_plainly
from zloss_lab.tuning.evaluators import Evaluator, OneByOne, Together
from zloss_lab.tuning.plan import StudyPlan
from zloss_lab.tuning.recipe import train_command, train_config
from zloss_lab.tuning.space import space_names, space_table
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

DEFAULT_PRESET = "ptb"  # that of the spaces that come with the lab
DEFAULT_SCORE = "top_10_error"
DEFAULT_TRIALS = 100
_WIDTH_OF_A_FILE = 160  # where nothing says how wide the screen is

tune = typer.Typer(
    help="Search for hyper-parameters, with one worker or many, and find the best for any score.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Folder = Annotated[Path, typer.Argument(help="folder of the study")]
_SCORES_TOLD = "top_K_error with K = 1, 5, 10, 20, 50, 100; mrr, mean_rank or perplexity"
Score = Annotated[str | None, typer.Option(help=_SCORES_TOLD, show_default="its own")]
OneScore = Annotated[str | None, typer.Option("--score", help=_SCORES_TOLD, show_default="all")]


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options that describe a new study."""

    corpus: Annotated[Path | None, typer.Option(help="folder of a prepared corpus")] = None
    space: Annotated[
        str | None,
        typer.Option(help=f"what to search: {', '.join(space_names())}, or a TOML file of yours"),
    ] = None
    score: Annotated[
        str | None,
        typer.Option(
            help="of the validation: top_K_error, mean_rank, perplexity, or mrr, which alone is made large",
            show_default=DEFAULT_SCORE,
        ),
    ] = None
    preset: Annotated[
        str | None,
        typer.Option(
            help=f"below the space: {', '.join(preset_names())}", show_default=DEFAULT_PRESET
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="over the space; what is set is not searched"
        ),
    ] = None
    seed: Annotated[int | None, typer.Option(min=0, help="of the search", show_default="0")] = None
    first: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS", help="break each training off after so many steps, and judge it there"
        ),
    ] = None
    no_prune: Annotated[
        bool, typer.Option("--no-prune", help="let trials that lie behind go on")
    ] = False
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="of a database for Optuna", show_default="SQLite in the folder"
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(help="of the study in the storage", show_default="that of the folder"),
    ] = None

    def plan(self, folder: Path, trials: int | None) -> StudyPlan:
        """Return the plan of a new study in this folder."""
        if self.corpus is None or self.space is None:
            raise RunError(
                "a new study needs --corpus FOLDER and --space NAME; go on with an old one by --resume"
            )
        return StudyPlan(
            corpus=str(self.corpus.resolve()),  # so that it can be used from another folder
            space=space_table(self.space),
            score=self.score or DEFAULT_SCORE,
            preset=self.preset or DEFAULT_PRESET,
            settings=self.settings or [],
            trials=DEFAULT_TRIALS if trials is None else trials,
            seed=self.seed or 0,
            prunes=not self.no_prune,
            first=self.first,
            storage=None if self.storage is None else independent_of_place(self.storage),
            name=self.name or folder.resolve().name,
        )


@tune.command()
@with_options
def run(
    folder: Folder,
    options: StudyOptions,
    trials: Annotated[
        int | None,
        typer.Option(
            help="of the study, by all workers together", show_default=str(DEFAULT_TRIALS)
        ),
    ] = None,
    at_once: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="trials of one shape, side by side in this process; for GPUs"
        ),
    ] = 1,
    keep_runs: Annotated[
        bool, typer.Option("--keep-runs", help="keep the training runs in the folder")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the study in the folder, as it was asked")
    ] = False,
) -> None:
    """Search, or go on with a search. Ctrl-C keeps all trials but those that are running.

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
    """All trials of a study: the best first, then those that were not judged."""
    study = TuningStudy.open(folder)
    score = study.plan.score if score is None else _known(score)
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
        Path | None, typer.Option("--to", help="a TOML file to write, for `zloss train --config`")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The best trial by any score, and how to train it in full.

    \b
    zloss tune best studies/z --score mrr --to best.toml
    """
    study = TuningStudy.open(folder)
    score = study.plan.score if score is None else _known(score)
    trial = _best(study, score)
    if file is not None:
        write_file(file, train_config(study.plan, trial, score))
    command = train_command(study.plan, trial, score)
    if as_json:
        print(json.dumps(trial_row(trial, score) | {"command": command}))
        return
    _print_trials(study, [trial], score)
    print(command)  # as it is, to be copied


@tune.command()
def transfer(folder: Folder, score: OneScore = None, as_json: AsJson = False) -> None:
    """Whether early validations tell who wins in the end: of complete trials, so search with --no-prune for this."""
    found = transfers(TuningStudy.open(folder).trials(), [] if score is None else [_known(score)])
    if as_json:
        print(json.dumps([dataclasses.asdict(one) for one in found]))
    else:
        console.print(transfer_table(found))


# ---- what they share -------------------------------------------------------------------------------------------------


def _resumed(folder: Path, options: StudyOptions, trials: int | None) -> StudyPlan:
    plan = StudyPlan.read(folder)
    if ignored := given_options(options):
        raise RunError(
            f"--resume goes on with what the study was asked, in {folder / 'study.json'}: leave out "
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


def _known(score: str) -> str:
    """A score that there is."""
    check_name("score", score, SCORES)
    return score


def _print_trials(study: TuningStudy, trials: Sequence[Trial], score: str) -> None:
    screen = console if console.is_terminal else Console(width=_WIDTH_OF_A_FILE, emoji=False)
    screen.print(trials_table(trials, study.plan.searched.search, score))


def _best(study: TuningStudy, score: str) -> Trial:
    judged = ranked(study.trials(), score)
    if not judged:
        raise RunError(f"no trial of {study.folder} has been judged by {score} yet")
    return judged[0]
