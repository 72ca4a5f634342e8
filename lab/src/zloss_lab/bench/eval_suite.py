"""Cases of `zloss bench eval`: ranks and best classes of many examples, and one refactor of a factored layer."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

import zloss
from zloss_lab.bench.cases import Case
from zloss_lab.bench.entries import FACTORED, HeadEntry
from zloss_lab.bench.gate import HIDDEN, dense_weight, require
from zloss_lab.bench.output_suite import HeadCase
from zloss_lab.bench.random_inputs import hidden_batches
from zloss_lab.bench.schema import BenchRecord, RankingRecord, RankingTask
from zloss_lab.bench.steps import layer_step
from zloss_lab.bench.timing import Work
from zloss_lab.evaluation import ROWS
from zloss_lab.records import Record

EVAL_HEADS = "factored,dense,hierarchical"
TOP = 10

_SMALL_CLASSES = 10_000  # of the check: three blocks, and the last one is not full
_STEPS_BEFORE = 20  # a layer that has never taken a step has nothing to refactor
# A score is a float32 sum of some dozen products near 1. Classes with closer scores than this may change places.
_CLOSE = 1e-4


@dataclass(frozen=True, kw_only=True)
class RankingCase(HeadCase):
    """The ranks or the best classes of all examples, or one refactor."""

    suite: ClassVar[str] = "eval"
    record_kind: ClassVar[type[BenchRecord]] = RankingRecord
    task: RankingTask

    @property
    def name(self) -> str:
        return f"{self.entry.title}, {self.task}"

    @property
    def group(self) -> Hashable:
        return self.hidden, self.classes

    def bytes_needed(self) -> int:
        inputs = 4 * self.batch * self.hidden
        blocks_of_scores = 2**30
        return inputs + self.entry.bytes_needed(0, self.hidden, self.classes) + blocks_of_scores

    @property
    def gate(self) -> Hashable:
        return self.entry, self.task

    def check(self, device: torch.device) -> None:
        torch.manual_seed(0)
        head = trained_head(self.entry, HIDDEN, _SMALL_CLASSES, device)
        h, target = (
            torch.randn(24, HIDDEN, device=device),
            torch.randint(_SMALL_CLASSES, (24,), device=device),
        )
        {"rank": check_rank, "topk": check_topk, "refactor": check_refactor}[self.task](
            head, h, target
        )

    @contextmanager
    def prepared(self, device: torch.device) -> Iterator[Work]:
        head: Any = trained_head(self.entry, self.hidden, self.classes, device)
        if self.task == "refactor":
            yield Work(head.layer.refactor)
            return
        # One hidden batch with all examples is enough.
        sizes = {"batch": self.batch, "hidden": self.hidden, "classes": self.classes}
        h, target = hidden_batches(**sizes, law="zipf", device=device, steps=1)[0]
        rows = ROWS[device.type]  # as in an evaluation of the lab
        parts = list(zip(h.split(rows), target.split(rows), strict=True))

        def evaluate() -> None:
            for some_h, some_target in parts:
                head.rank(some_h, some_target) if self.task == "rank" else head.topk(some_h, TOP)

        yield Work(evaluate)

    def results(self, time_ms: float) -> Record:
        return (
            {}
            if self.task == "refactor"
            else {"examples_per_s": round(1000 * self.batch / time_ms)}
        )

    def description(self) -> Record:
        return (
            super().description()
            | {"task": self.task}
            | ({"top": TOP} if self.task == "topk" else {})
        )


def trained_head(entry: HeadEntry, hidden: int, classes: int, device: torch.device) -> zloss.Head:
    """Return a head after some steps."""
    head = entry.build(hidden, classes, device)
    step = layer_step(entry, head, device)
    for h, target in hidden_batches(
        batch=32, hidden=hidden, classes=classes, law="zipf", device=device, steps=_STEPS_BEFORE
    ):
        step(h, target)
    return head


def check_rank(head: zloss.Head, h: Tensor, target: Tensor) -> None:
    """Check that ranks are 1 + the number of classes that score higher, up to scores that are nearly equal."""
    scores, ranks = all_scores(head, h), head.rank(h, target)
    own = scores.gather(1, target[:, None])
    best, worst = 1 + (scores > own + _CLOSE).sum(1), (scores > own - _CLOSE).sum(1)
    require(
        bool(((best <= ranks) & (ranks <= worst)).all()), "ranks are not those of sorted scores"
    )


def check_topk(head: zloss.Head, h: Tensor, target: Tensor) -> None:
    """Check that the best classes are the first ones of all in order, up to scores that are nearly equal."""
    scores = all_scores(head, h)
    found, best = (
        scores.gather(1, head.topk(h, TOP)[1]),
        scores.sort(1, descending=True).values[:, :TOP],
    )
    require(
        bool(((found - best).abs() <= _CLOSE).all()),
        "the best classes are not those of sorted scores",
    )


def check_refactor(head: zloss.Head, h: Tensor, target: Tensor) -> None:
    """Check that a refactor does not change the weights."""
    assert isinstance(head, zloss.SphericalOutput)
    assert isinstance(head.layer, zloss.FactoredLinear)
    before = head.layer.weight()
    head.layer.refactor()
    after = head.layer.weight()
    error = float((after - before).norm() / before.norm())
    # A refactor rounds every weight once to float32, after a product over H of them.
    require(error <= 1e-5, f"a refactor changes the weights by {error:.1e}")


def all_scores(head: zloss.Head, h: Tensor) -> Tensor:  # (B, C) float64
    """Return the scores by which classes are ranked, of all classes at once."""
    weight = dense_weight(head)
    return head.log_prob(h).double() if weight is None else h.double() @ weight.T


def eval_cases(
    entries: Sequence[HeadEntry], *, examples: int, hidden: int, classes: int
) -> list[Case]:
    """Return the cases of both tasks for every entry, and a refactor for the factored layer."""
    tasks: dict[HeadEntry, list[RankingTask]] = {
        entry: ["rank", "topk", "refactor"] if entry is FACTORED else ["rank", "topk"]
        for entry in entries
    }
    return [
        RankingCase(
            entry=entry,
            task=task,
            batch=1 if task == "refactor" else examples,
            hidden=hidden,
            classes=classes,
        )
        for entry in entries
        for task in tasks[entry]
    ]
