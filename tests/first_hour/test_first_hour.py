"""The first hour, played in a fresh environment: the wheels, what they depend on, and a folder with a text."""

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.first_hour.steps import HOUR, Program, ProgramMistake, Shell, ShellMistake, Step, Stopped
from tests.installed_wheels import own_variables
from tests.lab.pets import pets_text

_PATIENCE_S = 120.0
Ending = tuple[int, str, str]  # exit status, standard output, standard error

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


class Terminal:
    """A terminal in a folder, with the programs of an environment."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder = python, folder
        self.variables = own_variables() | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        server = Path(__file__).with_name("warm_terminal.py")
        self._warm = subprocess.Popen(
            [python, server],
            cwd=folder,
            env=self.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        self._warm.communicate(timeout=_PATIENCE_S)

    def shell(self, line: str) -> Ending:
        """Run a command of `zloss`."""
        return self._ask(command=["zloss", *shlex.split(line)], program="")

    def program(self, text: str) -> Ending:
        """Run a Python program."""
        return self._ask(command=[], program=text)

    def _ask(self, **request: object) -> Ending:
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        self._warm.stdin.write(json.dumps(request) + "\n")
        self._warm.stdin.flush()
        status, out, error = json.loads(self._warm.stdout.readline())
        return status, out, error

    def stopped(self, line: str, run: str) -> Ending:
        """Run the installed program `zloss` in a process of its own, and press Ctrl-C after a line of metrics."""
        command = [str(self.python.with_name("zloss")), *shlex.split(line)]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, cwd=self.folder, env=self.variables, stdout=pipe, stderr=pipe, text=True
        ) as process:
            metrics, end = self.folder / run / "metrics.jsonl", time.monotonic() + _PATIENCE_S
            while not (metrics.exists() and metrics.read_text()) and time.monotonic() < end:
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=_PATIENCE_S)
        return process.returncode, out, error

    def files(self) -> set[str]:
        """Return the names of all files in the folder."""
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*")}


@pytest.fixture
def terminal(library_and_lab: Path, tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "words.txt").write_text(pets_text(3000))
    terminal = Terminal(library_and_lab, tmp_path)
    yield terminal
    terminal.close()


def test_the_first_hour(terminal: Terminal) -> None:
    found = []
    for step in HOUR:
        before = terminal.files()
        ending = ended(terminal, step)
        wrong = faults(step, ending, terminal.files(), before)
        found += [f"{fault}: {step}, ended with {ending}" for fault in wrong]
    assert not found, "\n\n".join(found)


def ended(terminal: Terminal, step: Step) -> Ending:
    """Do what a step says, and return how it ended."""
    match step:
        case Shell() | ShellMistake():
            return terminal.shell(step.types)
        case Program() | ProgramMistake():
            return terminal.program(step.runs)
        case Stopped():
            return terminal.stopped(step.types, step.run)


def faults(step: Step, ending: Ending, files: set[str], before: set[str]) -> Iterator[str]:
    """Yield what a person would not understand or not expect."""
    status, out, error = ending
    match step:
        case Shell() | Program():
            if status or "Traceback" in error or "error:" in error:
                yield "it failed"
            yield from (f"{text!r} is not said" for text in step.reads if text not in out)
            yield from (f"{name} is not there" for name in step.finds if name not in files)
        case ShellMistake():
            if status != 1 or out or error.count("\n") != 1 or not error.startswith("error: "):
                yield "it is not an error of one line"
            if files != before:
                yield f"it made {files - before}"
        case ProgramMistake():
            last = error.rstrip().rpartition("\n")[2]
            name, _, sentence = last.partition(": ")
            if status != 1 or name.rpartition(".")[2] != step.error:
                yield f"it is no {step.error}"
            if step.reads not in sentence:
                yield f"{step.reads!r} is not said"
        case Stopped():
            if status != 130 or "Traceback" in error:
                yield "it was not stopped"
    if isinstance(step, ShellMistake | Stopped) and step.reads not in error:
        yield f"{step.reads!r} is not said"


@pytest.mark.parametrize(
    ("step", "ending"),
    [
        (Shell(types="runs"), (1, "", "error: no\n")),
        (Shell(types="runs", reads=("table",)), (0, "", "")),
        (Shell(types="plot", finds=("a.png",)), (0, "wrote a.png", "")),
        (ShellMistake(types="runs", reads="no"), (0, "", "error: no\n")),
        (ShellMistake(types="runs", reads="no"), (1, "", "Traceback\nerror: no\n")),
        (ShellMistake(types="runs", reads="no"), (1, "", "error: yes\n")),
        (ProgramMistake(runs="f()", error="ValueError", reads="no"), (1, "", "KeyError: no\n")),
        (ProgramMistake(runs="f()", error="ValueError", reads="no"), (1, "", "ValueError: yes\n")),
        (Stopped(types="train", run="a", reads="Go on"), (0, "", "Go on")),
    ],
)
def test_what_a_person_would_not_understand_is_found(step: Step, ending: Ending) -> None:
    assert list(faults(step, ending, set(), set()))
