"""Disturbances strike where they should, and a work notices a result that is not whole."""

import errno
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.campaign.attack import FellError
from tests.campaign.disturbance import FULL, READ_ONLY, Disturbance
from tests.campaign.reading_works import Plotting, Preparing
from tests.campaign.training_works import Training
from tests.campaign.warm_commands import IS_POSSIBLE, KILLED, command_server
from tests.campaign.works import Work
from zloss_lab.terminal import INTERRUPTED

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="commands are forked on Linux only")
CUT = Preparing("plain")


@pytest.mark.parametrize(
    ("disturbance", "status"),
    [
        (Disturbance(operation=5, signal=signal.SIGKILL), KILLED),
        (Disturbance(operation=5, signal=signal.SIGINT), INTERRUPTED),
        (Disturbance(operation=5, signal=signal.SIGTERM), -signal.SIGTERM),
        (Disturbance(operation=5, error=errno.ENOSPC), 1),
        (Disturbance(operation=0, error=errno.EROFS, lasts=True), 1),
        (Disturbance(largest_file=9, dies_of_size=True), -signal.SIGXFSZ),
        (Disturbance(largest_file=9), 1),
        (Disturbance(signals=((0.001, signal.SIGKILL),)), KILLED),
        (Disturbance(operation=10**6, signal=signal.SIGKILL), 0),
    ],
)
def test_a_disturbance_ends_the_command(
    disturbance: Disturbance, status: int, tmp_path: Path
) -> None:
    ending = command_server().run(*CUT.first(tmp_path), folder=tmp_path, disturbance=disturbance)
    assert ending.status == status, ending
    if 0 <= (disturbance.operation or -1) < 10**6:
        assert ending.struck, "the operation is known"
    if disturbance.error in (*FULL, *READ_ONLY):
        assert "error: " in ending.stderr
        assert not (tmp_path / "corpus").exists()


def test_operations_are_drawn_evenly_by_the_kind_of_file() -> None:
    """A file that is written once is met as often as the checkpoints, which are most of the files."""
    work, chance = Training("factored"), random.Random(0)
    operations = work.reference.ending.operations
    drawn = [operations[work.drawn_operation(chance)] for _ in range(400)]
    shares = [
        sum("config.json" in one for one in found) / len(found) for found in (operations, drawn)
    ]
    assert shares[0] < 0.04 < 0.06 < shares[1]


def flip(folder: Path) -> None:
    place = folder / "run" / "checkpoints" / "000000024" / "tensors.safetensors"
    tensors = load_file(place)
    name = max(tensors, key=lambda one: tensors[one].is_floating_point())
    tensors[name].view(-1)[0] = torch.nextafter(
        tensors[name].view(-1)[0], torch.tensor(9.0, dtype=tensors[name].dtype)
    )
    save_file(tensors, place)


def forget(folder: Path) -> None:
    place = folder / "run" / "metrics.jsonl"
    place.write_text("".join(place.read_text().splitlines(keepends=True)[:-1]))


def leave(folder: Path) -> None:
    (folder / "run" / "checkpoints" / ".partial-000000024").mkdir()


def lose(folder: Path) -> None:
    shutil.rmtree(folder / "run" / "checkpoints" / "000000024")


def cut(folder: Path) -> None:
    place = folder / "corpus" / "train.tokens"
    place.write_bytes(place.read_bytes()[:-1])


def halve(folder: Path) -> None:
    place = folder / "plot.png"
    place.write_bytes(place.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("work", "damage"),
    [
        (Training("factored"), flip),
        (Training("factored"), forget),
        (Training("factored"), leave),
        (Training("factored"), lose),
        (CUT, cut),
        (Plotting(), halve),
    ],
)
def test_a_result_that_is_not_whole_is_noticed(
    work: Work, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    shutil.copytree(work.reference.folder, tmp_path, dirs_exist_ok=True)
    work.check(tmp_path)
    work.check_interrupted(tmp_path)
    damage(tmp_path)
    with pytest.raises((FellError, ValueError)):
        work.check(tmp_path)
    if damage is halve:
        with pytest.raises(FellError):
            work.check_interrupted(tmp_path)
