"""Run the tests against every mutant; `make mutation` does it for all modules and rewrites the record.

    make mutation                                                     # minutes to hours: PROCESSES=16 where there are
    python -m tests.mutation.run --files update.py --sample 50        # some mutants of one module, no record
    python -m tests.mutation.run --function FactoredMatrix.sharpen_ --files matrix.py

The process imports torch and collects the tests once. For each mutant it forks, and the child puts the mutant into its
modules and runs the tests in order until one fails. A child that takes much longer than the original also counts as a
failure: a mutant may loop for ever. Needs `os.fork`, which Windows does not have.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from tests.mutation.mutants import Mutant, MutatedModule
from tests.mutation.patching import LiveModule
from tests.mutation.records import Outcome, rewrite_record, summary
from tests.mutation.scope import ROOT, TARGETS, Target

_SURVIVED, _KILLED, _BROKEN = 0, 1, 3
_SLOWEST_TEST_S = 0.5  # slower tests are left out
_SLOWEST = (
    10.0  # times the original, with this number of seconds on top: a loaded machine must not fail
)
_GRACE_S = 20.0
_LONGEST_ORIGINAL_S = 1800.0

_PYTEST = (
    *("-o", "addopts=--import-mode=importlib --doctest-modules", "--rootdir", str(ROOT)),
    *("-p", "no:cacheprovider", "-p", "no:terminal", "-s", "-W", "ignore:Module already imported"),
)


@dataclass
class _Child:
    """A process that runs the tests of one mutant; None is the original."""

    mutant: Mutant | None
    started: float
    notes: Path  # the file for the name of the failing test, or for the durations of all


class _Cost(NamedTuple):
    """The CPU time of a test, and the functions of the mutated module that it calls."""

    seconds: float
    called: list[str]


class MutationLoop:
    """A plugin of pytest that runs the collected tests once for each mutant.

    The original runs first. It shows what the tests cost and which functions they call. For each mutant only the tests
    that call its function run. Those that have killed most come first, and quick ones before slow ones.

    Args:
        mutated: the module.
        mutants: the wanted ones of its mutants.
        processes: the number of children at a time.
    """

    def __init__(self, mutated: MutatedModule, mutants: Sequence[Mutant], processes: int) -> None:
        self.mutated, self.mutants, self.processes = mutated, mutants, processes
        self.outcomes: list[Outcome] = []
        self._children: dict[int, _Child] = {}
        self._limit_s = _LONGEST_ORIGINAL_S
        self._kills = Counter[str]()
        self._costs: dict[str, _Cost] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Take the same examples for every mutant. A machine with other work to do must not fail."""
        settings.register_profile(
            "mutation", derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
        )
        settings.load_profile("mutation")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests in children instead of here."""
        live = LiveModule(self.mutated)
        missing = {mutant.function for mutant in self.mutants if not live.has(mutant)}
        assert not missing, f"not in this process: {missing}"
        with tempfile.TemporaryDirectory() as folder:
            all_items = session.items
            self._start(session, live, None, Path(folder) / "original")
            self._wait()
            for number, mutant in enumerate(self.mutants):
                while len(self._children) >= self.processes:
                    self._wait()
                session.items = self._useful(all_items, mutant)
                self._start(session, live, mutant, Path(folder) / str(number))
            while self._children:
                self._wait()
        return True

    def _useful(self, items: Sequence[pytest.Item], mutant: Mutant) -> list[pytest.Item]:
        """Return the tests that call the function of a mutant, in the best order."""
        useful = [
            one
            for one in items
            if self._costs[one.nodeid].seconds <= _SLOWEST_TEST_S
            and (not mutant.function or mutant.function in self._costs[one.nodeid].called)
        ]
        return sorted(
            useful, key=lambda one: (-self._kills[one.nodeid], self._costs[one.nodeid].seconds)
        )

    def _start(
        self, session: pytest.Session, live: LiveModule, mutant: Mutant | None, notes: Path
    ) -> None:
        sys.stdout.flush()
        if child := os.fork():
            self._children[child] = _Child(mutant, time.monotonic(), notes)
            return
        code = _BROKEN
        try:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            if mutant is not None:
                live.put(mutant)
            code = _run_until_failure(session, notes, None if mutant else str(self.mutated.path))
        except BaseException as error:
            notes.write_text(repr(error))
        finally:
            os._exit(code)

    def _wait(self) -> None:
        """Wait until a child has ended, and kill those that take too long."""
        while True:
            for process, child in self._children.items():
                if time.monotonic() - child.started > self._limit_s:
                    os.kill(process, signal.SIGKILL)
            process, status = os.waitpid(-1, os.WNOHANG)
            if process:
                self._note(self._children.pop(process), os.waitstatus_to_exitcode(status))
                return
            time.sleep(0.005)

    def _note(self, child: _Child, code: int) -> None:
        notes = child.notes.read_text() if child.notes.exists() else ""
        if code == _BROKEN:
            raise RuntimeError(f"{child.mutant}: {notes}")
        if child.mutant is None:
            self._note_original(notes, code)
        elif code == _SURVIVED:
            self.outcomes.append(Outcome(child.mutant, None))
            print(f"{self.mutated.path.name}:{child.mutant.line} {child.mutant.name}", flush=True)
        else:
            if code < 0:
                notes = "the time limit" if code == -signal.SIGKILL else f"signal {-code}"
            self._kills[notes] += 1
            self.outcomes.append(Outcome(child.mutant, notes))

    def _note_original(self, notes: str, code: int) -> None:
        if code != _SURVIVED:
            raise RuntimeError(f"the tests fail without a mutant: {notes}")
        self._costs = {name: _Cost(*cost) for name, cost in json.loads(notes).items()}
        seconds = sum(one.seconds for one in self._costs.values() if one.seconds <= _SLOWEST_TEST_S)
        self._limit_s = _SLOWEST * seconds + _GRACE_S
        print(
            f"{self.mutated.path.name}: {len(self.mutants)} mutants, {seconds:.1f} s of tests",
            flush=True,
        )


def _run_until_failure(session: pytest.Session, notes: Path, file: str | None) -> int:
    """Run the tests in order. Note the failing one, or what each test costs and calls in a file."""
    costs = dict[str, tuple[float, list[str]]]()
    for index, item in enumerate(session.items):
        following = session.items[index + 1] if index + 1 < len(session.items) else None
        started = time.process_time()
        with _calls_into(file) as called:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        seconds = time.process_time() - started if index else 0.0  # the first one loads libraries
        costs[item.nodeid] = seconds, sorted(called)
        if session.testsfailed:
            notes.write_text(item.nodeid)
            return _KILLED
    notes.write_text(json.dumps(costs))
    return _SURVIVED


@contextmanager
def _calls_into(file: str | None) -> Iterator[set[str]]:
    """Yield a set that is filled with the functions of a file that are called; for None it stays empty."""
    called = set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == file:
            called.add(frame.f_code.co_qualname)

    if file is not None:
        sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(None)


def run_target(
    target: Target, mutated: MutatedModule, mutants: Sequence[Mutant], processes: int
) -> list[Outcome]:
    """Return the outcome of each mutant."""
    loop = MutationLoop(mutated, mutants, processes)
    code = pytest.main([*_PYTEST, *(str(ROOT / one) for one in target.tests)], plugins=[loop])
    if len(loop.outcomes) != len(mutants):
        raise RuntimeError(f"pytest ended with {code!r} and {len(loop.outcomes)} outcomes")
    return loop.outcomes


def main(arguments: Sequence[str]) -> int:
    """Run the mutants that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.run")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--files", help="parts of the names of modules, with commas between them")
    parser.add_argument("--function", help="the part of the name of a function")
    parser.add_argument("--sample", type=int, help="a random number of mutants of each module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="rewrite the lines of these modules")
    parser.add_argument(
        "--killers", action="store_true", help="count the mutants that each test file kills"
    )
    chosen = parser.parse_args(arguments)
    if chosen.record and (chosen.sample or chosen.function):
        parser.error("a record needs all mutants: leave out --sample and --function")
    for target in TARGETS:
        if chosen.files and not any(part in target.file for part in chosen.files.split(",")):
            continue
        mutated = MutatedModule.read(target.path, target.scope)
        mutants = [
            one for one in mutated.mutants if not chosen.function or chosen.function in one.function
        ]
        if chosen.sample and chosen.sample < len(mutants):
            mutants = random.Random(chosen.seed).sample(mutants, chosen.sample)
        outcomes = run_target(target, mutated, mutants, chosen.processes)
        print(summary(target, outcomes, killers=chosen.killers), flush=True)
        if chosen.record:
            rewrite_record(target, outcomes)
    return 0


if __name__ == "__main__":
    os.environ["CI"] = "1"  # the same examples for every mutant
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
