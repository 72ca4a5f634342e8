"""The options of `python -m reproduction run table2`: a text with models, the length of a training, and the runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from reproduction.budgets import Budget
from reproduction.large_text_models import MODELS
from reproduction.running.commands.options import (
    DeviceName,
    changed_settings,
)
from reproduction.running.large_texts.chosen_models import DEFAULT_MODELS
from reproduction.running.large_texts.run_folders import LargeTextRuns
from reproduction.running.large_texts.text import RatesToTry
from zloss_lab.command_options import Settings
from zloss_lab.runs import RunError
from zloss_lab.terminal import listed_names, positive_numbers

_TRIED_SHARE = 0.1  # of the budget, for each learning rate
_BUDGETS = "--budget SECONDS, --epochs N or --converged"
# The budget decides these settings. The whole table "training" would replace them too.
_OF_BUDGET = (
    "training",
    "training.seconds",
    "training.epochs",
    "training.steps",
    "training.schedule",
)


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """A text, its models and their settings."""

    corpus: Annotated[Path, typer.Option(help="folder of a prepared corpus with many words")]
    models: Annotated[
        str | None,
        typer.Option(
            help=f"of {', '.join(MODELS)}; separated by commas",
            show_default="all but softmax_net1, which takes days",
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="largest number of test examples",
            show_default="all on a GPU, about half a minute of work on a CPU",
        ),
    ] = None
    device: DeviceName = None
    settings: Settings = None

    def listed_models(self) -> Sequence[str]:
        """Return the keys of the models."""
        if self.models is None:
            return DEFAULT_MODELS
        return listed_names("model", self.models, MODELS)

    def changes(self) -> dict[str, Any]:
        """Return the settings of the user, and refuse settings that the budget decides."""
        changes = changed_settings(self.settings, None, self.device)
        for key in changes:
            if key in _OF_BUDGET:
                raise RunError(f"{key} is not to be set here: use {_BUDGETS}, which it would undo")
        return changes


@dataclass(frozen=True, kw_only=True)
class LengthOptions:
    """The length of a training, and the learning rates that are tried before it."""

    budget: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="seconds of training of each model; validations do not count",
            show_default="give it, --epochs or --converged",
        ),
    ] = None
    epochs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="number of epochs of each model",
            show_default="give it, --budget or --converged",
        ),
    ] = None
    converged: Annotated[
        bool,
        typer.Option("--converged", help="train until lower learning rates bring no improvement"),
    ] = False
    rates: Annotated[
        str | None,
        typer.Option(
            help="learning rates to try, separated by commas; the best on validation is taken"
        ),
    ] = None
    try_for: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="seconds of training with each rate",
            show_default="a tenth of the budget",
        ),
    ] = None

    def checked_budget(self, *, is_shared: bool) -> Budget:
        """Return the budget, of which the user must give exactly one."""
        if (self.budget is not None) + (self.epochs is not None) + self.converged != 1:
            raise RunError(f"say for how long to train, by one of {_BUDGETS}")
        if is_shared and self.budget is not None:
            raise RunError(
                "the result of a fixed time depends on all that the device does: no --shared-device or --at-once then"
            )
        return Budget(self.budget, self.epochs)

    def rates_to_try(self) -> RatesToTry | None:
        """Return the learning rates to try, if there are any."""
        seconds = self.try_for
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            raise RunError(f"--try-for must be a finite number of seconds above 0, got {seconds:g}")
        if self.rates is None:
            if seconds is not None:
                raise RunError("--try-for is the time for each learning rate: name them by --rates")
            return None
        if seconds is None:
            if self.budget is None:
                raise RunError("--rates without --budget needs --try-for SECONDS, for each of them")
            seconds = _TRIED_SHARE * self.budget
        return RatesToTry(positive_numbers("rates", self.rates, float), seconds)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The folder of the runs, and the sharing of the device."""

    runs: Annotated[Path, typer.Option(help="folder for the runs while they are needed")] = Path(
        "runs/table2"
    )
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="never remove runs")] = False
    at_once: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="number of trainings at the same time, each in a process of its own, on a shared device",
        ),
    ] = 1
    shared_device: Annotated[
        bool,
        typer.Option(
            "--shared-device",
            help="the device does other work too: scores count, the time does not",
        ),
    ] = False

    @property
    def is_shared(self) -> bool:
        """True if the time of a training depends on other work."""
        return self.shared_device or self.at_once > 1

    def large_text_runs(self) -> LargeTextRuns:
        """Return the folder of the runs."""
        is_alone = not self.is_shared
        return LargeTextRuns(folder=self.runs, keeps=self.keep_runs, is_alone=is_alone)
