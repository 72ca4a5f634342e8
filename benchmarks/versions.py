"""Time a factored training step of two versions of the library by turns, in one run.

    git worktree add ../before REVISION
    python -m benchmarks.versions ../before/src --before REVISION

Each version runs in its own process. The two processes take turns, so that a slow minute of the machine affects both. A
CPU is measured in processor time, which other work on the machine does not change; a GPU is measured in elapsed time. A
record holds the ratio of the medians.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.markdown_cells import markdown_table
from zloss_lab.documents.markdown import wrapped
from zloss_lab.records import (
    Recordable,
    RecordKey,
    provenance,
    read_records_as,
    write_records,
)

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks/records"

# The program of each process. It reads a number of steps from each line, takes them, and prints milliseconds per step.
PROGRAM = """
import sys, time, torch, zloss
device, captured, batch, hidden, classes = sys.argv[1], sys.argv[2] == "True", *map(int, sys.argv[3:])
torch.manual_seed(0)
torch.set_num_threads(1)
layer = zloss.FactoredLinear(hidden, classes, device=device)
optimizer = zloss.FactoredSGD(layer, lr=1.0)
loss_of = zloss.ZLoss(a=0.1, b=10)
h = torch.randn(batch, hidden, device=device).relu().requires_grad_()
target = torch.randint(classes, (batch,), device=device)
def step(h, target):
    loss = loss_of(layer(h, target))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
if captured:
    step = zloss.CapturedStep(step, optimizers=[optimizer])
is_cpu = device == "cpu"
for line in sys.stdin:
    start = time.process_time() if is_cpu else time.perf_counter()
    for _ in range(int(line)):
        step(h, target)
    if not is_cpu:
        torch.cuda.synchronize()
    end = time.process_time() if is_cpu else time.perf_counter()
    print(1000 * (end - start) / int(line), flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class StepRatio(Recordable):
    """The time of a step of this version as a multiple of the time of an earlier version."""

    before: str  # the revision of the earlier version
    device: str
    captured: bool  # whether the step was a CUDA graph
    batch: int
    hidden: int
    classes: int
    ratio: float  # of the median times of the fastest processes, this version to the earlier one
    before_ms: float  # the medians, which cannot be compared with the medians of another run
    after_ms: float
    pairs: int  # of processes, of which the fastest of each version counts
    turns: int
    provenance: dict[str, Any]

    @property
    def key(self) -> RecordKey:
        """The settings that were measured."""
        return (self.before, self.device, self.captured, self.batch, self.hidden, self.classes)


def recorded_table() -> str:
    """Return the table of the records, for the documentation."""
    found = [
        one
        for path in sorted(RECORDS.glob("versions.*.jsonl"))
        for one in read_records_as(StepRatio, path)
    ]
    rows = [
        [
            "CPU" if one.device == "cpu" else "GPU",
            "CUDA graph" if one.captured else "eager",
            *(f"{number:,}" for number in (one.batch, one.hidden, one.classes)),
            f"{one.ratio:.3f}",
        ]
        for one in found
    ]
    columns = ["device", "launch", "B", "H", "C", "time of a step, now / before"]
    runs = [
        f"{one.pairs} pairs of processes on {one.provenance['device']} with torch "
        f"{one.provenance['versions']['torch']}, commit {one.provenance['commit']} beside {one.before}"
        for one in {one.device: one for one in found}.values()
    ]
    return "\n\n".join(
        [markdown_table(columns, rows), wrapped(f"One run for each device: {'; '.join(runs)}.")]
    )


def median_times(
    sources: Sequence[Path], arguments: Sequence[object], *, turns: int, steps: int
) -> list[float]:
    """Return the median milliseconds of a step for each version, without its first turn, which warms it up."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for source in sources
    ]
    times: list[list[float]] = [[] for _ in processes]
    for _ in range(turns + 1):
        for process, own in zip(processes, times, strict=True):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
            own.append(float(process.stdout.readline()))
    for process in processes:
        process.communicate()
    return [statistics.median(own[1:]) for own in times]


def fastest_medians(
    sources: Sequence[Path], arguments: Sequence[object], *, pairs: int, turns: int, steps: int
) -> list[float]:
    """Return the median of the fastest process of each version, from a number of pairs of new processes.

    A process can be slower than another one with the same code from its start to its end. Which of them is, changes
    from run to run.
    """
    medians = [median_times(sources, arguments, turns=turns, steps=steps) for _ in range(pairs)]
    return [min(of_version) for of_version in zip(*medians, strict=True)]


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("earlier", type=Path, help="the folder src of the earlier version")
    parser.add_argument("--before", required=True, help="the revision of the earlier version")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--pairs", type=int, default=4, help="pairs of processes")
    parser.add_argument("--turns", type=int, default=10, help="turns of each process")
    parser.add_argument("--output", type=Path, help="the record to write")
    options = parser.parse_args()
    if not (options.earlier / "zloss/__init__.py").is_file():
        parser.error(f"{options.earlier} holds no package zloss: name the folder src of a checkout")
    cases: list[tuple[bool, int, int, int]] = (
        [(False, 200, 512, 100_000), (False, 1000, 512, 100_000), (False, 128, 64, 100_000)]
        if options.device == "cpu"
        else [
            (captured, batch, 512, 793_471) for captured in (False, True) for batch in (200, 1000)
        ]
    )
    found = []
    for captured, batch, hidden, classes in cases:
        arguments = (options.device, captured, batch, hidden, classes)
        steps = 20 if options.device == "cpu" else 200
        before, after = fastest_medians(
            (options.earlier, ROOT / "src"),
            arguments,
            pairs=options.pairs,
            turns=options.turns,
            steps=steps,
        )
        found.append(
            StepRatio(
                before=options.before,
                device=options.device,
                captured=captured,
                batch=batch,
                hidden=hidden,
                classes=classes,
                ratio=round(after / before, 4),
                before_ms=round(before, 5),
                after_ms=round(after, 5),
                pairs=options.pairs,
                turns=options.turns,
                provenance=provenance(torch.device(options.device)),
            )
        )
        print(f"B = {batch}, H = {hidden}, captured: {captured}: {found[-1].ratio} x the time")
    write_records(options.output or RECORDS / f"versions.{options.device}.jsonl", found)


if __name__ == "__main__":
    main()
