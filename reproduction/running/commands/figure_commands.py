"""The commands `python -m reproduction run figure2` to `figure5`."""

from typing import Annotated

import typer

from reproduction.paper_figures import CURVE_ERRORS, FIGURE_LOSSES
from reproduction.running.commands.options import FigureOptions, Losses, Scores
from reproduction.running.loss_figures import LossFigure, collect_losses
from reproduction.running.parameter_figures import (
    OTHER_B,
    collect_curves,
    collect_sweep,
    geometric,
)
from reproduction.running.studies import SCORE
from reproduction.scores import PAPER_SCORES
from zloss_lab.command_options import with_options
from zloss_lab.terminal import listed_names, positive_numbers


@with_options
def figure2(losses: Losses = None, scores: Scores = None, *, options: FigureOptions) -> None:
    """Test every loss by each score, with the settings that its search found best for that score.

    \b
        python -m reproduction run figure2 --seeds 5
        python -m reproduction run figure2 --losses z_loss,softmax
        python -m reproduction run figure2 --corpus data/ptb    # without studies
        python -m reproduction run figure2 --corpus data/ptb --records mine --settings-of reproduction/records
    """
    _compare(2, options, losses, scores)


@with_options
def figure5(losses: Losses = None, scores: Scores = None, *, options: FigureOptions) -> None:
    """Test losses with and without Z-normalisation as in figure 2, whose records are used again.

    \b
        python -m reproduction run figure5 --seeds 5
    """
    _compare(5, options, losses, scores)


def _compare(
    figure: LossFigure, options: FigureOptions, losses: str | None, scores: str | None
) -> None:
    compared = listed_names(f"loss of figure {figure}", losses, FIGURE_LOSSES[figure])
    tuned_for = listed_names("score", scores, PAPER_SCORES)
    sources = options.find_settings(figure, compared, tuned_for)
    options.make(lambda collector: collect_losses(figure, sources, tuned_for, collector))


@with_options
def figure3(
    a: Annotated[
        str | None,
        typer.Option("--a", help="values, separated by commas", show_default="12 from 0.02 to 2"),
    ] = None,
    b: Annotated[
        str,
        typer.Option(
            "--b", help="values of b besides 28, separated by commas, at the a that validates best"
        ),
    ] = ",".join(f"{b:g}" for b in OTHER_B),
    *,
    options: FigureOptions,
) -> None:
    """Train the Z-loss with b = 28 and many values of a. All other settings are the best for the top-10 error.

    \b
        python -m reproduction run figure3 --a 0.1,0.5,2 --b 14
    """
    values = geometric(0.02, 2.0, 12) if a is None else positive_numbers("a", a, float)
    other_b = positive_numbers("b", b, float)
    (source,) = options.find_settings(3, ["z_loss"], [SCORE])
    options.make(lambda collector: collect_sweep(source, values, other_b, collector))


@with_options
def figure4(options: FigureOptions) -> None:
    """Keep the validation errors by epoch of the Z-loss, with the settings that are best for top-1, 5, 10 and 50.

    \b
        python -m reproduction run figure4 --seeds 5
    """
    (source,) = options.find_settings(4, ["z_loss"], CURVE_ERRORS)
    options.make(lambda collector: collect_curves(source, collector))
