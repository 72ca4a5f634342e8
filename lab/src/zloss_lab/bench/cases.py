"""The base class of benchmark cases: each measures one thing at one size, and checks its result first."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import torch

from zloss_lab.bench.random_inputs import SEED
from zloss_lab.bench.schema import BenchRecord
from zloss_lab.bench.steps import Launch
from zloss_lab.bench.timing import Work
from zloss_lab.records import Record


@dataclass(frozen=True, kw_only=True)
class Case(ABC):
    """One measurement, which becomes one line in a file of records."""

    suite: ClassVar[str]
    record_kind: ClassVar[type[BenchRecord]]

    batch: int
    hidden: int
    classes: int
    launch: Launch = "eager"

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the case in messages."""

    @property
    @abstractmethod
    def group(self) -> Hashable:
        """A value that the cases of a group share. Cases of one group take turns."""

    def missing(self, device: torch.device) -> str | None:
        """Return the reason why the case cannot run on this device, or None if it can."""
        return None

    @abstractmethod
    def bytes_needed(self) -> int:
        """Return an estimate of the most memory that the case needs."""

    @property
    @abstractmethod
    def gate(self) -> Hashable:
        """A value that cases share if a check of one of them is a check of all."""

    @abstractmethod
    def check(self, device: torch.device) -> None:
        """Raise `WrongResultError` if the result on a small problem differs from the definition."""

    @abstractmethod
    def prepared(self, device: torch.device) -> AbstractContextManager[Work]:
        """Return a context with the work to time. The work may be used inside of the block only."""

    def pacesetter(self) -> "Case | None":
        """Return the case that sets the unit of time on a CPU, where milliseconds mean little; None for no unit."""
        return None

    def results(self, time_ms: float) -> Record:
        """Return other results that follow from the time of a step, such as examples per second."""
        return {}

    def record(self, results: Record) -> BenchRecord:
        """Return the record of the case with its results and their provenance."""
        return self.record_kind.from_record(self.description() | results)

    def description(self) -> Record:
        """Return the part of the record that describes the case."""
        return {
            "suite": self.suite,
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
        """The size of the case as text."""
        return f"B = {self.batch:,}, H = {self.hidden:,}, C = {self.classes:,}"
