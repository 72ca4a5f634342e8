"""What is shown of a study: tables of trials, one that changes while it runs, and lines where there is no screen."""

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

from zloss_lab.score_table import heading
from zloss_lab.terminal import print_plainly
from zloss_lab.tuning.rounds import StudyWatcher
from zloss_lab.tuning.study import TuningStudy
from zloss_lab.tuning.transfer import Transfer
from zloss_lab.tuning.trials import Trial, ranked

_SHOWN = 10


def trials_table(trials: Iterable[Trial], keys: Iterable[str], score: str) -> Table:
    """Trials with their state, their best score and their hyper-parameters."""
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
    """What early scores are worth."""
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
    """A trial for JSON."""
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
    """A score to read: errors in percent."""
    if value is None:
        return ""
    style = (
        ".2%"
        if score.endswith("error")
        else ".4f"
        if score == "mrr"
        else ".2f"
        if score == "epoch"
        else ",.1f"
    )
    return f"{value:{style}}"


def summary(trials: Sequence[Trial], wanted: int) -> str:
    """How many trials there are of each state."""
    counts = Counter(trial.state for trial in trials)
    states = ", ".join(f"{count} {state}" for state, count in counts.items()) or "none yet"
    return f"{sum(counts.values()) - counts['interrupted']} of {wanted} trials: {states}"


@contextmanager
def watching(study: TuningStudy, console: Console) -> Iterator[StudyWatcher]:
    """The best trials, kept up to date on a screen; elsewhere a line for each trial that ends."""
    if not console.is_terminal:
        yield lambda trials: _print_lines(trials, study.plan.score, console)
        return
    board = Board(study)

    def update(trials: Sequence[Trial]) -> None:
        given_up = [
            trial for trial in trials if trial.state == "interrupted"
        ]  # which no table shows
        _print_lines(given_up, study.plan.score, console)
        board.update(trials)

    with Live(board, console=console, refresh_per_second=2, transient=True):
        yield update


class Board:
    """The best trials so far, what is running, counts and the time."""

    def __init__(self, study: TuningStudy) -> None:
        self._study, self._began = study, time.monotonic()
        self._trials = study.trials()
        self._own: dict[
            int, Trial
        ] = {}  # with all validations so far; the storage has them when a trial has ended

    def update(self, trials: Sequence[Trial]) -> None:
        """Something has changed."""
        self._own |= {trial.number: trial for trial in trials}
        known = self._study.trials()
        self._trials = [
            self._own.get(trial.number, trial) if trial.state == "running" else trial
            for trial in known
        ]

    def __rich__(self) -> Group:
        plan = self._study.plan
        running = [trial for trial in self._trials if trial.state == "running"]
        best = ranked(self._trials, plan.score)[:_SHOWN]
        elapsed = time.strftime("%H:%M:%S", time.gmtime(time.monotonic() - self._began))
        table = trials_table([*best, *running[-_SHOWN:]], plan.searched.search, plan.score)
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
    """The last part of a key, where no other ends so."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
