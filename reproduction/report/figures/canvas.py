"""The look of all figures: width, colours, and the way to a file.

The colours are chosen by Okabe and Ito, except two: people can tell them apart, however they see colours. Markers and
dashes differ too.
"""

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from reproduction.report.evidence import Evidence
from zloss_lab.seed_intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 5.0  # inches
STYLE: Any = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "svg.hashsalt": "zloss",  # the same records give the same file
}
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PINK = "#0072B2", "#D55E00", "#CC79A7"
PURPLE, BROWN = "#5E3C99", "#7A4A1E"  # not by Okabe and Ito
INK = "#333333"  # of numbers: not all colours are dark enough to read
_BAND = 0.18  # opacity

Draw = Callable[[Evidence], "Figure"]


def drawing(draw: Draw, evidence: Evidence, kind: Literal["svg", "png"]) -> bytes:
    """Return a figure as a file. Letters of SVG are shapes, so that no font is needed."""
    # Imported here, because it takes a second and most commands draw nothing.
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context(STYLE):
        metadata = {"Date": None} if kind == "svg" else {}
        draw(evidence).savefig(file, format=kind, dpi=200, metadata=metadata, facecolor="white")
    return file.getvalue()


def new_figure(height: float) -> "Figure":
    """Return an empty figure of this height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def scaled(value: Estimate, scale: float) -> Estimate:
    """Return a mean and its interval in another unit, such as percent."""
    half_width = None if value.half_width is None else scale * value.half_width
    return Estimate(scale * value.mean, half_width, value.seeds)


def draw_band(axes: "Axes", x: Sequence[float], values: Sequence[Estimate], **look: Any) -> None:
    """Draw errors in percent: means as a line, intervals as a band around it."""
    percents = [scaled(value, 100) for value in values]
    means = [value.mean for value in percents]
    lows = [value.mean - (value.half_width or 0) for value in percents]
    highs = [value.mean + (value.half_width or 0) for value in percents]
    axes.plot(x, means, **look)
    axes.fill_between(x, lows, highs, color=look["color"], alpha=_BAND, linewidth=0)
