"""Checkpoints, configs and metrics of runs have checksums: what is not what was written is refused, in words."""

import json
import math
import random
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.lab.small_runs import edit, edit_state, experiment
from zloss_lab.checkpoints import (
    CheckpointState,
    RunCheckpoint,
    ScheduleState,
    StateFile,
    read_checkpoint,
    write_checkpoint,
)
from zloss_lab.configuration import to_table
from zloss_lab.inspection.trained_model import TrainedModel
from zloss_lab.metrics_file import MetricsFile
from zloss_lab.runs import Run, RunError
from zloss_lab.training import changed_keys, fit, resumed

STATES: dict[str, tuple[dict[str, Any], str]] = {
    "schedule": ({"schedule": {"best": 0.5, "warm_up": 3}}, r"\[schedule\] unknown key: 'warm_up'"),
    "config": ({"config": {"corpus": "pets", "wings": 2}}, "unknown key: 'wings'"),
    "later": ({"mood": 3}, "unknown key: 'mood'"),
    "step": ({"step": -1}, "step must be at least 0, got -1"),
    "other step": ({"step": 5}, "it is of step 5"),
    "tensors": ({"tensors": {}}, "tensors.safetensors is not what was written"),
}


@pytest.mark.parametrize("case", STATES)
def test_a_checkpoint_that_is_damaged_or_of_a_later_version(
    case: str, corpus: Path, tmp_path: Path
) -> None:
    run = fit(experiment(corpus, steps=4, checkpoint_every=2), tmp_path / "run")
    change, told = STATES[case]
    edit_state(run, lambda table: table.update(change))
    told = rf"000000004 cannot be used: .*{told}.* remove its folder to go on from step 2$"
    with pytest.raises(RunError, match=told):
        fit(resumed(run.folder), run.folder, resume=True)
    shutil.rmtree(run.folder / "checkpoints" / "000000004")
    assert fit(resumed(run.folder), run.folder, resume=True).steps() == [2, 4]


@pytest.mark.parametrize(
    "key", [field.name for field in fields(StateFile)] + ["checksum", "schedule.factor"]
)
def test_every_part_of_a_checkpoint_is_guarded(key: str, corpus: Path, tmp_path: Path) -> None:
    run = fit(experiment(corpus, steps=4), tmp_path / "run")
    path = run.folder / "checkpoints" / "000000004" / "state.json"
    table = json.loads(path.read_text())
    (table["schedule"] if "." in key else table).pop(key.rpartition(".")[2])
    path.write_text(json.dumps(table))
    edit(run, training__steps=8)
    with pytest.raises(RunError, match=r"000000004 cannot be used: .*checksum"):
        fit(resumed(run.folder), run.folder, resume=True)
    with pytest.raises(RunError, match=r"000000004 cannot be used: .*checksum"):
        TrainedModel.load(run.folder)


def test_what_was_changed_in_a_config_is_told(corpus: Path, tmp_path: Path) -> None:
    run = fit(experiment(corpus, steps=4), tmp_path / "run")
    assert changed_keys(run.folder) == []
    edit(run, training__steps=8)
    (told,) = changed_keys(run.folder)
    assert told == f"training.steps is 8 in {run.folder / 'config.json'}, and was 4 so far"


