"""Validation curves: what is drawn against which axis, in which unit, under which name."""

import json
import shutil
from pathlib import Path

import pytest

from tests.lab.small_runs import experiment
from zloss_lab.inspection.plotting import AXES, draw_curves, plot_runs
from zloss_lab.runs import Run, RunError
from zloss_lab.training import fit


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(experiment(corpus), tmp_path_factory.mktemp("run") / "one")


def with_seconds(run: Run, folder: Path, pace: float | None) -> Run:
    """Return a copy of a run in which each step took `pace` seconds; None for a run of an earlier version."""
    folder.mkdir(parents=True)
    shutil.copy(run.folder / "config.json", folder)
    lines = [
        {name: value for name, value in line.items() if name != "seconds"}
        | ({} if pace is None else {"seconds": pace * line["step"]})
        for line in run.metrics()
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return Run.open(folder)


@pytest.mark.parametrize(
    ("x", "pace", "label", "wanted"),
    [
        ("steps", 1.0, "training steps", [20, 40, 60]),
        ("epochs", 1.0, "epochs of training", None),
        ("seconds", 1.0, "time of training steps (seconds), without", [20, 40, 60]),
        ("seconds", 30.0, "time of training steps (minutes), without", [10, 20, 30]),
        ("seconds", 600.0, "time of training steps (hours), without", [10 / 3, 20 / 3, 10]),
    ],
)
def test_the_axis_has_the_unit_of_its_numbers(
    x: str, pace: float, label: str, wanted: list[float] | None, run: Run, tmp_path: Path
) -> None:
    timed = with_seconds(run, tmp_path / "timed", pace)
    (axes,) = draw_curves([timed], "top_5_error", x)[0].axes
    records = [record for record in timed.metrics() if record["kind"] == "validation"]
    (line,) = axes.lines
    assert axes.get_xlabel().startswith(label)
    found = [float(number) for number in line.get_xdata()]  # type: ignore[arg-type, union-attr]
    assert found == pytest.approx(wanted or [record["epoch"] for record in records])
    assert "top 5 error (%), lower is better" in axes.get_ylabel()
    errors = [float(number) for number in line.get_ydata()]  # type: ignore[arg-type, union-attr]
    assert errors == pytest.approx([100 * record["top_5_error"] for record in records])


def test_runs_without_times_are_named(run: Run, tmp_path: Path) -> None:
    old = with_seconds(run, tmp_path / "old", None)
    told = f"the metrics of {old.folder} have no seconds.*: use epochs or steps, or train the run"
    with pytest.raises(RunError, match=told):
        plot_runs([run, old], tmp_path / "curves.png", "mrr", "seconds")
    assert not (tmp_path / "curves.png").exists()
    for x in ("epochs", "steps"):
        assert plot_runs([run, old], tmp_path / f"{x}.svg", "mrr", x) == []


def test_every_run_has_its_name_in_the_picture(run: Run, tmp_path: Path) -> None:
    """Names that are the same, that Matplotlib leaves out, reads as a formula or cannot draw; and many."""
    names = ("_hidden", "$", "$\\frac{$", "\x1b[31mred", "a/same", "b/same")
    runs = [with_seconds(run, tmp_path / name, 1.0) for name in names]
    figure, _ = draw_curves(runs, "mrr", "seconds")
    figure.savefig(tmp_path / "picture.png")
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    shown = " ".join(text.get_text() for text in legend.get_texts()).replace(r"\$", "$")
    for name in ("_hidden", "$", "$\\frac{$", r"\x1b[31mred", "a/same", "b/same"):
        assert name in shown, shown
    many = [with_seconds(run, tmp_path / f"many{number}", 1.0) for number in range(12)]
    (below,) = draw_curves(many, "mrr", "steps")[0].legends
    assert len(below.get_texts()) == 12


@pytest.mark.parametrize(
    ("metric", "x", "message"),
    [
        ("mmr", "steps", "unknown score: 'mmr'; did you mean 'mrr'"),
        ("mrr", "second", "unknown axis: 'second'; did you mean 'seconds'"),
    ],
)
def test_unknown_names_are_refused(metric: str, x: str, message: str, run: Run) -> None:
    assert x not in AXES or metric == "mmr"
    with pytest.raises(ValueError, match=message):
        draw_curves([run], metric, x)
