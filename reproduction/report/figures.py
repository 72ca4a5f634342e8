"""The figures of the paper, drawn from our records, and one of ours for table 2: `FIGURES["figure2"](evidence)`.

Each is a matplotlib figure. They are narrow, so that they can be read on a phone, and say in words what their colours
mean. Colours but two are those of Okabe and Ito, which people tell apart however they see colours; markers and dashes
differ too.
"""

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

import zloss
from reproduction.report.evidence import Evidence, NotRunError, estimates, models_command
from reproduction.report.final_scores import PROGRESS_SCORES, Point, progress
from reproduction.report.intervals import Estimate, estimate
from reproduction.report.loss_checks import NAMES
from reproduction.report.parameter_checks import FIGURE3_SCORES
from reproduction.report.property_checks import CLASSES, A, B
from reproduction.report.records import CURVES, FIGURE_B, FIXED, TrainingCurve
from reproduction.report.results import FIGURE_SCORES, losses_of
from reproduction.report.scores import MINUS, is_error, label, shown
from reproduction.report.timings import duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_WIDTH = 5.0  # inches
_STYLE: Any = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "svg.hashsalt": "zloss",  # the same records give the same file
}
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PINK, PURPLE, BROWN = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
    "#5E3C99",
    "#7A4A1E",
)
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
_MODEL_LOOKS = {
    "softmax net1": (BLACK, "*"),
    "H-softmax net1": (BLUE, "s"),
    "sampled softmax net1": (GREEN, "^"),
    "adaptive softmax net1": (ORANGE, "v"),
    "Z-loss net1": (RED, "o"),
    "Z-loss top-10 net1": (PURPLE, "X"),
    "Z-loss top-100 net1": (PINK, "P"),
    "Z-loss net2": (SKY, "D"),
    "Z-loss top-10 net2": (BROWN, "<"),
}
# To label, in seconds; so far apart that the labels do not touch.
_TIMES = (1, 3, 10, 30, 60, 180, 600, 1800, 3600, 3 * 3600, 10 * 3600, 86400, 4 * 86400)
_CURVE_LOOKS = dict(
    zip(CURVES, ((BLUE, "-"), (GREEN, "--"), (RED, "-."), (BLACK, ":")), strict=True)
)
_BAND = 0.18  # opacity
_INK = "#333333"  # of numbers: not all colours are dark enough to read

Draw = Callable[[Evidence], "Figure"]


def picture(draw: Draw, evidence: Evidence, kind: Literal["svg", "png"]) -> bytes:
    """A figure as a file. Letters of SVG are shapes, so that no font is needed."""
    # Here, because it takes a second, and most commands draw nothing.
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context(_STYLE):
        metadata = {"Date": None} if kind == "svg" else {}
        draw(evidence).savefig(file, format=kind, dpi=200, metadata=metadata, facecolor="white")
    return file.getvalue()


def _new_figure(height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(_WIDTH, height), layout="constrained")


# ---- figure 1 --------------------------------------------------------------------------------------------------------


def draw_z_loss(evidence: Evidence) -> "Figure":
    """The Z-loss against z_c, with its asymptote and the bounds of z_c."""
    bound = (CLASSES - 1) ** 0.5
    z = torch.linspace(-bound, bound, 401, dtype=torch.float64)
    moments = (
        torch.zeros_like(z),
        torch.full_like(z, CLASSES),
    )  # mean 0 and variance 1: z is its own z-score
    loss = zloss.z_loss(zloss.SphericalStats.from_moments(z, *moments, CLASSES), a=A, b=B)
    figure = _new_figure(3.2)
    axes: Any = figure.add_subplot()
    axes.plot(z[z <= B], B - z[z <= B], "--", color="#777777", linewidth=1.2)
    axes.plot(z, loss, color=RED, linewidth=2)
    axes.text(-23, 37, "Z-loss", color=RED, fontweight="bold")
    axes.text(-14, 20.3, f"asymptote b {MINUS} z", color="#555555", ha="right", va="top")
    for sign, side in ((-1, "left"), (1, "right")):
        axes.axvline(sign * bound, color="#777777", linewidth=1, linestyle=":")
        text = f"{'' if sign > 0 else MINUS}√(D {MINUS} 1)"
        axes.text(sign * (bound - 0.8), 44, text, ha=side, va="top", color="#555555")
    axes.set(
        xlabel="z of the target",
        ylabel="loss",
        ylim=(0, 45),
        title=f"D = {CLASSES:,}, a = {A:g}, b = {B:g}",
    )
    return figure


