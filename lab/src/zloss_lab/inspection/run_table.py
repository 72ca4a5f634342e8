"""A table that compares runs, and the search for runs in folders."""

import os
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from zloss_lab.configuration import ConfigError
from zloss_lab.runs import CONFIG, Run, RunError, is_run
from zloss_lab.score_table import heading, score_text
from zloss_lab.terminal import visible
from zloss_lab.training import resumed

_LEAST_NAME = 14  # characters for the name of a run with the margins of the table


def readable_runs(folders: list[Path]) -> tuple[list[tuple[Run, dict[str, Any]]], list[str]]:
    """Return the runs that can be read, each with its row of the table, and a message for every other one."""
    runs, without = find_runs(folders)
    readable, faults = [], [f"there are no runs in {folder}" for folder in without]
    for run in runs:
        try:
            readable.append((run, run_row(run)))
        except (RunError, ConfigError) as error:
            faults.append(str(error))
        except OSError as error:  # such as a folder without permission to read
            faults.append(f"{error.filename}: {error.strerror}")
    return readable, faults


def find_runs(folders: list[Path]) -> tuple[list[Run], list[Path]]:
    """Return the runs in these folders or one level below them, each once, and the folders without runs."""
    found: dict[str, Run] = {}
    without = []
    for folder in folders:
        places = [folder, *(sorted(folder.iterdir()) if folder.is_dir() else ())]
        runs = [Run.open(place) for place in places if is_run(place)]
        for run in runs:
            found.setdefault(os.path.realpath(run.folder), run)
        if not runs:
            without.append(folder)
    if not found:
        raise RunError(
            f"no runs in {', '.join(map(str, folders))}: name folders that `zloss train` has made, or folders of them"
        )
    return list(found.values()), without


def run_row(run: Run) -> dict[str, Any]:
    """Return the row of a run in a table of runs."""
    head, metrics = _head(run), run.metrics()
    validations = [record for record in metrics if record["kind"] == "validation"]
    best = next((record for record in validations if record["step"] == run.best_step), None)
    # Ctrl-C saves a checkpoint after the last line of the metrics.
    last_step = max([0, *run.steps()[-1:], *(record["step"] for record in metrics[-1:])])
    return {
        "run": str(run.folder),
        "head": head["head"],
        "loss": head["loss"],
        "step": last_step,
    } | {
        score: best and best.get(score)
        for score in ("top_1_error", "top_10_error", "mrr", "perplexity")
    }


def _head(run: Run) -> dict[str, Any]:
    """Return head and loss that a run was trained with. `RunError` for a config.json of another program."""
    try:
        head = run.config["network"]["head"]
        found = {name: head[name] for name in ("head", "loss")}
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{run.folder / CONFIG} is not the config of a run: it names no head and loss"
        ) from error
    resumed(run.folder)  # refuses a config that was changed
    return found


def runs_table(rows: list[dict[str, Any]], width: int) -> Table:
    """Return a table of runs with the scores of their best validations.

    Long names of folders are wrapped. Last columns that do not fit into the width are left out, because a number that
    is cut off would be wrong.
    """
    cells = {name: [_shown(name, row[name]) for row in rows] for name in rows[0]}
    room = width - _LEAST_NAME
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, column in cells.items():
        if name != "run":
            room -= 2 + max(map(len, (*heading(name).splitlines(), *column)))
        if name == "run" or room >= 0:
            side: Literal["left", "right"] = "left" if name in ("run", "head", "loss") else "right"
            table.add_column(heading(name), justify=side, overflow="fold", no_wrap=name != "run")
    for row in zip(*list(cells.values())[: len(table.columns)], strict=True):
        table.add_row(*map(escape, row))
    if hidden := list(cells)[len(table.columns) :]:
        table.caption = f"no room for {', '.join(hidden)}: --json has all"
    return table


def _shown(name: str, cell: Any) -> str:
    """Return a cell as text. Scores are the only numbers with a fraction."""
    if isinstance(cell, float):
        return score_text(name, cell)
    return visible("" if cell is None else str(cell))
