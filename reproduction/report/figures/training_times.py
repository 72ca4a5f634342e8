"""Table 2 as a figure: test errors of models on large texts against the time of training."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reproduction.budgets import FIXED
from reproduction.large_text_models import model_title
from reproduction.report.evidence import Evidence, NotRunError, models_command
from reproduction.report.figures.canvas import (
    BLACK,
    BLUE,
    BROWN,
    GREEN,
    ORANGE,
    PINK,
    PURPLE,
    RED,
    SKY,
    new_figure,
    scaled,
)
from reproduction.report.large_text_tables import TimedTrainings, trainings_by_time
from reproduction.report.score_texts import score_label
from reproduction.report.timings import duration
from reproduction.scores import top
from zloss_lab.seed_intervals import estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_ERRORS = (top(1), top(100))
_MODEL_LOOKS = {
    "softmax_net1": (BLACK, "*"),
    "hierarchical_softmax_net1": (BLUE, "s"),
    "sampled_softmax_net1": (GREEN, "^"),
    "adaptive_softmax_net1": (ORANGE, "v"),
    "z_loss_net1": (RED, "o"),
    "z_loss_top_10_net1": (PURPLE, "X"),
    "z_loss_top_100_net1": (PINK, "P"),
    "z_loss_net2": (SKY, "D"),
    "z_loss_top_10_net2": (BROWN, "<"),
}
# To label, in seconds; so far apart that the labels do not touch.
_TIMES = (1, 3, 10, 30, 60, 180, 600, 1800, 3600, 3 * 3600, 10 * 3600, 86400, 4 * 86400)


def draw_training_times(evidence: Evidence) -> "Figure":
    """Draw test errors of models on large texts against the time of training: a row for each text."""
    texts = trainings_by_time(evidence)
    if not texts:
        raise NotRunError(models_command(FIXED))
    figure = new_figure(0.6 + 2.2 * len(texts))
    panels: Any = figure.subplots(len(texts), len(_ERRORS), squeeze=False)
    for row, (corpus, models) in zip(panels, texts.items(), strict=True):
        for axes, score in zip(row, _ERRORS, strict=True):
            axes.set_title(f"{corpus}: {score_label(score)} error, %")
            for model, points in models.items():
                _draw_model(axes, model, points, score)
            _label_times(axes)
    for axes in panels[-1]:
        axes.set_xlabel("time of training")
    drawn = list(dict.fromkeys(model for models in texts.values() for model in models))
    figure.legend(
        [_looks_only(model) for model in drawn],
        [model_title(model) for model in drawn],
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=8.5,
    )
    return figure


def _draw_model(axes: "Axes", model: str, points: Sequence[TimedTrainings], score: str) -> None:
    colour, marker = _MODEL_LOOKS[model]
    values = [
        scaled(estimate([one.test[score] for one in point.trainings]), 100) for point in points
    ]
    axes.errorbar(
        [point.seconds for point in points],
        [value.mean for value in values],
        yerr=[value.half_width or 0 for value in values],
        color=colour,
        marker=marker,
        markersize=4.5,
        linewidth=1.2,
        capsize=2,
    )


def _looks_only(model: str) -> "Line2D":
    from matplotlib.lines import Line2D

    colour, marker = _MODEL_LOOKS[model]
    return Line2D([], [], color=colour, marker=marker, markersize=4.5, linewidth=1.2)


def _label_times(axes: "Axes") -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    inside = [time for time in _TIMES if low <= time <= high]
    # One label alone would not tell the scale.
    axes.xaxis.set_major_locator(FixedLocator(inside if len(inside) > 1 else [low, high]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds)))
    axes.xaxis.set_minor_locator(NullLocator())
