"""Cases of `zloss bench output` and `zloss bench scaling`: one training step of the output layer alone."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

import zloss
from zloss_lab.bench.cases import Case
from zloss_lab.bench.entries import FACTORED, HeadEntry
from zloss_lab.bench.gate import check_head
from zloss_lab.bench.random_inputs import Law, hidden_batches
from zloss_lab.bench.schema import BenchRecord, LayerRecord
from zloss_lab.bench.steps import Launch, launched, layer_step
from zloss_lab.bench.timing import Work
from zloss_lab.records import Record

ONE_BILLION_WORD = 793_471  # words in its vocabulary
# Defaults of options, in the form of the command line.
OUTPUT_CLASSES = f"10_000,100_000,{ONE_BILLION_WORD}"
SCALING_CLASSES = "10_000,100_000,1_000_000,10_000_000"


@dataclass(frozen=True, kw_only=True)
class HeadCase(Case):
    """A case that measures a head."""

    entry: HeadEntry

    @property
    def name(self) -> str:
        return self.entry.title

    def missing(self, device: torch.device) -> str | None:
        return self.entry.missing(device)

    def bytes_needed(self) -> int:
        return self.entry.bytes_needed(self.batch, self.hidden, self.classes)

    @property
    def is_full_rank(self) -> bool:
        """True if there are at least as many examples as hidden units, for which factored layers have another step."""
        return self.batch >= self.hidden

    @property
    def gate(self) -> Hashable:
        return self.suite, self.entry, self.launch, self.is_full_rank

    def check(self, device: torch.device) -> None:
        check_head(self.entry, self.launch, device, is_full_rank=self.is_full_rank)

    def description(self) -> Record:
        entry = self.entry
        return super().description() | {
            "entry": entry.key,
            "head": entry.config.head,
            "loss": entry.config.loss,
            "options": dict(entry.options),
            "precision": entry.precision,
            "tuning": entry.tuning,
        }


@dataclass(frozen=True, kw_only=True)
class LayerCase(HeadCase):
    """One training step of the output layer: forward, backward and update."""

    suite: ClassVar[str] = "output"
    record_kind: ClassVar[type[BenchRecord]] = LayerRecord
    targets: Law = "uniform"

    @property
    def group(self) -> Hashable:
        return self.batch, self.hidden, self.classes

    def pacesetter(self) -> Case:
        return replace(self, entry=FACTORED, launch="eager")

    @contextmanager
    def prepared(self, device: torch.device) -> Iterator[Work]:
        head = self.entry.build(self.hidden, self.classes, device)
        lr = self.entry.training_lr(self.classes)
        step = launched(layer_step(self.entry, head, device, lr), self.launch)
        yield Work(
            step,
            hidden_batches(
                batch=self.batch,
                hidden=self.hidden,
                classes=self.classes,
                law=self.targets,
                device=device,
            ),
            refactors=_counter_of_refactors(head),
        )

    def description(self) -> Record:
        return super().description() | {"targets": self.targets}


@dataclass(frozen=True, kw_only=True)
class ScalingCase(LayerCase):
    """A step of the output layer in a group with all numbers of classes, so that all of them take turns."""

    suite: ClassVar[str] = "scaling"

    @property
    def group(self) -> Hashable:
        return self.batch, self.hidden


def possible_launches(entry: HeadEntry, device: torch.device, only: Launch | None) -> list[Launch]:
    """Return the ways to launch steps of an entry on a device, or `only` one of them."""
    can_be_captured = device.type == "cuda" and entry.is_capturable
    possible: list[Launch] = ["eager", "graph"] if can_be_captured else ["eager"]
    return [launch for launch in possible if only in (None, launch)]


def output_cases(
    entries: Sequence[HeadEntry],
    *,
    batches: Sequence[int],
    hidden: int,
    classes: Sequence[int],
    law: Law | None,
    launch: Launch | None,
    device: torch.device,
) -> list[Case]:
    """Return a case for every entry at every size.

    By default targets are uniform. Entries that are faster with frequent classes are measured by Zipf's law too.
    """
    return [
        LayerCase(
            entry=entry, batch=batch, hidden=hidden, classes=count, targets=targets, launch=way
        )
        for entry in entries
        for count in classes
        for batch in batches
        for targets in ([law] if law else _laws(entry))
        for way in possible_launches(entry, device, launch)
    ]


def scaling_cases(
    entries: Sequence[HeadEntry],
    *,
    batches: Sequence[int],
    hidden: Sequence[int],
    classes: Sequence[int],
    launch: Launch | None,
    device: torch.device,
) -> list[Case]:
    """Return a case with uniform targets for every entry at every size."""
    return [
        ScalingCase(entry=entry, batch=batch, hidden=width, classes=count, launch=way)
        for entry in entries
        for batch in batches
        for width in hidden
        for count in classes
        for way in possible_launches(entry, device, launch)
    ]


def _counter_of_refactors(head: zloss.Head) -> Callable[[], int] | None:
    layer = getattr(head, "layer", None)
    return (lambda: layer.refactors) if isinstance(layer, zloss.FactoredLinear) else None


def _laws(entry: HeadEntry) -> list[Law]:
    return ["uniform", "zipf"] if entry.sees_frequency else ["uniform"]
