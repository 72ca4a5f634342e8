"""Signals: Ctrl-C and the request to end, once or twice at random moments, and then the way to the end.

After Ctrl-C the exit status is 130, and a line says what is saved. There is no traceback. A command that was just about
to end may end with status 0, if its result is complete.
"""

import random
import signal
from pathlib import Path

from tests.campaign.attack import Attack
from tests.campaign.disturbance import Disturbance
from tests.campaign.kills import drawn_work
from tests.campaign.training_works import Training
from tests.campaign.warm_commands import IS_POSSIBLE, Ending, command_server
from tests.campaign.works import Work, require
from zloss_lab.runs import Run
from zloss_lab.terminal import INTERRUPTED

_GAP_S = 0.3


def drawn_signals(chance: random.Random, work: Work) -> Disturbance:
    """Return one signal or two, at a random operation on files or after random times."""
    whole, number = (
        work.reference.ending,
        chance.choice((signal.SIGINT, signal.SIGINT, signal.SIGTERM)),
    )
    second = chance.choice((signal.SIGINT, signal.SIGTERM))
    first_moment = chance.uniform(0, whole.seconds)
    second_moment = first_moment + chance.uniform(0, _GAP_S)
    kind = chance.choices(("operation", "time", "twice"), (3, 2, 2))[0]
    if kind == "operation":
        return Disturbance(operation=work.drawn_operation(chance), signal=number)
    moments = ((first_moment, number), (second_moment, second))
    return Disturbance(signals=moments if kind == "twice" else moments[:1])


def interrupt(chance: random.Random, folder: Path) -> None:
    """Interrupt a command, look at how it ends, and go on."""
    work = drawn_work(chance)
    disturbance = drawn_signals(chance, work)
    work.prepare(folder)
    ending = command_server().run(*work.first(folder), folder=folder, disturbance=disturbance)
    what = f"{work.key} with {disturbance}: {ending}"
    require(ending.status in (0, INTERRUPTED, -signal.SIGTERM), what)
    require("Traceback" not in ending.stderr, what)
    work.check_interrupted(folder)
    if ending.status == 0:
        work.check(folder)
    elif ending.status == INTERRUPTED:
        _check_message(work, folder, ending, what)
    work.finish(folder)


def _check_message(work: Work, folder: Path, ending: Ending, what: str) -> None:
    """Require a message, which names the last step if the run has any."""
    said = [line for line in ending.stderr.splitlines() if line.strip()]
    require(bool(said) and ("interrupted" in said[-1] or "stopped" in ending.stderr), what)
    if isinstance(work, Training) and "is saved" in ending.stderr:
        last = Run.open(folder / "run").steps()[-1]
        require(f"step {last} is saved" in ending.stderr, f"not step {last}: {what}")


ATTACKS = (
    [
        Attack(
            key="signals",
            title="Ctrl-C and requests to end, once or twice",
            attempt=interrupt,
            tries_in_tests=2,
        )
    ]
    if IS_POSSIBLE
    else []
)
