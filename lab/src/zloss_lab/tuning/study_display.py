"""The display of a study: tables of trials, a live table while it runs, and lines where there is no screen."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from zloss_lab.score_table import heading, score_text
from zloss_lab.terminal import print_plainly
from zloss_lab.tuning.rounds import StudyWatcher
from zloss_lab.tuning.study import TuningStudy
from zloss_lab.tuning.transfer import Transfer
from zloss_lab.tuning.trials import Trial, ranked

_MOST_SHOWN = 10  # trials of each kind in the live table


def trials_table(trials: Iterable[Trial], keys: Iterable[str], score: str) -> Table:
    """Return a table of trials: their states, their best scores and their hyper-parameters."""
    keys = list(keys)
    table = Table(box=SIMPLE_HEAD, padding=0)  # eleven columns in a line of 80 characters
    for name in ("trial", "state", score, "epoch", *(_short(key, keys) for key in keys)):
        table.add_column(heading(name), overflow="fold")
    for trial in trials:
        best = trial.best(score)
        cells = (
            ("", "") if best is None else (shown(score, best[score]), shown("epoch", best["epoch"]))
        )
        values = (escape(_text(trial.settings.get(key, ""))) for key in keys)
        table.add_row(str(trial.number), trial.state, *cells, *values)
    return table


def transfer_table(transfers: Sequence[Transfer]) -> Table:
    """Return a table of how well early scores predict the final ones."""
    table = Table("score", "epochs", "trials", "rank correlation", "regret")
    for one in transfers:
        table.add_row(
            one.score.replace("_", " "),
            shown("epoch", one.epochs),
            str(one.trials),
            "" if one.rank_correlation is None else f"{one.rank_correlation:.3f}",
            shown(one.score, one.regret),
        )
    return table


def trial_row(trial: Trial, score: str) -> dict[str, Any]:
    """Return a trial as a mapping for JSON, with its best validation by a score."""
    best = trial.best(score)
    return {
        "trial": trial.number,
        "state": trial.state,
        "score": score,
        "value": best and best[score],
        "settings": trial.settings,
        "scores": best,
        "curve": trial.curve,
        "seconds": trial.seconds,
        "why": trial.why,
    }


def shown(score: str, value: float | None) -> str:
    """Return a score, or an epoch, as text."""
    if value is None:
        return ""
    return f"{value:.2f}" if score == "epoch" else score_text(score, value)


def summary(trials: Sequence[Trial], wanted: int) -> str:
    """Return a line that counts the trials in each state."""
    counts = Counter(trial.state for trial in trials)
    states = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none yet"
    return f"{sum(counts.values()) - counts['interrupted']} of {wanted} trials: {states}"


@contextmanager
def watching(study: TuningStudy, console: Console) -> Iterator[StudyWatcher]:
    """Show the best trials in a live table on a screen, and elsewhere a line for each trial that ends."""
    if not console.is_terminal:
        yield lambda trials: _print_lines(trials, study.plan.score, console)
        return
    board = Board(study)

    def update(trials: Sequence[Trial]) -> None:
        # The table does not show interrupted trials.
        interrupted = [trial for trial in trials if trial.state == "interrupted"]
        _print_lines(interrupted, study.plan.score, console)
        board.update(trials)

    with Live(board, console=console, refresh_per_second=2, transient=True):
        yield update


class Board:
    """A live table: the best trials so far, the running ones, the number in each state, and the time."""

    def __init__(self, study: TuningStudy) -> None:
        self._study, self._began = study, time.monotonic()
        self._trials = study.trials()
        # Trials of this worker with all their validations so far. The storage has these only when a trial has ended.
        self._own: dict[int, Trial] = {}

    def update(self, trials: Sequence[Trial]) -> None:
        """Show these trials as they are now, and all others as the storage has them."""
        self._own |= {trial.number: trial for trial in trials}
        known = self._study.trials()
        self._trials = [
            self._own.get(trial.number, trial) if trial.state == "running" else trial
            for trial in known
        ]

    def __rich__(self) -> Group:
        plan = self._study.plan
        running = [trial for trial in self._trials if trial.state == "running"]
        best = ranked(self._trials, plan.score)[:_MOST_SHOWN]
        elapsed = time.strftime("%H:%M:%S", time.gmtime(time.monotonic() - self._began))
        table = trials_table([*best, *running[-_MOST_SHOWN:]], plan.searched.search, plan.score)
        return Group(table, f"{summary(self._trials, plan.trials)}; {elapsed}")


def _print_lines(trials: Sequence[Trial], score: str, console: Console) -> None:
    for trial in trials:
        if trial.state != "running":
            settings = " ".join(f"{key}={_text(value)}" for key, value in trial.settings.items())
            parts = [
                f"trial {trial.number} {trial.state}",
                shown(score, trial.value(score)),
                settings,
                trial.why,
            ]
            print_plainly(console, "  ".join(filter(None, parts)))


def _short(key: str, keys: Sequence[str]) -> str:
    """Return the last part of a key, or the whole key if another one has the same last part."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
