"""The picture of README.md, drawn from the records: the time of a step against the number of classes, and errors.

`python -m benchmarks.tables` writes it beside the tables. Letters are shapes, so that no font is needed, and large, so
that they can be read on a phone.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reproduction.budgets import FIXED
from reproduction.report.evidence import Evidence
from reproduction.report.figures.canvas import BLACK, BLUE, GREEN, INK, ORANGE, RED, STYLE
from reproduction.report.large_text_tables import text_title
from reproduction.report.timings import duration, fastest, time_of
from reproduction.scores import top
from zloss_lab.bench.schema import LayerRecord
from zloss_lab.records import read_records_as
from zloss_lab.seed_intervals import estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CORPUS, SCORE = "fil8", top(10)
BATCH, HIDDEN = 200, 512
# The runs on a GPU, the latest first. A line is from the first run that has its head at several numbers of classes.
_RUNS = ("scaling", "adaptive", "output_layer")


class Contestant(NamedTuple):
    """A kind of output layer."""

    title: str
    entry: str  # the key of the head in the records of steps
    model: str  # in the results of table 2
    colour: str
    marker: str


CONTESTANTS = (
    Contestant("full softmax", "dense-tf32", "softmax_net1", BLACK, "s"),
    Contestant("adaptive", "adaptive", "adaptive_softmax_net1", ORANGE, "v"),
    Contestant("hierarchical", "hierarchical", "hierarchical_softmax_net1", BLUE, "D"),
    Contestant("sampled", "sampled", "sampled_softmax_net1", GREEN, "^"),
    Contestant("Z-loss", "factored", "z_loss_top_10_net1", RED, "o"),
)
_LOOK: Any = STYLE | {"font.size": 10.5, "axes.titlesize": 11, "axes.titlelocation": "left"}


def draw_picture(evidence: Evidence, timings: Path) -> str:
    """Return the picture as SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with rc_context(_LOOK):
        figure = Figure(figsize=(6.8, 3.3), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        _draw_times(left, timings)
        _draw_errors(right, evidence)
        figure.savefig(file, format="svg", metadata={"Date": None}, facecolor="white")
    return file.getvalue().decode()


def step_times(timings: Path, entry: str) -> Mapping[int, float]:
    """Return the time in ms of the fastest step of a head by the number of classes.

    Targets are words by their frequency, if a run has such steps of this head. Its time depends on them.
    """
    for run in _RUNS:
        records = read_records_as(LayerRecord, timings / f"{run}.cuda.jsonl")
        for targets in ("zipf", "uniform"):
            steps = {
                classes: fastest(
                    records, (entry,), batch=BATCH, hidden=HIDDEN, classes=classes, targets=targets
                )
                for classes in sorted({record.classes for record in records})
            }
            times = {classes: time_of(step) for classes, step in steps.items() if step}
            if len(times) > 1:
                return times
    raise ValueError(
        f"no run on a GPU has {entry} at several numbers of classes: measure it by `zloss bench scaling --device cuda`"
    )


def _draw_times(axes: "Axes", timings: Path) -> None:
    for one in CONTESTANTS:
        times = step_times(timings, one.entry)
        axes.loglog(list(times), list(times.values()), color=one.colour, marker=one.marker)
        is_last = one is CONTESTANTS[-1]  # its line goes on below the names of the others
        axes.annotate(
            one.title,
            (max(times), times[max(times)]),
            (0, -14) if is_last else (8, 0),
            textcoords="offset points",
            ha="right" if is_last else "left",
            va="center",
            color=INK,
            fontweight="bold" if is_last else "normal",
        )
    axes.set(title="Time of a training step, ms", xlabel=f"classes (H200, batch of {BATCH})")
    axes.set_xlim(7e3, 2e7)
    axes.set_ylim(0.045, 20)
    axes.set_xticks([10**4, 10**5, 10**6, 10**7], ["10,000", "100,000", "1 million", "10 million"])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()


def _draw_errors(axes: "Axes", evidence: Evidence) -> None:
    for row, one in enumerate(CONTESTANTS):
        trainings = evidence.trainings(CORPUS, one.model, FIXED)
        error = estimate([100 * training.test[SCORE] for training in trainings])
        axes.errorbar(
            error.mean, row, xerr=error.half_width, color=one.colour, marker=one.marker, capsize=3
        )
        axes.annotate(
            f"{error.mean:.1f}",
            (error.mean, row),
            (0, 7),
            textcoords="offset points",
            ha="center",
            color=INK,
        )
    axes.set_yticks(range(len(CONTESTANTS)), [one.title for one in CONTESTANTS])
    axes.get_yticklabels()[-1].set_fontweight("bold")
    axes.set_ylim(len(CONTESTANTS) - 0.5, -0.7)
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    budget_s = trainings[0].budget_s or 0.0
    axes.set_title(f"Top-10 error after {duration(budget_s)}, %")
    axes.set_xlabel(f"training on {text_title(evidence, CORPUS)}")
