"""Runs of a few steps, and the comparison of two runs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from zloss.heads import HeadConfig
from zloss_lab.checksums import sealed, unsealed
from zloss_lab.networks import NetworkConfig
from zloss_lab.runs import Run
from zloss_lab.training import (
    Experiment,
    TrainingConfig,
)


def experiment(
    corpus: Path, *, head: HeadConfig | None = None, dropout: float = 0.0, **training: Any
) -> Experiment:
    head = head or HeadConfig(options={"a": 0.5, "b": 2.0})
    defaults: dict[str, Any] = {
        "batch_size": 20,
        "steps": 60,
        "validate_every": 20,
        "checkpoint_every": 20,
        "log_every": 10,
        "lr": 0.1,
        "output_lr": 0.05,
        "score": "top_1_error",
        "stop_after": 100,
        "validation_examples": 200,
    }
    return Experiment(
        corpus=str(corpus),
        network=NetworkConfig(context=3, embedding=8, hidden=(16,), dropout=dropout, head=head),
        training=TrainingConfig(**defaults | training),
        device="cpu",
    )


def final_tensors(run: Run) -> dict[str, torch.Tensor]:
    return run.load().tensors


def assert_same_end(run: Run, other: Run) -> None:
    ours, theirs = final_tensors(run), final_tensors(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert timeless(run.metrics()) == timeless(other.metrics())
    # Two runs never take the same time, which their metrics have too.
    states = [
        replace(one.state(), seconds=0.0, metrics=other.state().metrics) for one in (run, other)
    ]
    assert states[0] == states[1]


def timeless(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return lines of metrics without the time of training."""
    return [{**line, "seconds": None} for line in metrics]


def edit_state(run: Run, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the state of the last checkpoint, and its checksum so that it fits."""
    path = run.folder / "checkpoints" / f"{run.steps()[-1]:09d}" / "state.json"
    table = unsealed(json.loads(path.read_text()))
    change(table)
    path.write_text(json.dumps(sealed(table)))


def edit(run: Run, **changes: Any) -> None:
    """Change values in config.json, as a user would: the checksum stays as it is."""
    path = run.folder / "config.json"
    table = json.loads(path.read_text())
    for name, value in changes.items():
        *places, last = name.split("__")
        place = table
        for step in places:
            place = place[step]
        place[last] = value
    path.write_text(json.dumps(table))
