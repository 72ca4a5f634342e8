"""Pictures: validation curves of runs, and the file of any figure."""

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zloss.names import check_name
from zloss_lab.durable import write_file
from zloss_lab.evaluation import SCORES, is_made_large
from zloss_lab.runs import Run, RunError
from zloss_lab.terminal import utf_8, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
# What curves are drawn against: the keys in the metrics of a run.
AXES = {"seconds": "seconds", "epochs": "epoch", "steps": "step"}
_AXIS_LABELS = {"epochs": "epochs of training", "steps": "training steps"}
# The unit of time, by the most seconds that it is used for.
_TIME_UNITS = {300.0: ("seconds", 1), 3 * 3600.0: ("minutes", 60), float("inf"): ("hours", 3600)}
_COLOURS, _MARKERS = 10, "osvD^x"
_MOST_MARKED = 40  # points of a curve; more would hide it
_MOST_INSIDE = 6  # names in the picture; more stand below it

Point = tuple[float, float]


def plot_runs(runs: Sequence[Run], output: Path, metric: str, x: str = "epochs") -> list[Run]:
    """Draw the validation curves of runs in one picture: a score against seconds, epochs or steps of training.

    Returns the runs that do not have this score.
    """
    form = output.suffix[1:].lower()
    if form not in FORMATS:
        endings = ", ".join(f".{one}" for one in FORMATS)
        raise RunError(f"a picture is {endings}: name {output} so, such as curves.png")
    figure, left_out = draw_curves(runs, metric, x)
    save_figure(figure, output, form)
    return left_out


def draw_curves(runs: Sequence[Run], metric: str, x: str) -> tuple["Figure", list[Run]]:
    """Return the figure of the validation curves, and the runs that do not have this score."""
    # Imported here, because it takes a second and most commands draw nothing.
    from matplotlib.figure import Figure

    curves = {run.folder: curve(run, metric, x) for run in runs}
    if not any(curves.values()):
        scores = _scores(runs[0].metrics())
        raise RunError(
            f"{runs[0].folder} has no {metric}; {f'it has {scores}' if scores else 'no validation yet'}"
        )
    drawn = [run for run in runs if curves[run.folder]]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes: Any = figure.add_subplot()
    names = run_names(drawn)
    label, unit = _x_axis(x, max(points[-1][0] for points in curves.values() if points))
    scale = 100 if metric.endswith("error") else 1
    for number, run in enumerate(drawn):
        points = [(place / unit, scale * score) for place, score in curves[run.folder]]
        marker = _MARKERS[number // _COLOURS % len(_MARKERS)]
        axes.plot(
            *zip(*points, strict=True),
            marker=marker if len(points) <= _MOST_MARKED else "",
            color=f"C{number % _COLOURS}",
            # Dollars would begin a formula. A name that begins with _ would not be shown.
            label=f"{_head(run)}: {names[run.folder]}".replace("$", r"\$"),
        )
    axes.set_xlabel(label)
    axes.set_ylabel(_y_label(metric))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    if len(drawn) <= _MOST_INSIDE:
        axes.legend(fontsize="small")
    else:
        figure.set_figheight(4.5 + 0.1 * len(drawn))
        figure.legend(loc="outside lower center", ncols=2, fontsize="x-small")
    return figure, [run for run in runs if run not in drawn]


def save_figure(figure: Any, output: Path, form: str) -> None:
    """Write a Matplotlib figure to a file, whole or not at all."""
    write_file(output, figure_bytes(figure, form))


def figure_bytes(figure: Any, form: str) -> bytes:
    """Return a Matplotlib figure as the content of a file."""
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format=form)
    return picture.getvalue()


def curve(run: Run, metric: str, x: str) -> list[Point]:
    """Return the points of a run, such as (seconds, score). Validations without a finite score are left out."""
    check_name("score", metric, SCORES)
    check_name("axis", x, AXES)
    found = [record for record in run.metrics() if record.get(metric) is not None]
    if any(record.get(AXES[x]) is None for record in found):
        raise RunError(
            f"the metrics of {run.folder} have no {x}, because an earlier version of zloss has written them: use "
            f"{' or '.join(other for other in AXES if other != x)}, or train the run anew"
        )
    return [(record[AXES[x]], record[metric]) for record in found]


def run_names(runs: Sequence[Run]) -> dict[Path, str]:
    """Return a short name for each run: that of its folder, with the path if two folders have the same name."""
    count = Counter(run.folder.name for run in runs)
    named = {
        run.folder: run.folder.name if count[run.folder.name] == 1 else str(run.folder)
        for run in runs
    }
    return {folder: utf_8(visible(name)) for folder, name in named.items()}


def _head(run: Run) -> str:
    head = run.config["network"]["head"]
    return f"{head['head']}, {head['loss']}"


def _x_axis(x: str, longest: float) -> tuple[str, float]:
    """Return the label of the horizontal axis, and its unit in seconds if it is a time."""
    if x != "seconds":
        return _AXIS_LABELS[x], 1
    unit, seconds = next(unit for most, unit in _TIME_UNITS.items() if longest <= most)
    return f"time of training steps ({unit}), without validations", seconds


def _y_label(metric: str) -> str:
    name = metric.replace("_", " ") + (" (%)" if metric.endswith("error") else "")
    return f"validation: {name}, {'higher' if is_made_large(metric) else 'lower'} is better"


def _scores(records: Iterable[dict[str, Any]]) -> str:
    """Return the names of the scores that the validations have."""
    validations = (record for record in records if record["kind"] == "validation")
    names = {name for record in validations for name, value in record.items() if value is not None}
    return ", ".join(name for name in SCORES if name in names)
