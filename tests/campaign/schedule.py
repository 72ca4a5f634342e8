"""The order of attempts: which attack is next, and when the campaign is over."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.campaign.attack import Attack
from tests.campaign.discovery import attempt_seed
from tests.campaign.worker_processes import Outcome, Task


@dataclass
class Tally:
    """The attempts of one attack so far."""

    attack: Attack
    begun: int = 0
    tried: int = 0
    seconds: float = 0.0
    falls: list[Outcome] = field(default_factory=list)

    @property
    def held(self) -> int:
        return self.tried - len(self.falls)

    def add(self, outcome: Outcome) -> None:
        """Count an outcome."""
        self.tried += 1
        self.seconds += outcome.seconds
        if outcome.fault is not None:
            self.falls.append(outcome)

    @property
    def expected_seconds(self) -> float:
        """The time of all attempts that have begun, estimated from those that have ended."""
        return self.seconds / self.tried * self.begun if self.tried else float(self.begun)


class Schedule:
    """Attempts until a number of each attack or a moment is reached.

    Args:
        attacks: the attacks.
        seed: the seed of the campaign.
        tries: the number of attempts by key; without it, time decides.
        seconds: the time of the campaign, which attacks share by their weights. Each gets one attempt at least.
    """

    def __init__(
        self,
        attacks: Sequence[Attack],
        seed: int,
        *,
        tries: Mapping[str, int] | None = None,
        seconds: float = 0.0,
    ) -> None:
        self.tallies = {attack.key: Tally(attack) for attack in attacks}
        self.seed, self._tries = seed, tries
        self._end = time.perf_counter() + seconds

    def next(self) -> Task | None:
        """Return the next attempt to make; None if enough have begun."""
        waiting = [tally for tally in self.tallies.values() if self._wants_more(tally)]
        if not waiting:
            return None
        tally = min(waiting, key=self._share_used)
        number, tally.begun = tally.begun, tally.begun + 1
        return Task(tally.attack.key, attempt_seed(self.seed, tally.attack.key, number))

    def add(self, outcome: Outcome) -> None:
        """Count an outcome."""
        self.tallies[outcome.task.key].add(outcome)

    def _wants_more(self, tally: Tally) -> bool:
        if self._tries is not None:
            return tally.begun < self._tries[tally.attack.key]
        return not tally.begun or time.perf_counter() < self._end

    def _share_used(self, tally: Tally) -> float:
        """Return the time that an attack has used relative to its weight; the least is next."""
        if not tally.begun:
            return -1.0
        return tally.expected_seconds / tally.attack.weight
