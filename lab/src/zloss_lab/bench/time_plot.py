"""A plot of time against the number of classes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zloss_lab.bench.schema import BenchRecord
from zloss_lab.inspection.plotting import save_figure

_COLOURS, _MARKERS = 10, "osvD^x"
_SYMBOLS = {"suite": "", "device": "", "batch": "B = ", "hidden": "H = "}


def plot_times(records: Sequence[BenchRecord], output: Path) -> None:
    """Draw the time of a step against the number of classes in a PNG: logarithmic axes, a line per head and size."""
    if output.suffix.lower() != ".png":
        raise ValueError(f"the picture is a PNG: name {output} so, such as times.png")
    # Imported here, because it takes a second and most commands draw nothing.
    from matplotlib.figure import Figure

    lines = lines_over_classes(records)
    if not lines:
        raise ValueError(
            "nothing to draw: no record has the time of a step and a number of classes"
        )
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes: Any = figure.add_subplot()
    for number, (label, points) in enumerate(lines.items()):
        marker = _MARKERS[number // _COLOURS % len(_MARKERS)]
        axes.loglog(
            *zip(*sorted(points), strict=True),
            marker=marker,
            color=f"C{number % _COLOURS}",
            label=label,
        )
    axes.set_xlabel("classes")
    axes.set_ylabel("time (ms)")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small")
    save_figure(figure, output, "png")


def lines_over_classes(records: Sequence[BenchRecord]) -> dict[str, list[tuple[int, float]]]:
    """Return the points (C, time) of each line. A label names the sizes in which the records differ.

    Records without a hidden layer are left out, because they are not of a training step.
    """
    measured = [record for record in records if record.time_ms is not None and record.hidden]
    varying = [name for name in _SYMBOLS if len({getattr(one, name) for one in measured}) > 1]
    lines: dict[str, list[tuple[int, float]]] = {}
    for record in measured:
        sizes = "".join(f", {_SYMBOLS[name]}{getattr(record, name)}" for name in varying)
        graph = ", CUDA graph" if record.launch == "graph" else ""
        if record.time_ms is not None:
            lines.setdefault(f"{record.title}{graph}{sizes}", []).append(
                (record.classes, record.time_ms)
            )
    return lines
