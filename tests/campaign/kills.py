"""Kills: a command ends at a random moment, as by `kill -9`, and the next one has to bring the work to its end.

A third of the kills strike before an operation on files, so that each step of writing a checkpoint is met. Others
strike after a random time, or in the middle of a write to a file.
"""

import random
import signal
from pathlib import Path

from tests.campaign.attack import Attack
from tests.campaign.disturbance import Disturbance
from tests.campaign.reading_works import (
    PREPARATIONS,
    Configuring,
    Evaluating,
    Plotting,
    Predicting,
    Preparing,
)
from tests.campaign.training_works import VARIANTS, WAYS, Resuming, Searching, Training
from tests.campaign.warm_commands import IS_POSSIBLE, KILLED, command_server
from tests.campaign.works import Work, require

_KILLED_AGAIN = 0.3


def drawn_work(chance: random.Random) -> Work:
    """Return one of the works. Those that write the most files are drawn most often."""
    kind = chance.choices(
        ("train", "resume", "prepare", "tune", "plot", "best", "evaluate", "predict"),
        (6, 4, 5, 3, 2, 1, 1, 1),
    )[0]
    works = {
        "train": lambda: Training(chance.choice(sorted(VARIANTS))),
        "resume": lambda: Resuming(chance.choice(sorted(VARIANTS))),
        "prepare": lambda: Preparing(chance.choice(sorted(PREPARATIONS))),
        "tune": lambda: Searching(chance.choice(sorted(WAYS))),
        "plot": Plotting,
        "best": lambda: Configuring(Searching("one by one")),
        "evaluate": Evaluating,
        "predict": Predicting,
    }
    return works[kind]()


def drawn_kill(chance: random.Random, work: Work) -> Disturbance:
    """Return a kill at a random operation, after a random time, or at a random size of a file."""
    whole = work.reference
    kind = chance.choices(("operation", "time", "size"), (3, 2, 1))[0]
    if kind == "operation":
        return Disturbance(operation=work.drawn_operation(chance), signal=signal.SIGKILL)
    if kind == "time":
        moment = chance.uniform(0, 1.05 * whole.ending.seconds)
        return Disturbance(signals=((moment, signal.SIGKILL),))
    size = chance.randrange(whole.largest_file + 1)
    return Disturbance(largest_file=size, dies_of_size=True)


def kill(chance: random.Random, folder: Path) -> None:
    """Kill a command, sometimes kill what follows too, and go on."""
    work = drawn_work(chance)
    work.prepare(folder)
    kill_once(chance, work, work.first(folder), folder)
    while chance.random() < _KILLED_AGAIN:
        kill_once(chance, work, work.again(folder, folder), folder)
    work.finish(folder)


def kill_once(chance: random.Random, work: Work, arguments: list[str], folder: Path) -> None:
    """Kill a command, and look at what is there then."""
    disturbance = drawn_kill(chance, work)
    ending = command_server().run(*arguments, folder=folder, disturbance=disturbance)
    # A command may end before its kill, or write no file that is large enough.
    require(
        ending.status in (KILLED, -signal.SIGXFSZ, 0),
        f"{work.key} was killed with {disturbance}: {ending}",
    )
    work.check_interrupted(folder)


ATTACKS = (
    [
        Attack(
            key="kills",
            title="processes killed at any moment",
            attempt=kill,
            tries_in_tests=2,
        )
    ]
    if IS_POSSIBLE
    else []
)