def test_a_config_is_guarded_before_there_is_a_checkpoint(corpus: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run").create(to_table(experiment(corpus, steps=4)))
    edit(run, training__lr=0.7)
    with pytest.raises(RunError, match=r"config.json cannot be used: .*checksum.* start a new run"):
        fit(resumed(run.folder), run.folder, resume=True)
    edit(run, training__lr=0.1)
    assert fit(resumed(run.folder), run.folder, resume=True).steps() == [4]


@pytest.mark.parametrize("damage", ["a digit", "an end", "all", "nothing there"])
def test_metrics_before_a_checkpoint_are_guarded(damage: str, corpus: Path, tmp_path: Path) -> None:
    run = fit(experiment(corpus, steps=20), tmp_path / "run")
    path, lines = run.folder / "metrics.jsonl", run.metrics()
    text = path.read_text()
    edit(run, training__steps=30)
    if damage == "nothing there":  # the user has taken the advice of the message
        path.unlink()
        assert run.metrics() == []
        with pytest.warns(UserWarning, match="metrics.jsonl is missing: the run goes on without"):
            fit(resumed(run.folder), run.folder, resume=True)
        assert {line["step"] for line in run.metrics()} == {30}
        return
    cut = {"an end": text.rindex("{"), "all": 0}.get(damage, len(text))
    path.write_text(text.replace('"step": 10,', '"step": 11,')[:cut])
    for read in (
        lambda: fit(resumed(run.folder), run.folder, resume=True),
        run.metrics,
    ):
        with pytest.raises(RunError, match=r"metrics.jsonl is not what was written up to the last"):
            read()
    path.write_text(text)
    assert fit(resumed(run.folder), run.folder, resume=True).metrics()[: len(lines)] == lines


def small_checkpoint(best: float | None = None) -> RunCheckpoint:
    state = CheckpointState(
        step=7,
        seconds=0.5,
        schedule=ScheduleState(best=best, best_step=None if best is None else 7),
        classes=3,
        vocabulary="v",
        config={},
    )
    tensors: dict[str, torch.Tensor] = {
        "number": torch.tensor(3),
        "empty": torch.empty(0, 4),
        "flags": torch.tensor([True, False]),
        "turned": torch.arange(6.0, dtype=torch.float64).reshape(2, 3).T,
        "narrow": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "complex": torch.tensor([1j]),
    }
    return RunCheckpoint(tensors, state)


@pytest.mark.parametrize("best", [None, 0.25, math.inf])
def test_tensors_of_any_kind_come_back(best: float | None, tmp_path: Path) -> None:
    """An infinite score comes back too, which JSON has no word for."""
    folder, written = tmp_path / "000000007", small_checkpoint(best)
    folder.mkdir()
    write_checkpoint(folder, written, MetricsFile(tmp_path / "none").mark())
    read = read_checkpoint(folder, "cpu")
    assert read.tensors.keys() == written.tensors.keys()
    for name, tensor in written.tensors.items():
        assert read.tensors[name].dtype == tensor.dtype
        assert torch.equal(read.tensors[name], tensor)
    assert read.state.schedule == written.state.schedule


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "000000007"
    folder.mkdir()
    write_checkpoint(folder, small_checkpoint(0.25), MetricsFile(tmp_path / "none").mark())
    before = read_checkpoint(folder, "cpu")
    chance, refused = random.Random(0), 0
    for _ in range(300):
        path = chance.choice(sorted(folder.iterdir()))
        whole = path.read_bytes()
        damaged, bit = bytearray(whole), chance.randrange(8 * len(whole))
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            after = read_checkpoint(folder, "cpu")
        except Exception:  # the campaign looks at the kind of the error
            refused += 1
        else:  # white space, say
            assert after.state == before.state
            assert all(torch.equal(after.tensors[n], before.tensors[n]) for n in before.tensors)
        path.write_bytes(whole)
    assert refused > 250


def test_other_tensors_with_a_valid_file_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "000000007"
    folder.mkdir()
    write_checkpoint(folder, small_checkpoint(), MetricsFile(tmp_path / "none").mark())
    path = folder / "tensors.safetensors"
    tensors = load_file(path)
    for changed in ({"number": torch.tensor(4)}, {"more": torch.tensor(3)}):
        save_file(tensors | changed, path)
        with pytest.raises(ValueError, match=f"{next(iter(changed))} differs from its checksum"):
            read_checkpoint(folder, "cpu")


@pytest.mark.parametrize(
    "name", ["٠٠٠٠١٢٠٠٠", "¹²³⁴⁵⁶⁷⁸⁹", "12", "0000000004", "00000000\n", "9" * 19]
)
def test_folders_with_other_names_are_no_checkpoints(name: str, tmp_path: Path) -> None:
    """These names have digits of other scripts, too few or too many."""
    (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert Run(tmp_path).steps() == []
