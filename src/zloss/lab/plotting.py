"""Curves of runs as pictures."""

import io
from collections.abc import Sequence
from pathlib import Path

from zloss.lab.durable import write_file
from zloss.lab.runs import Run, RunError


def plot_runs(runs: Sequence[Run], output: Path, metric: str) -> None:
    """Validation curves of all runs in one PNG: a metric against the epoch."""
    # Here, because it takes a second, and most commands draw nothing.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for run in runs:
        points = [(record["epoch"], record[metric]) for record in run.metrics() if metric in record]
        if not points:
            raise RunError(f"{run.folder} has no validation with {metric} yet")
        head = run.config["network"]["head"]
        axes.plot(*zip(*points, strict=True), marker="o", label=f"{run.folder.name} ({head['head']}, {head['loss']})")
    axes.set_xlabel("epoch")
    axes.set_ylabel(metric.replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format="png")
    write_file(output, picture.getvalue())
