"""The folder of a run: its files are complete or absent, whatever happens while they are written."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from zloss_lab import checkpoints, durable, runs
from zloss_lab.checkpoints import CheckpointState, RunCheckpoint, ScheduleState
from zloss_lab.runs import Run, RunError


def checkpoint(step: int, best_step: int | None = None) -> RunCheckpoint:
    state = CheckpointState(
        step=step,
        seconds=0.5,
        schedule=ScheduleState(best=None if best_step is None else 0.25, best_step=best_step),
        classes=7,
        vocabulary="v",
        config={"seed": 1},
    )
    return RunCheckpoint({"weight": torch.full((2, 3), float(step))}, state)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path / "run").create({"seed": 1})
    yield run
    run.close()


def test_a_checkpoint_comes_back(run: Run) -> None:
    run.save(checkpoint(10), keep=2)
    loaded = Run.open(run.folder).load()
    written = checkpoint(10).state
    assert {name: getattr(loaded.state, name) for name in vars(written)} == vars(written)
    assert torch.equal(loaded.tensors["weight"], torch.full((2, 3), 10.0))
    assert Run.open(run.folder).config == {"seed": 1}


def test_old_checkpoints_go_and_the_best_stays(run: Run) -> None:
    assert run.best_step is None
    for step in (10, 20, 30, 40, 50):
        run.save(checkpoint(step, best_step=20 if step >= 20 else None), keep=2)
    assert run.steps() == [20, 40, 50]
    assert run.load(run.best_step).step == 20


def test_metrics_are_cut_off_where_a_run_resumes(run: Run) -> None:
    for step in range(5):
        run.log({"kind": "training", "step": step, "epoch": 0.5})
        if step == 2:
            run.save(checkpoint(2), keep=2)
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "training", "st')  # killed while it wrote the line
    assert [record["step"] for record in run.metrics()] == [0, 1, 2, 3, 4]
    run = Run.open(run.folder)  # in another process
    run.forget_after(2)
    run.log({"kind": "training", "step": 3, "epoch": 0.5})
    assert [record["step"] for record in run.metrics()] == [0, 1, 2, 3]


def test_metrics_are_there_for_tensorboard(run: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    run.log({"kind": "validation", "step": 1, "epoch": 0.5, "mrr": 0.25})
    run.forget_after(0)
    run.log({"kind": "validation", "step": 2, "epoch": 0.5, "mrr": 0.5})
    run.close()
    events = EventAccumulator(str(run.folder)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("validation/mrr")] == [
        (1, 0.25),
        (2, 0.5),
    ]


FULL_DISK = {
    "Python": OSError(errno.ENOSPC, "No space left on device"),
    "safetensors": SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    ),
}


@pytest.mark.parametrize("by", FULL_DISK)
def test_a_full_disk_loses_nothing(by: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both errors were copied from a disk that was full."""
    run.save(checkpoint(10), keep=2)
    monkeypatch.setattr(checkpoints, "save_file", raising(FULL_DISK[by]))
    message = "step 20 of .*run could not be written, the disk is full; the checkpoint of step 10 is there, resume"
    with pytest.raises(RunError, match=message):
        run.save(checkpoint(20), keep=2)
    assert run.steps() == [10]
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["000000010"]


def test_a_full_disk_without_a_checkpoint(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "write_file", raising(FULL_DISK["Python"]))
    with pytest.raises(
        RunError, match=r"the config of .*new could not be written, the disk is full$"
    ):
        Run(tmp_path / "new").create({})
    monkeypatch.setattr(Path, "open", raising(FULL_DISK["Python"]))
    with pytest.raises(
        RunError, match=r"the metrics of .*run could not be written, the disk is full$"
    ):
        run.log({"kind": "training", "step": 1, "epoch": 0.5})


def test_what_the_system_says_is_told_in_its_words(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.log({"kind": "training", "step": 1, "epoch": 0.5})
    monkeypatch.setattr("os.replace", raising(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(
        RunError, match=r"^the metrics of .*run could not be written, Permission denied$"
    ):
        run.forget_after(0)


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_whoever_gets_a_checkpoint_can_read_it(run: Run) -> None:
    run.save(checkpoint(10), keep=2)
    files = (run.folder / "checkpoints" / "000000010").iterdir()
    assert all(path.stat().st_mode & 0o044 for path in files)


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
    with pytest.raises(
        RunError, match=r"000000010 cannot be used: .* damaged, or .* or start a new run$"
    ):
        run.load()
    run.save(checkpoint(20), keep=2)
    (run.folder / "checkpoints" / "000000020" / "state.json").write_text("{")
    with pytest.raises(
        RunError, match=r"000000020 cannot be used: .* remove its folder to go on from step 10$"
    ):
        run.state()
    (run.folder / "config.json").write_text("{")
    with pytest.raises(RunError, match=r"config\.json cannot be read"):
        _ = run.config


def test_killed_before_there_was_a_config(tmp_path: Path) -> None:
    """The folder is not a run, and a new run can begin there."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".partial-config.json.lock").touch()
    (tmp_path / "run" / ".partial-config.json-0123456789abcdef").write_text("{")
    run = Run(tmp_path / "run").create({"seed": 1})
    assert [path.name for path in run.folder.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"\xff", "is no JSON"),
        (b'{"kind": "training", "step": 1}', "is no metrics with kind, step and epoch"),
        (b'{"kind": "training", "step": "1"}', "is no metrics with kind, step and epoch"),
        (b'{"kind": "training"}', "is no metrics with kind, step and epoch"),
    ],
)
def test_a_damaged_line_of_metrics_is_named(line: bytes, told: str, run: Run) -> None:
    run.log({"kind": "training", "step": 1, "epoch": 0.5})
    with (run.folder / "metrics.jsonl").open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(RunError, match=rf"metrics\.jsonl, line 2, {told}.*: delete the line"):
        run.metrics()


def test_no_checkpoint_is_on_the_disk_without_its_metrics(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.log({"kind": "training", "step": 1, "epoch": 0.5})
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    run.save(checkpoint(1), keep=2)
    assert synced[0] == (run.folder / "metrics.jsonl").stat().st_ino


def test_a_file_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    durable.write_file(path, json.dumps({"a": 1}))

    def interrupted(*_: Any, **_folders: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        durable.write_file(path, json.dumps({"a": 2}))
    assert json.loads(path.read_text()) == {"a": 1}
    assert [child.name for child in tmp_path.iterdir()] == ["file.json"]


def test_an_error_names_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    """The error names this file, and not the temporary file beside it."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory") as caught:
        durable.write_file(tmp_path / "folder", "text")
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path / "folder"), None)


def test_all_of_a_new_folder_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders inside are synced too, because they hold the names of files; then the folder around it."""
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    with durable.new_folder(tmp_path / "new") as folder:
        (folder / "a" / "b").mkdir(parents=True)
        (folder / "a" / "b" / "file").touch()
    inside = [place.stat().st_ino for place in (tmp_path / "new").rglob("*")]
    assert sorted(synced[:-1]) == sorted([*inside, (tmp_path / "new").stat().st_ino])
    assert synced[-1] == tmp_path.stat().st_ino


def test_a_folder_belongs_to_one_training(run: Run) -> None:
    with (
        run.alone(),
        pytest.raises(RunError, match="another process is training in"),
        Run(run.folder).alone(),
    ):
        pass
    with run.alone():
        pass


def test_strange_files_are_no_checkpoints(run: Run) -> None:
    before = run.steps()
    (run.folder / "checkpoints").mkdir(exist_ok=True)
    (run.folder / "checkpoints" / ".DS_Store").touch()
    assert run.steps() == before
