"""Attacks that fall, hang, crash or leave files, to test the runner with. The campaign does not find this folder."""

import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from tests.campaign.attack import Attack, FellError

DRAWS = "CAMPAIGN_DRAWS"  # the environment variable that names the file for drawn numbers


def hold(chance: random.Random, folder: Path) -> None:
    assert not list(folder.iterdir()), "the folder is new"
    (folder / "file").write_text("left")
    Path(tempfile.mkdtemp()).joinpath("stray").write_text("left")


def draw(chance: random.Random, folder: Path) -> None:
    numbers = (chance.random(), random.random(), torch.rand(()).item(), np.random.rand())
    with Path(os.environ[DRAWS]).open("a") as file:
        file.write(f"{numbers}\n")


def fall(chance: random.Random, folder: Path) -> None:
    number = chance.randrange(1000)
    if number % 2:
        raise FellError(f"drew {number}")


def raise_error(chance: random.Random, folder: Path) -> None:
    raise ZeroDivisionError("not expected")


def hang(chance: random.Random, folder: Path) -> None:
    child = subprocess.Popen(["sleep", "600"])
    Path(os.environ[DRAWS]).write_text(str(child.pid))
    time.sleep(600)


def crash(chance: random.Random, folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(chance: random.Random, folder: Path) -> None:
    os._exit(3)


ATTACKS = [
    Attack(key=made.__name__, title=made.__name__, attempt=made, tries_in_tests=1)
    for made in (hold, draw, fall, raise_error, hang, crash, leave)
]
