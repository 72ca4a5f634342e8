"""Measure which learning rate of the output layer is best, on texts, sessions, tags and made-up classes.

    python -m benchmarks.rates --data FOLDER                    writes records/rates.cpu.jsonl
    python -m benchmarks.rates --data FOLDER --cases ptb,epd48   a part of it, onto the end of that file

A case is a task with a width, a batch size and a number of steps. Each case is trained once with every rate in
`RELATIVE_RATES`, with `ZLoss()`, for the same number of steps, from the same weights and on the same batches. A case
that only checks the default has the three rates next to it. Adam trains the layers below. All rates fall linearly to
zero. `benchmarks.rate_tasks` says what has to be in the folder.
"""

import argparse
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import torch
from rich.progress import track
from torch import Tensor, nn

import zloss
from benchmarks.markdown_cells import markdown_table
from benchmarks.rate_tasks import RateTask, read_task
from zloss_lab.records import Recordable, RecordKey, provenance, read_records_as, write_records

RECORDS = Path(__file__).parent / "records" / "rates.cpu.jsonl"
_TRUNK_LR = 2e-3
# Errors count as equal if they differ by this number of percentage points or less. Two rates rank about a tenth of the
# 3,000 targets differently, and this is two standard deviations of the difference.
_TIE = 1.0

Part = Literal["chosen", "checked"]
RELATIVE_RATES: dict[Part, tuple[float, ...]] = {
    "chosen": (0.1, 0.3, 1.0, 3.0, 10.0),
    "checked": (0.3, 1.0, 3.0),
}


@dataclass(frozen=True, kw_only=True)
class RateCase:
    """A task, the shape of a network for it, and the length of the training."""

    part: Part  # whether it was used to choose the rule and the default
    task: str
    hidden: int
    batch: int
    steps: int
    activation: Literal["relu", "tanh"] = "relu"


CASES = (
    RateCase(part="chosen", task="zipf-1000", hidden=64, batch=200, steps=600),
    RateCase(part="chosen", task="zipf-1000", hidden=64, batch=4096, steps=60),
    RateCase(part="chosen", task="ptb", hidden=64, batch=32, steps=1200),
    RateCase(part="chosen", task="ptb", hidden=64, batch=1000, steps=300),
    RateCase(part="chosen", task="ptb", hidden=256, batch=200, steps=400, activation="tanh"),
    RateCase(part="chosen", task="yoochoose1_64", hidden=128, batch=500, steps=250),
    RateCase(part="chosen", task="citeulike-t", hidden=64, batch=128, steps=400),
    RateCase(part="chosen", task="zipf-1000000", hidden=64, batch=200, steps=300),
    RateCase(part="checked", task="epd48", hidden=128, batch=250, steps=300),
    RateCase(part="checked", task="fil8", hidden=64, batch=64, steps=500),
    RateCase(part="checked", task="diginetica", hidden=64, batch=1000, steps=250),
    RateCase(part="checked", task="zipf-10000000", hidden=32, batch=200, steps=200),
)


@dataclass(frozen=True, kw_only=True)
class RateRecord(Recordable):
    """The result of one training."""

    suite: Literal["rates"] = "rates"
    part: Part
    task: str
    classes: int
    hidden: int
    batch: int
    steps: int
    activation: str
    relative_lr: float
    lr: float  # the absolute rate that it means
    loss: float  # mean of the last twentieth of the steps
    top_1_error: float  # percent, of the validation examples, as the next two
    top_10_error: float
    top_100_error: float
    examples: int
    refactors: int
    warnings: int
    seed: int
    device: str
    versions: dict[str, str]
    commit: str

    @property
    def case(self) -> RecordKey:
        """The values of the case."""
        return self.part, self.task, self.hidden, self.batch

    @property
    def key(self) -> RecordKey:
        """The case and the rate."""
        return *self.case, self.relative_lr


