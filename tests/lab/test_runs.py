"""The folder of a run: complete or not there, whatever happens while it is written."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from zloss.lab import durable, runs
from zloss.lab.runs import Checkpoint, Run, RunError


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(step, {"weight": torch.full((2, 3), float(step))}, {"step": step})


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "run").create({"seed": 1})
    yield run
    run.close()


def test_a_checkpoint_comes_back(run: Run) -> None:
    run.save(checkpoint(10), keep=2)
    loaded = Run.open(run.folder).load()
    assert (loaded.step, loaded.state) == (10, {"step": 10})
    assert torch.equal(loaded.tensors["weight"], torch.full((2, 3), 10.0))
    assert Run.open(run.folder).config == {"seed": 1}


def test_old_checkpoints_go_and_the_best_stays(run: Run) -> None:
    for step in (10, 20, 30, 40, 50):
        run.save(checkpoint(step), keep=2)
        if step == 20:
            run.mark_best(20, 0.5)
    assert run.steps() == [20, 40, 50]
    assert run.load(run.best_step).step == 20


def test_metrics_are_cut_off_where_a_run_resumes(run: Run) -> None:
    for step in range(5):
        run.log({"kind": "training", "step": step})
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "training", "st')  # killed while it wrote
    assert [record["step"] for record in run.metrics()] == [0, 1, 2, 3, 4]
    run.forget_after(2)
    run.log({"kind": "training", "step": 3})
    assert [record["step"] for record in run.metrics()] == [0, 1, 2, 3]


def test_metrics_are_there_for_tensorboard(run: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    run.log({"kind": "validation", "step": 1, "mrr": 0.25})
    run.forget_after(0)
    run.log({"kind": "validation", "step": 2, "mrr": 0.5})
    run.close()
    events = EventAccumulator(str(run.folder)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("validation/mrr")] == [(1, 0.25), (2, 0.5)]


def test_a_full_disk_loses_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.save(checkpoint(10), keep=2)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runs, "save_file", full)
    with pytest.raises(RunError, match="step 20 could not be written, the disk is full; the checkpoint of step 10"):
        run.save(checkpoint(20), keep=2)
    assert run.steps() == [10]
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["000000010"]


def test_what_a_killed_process_leaves_is_no_checkpoint(run: Run) -> None:
    run.save(checkpoint(10), keep=2)
    (run.folder / "checkpoints" / ".partial-000000020").mkdir()
    assert run.steps() == [10]
    run.save(checkpoint(20), keep=2)
    assert run.steps() == [10, 20]


def test_mistakes(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not empty"):
        Run(run.folder).create({})
    with pytest.raises(RunError, match=r"is not a run: there is no config\.json"):
        Run.open(tmp_path)
    with pytest.raises(RunError, match="has no checkpoint yet"):
        run.load()
    run.save(checkpoint(10), keep=2)
    with pytest.raises(RunError, match=r"no checkpoint of step 5: it has \[10\]"):
        run.load(5)
    (run.folder / "checkpoints" / "000000010" / "tensors.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RunError, match="cannot be read"):
        run.load()
    (run.folder / "config.json").write_text("{")
    with pytest.raises(RunError, match=r"config\.json cannot be read"):
        _ = run.config


def test_a_file_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    durable.write_file(path, json.dumps({"a": 1}))

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        durable.write_file(path, json.dumps({"a": 2}))
    assert json.loads(path.read_text()) == {"a": 1}
    assert [child.name for child in tmp_path.iterdir()] == ["file.json"]
