"""Figures 2 and 5: a panel for each score, a row for each loss."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reproduction.paper_figures import FIGURE_SCORES, LOSS_TITLES
from reproduction.report.evidence import Evidence
from reproduction.report.figures.canvas import (
    BLACK,
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PINK,
    RED,
    SKY,
    Draw,
    new_figure,
    scaled,
)
from reproduction.report.loss_tables import losses_of
from reproduction.report.score_texts import score_label, score_text
from reproduction.scores import is_error
from zloss_lab.seed_intervals import Estimate, estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOSS_LOOKS = {
    "z_loss": (RED, "o"),
    "softmax": (BLUE, "s"),
    "z_softmax": (SKY, "D"),
    "sigmoid": (GREEN, "^"),
    "z_sigmoid": (ORANGE, "v"),
    "spherical_softmax": (PINK, "P"),
    "taylor_softmax": (ORANGE, "X"),
    "squared_error": (BLACK, "*"),
}


def draw_losses(figure: int, columns: int) -> Draw:
    """Return the way to draw test means and intervals: a panel for each score, a row for each loss."""

    def draw(evidence: Evidence) -> "Figure":
        losses, scores = losses_of(evidence, figure), FIGURE_SCORES[figure]
        rows = -(-len(scores) // columns)
        canvas = new_figure(rows * (0.75 + 0.24 * len(losses)))
        panels: Any = canvas.subplots(rows, columns, squeeze=False, sharey=True)
        for place, axes in enumerate(panels.flat):
            if place < len(scores):
                _draw_panel(axes, evidence, figure, losses, scores[place])
            else:
                axes.set_visible(False)
        return canvas

    return draw


def _draw_panel(
    axes: "Axes", evidence: Evidence, figure: int, losses: Sequence[str], score: str
) -> None:
    axes.set_title(
        f"{score_label(score)} error, %"
        if is_error(score)
        else f"{score_label(score)}, higher is better"
    )
    axes.set_yticks(range(len(losses)), [LOSS_TITLES[loss] for loss in losses])
    axes.set_ylim(len(losses) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.locator_params(axis="x", nbins=4)
    found = [loss for loss in losses if evidence.has_tuned(figure, loss, score)]
    if not found:
        axes.text(0.5, 0.5, "not run yet", transform=axes.transAxes, ha="center", color=INK)
        return
    scale = 100 if is_error(score) else 1
    values = {loss: scaled(estimate(evidence.tuned(figure, loss, score)), scale) for loss in found}
    axes.set_xlim(_window(list(values.values())))
    for loss, value in values.items():
        _draw_loss(axes, losses.index(loss), loss, value, score_text(value.mean / scale, score))


def _window(values: Sequence[Estimate]) -> tuple[float, float]:
    """Return the range of a panel: all means, except one that would press all others together."""
    means = sorted(value.mean for value in values)
    width = means[-1] - means[0]
    for others in (means[:-1], means[1:]):
        if len(others) > 1 and others[-1] - others[0] < width / 3:
            means = others
    width = means[-1] - means[0] or 0.02 * means[0]
    shown_widths = [
        min(value.half_width or 0, width) for value in values if means[0] <= value.mean <= means[-1]
    ]
    return means[0] - max(0.25 * width, *shown_widths), means[-1] + max(0.4 * width, *shown_widths)


def _draw_loss(axes: "Axes", row: int, loss: str, value: Estimate, text: str) -> None:
    """Draw a point with its interval and number; an arrow to it where it is outside of the panel."""
    colour, marker = _LOSS_LOOKS[loss]
    low, high = axes.get_xlim()
    if low <= value.mean <= high:
        axes.errorbar(
            value.mean,
            row,
            xerr=value.half_width or 0,
            color=colour,
            marker=marker,
            capsize=2,
            markersize=5,
        )
        place = value.mean, row
        axes.annotate(
            text, place, (0, 4.5), textcoords="offset points", ha="center", color=INK, fontsize=8
        )
    else:
        edge, side, words = (
            (high, "right", f"{text} →") if value.mean > high else (low, "left", f" ← {text}")
        )
        axes.text(edge, row, words, ha=side, va="center", color=INK, fontsize=8)