class Training:
    """A network for a case, in training."""

    def __init__(self, case: RateCase, task: RateTask, relative_lr: float, seed: int) -> None:
        self.case, self.task, self.seed = case, task, seed
        torch.manual_seed(seed)
        below, width = task.inputs()
        activation = {"relu": nn.ReLU, "tanh": nn.Tanh}[case.activation]
        self.trunk = nn.Sequential(below, nn.Linear(width, case.hidden), activation())
        self.output = zloss.FactoredLinear(case.hidden, task.classes)
        # A task with made-up classes has nothing to learn below.
        self.optimizers = [
            torch.optim.Adam(self.trunk.parameters(), lr=_TRUNK_LR),
            zloss.FactoredSGD(self.output, relative_lr=relative_lr),
        ]

    def run(self) -> float:
        """Take all steps, and return the mean loss of the last ones."""
        generator, loss_of = torch.Generator().manual_seed(self.seed + 1), zloss.ZLoss()
        schedulers = [
            torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=self.case.steps)
            for optimizer in self.optimizers
        ]
        losses: list[Tensor] = []
        for _ in range(self.case.steps):
            x, target = self.task.draw(self.case.batch, generator)
            loss = loss_of(self.output(self.trunk(x), target))
            loss.backward()
            for optimizer, scheduler in zip(self.optimizers, schedulers, strict=True):
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
            losses.append(loss.detach())
        return float(torch.stack(losses[-max(1, self.case.steps // 20) :]).mean())

    @torch.no_grad()
    def errors(self) -> dict[str, Any]:
        """Return the top-k errors on the validation examples."""
        x, target = self.task.validation
        ranks = self.output.rank(self.trunk(x), target)
        ranks = ranks[ranks > 0]
        errors = {f"top_{k}_error": float((ranks > k).double().mean()) * 100 for k in (1, 10, 100)}
        return errors | {"examples": len(ranks)}


def measure(
    case: RateCase, task: RateTask, relative_lr: float, where: dict[str, Any], seed: int = 0
) -> RateRecord:
    """Return the record of one training."""
    training = Training(case, task, relative_lr, seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=".*refactors within")
        loss = training.run()
    sgd = training.optimizers[1]
    assert isinstance(sgd, zloss.FactoredSGD), "it is the second"
    return RateRecord(
        **asdict(case),
        classes=task.classes,
        relative_lr=relative_lr,
        lr=relative_lr * (sgd.units[0] or 0.0),
        loss=loss,
        **training.errors(),
        refactors=training.output.refactors,
        warnings=sum("refactors within" in str(one.message) for one in caught),
        seed=seed,
        **where,
    )


def recorded_table() -> str:
    """Return the table of the committed record: the best rate of each case, and the default beside it."""
    records = read_records_as(RateRecord, RECORDS)
    columns = [
        "task",
        "classes",
        "H",
        "B",
        "steps",
        "best lr",
        "best relative rate",
        "as good",
        "top-10 error, %: best",
        "relative rate 1",
        "refactors",
    ]
    rows = [_row(list(of_case)) for _, of_case in groupby(records, key=lambda one: one.case)]
    where = f"{records[0].device}, torch {records[0].versions['torch']}, seed {records[0].seed}"
    note = f"The cases in italics did not choose the rule. Measured on {where}, by\n`python -m benchmarks.rates`."
    return f"{markdown_table(columns, rows)}\n\n{note}"


def _row(records: list[RateRecord]) -> list[str]:
    best = min(records, key=lambda one: (one.top_10_error, abs(one.relative_lr - 1)))
    default = next(one for one in records if one.relative_lr == 1)
    ties = [one.relative_lr for one in records if one.top_10_error <= best.top_10_error + _TIE]
    is_choice = best.part == "chosen"
    return [
        best.task if is_choice else f"*{best.task}*",
        f"{best.classes:,}",
        str(best.hidden),
        f"{best.batch:,}",
        f"{best.steps:,}",
        f"{float(f'{best.lr:.3g}'):,g}",
        f"{best.relative_lr:g}",
        f"{min(ties):g} to {max(ties):g}" if len(ties) > 1 else f"{ties[0]:g}",
        f"{best.top_10_error:.1f}",
        f"{default.top_10_error:.1f}",
        str(default.refactors),
    ]


def _measured(cases: Iterable[RateCase], folder: Path) -> Iterable[RateRecord]:
    where = provenance(torch.device("cpu"))
    for name, of_task in groupby(cases, key=lambda case: case.task):
        task = read_task(name, folder)
        for case in of_task:
            for rate in track(
                RELATIVE_RATES[case.part], f"{name}, H {case.hidden}, B {case.batch}"
            ):
                yield measure(case, task, rate, where)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the texts and lists")
    parser.add_argument("--cases", default="", help="tasks separated by commas; all by default")
    arguments = parser.parse_args()
    names = arguments.cases.split(",") if arguments.cases else {case.task for case in CASES}
    if unknown := set(names) - {case.task for case in CASES}:
        parser.error(f"unknown tasks: {', '.join(sorted(unknown))}")
    kept = read_records_as(RateRecord, RECORDS) if RECORDS.exists() else []
    kept = [record for record in kept if record.task not in names]
    for record in _measured((case for case in CASES if case.task in names), arguments.data):
        kept.append(record)
        order: dict[RecordKey, int] = {
            (case.part, case.task, case.hidden, case.batch): place
            for place, case in enumerate(CASES)
        }
        kept.sort(key=lambda one: (order[one.case], one.relative_lr))
        write_records(RECORDS, kept)


if __name__ == "__main__":
    main()
