"""`zloss bench output` and `zloss bench scaling`: one training step of the output layer, from a given hidden batch."""

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
from zloss_lab.bench.steps import Launch, launched, layer_step
from zloss_lab.bench.timing import Work
from zloss_lab.records import Record

ONE_BILLION_WORD = 793_471  # its vocabulary
# As one writes them on the command line.
OUTPUT_CLASSES = f"10_000,100_000,{ONE_BILLION_WORD}"
SCALING_CLASSES = "10_000,100_000,1_000_000,10_000_000"


@dataclass(frozen=True, kw_only=True)
class HeadCase(Case):
    """Anything that is done with a head."""

    entry: HeadEntry

    @property
    def name(self) -> str:
        return self.entry.name

    def missing(self, device: torch.device) -> str | None:
        return self.entry.missing(device)

    def bytes_needed(self) -> int:
        return self.entry.bytes_needed(self.batch, self.hidden, self.classes)

    @property
    def is_full_rank(self) -> bool:
        """Whether there are no fewer examples than hidden units, for which a factored layer steps in another way."""
        return self.batch >= self.hidden

    @property
    def gate(self) -> Hashable:
        return self.suite, self.entry, self.launch, self.is_full_rank

    def check(self, device: torch.device) -> None:
        check_head(self.entry, self.launch, device, is_full_rank=self.is_full_rank)

    def description(self) -> Record:
        entry = self.entry
        return super().description() | {
            "head": entry.config.head,
            "loss": entry.config.loss,
            "options": dict(entry.options),
            "precision": entry.precision,
            "tuning": entry.tuning,
        }


@dataclass(frozen=True, kw_only=True)
class LayerCase(HeadCase):
    """One step of the output layer."""

    suite: ClassVar[str] = "output"
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
    """The same over a wide range of C, all of which take turns."""

    suite: ClassVar[str] = "scaling"

    @property
    def group(self) -> Hashable:
        return self.batch, self.hidden


def launches(entry: HeadEntry, device: torch.device, only: Launch | None) -> list[Launch]:
    """How steps of an entry can be launched on a device."""
    all_of_them: list[Launch] = (
        ["eager", "graph"] if device.type == "cuda" and entry.is_capturable else ["eager"]
    )
    return [launch for launch in all_of_them if only in (None, launch)]


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
    """Every entry at every size. By default targets are uniform, and by Zipf's law too where that is faster."""
    return [
        LayerCase(
            entry=entry, batch=batch, hidden=hidden, classes=count, targets=targets, launch=way
        )
        for entry in entries
        for count in classes
        for batch in batches
        for targets in ([law] if law else _laws(entry))
        for way in launches(entry, device, launch)
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
    """Every entry at every size, targets uniform."""
    return [
        ScalingCase(entry=entry, batch=batch, hidden=width, classes=count, launch=way)
        for entry in entries
        for batch in batches
        for width in hidden
        for count in classes
        for way in launches(entry, device, launch)
    ]


def _counter_of_refactors(head: zloss.Head) -> Callable[[], int] | None:
    layer = getattr(head, "layer", None)
    return (lambda: layer.refactors) if isinstance(layer, zloss.FactoredLinear) else None


def _laws(entry: HeadEntry) -> list[Law]:
    return ["uniform", "zipf"] if entry.sees_frequency else ["uniform"]
