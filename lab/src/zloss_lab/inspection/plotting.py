"""Pictures: validation curves of runs, and the file of any figure."""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from zloss_lab.durable import write_file
from zloss_lab.evaluation import SCORES
from zloss_lab.runs import Run, RunError

FORMATS = ("png", "svg", "pdf")


def plot_runs(runs: Sequence[Run], output: Path, metric: str) -> list[Run]:
    """Draw the validation curves of runs in one picture: a score against the epoch.

    Returns the runs that do not have this score.
    """
    form = output.suffix[1:].lower()
    if form not in FORMATS:
        endings = ", ".join(f".{one}" for one in FORMATS)
        raise RunError(f"a picture is {endings}: name {output} so, such as curves.png")
    # Imported here, because it takes a second and most commands draw nothing.
    from matplotlib.figure import Figure

    curves = {run.folder: _curve(run, metric) for run in runs}
    if not any(curves.values()):
        scores = _scores(runs[0].metrics())
        raise RunError(
            f"{runs[0].folder} has no {metric}; {f'it has {scores}' if scores else 'no validation yet'}"
        )
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    drawn = [run for run in runs if curves[run.folder]]
    for run in drawn:
        points, head = curves[run.folder], run.config["network"]["head"]
        name = run.folder.name.encode(errors="replace").decode()  # only UTF-8 can be drawn
        axes.plot(
            *zip(*points, strict=True), marker="o", label=f"{name} ({head['head']}, {head['loss']})"
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel(metric.replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, output, form)
    return [run for run in runs if run not in drawn]


def save_figure(figure: Any, output: Path, form: str) -> None:
    """Write a Matplotlib figure to a file, whole or not at all."""
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format=form)
    write_file(output, picture.getvalue())


def _curve(run: Run, metric: str) -> list[tuple[float, float]]:
    """Return the points (epoch, score) of a run. Validations without a finite score are left out."""
    return [
        (record["epoch"], record[metric])
        for record in run.metrics()
        if record.get(metric) is not None
    ]


def _scores(records: Iterable[dict[str, Any]]) -> str:
    """Return the names of the scores that the validations have."""
    validations = (record for record in records if record["kind"] == "validation")
    names = {name for record in validations for name, value in record.items() if value is not None}
    return ", ".join(name for name in SCORES if name in names)
