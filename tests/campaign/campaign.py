"""Run the permanent campaign of attacks: `python -m tests.campaign.campaign --minutes 60`.

Each attempt draws everything from its own seed, which follows from the seed of the campaign, the attack and the number
of the attempt. `--repeat KEY:SEED` makes one attempt again and shows its traceback. Ctrl-C ends a campaign early, with
its summary. The exit status is 1 if an attempt fell.
"""

import argparse
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from benchmarks.campaign_table import AttackRecord, merge_records
from tests.campaign.attack import Attack
from tests.campaign.discovery import (
    attacks_of,
    chosen,
    make_attempt,
    module_names,
    repeat_command,
)
from tests.campaign.schedule import Schedule
from tests.campaign.worker_processes import Outcome, Worker, wait_for_any
from zloss_lab.records import provenance

_LOOK_EVERY_S = 0.5
_FALLS_SHOWN = 3  # of each attack
_INTERRUPTED = 130


def run(
    schedule: Schedule,
    modules: Sequence[str],
    *,
    processes: int,
    limit_s: float,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Make all attempts of a schedule in worker processes."""
    workers: list[Worker] = []
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as place:
        try:
            busy: list[Worker] = []
            task = schedule.next()
            while task is not None or busy:
                if task is not None and len(busy) < processes:
                    idle = [worker for worker in workers if worker not in busy]
                    worker = idle[0] if idle else Worker(modules, Path(place), limit_s)
                    workers += [] if idle else [worker]
                    worker.begin(task)
                    busy.append(worker)
                    task = schedule.next()
                    continue
                wait_for_any(busy, _LOOK_EVERY_S)
                for worker in list(busy):
                    if (outcome := worker.outcome()) is not None:
                        schedule.add(outcome)
                        busy.remove(worker)
                watch()
        finally:
            for worker in workers:
                worker.close()


def summary(schedule: Schedule) -> Table:
    """Return the table of all attempts so far."""
    table = Table("attack", "tried", "held", "fell", "minutes")
    for key, tally in schedule.tallies.items():
        numbers = (tally.tried, tally.held, len(tally.falls))
        table.add_row(key, *(f"{number:,}" for number in numbers), f"{tally.seconds / 60:.1f}")
    return table


def falls(schedule: Schedule) -> list[Outcome]:
    """Return the first falls of each attack."""
    return [one for tally in schedule.tallies.values() for one in tally.falls[:_FALLS_SHOWN]]


def records(schedule: Schedule) -> list[AttackRecord]:
    """Return the record of each attack that was tried."""
    return [
        AttackRecord(
            attack=key,
            title=tally.attack.title,
            device=(device := "cuda" if tally.attack.needs_gpu else "cpu"),
            seed=schedule.seed,
            tried=tally.tried,
            held=tally.held,
            fell=len(tally.falls),
            seconds=round(tally.seconds, 1),
            provenance=provenance(torch.device(device)),
        )
        for key, tally in schedule.tallies.items()
        if tally.tried
    ]


def repeat(attacks: dict[str, Attack], wanted: str) -> int:
    """Make one attempt again, in this process. A fall shows its traceback."""
    key, _, seed = wanted.rpartition(":")
    attack = chosen(attacks, [key])[key]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        make_attempt(attack, int(seed), Path(place))
    print(f"{wanted} has held")
    return 0


def tries_of(texts: Sequence[str], attacks: dict[str, Attack]) -> dict[str, int]:
    """Return the number of attempts by key, from texts such as `500` for all attacks or `kills=500`.

    >>> from tests.campaign.attack import Attack
    >>> kills = Attack(key="kills", title="kills", attempt=lambda *_: None, tries_in_tests=1)
    >>> tries_of(["3"], {"kills": kills}), tries_of(["kills=7"], {"kills": kills})
    ({'kills': 3}, {'kills': 7})
    """
    pairs = [text.rpartition("=") for text in texts]
    for key, _, number in pairs:
        if not number.isdigit():
            raise ValueError(f"--tries takes N or KEY=N, got {number!r}")
        chosen(attacks, [key] if key else [])
    by_key = {key: int(number) for key, _, number in pairs}
    rest = by_key.pop("", 0)
    return {key: by_key.get(key, rest) for key in attacks}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--minutes", type=float, default=5.0, help="time, shared by weight")
    options.add_argument("--tries", default="", help="N or KEY=N,KEY=N: attempts instead of time")
    options.add_argument("--seed", type=int, help="seed of the campaign; a fresh one by default")
    options.add_argument("--only", default="", help="KEY,KEY: these attacks only")
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options.add_argument("--attempt-limit", type=float, default=300.0, metavar="SECONDS")
    options.add_argument("--output", type=Path, help="file of records to renew")
    options.add_argument("--repeat", metavar="KEY:SEED", help="make one attempt again")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit status."""
    options = parser().parse_args(arguments)
    modules = module_names()
    attacks = attacks_of(modules)
    if options.repeat:
        return repeat(attacks, options.repeat)
    try:
        wanted = chosen(attacks, [key for key in options.only.split(",") if key])
        tries = tries_of(options.tries.split(","), wanted) if options.tries else None
    except ValueError as error:
        sys.exit(f"error: {error}")
    has_gpu = torch.cuda.is_available()
    usable = [attack for attack in wanted.values() if has_gpu or not attack.needs_gpu]
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    schedule = Schedule(usable, seed, tries=tries, seconds=60 * options.minutes)
    console = Console(highlight=False)
    console.print(f"seed {seed}, {options.processes} processes")
    is_interrupted = _watched(schedule, modules, options, console)
    console.print(summary(schedule))
    for key in wanted.keys() - schedule.tallies.keys():
        console.print(f"{key} was left out: it needs a GPU")
    for fall in falls(schedule):
        console.print(f"fell: {escape(repeat_command(fall.task.key, fall.task.seed))}")
        console.print(escape(str(fall.fault)))
    if options.output:
        merge_records(options.output, records(schedule))
    return _INTERRUPTED if is_interrupted else int(bool(falls(schedule)))


def _watched(
    schedule: Schedule, modules: Sequence[str], options: argparse.Namespace, console: Console
) -> bool:
    """Make all attempts with a table that is renewed on a terminal. Returns whether Ctrl-C has ended them."""
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def watch() -> None:
            if console.is_terminal:
                live.update(summary(schedule), refresh=True)

        try:
            run(
                schedule,
                modules,
                processes=options.processes,
                limit_s=options.attempt_limit,
                watch=watch,
            )
        except KeyboardInterrupt:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
