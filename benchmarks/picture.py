"""Draw the picture of README.md from the records: `python -m benchmarks.picture`.

Left: the time of a training step against the number of classes. Right: the error of models that trained equally long.
Its colours follow the reader's screen, light or dark, by two variables of style sheets.
"""

import io
import sys
from pathlib import Path
from typing import Any

from reproduction.results.results import FIXED

from benchmarks.tables import RECORDS
from reproduction.report.evidence import Evidence, estimates
from zloss_lab.records import Record, read_records

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "cost-and-quality.svg"
CORPUS, SCORE = "fil8", "top_10_error"

# Name in the records, in the picture, colour, marker. Colours of Okabe and Ito, readable on white and on black.
HEADS = (
    ("dense softmax, TF32", "full softmax", "#999999", "s"),
    ("adaptive softmax", "adaptive softmax", "#E69F00", "v"),
    ("hierarchical softmax", "hierarchical softmax", "#0072B2", "D"),
    ("sampled softmax", "sampled softmax", "#009E73", "^"),
    ("factored", "Z-loss, factored", "#D55E00", "o"),
)
MODELS = (
    ("softmax net1", "full softmax", "#999999", "s"),
    ("adaptive softmax net1", "adaptive softmax", "#E69F00", "v"),
    ("H-softmax net1", "hierarchical softmax", "#0072B2", "D"),
    ("sampled softmax net1", "sampled softmax", "#009E73", "^"),
    ("Z-loss net1", "Z-loss, a for top-1", "#D55E00", "o"),
    ("Z-loss top-10 net1", "Z-loss, a for top-10", "#D55E00", "o"),
)
# Files of records, the first that has a head at several sizes counts: a line is of one run.
RUNS = ("scaling", "adaptive", "output_layer")
INK, PAPER = "#123456", "#fedcba"  # stand for the variables of `_STYLE` until the file is written
_STYLE = (
    "<style>svg { --ink: #24292f; --paper: #ffffff } "
    "@media (prefers-color-scheme: dark) { svg { --ink: #d8dee6; --paper: #14181e } }</style>"
)


def step_times(name: str) -> dict[int, float]:
    """Return the time in ms of a captured step of a head on the GPU, by the number of classes."""
    for run in RUNS:
        times = {
            record["classes"]: record["time_ms"]
            for record in read_records(RECORDS / f"{run}.cuda.jsonl")
            if _is_shown(record, name)
        }
        if len(times) > 1:
            return times
    raise ValueError(f"no run has {name} at several numbers of classes")


def _is_shown(record: Record, name: str) -> bool:
    wanted = {"name": name, "batch": 200, "hidden": 512, "targets": "uniform", "launch": "graph"}
    is_other_run = name == "factored" and record["suite"] != "scaling"
    return wanted.items() <= record.items() and record["time_ms"] is not None and not is_other_run


def draw() -> str:
    """Return the picture as SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    colours = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    looks: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "zloss",  # the same records give the same file
        "font.size": 10,
        "axes.titlesize": 10.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        **dict.fromkeys(colours, INK),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), PAPER),
    }
    file = io.BytesIO()
    with rc_context(looks):
        figure = Figure(figsize=(9.2, 3.5), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        _draw_times(left)
        _draw_errors(right)
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue().decode().replace(INK, "var(--ink)").replace(PAPER, "var(--paper)")
    return text.replace("<defs>", f"{_STYLE}\n <defs>", 1)


def _draw_times(axes: Any) -> None:
    for name, label, colour, marker in HEADS:
        times = step_times(name)
        axes.loglog(list(times), list(times.values()), color=colour, marker=marker, label=label)
    axes.set(title="One training step of the output layer", xlabel="classes", ylabel="milliseconds")
    axes.grid(color=INK, alpha=0.15)
    axes.legend(frameon=False, fontsize=9)


def _draw_errors(axes: Any) -> None:
    evidence = Evidence.read(RECORDS.parent)
    for row, (model, label, colour, marker) in enumerate(MODELS):
        (error,) = estimates([evidence.models(CORPUS, model, FIXED)], SCORE)
        axes.errorbar(
            100 * error.mean,
            row,
            xerr=100 * (error.half_width or 0),
            color=colour,
            marker=marker,
            capsize=3,
        )
        axes.annotate(label, (100 * error.mean, row), xytext=(0, 7), textcoords="offset points")
    axes.set(title="Error after the same ten seconds", xlabel="top-10 error, %", yticks=[])
    axes.set_ylim(len(MODELS) - 0.4, -0.8)


def main() -> None:
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
