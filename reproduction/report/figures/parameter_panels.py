"""Figures 3 and 4: errors against a, and errors by epoch of trainings with settings for one error each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reproduction.paper_figures import CURVE_ERRORS, FIGURE_3_B, FIGURE_3_SCORES
from reproduction.report.evidence import Evidence, estimates
from reproduction.report.figures.canvas import (
    BLACK,
    BLUE,
    GREEN,
    RED,
    draw_band,
    new_figure,
)
from reproduction.report.score_texts import score_label
from reproduction.results.schema import TrainingCurve
from zloss_lab.seed_intervals import Estimate, estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CURVE_LOOKS = dict(
    zip(CURVE_ERRORS, ((BLUE, "-"), (GREEN, "--"), (RED, "-."), (BLACK, ":")), strict=True)
)


# ---- figure 3 --------------------------------------------------------------------------------------------------------


def draw_sweep(evidence: Evidence) -> "Figure":
    """Draw test errors against a, one panel each, with bands and the minimum marked."""
    from matplotlib.ticker import LogLocator, NullLocator

    figure = new_figure(5.6)
    panels: Any = figure.subplots(len(FIGURE_3_SCORES), sharex=True)
    for axes, score, colour in zip(panels, FIGURE_3_SCORES, (BLUE, GREEN, RED), strict=True):
        points = estimates(evidence.sweep(score))
        draw_band(axes, list(points), list(points.values()), color=colour, marker="o", markersize=4)
        best = min(points, key=lambda a: points[a].mean)
        axes.plot(
            best, 100 * points[best].mean, "o", markersize=11, markerfacecolor="none", color=colour
        )
        axes.annotate(
            f"a = {best:g}",
            (best, 100 * points[best].mean),
            (0, -17),
            textcoords="offset points",
            ha="center",
            color=colour,
        )
        axes.set(xscale="log", ylabel=f"{score_label(score)} error, %")
        axes.margins(y=0.25)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
    panels[-1].set_xlabel(f"a, with b = {FIGURE_3_B:g}")
    return figure


# ---- figure 4 --------------------------------------------------------------------------------------------------------


def draw_curves(evidence: Evidence) -> "Figure":
    """Draw validation errors by epoch: a panel for each error, a named curve for each of the four models."""
    models = {model: evidence.curves(model) for model in CURVE_ERRORS}
    figure = new_figure(5.2)
    panels: Any = figure.subplots(2, 2, sharex=True)
    for axes, score in zip(panels.flat, CURVE_ERRORS, strict=True):
        ends = {}
        for model, curves in models.items():
            colour, dashes = _CURVE_LOOKS[model]
            epochs, values = _mean_curve(curves, score)
            draw_band(axes, epochs, values, color=colour, linestyle=dashes, linewidth=1.6)
            ends[model] = (epochs[-1], 100 * values[-1].mean)
        axes.set_title(f"{score_label(score)} error, %")
        _focus(axes, list(models.values()), score)
        _name_ends(axes, ends)
    for axes in panels[-1]:
        axes.set_xlabel("epoch")
    figure.supxlabel(
        "curves are named by the error that their settings were tuned for", fontsize=8.5
    )
    return figure


def _mean_curve(curves: Sequence[TrainingCurve], score: str) -> tuple[list[float], list[Estimate]]:
    """Return the mean over seeds at the epochs that all have. The shortest training ends it."""
    points = [{point.epoch: point.valid[score] for point in curve.curve} for curve in curves]
    epochs = [epoch for epoch in points[0] if all(epoch in other for other in points)]
    return epochs, [estimate([other[epoch] for other in points]) for epoch in epochs]


def _focus(axes: "Axes", models: Sequence[Sequence[TrainingCurve]], score: str) -> None:
    """Leave out the steep beginning, beside which all ends look the same."""
    lowest = 100 * min(curve.best(score) for curves in models for curve in curves)
    later = [
        100 * point.valid[score]
        for curves in models
        for curve in curves
        for point in curve.curve[len(curve.curve) // 4 :]
    ]
    room = 0.08 * (max(later) - lowest or 1)
    axes.set_ylim(lowest - room, max(later) + room)


def _name_ends(axes: "Axes", ends: dict[str, tuple[float, float]]) -> None:
    """Write names beside the ends of curves, moved apart where they would touch."""
    low, high = axes.get_ylim()
    step = 0.085 * (high - low)
    heights = _apart([y for _, y in ends.values()], step, low, high)
    for (model, (x, _)), height in zip(ends.items(), heights, strict=True):
        place: Any = {
            "textcoords": "offset points",
            "va": "center",
            "fontsize": 8,
            "annotation_clip": False,
        }
        axes.annotate(
            f" {score_label(model)}", (x, height), (2, 0), color=_CURVE_LOOKS[model][0], **place
        )


def _apart(places: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Return the places in the same order, at least a step from each other.

    >>> _apart([5.0, 5.1, 9.0], 1.0, 0.0, 10.0)
    [5.0, 6.0, 9.0]
    >>> _apart([9.5, 9.9], 1.0, 0.0, 10.0)
    [9.0, 10.0]
    """
    order = sorted(range(len(places)), key=lambda number: places[number])
    moved: list[float] = []
    for number in order:
        moved.append(max(places[number], moved[-1] + step if moved else low))
    ceiling = high
    for number in reversed(range(len(moved))):
        moved[number] = min(moved[number], ceiling)
        ceiling = moved[number] - step
    result = [0.0] * len(places)
    for number, height in zip(order, moved, strict=True):
        result[number] = height
    return result
