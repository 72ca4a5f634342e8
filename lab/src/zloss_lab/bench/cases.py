"""Case: what is measured, at what size, and how its result is checked first."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import torch

from zloss_lab.bench.random_inputs import SEED
from zloss_lab.bench.steps import Launch
from zloss_lab.bench.timing import Work
from zloss_lab.records import Record


@dataclass(frozen=True, kw_only=True)
class Case(ABC):
    """One line of a record."""

    suite: ClassVar[str]

    batch: int
    hidden: int
    classes: int
    launch: Launch = "eager"

    @property
    @abstractmethod
    def name(self) -> str:
        """What a table calls it."""

    @property
    @abstractmethod
    def group(self) -> Hashable:
        """Cases of one group take turns."""

    def missing(self, device: torch.device) -> str | None:
        """Why it cannot run on this device."""
        return None

    @abstractmethod
    def bytes_needed(self) -> int:
        """What it may hold at most, about."""

    @property
    @abstractmethod
    def gate(self) -> Hashable:
        """Cases that agree in this are checked together, by any one of them."""

    @abstractmethod
    def check(self, device: torch.device) -> None:
        """Raise `WrongResultError` where the result is not that of the definition on a small problem."""

    @abstractmethod
    def prepared(self, device: torch.device) -> AbstractContextManager[Work]:
        """What is to be timed; it may be used until the block is left."""

    def pacesetter(self) -> "Case | None":
        """What its time is told in multiples of on a CPU, where milliseconds mean little."""
        return None

    def results(self, time_ms: float) -> Record:
        """What else follows from the time of a step."""
        return {}

    def description(self) -> Record:
        """What a record says of it."""
        return {
            "suite": self.suite,
            "name": self.name,
            "head": None,
            "loss": None,
            "batch": self.batch,
            "hidden": self.hidden,
            "classes": self.classes,
            "launch": self.launch,
            "seed": SEED,
        }

    @property
    def size(self) -> str:
        """To read."""
        return f"B = {self.batch:,}, H = {self.hidden:,}, C = {self.classes:,}"