# ---- figures 2 and 5 -------------------------------------------------------------------------------------------------


def draw_losses(figure: int, columns: int) -> Draw:
    """A panel for each score, a row for each loss: test mean and interval."""

    def draw(evidence: Evidence) -> "Figure":
        losses, scores = losses_of(evidence, figure), FIGURE_SCORES[figure]
        rows = -(-len(scores) // columns)
        canvas = _new_figure(rows * (0.75 + 0.24 * len(losses)))
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
        f"{label(score)} error, %" if is_error(score) else f"{label(score)}, higher is better"
    )
    axes.set_yticks(range(len(losses)), [NAMES[loss] for loss in losses])
    axes.set_ylim(len(losses) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.locator_params(axis="x", nbins=4)
    found = [loss for loss in losses if evidence.has_tuned(figure, loss, score)]
    if not found:
        axes.text(0.5, 0.5, "not run yet", transform=axes.transAxes, ha="center", color=_INK)
        return
    scale = 100 if is_error(score) else 1
    values = {loss: _scaled(estimate(evidence.tuned(figure, loss, score)), scale) for loss in found}
    axes.set_xlim(_window(list(values.values())))
    for loss, value in values.items():
        _draw_loss(axes, losses.index(loss), loss, value, shown(value.mean / scale, score))


def _scaled(value: Estimate, scale: float) -> Estimate:
    return Estimate(
        scale * value.mean,
        None if value.half_width is None else scale * value.half_width,
        value.seeds,
    )


def _window(values: Sequence[Estimate]) -> tuple[float, float]:
    """What a panel shows: all means, but for one that would press all others together."""
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
    """A point with its interval and number; an arrow to it where it is outside of the panel."""
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
            text, place, (0, 4.5), textcoords="offset points", ha="center", color=_INK, fontsize=8
        )
    else:
        edge, side, words = (
            (high, "right", f"{text} →") if value.mean > high else (low, "left", f" ← {text}")
        )
        axes.text(edge, row, words, ha=side, va="center", color=_INK, fontsize=8)


# ---- figure 3 --------------------------------------------------------------------------------------------------------


def draw_sweep(evidence: Evidence) -> "Figure":
    """Test errors against a, one panel each, with bands and the minimum marked."""
    from matplotlib.ticker import LogLocator, NullLocator

    figure = _new_figure(5.6)
    panels: Any = figure.subplots(len(FIGURE3_SCORES), sharex=True)
    for axes, score, colour in zip(panels, FIGURE3_SCORES, (BLUE, GREEN, RED), strict=True):
        points = estimates(evidence.sweep(score))
        _draw_band(
            axes, list(points), list(points.values()), color=colour, marker="o", markersize=4
        )
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
        axes.set(xscale="log", ylabel=f"{label(score)} error, %")
        axes.margins(y=0.25)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
    panels[-1].set_xlabel(f"a, with b = {FIGURE_B:g}")
    return figure


def _draw_band(axes: "Axes", x: Sequence[float], values: Sequence[Estimate], **look: Any) -> None:
    """Means as a line, intervals as a band around it."""
    means = [100 * value.mean for value in values]
    widths = [100 * (value.half_width or 0) for value in values]
    axes.plot(x, means, **look)
    lows, highs = zip(
        *((mean - width, mean + width) for mean, width in zip(means, widths, strict=True)),
        strict=True,
    )
    axes.fill_between(x, lows, highs, color=look["color"], alpha=_BAND, linewidth=0)


# ---- figure 4 --------------------------------------------------------------------------------------------------------


