"""A race: cases take turns, so that a slow minute of the machine affects all of them.

The cases of a group run in one heat, or in several heats if memory does not hold all of them. On a CPU, the factored
Z-loss runs in every heat as the pacesetter: the times of all cases are multiples of its time. A record is written as
soon as its case is measured.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import torch

from zloss_lab.bench.cases import Case
from zloss_lab.bench.gate import WrongResultError
from zloss_lab.bench.memory import cpu_peak_bytes, gpu_peak, release, room_bytes
from zloss_lab.bench.provenance import provenance_with_peers
from zloss_lab.bench.random_inputs import SEED
from zloss_lab.bench.schema import BenchRecord
from zloss_lab.bench.timing import LONG_MS, TimedWork, median_ratio
from zloss_lab.records import Record, write_records

# Called with the name of the running case, the number of cases done and the number of all cases.
RaceWatcher = Callable[[str, float, int], None]

# Default numbers of turns. A slow step has fewer.
_TURNS = {"cuda": 20, "cpu": 30}
_FEW_TURNS = 7


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The conditions of a race."""

    device: torch.device
    repeats: int | None = None  # turns of every case
    measures_memory: bool = True  # on a CPU, every case needs a separate process for it


class Journal:
    """The records of a race, in the order of its cases. The file always holds all of them."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path = path
        self.faults: list[str] = []  # cases that were refused or failed, with the reasons
        # The provenance is taken now, because the checkout may change before the end.
        self._where = provenance_with_peers(device)
        self._records: dict[int, BenchRecord] = {}
        self.written = 0  # the number of records in the file

    def add(self, place: int, case: Case, results: Record) -> None:
        """Add the record of the case at this place, and write the file."""
        self._records[place] = case.record(results | self._where)
        write_records(self.path, self.records)
        self.written = len(self._records)

    @property
    def records(self) -> list[BenchRecord]:
        """The records so far."""
        return [self._records[place] for place in sorted(self._records)]


@dataclass
class Heat:
    """Cases that fit into memory together, with their times so far."""

    cases: list[Case]
    stack: ExitStack
    runners: dict[Case, TimedWork] = field(default_factory=dict)
    peaks: dict[Case, int | None] = field(default_factory=dict)
    slowest_ms: float = 0.0


class Race:
    """A race of cases, which writes their records to a journal."""

    def __init__(
        self, cases: Sequence[Case], conditions: Conditions, journal: Journal, watch: RaceWatcher
    ) -> None:
        self.places = {case: place for place, case in enumerate(cases)}
        self.conditions, self.journal, self.watch = conditions, journal, watch
        self.device = conditions.device
        # Messages of checks by gate, None for a right result.
        self._faults: dict[Hashable, str | None] = {}

    def run(self) -> None:
        """Check every case. Then let the cases with right results take turns, group by group."""
        groups: dict[Hashable, list[Case]] = {}
        for case in self.places:
            if self._may_run(case):
                groups.setdefault(case.group, []).append(case)
        for group in groups.values():
            for cases in heats(group, room_bytes(self.device), self._pacesetter):
                with ExitStack() as stack:
                    self._run_heat(Heat(cases, stack))
                release(self.device)

    # ---- before the start --------------------------------------------------------------------------------------------

    def _may_run(self, case: Case) -> bool:
        if reason := case.missing(self.device) or self._too_large(case):
            self._leave_out(case, reason)
            return False
        if fault := self._fault(case):
            self._leave_out(case, fault, is_fault=True)
        return fault is None

    def _too_large(self, case: Case) -> str | None:
        room, needed = room_bytes(self.device), case.bytes_needed()
        if room is None or needed <= room:
            return None
        return f"{case.size} needs about {needed / 1e9:,.1f} GB of memory, and {room / 1e9:,.1f} GB may be used"

    def _fault(self, case: Case) -> str | None:
        """Return what is wrong with the result of a case, or None if it is right."""
        if case.gate not in self._faults:
            self._show(f"checking {case.name}", 0)
            try:
                case.check(self.device)
                self._faults[case.gate] = None
            except Exception as error:  # other libraries may raise any error
                self._faults[case.gate] = _message(error)
        return self._faults[case.gate]

    def _leave_out(self, case: Case, reason: str, *, is_fault: bool = False) -> None:
        if is_fault:
            self._note_fault(case, reason)
        nothing = {"time_ms": None, "peak_bytes": None, "missing": reason}
        self.journal.add(self.places[case], case, nothing)

    def _note_fault(self, case: Case, reason: str) -> None:
        self.journal.faults.append(f"{case.name} ({case.launch}, {case.size}): {reason}")

    # ---- a heat ------------------------------------------------------------------------------------------------------

    def _run_heat(self, heat: Heat) -> None:
        pacesetters = [pace for pace in map(self._pacesetter, heat.cases) if pace is not None]
        for case in dict.fromkeys(chain(pacesetters, heat.cases)):
            self._show(f"preparing {case.name}, {case.size}", 0)
            self._prepare(case, heat)
        turns = self.conditions.repeats or self._default_turns(heat)
        try:
            for turn in range(turns):
                for case, runner in heat.runners.items():
                    self._show(f"{case.name}, {case.size}", turn / turns * len(heat.cases))
                    runner.take_turn()
        finally:  # also after Ctrl-C, so that finished turns are kept
            for case in heat.cases:
                self._keep(case, heat)

    def _prepare(self, case: Case, heat: Heat) -> None:
        torch.manual_seed(SEED)
        try:
            with ExitStack() as own, gpu_peak(self.device) as peak:
                runner = TimedWork(own.enter_context(case.prepared(self.device)), self.device)
                step_ms = runner.warm_up()
                heat.stack.push(own.pop_all())
        except Exception as error:  # other libraries may raise any error
            if case in heat.cases:
                self._leave_out(case, _message(error), is_fault=True)
            return
        heat.runners[case], heat.slowest_ms = runner, max(heat.slowest_ms, step_ms)
        if case in heat.cases:
            heat.peaks[case] = peak[0] if peak else self._cpu_peak_bytes(case)

    def _cpu_peak_bytes(self, case: Case) -> int | None:
        """Return the peak of memory, or None if it is not measured. A failure does not affect the time of the case."""
        if not self.conditions.measures_memory:
            return None
        try:
            return cpu_peak_bytes(case)
        except Exception as error:  # from another library, or because the process was killed
            self._note_fault(case, f"memory, {_message(error)}")
            return None

    def _keep(self, case: Case, heat: Heat) -> None:
        runner = heat.runners.get(case)
        if runner is None or not runner.times_ms:
            return
        results = runner.results() | {"peak_bytes": heat.peaks[case]}
        results |= case.results(results["time_ms"])
        pacesetter = self._pacesetter(case)
        if pacesetter in heat.runners:
            results["ratio_to_factored"] = median_ratio(
                runner.times_ms, heat.runners[pacesetter].times_ms
            )
        self.journal.add(self.places[case], case, results)

    def _default_turns(self, heat: Heat) -> int:
        return _FEW_TURNS if heat.slowest_ms > LONG_MS else _TURNS[self.device.type]

    def _pacesetter(self, case: Case) -> Case | None:
        pacesetter = case.pacesetter() if self.device.type == "cpu" else None
        return None if pacesetter is None or self._fault(pacesetter) else pacesetter

    def _show(self, what: str, done: float) -> None:
        self.watch(what, len(self.journal.records) + done, len(self.places))


def heats(
    group: Sequence[Case], room: int | None, pacesetter: Callable[[Case], Case | None]
) -> Iterator[list[Case]]:
    """Yield the cases in their order, in as few heats as `room` bytes of memory allow; one by one if it is None."""
    heat: list[Case] = []
    for case in group:
        runners = {*heat, case, *map(pacesetter, [*heat, case])}
        needed = sum(runner.bytes_needed() for runner in runners if runner is not None)
        if heat and (room is None or needed > room):
            yield heat
            heat = []
        heat.append(case)
    if heat:
        yield heat


def _message(error: Exception) -> str:
    if isinstance(error, WrongResultError):
        return f"refused: {error}"
    message = str(error).strip().splitlines()
    return f"failed: {type(error).__name__}" + (f": {message[0]}" if message else "")
