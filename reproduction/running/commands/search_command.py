"""The command `python -m reproduction run search`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from reproduction.paper_figures import LOSS_TITLES
from reproduction.running.commands.making import resumable
from reproduction.running.commands.options import (
    STUDIES,
    DeviceName,
    Losses,
    Studies,
    changed_settings,
)
from reproduction.running.stacks import most_side_by_side
from reproduction.running.studies import SCORE, search_plan, study_name
from reproduction.scores import PAPER_SCORES
from zloss_lab.command_options import Settings, with_options
from zloss_lab.terminal import console, listed_names
from zloss_lab.tuning.evaluators import Together
from zloss_lab.tuning.plan import StudyPlan
from zloss_lab.tuning.study import TuningStudy
from zloss_lab.tuning.study_display import summary, watching

_LEAST_ROUNDS = 8  # of a search, which learns from one round for the next


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options that all studies of a command share."""

    corpus: Annotated[Path, typer.Option(help="folder of the prepared Penn Treebank")]
    trials: Annotated[int, typer.Option(min=1, help="number of trials of every study")] = 100
    epochs: Annotated[
        int | None, typer.Option(min=1, help="number of epochs of a trial", show_default="20")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="seed of the search")] = 0
    no_prune: Annotated[bool, typer.Option("--no-prune", help="never stop a trial early")] = False
    device: DeviceName = None
    settings: Settings = None

    def plan(self, loss: str, score: str) -> StudyPlan:
        """Return the plan of the study of a loss."""
        named = changed_settings(None, self.epochs, self.device)
        return search_plan(
            loss,
            corpus=self.corpus,
            score=score,
            trials=self.trials,
            settings=[f"{key}={value}" for key, value in named.items()] + (self.settings or []),
            seed=self.seed,
            prunes=not self.no_prune,
        )


@with_options
def search(
    options: SearchOptions,
    studies: Studies = STUDIES,
    losses: Losses = None,
    scores: Annotated[
        str,
        typer.Option(help="a study for each; one is enough, because every study keeps all scores"),
    ] = SCORE,
    at_once: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="number of trials side by side",
            show_default="as many as there is memory for, in 8 rounds or more",
        ),
    ] = None,
) -> None:
    """Search for the settings of every loss, on the validation split. Ctrl-C loses the running trials only.

    \b
        python -m reproduction run search --corpus data/ptb --trials 128
        python -m reproduction run search --corpus data/ptb --trials 256    # go on
    """
    chosen = [
        (loss, score)
        for loss in listed_names("loss", losses, tuple(LOSS_TITLES))
        for score in listed_names("score", scores, PAPER_SCORES)
    ]
    with resumable():
        for loss, score in chosen:
            _search(studies / study_name(loss, score), options.plan(loss, score), at_once)


def _search(folder: Path, plan: StudyPlan, at_once: int | None) -> None:
    evaluator = Together()
    study = TuningStudy.begin(folder, plan, evaluator)
    most = at_once or min(_most_at_once(plan), max(1, plan.trials // _LEAST_ROUNDS))
    console.print(
        f"{plan.name}: {study.missing()} of {plan.trials} trials to go, {most} at once",
        highlight=False,
    )
    with watching(study, console) as watch:
        study.run(evaluator, at_once=most, watch=watch)
    console.print(f"{plan.name}: {summary(study.trials(), plan.trials)}", highlight=False)


def _most_at_once(plan: StudyPlan) -> int:
    """Return the number of trials that fit into memory, whatever their shape."""
    return min(most_side_by_side(plan.trial(settings)) for settings in plan.searched.examples())