def draw_curves(evidence: Evidence) -> "Figure":
    """Validation errors by epoch: a panel for each error, a curve for each of the four models, named at its end."""
    models = {model: evidence.curves(model) for model in CURVES}
    figure = _new_figure(5.2)
    panels: Any = figure.subplots(2, 2, sharex=True)
    for axes, score in zip(panels.flat, CURVES, strict=True):
        ends = {}
        for model, curves in models.items():
            colour, dashes = _CURVE_LOOKS[model]
            epochs, values = _mean_curve(curves, score)
            _draw_band(axes, epochs, values, color=colour, linestyle=dashes, linewidth=1.6)
            ends[model] = (epochs[-1], 100 * values[-1].mean)
        axes.set_title(f"{label(score)} error, %")
        _focus(axes, list(models.values()), score)
        _name_ends(axes, ends)
    for axes in panels[-1]:
        axes.set_xlabel("epoch")
    figure.supxlabel(
        "curves are named by the error that their settings were tuned for", fontsize=8.5
    )
    return figure


def _mean_curve(curves: Sequence[TrainingCurve], score: str) -> tuple[list[float], list[Estimate]]:
    """Over seeds, at the epochs that all have: a training that stopped earlier ends the mean."""
    points = [{point["epoch"]: point[score] for point in curve.curve} for curve in curves]
    epochs = [epoch for epoch in points[0] if all(epoch in other for other in points)]
    return epochs, [estimate([other[epoch] for other in points]) for epoch in epochs]


def _focus(axes: "Axes", models: Sequence[Sequence[TrainingCurve]], score: str) -> None:
    """Leave out the steep beginning, next to which all ends look the same."""
    lowest = 100 * min(curve.best(score) for curves in models for curve in curves)
    later = [
        100 * point[score]
        for curves in models
        for curve in curves
        for point in curve.curve[len(curve.curve) // 4 :]
    ]
    room = 0.08 * (max(later) - lowest or 1)
    axes.set_ylim(lowest - room, max(later) + room)


def _name_ends(axes: "Axes", ends: dict[str, tuple[float, float]]) -> None:
    """Names beside the ends of curves, moved apart where they would touch."""
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
            f" {label(model)}", (x, height), (2, 0), color=_CURVE_LOOKS[model][0], **place
        )


def _apart(places: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """The same places in the same order, at least a step from each other.

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


# ---- table 2 ---------------------------------------------------------------------------------------------------------


def draw_progress(evidence: Evidence) -> "Figure":
    """Test errors of models on large texts against the time that they were trained: a row for each text."""
    texts = progress(evidence)
    if not texts:
        raise NotRunError(models_command(FIXED))
    figure = _new_figure(0.6 + 2.2 * len(texts))
    panels: Any = figure.subplots(len(texts), len(PROGRESS_SCORES), squeeze=False)
    for row, (corpus, models) in zip(panels, texts.items(), strict=True):
        for axes, score in zip(row, PROGRESS_SCORES, strict=True):
            axes.set_title(f"{corpus}: {label(score)} error, %")
            for model, points in models.items():
                _draw_progress(axes, model, points, score)
            _label_times(axes)
    for axes in panels[-1]:
        axes.set_xlabel("time of training")
    names = {model: None for models in texts.values() for model in models}
    lines = [_looks_only(model) for model in names]
    figure.legend(
        lines, list(names), loc="outside lower center", ncols=2, frameon=False, fontsize=8.5
    )
    return figure


def _draw_progress(axes: "Axes", model: str, points: Sequence[Point], score: str) -> None:
    colour, marker = _MODEL_LOOKS[model]
    values = [
        _scaled(estimate([one.test[score] for one in point.trainings]), 100) for point in points
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
    axes.xaxis.set_major_locator(
        FixedLocator(inside if len(inside) > 1 else [low, high])
    )  # one label is no scale
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds)))
    axes.xaxis.set_minor_locator(NullLocator())


FIGURES: dict[str, Draw] = {
    "figure1": draw_z_loss,
    "figure2": draw_losses(2, columns=2),
    "figure3": draw_sweep,
    "figure4": draw_curves,
    "figure5": draw_losses(5, columns=1),
    "table2": draw_progress,
}
