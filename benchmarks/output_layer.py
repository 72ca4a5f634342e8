"""Time and memory of one training step of the output layer, for every head.

    python benchmarks/output_layer.py                 on the CPU, writes records/output_layer.cpu.jsonl
    python benchmarks/output_layer.py --device cuda   on a GPU, writes records/output_layer.cuda.jsonl

A step is forward, backward and the SGD update of the output layer, from a given hidden batch, gradient of h included.
On a CPU every head takes turns with the factored Z-loss, so that a slow minute of the machine hits both. Medians count.
On a GPU a turn is a burst of steps, as in training, where the host runs ahead; heads that never wait for the device are
measured a second time with the whole step captured in a CUDA graph, which leaves out the time of the host. Nothing is
reported for a head whose loss is not that of its definition on a small problem first. The machine must have nothing
else to do.

Targets are drawn uniformly, the worst case for heads that treat frequent classes better, and from Zipf's law (the c-th
class in proportion to 1 / (c + 1), as words are) for those heads.
"""

import argparse
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor

import zloss
from zloss.lab.records import Record, provenance, write_records

RECORDS = Path(__file__).parent / "records"
BATCH, HIDDEN = 200, 512
CLASSES = (10_000, 100_000, 793_471)  # the last is the vocabulary of One Billion Word
SEED = 0

Step = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True)
class Entry:
    """One line of the benchmark."""

    name: str
    head: str = "dense"
    loss: str = ""
    options: tuple[tuple[str, Any], ...] = ()
    precision: str = "float32"  # of matrix products
    targets: tuple[str, ...] = ("uniform",)
    batches: tuple[int, ...] = (BATCH,)
    lr: float = 0.1
    gpu_only: bool = False
    capturable: bool = True  # a step that waits for the device cannot be
    loss_tolerance: float = 1e-4  # of the gate: float32 sums over some hundred classes

    @property
    def config(self) -> zloss.HeadConfig:
        return zloss.HeadConfig(head=self.head, loss=self.loss, options=dict(self.options))

    def missing(self, device: torch.device) -> str | None:
        """Why it cannot run here."""
        if self.gpu_only and device.type != "cuda":
            return "needs a GPU"
        return zloss.softmax_implementations(device).get(dict(self.options).get("softmax", "logits"))


BOTH = ("uniform", "zipf")
LARGE_BATCHES = (200, 1000, 4000)
FACTORED = Entry("factored", "factored", lr=50.0, capturable=False)  # not yet
ENTRIES = (
    FACTORED,
    Entry("dense softmax"),
    Entry("dense softmax, TF32", precision="tf32", gpu_only=True),
    Entry("dense softmax, linear_cross_entropy", options=(("softmax", "linear_cross_entropy"),)),
    Entry(
        "dense softmax, Liger", options=(("softmax", "liger"),), loss_tolerance=2e-3, capturable=False
    ),  # TF32 inside
    # In bfloat16, which has three digits.
    Entry("dense softmax, CCE", options=(("softmax", "cut_cross_entropy"),), loss_tolerance=2e-2, capturable=False),
    Entry(
        "dense softmax, CCE exact",
        options=(("softmax", "cut_cross_entropy_exact"),),
        loss_tolerance=2e-2,
        capturable=False,
    ),
    Entry("hierarchical softmax", "hierarchical", targets=BOTH),
    Entry("adaptive softmax", "adaptive", targets=BOTH, capturable=False),
    # An estimate: 8192 samples know the sum over 500 classes to a few percent.
    Entry("sampled softmax", "sampled", options=(("num_samples", 8192),), loss_tolerance=5e-2),
    Entry("NCE", "sampled", "nce", options=(("num_samples", 8192),), loss_tolerance=float("inf")),  # no such identity
    Entry("dense Z-loss", "dense", "z_loss", lr=50.0, batches=LARGE_BATCHES),
    Entry("Gram Z-loss", "gram", "z_loss", lr=50.0, batches=LARGE_BATCHES),
)


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def training_step(case: "Case", device: torch.device) -> Step:
    head = case.entry.config.build(HIDDEN, case.classes, device=device)
    optimizer = head.sgd(case.entry.lr)

    def step(h: Tensor, target: Tensor) -> None:
        with products_in(case.entry.precision):
            head(h, target).backward()
            optimizer.step()
            optimizer.zero_grad()

    return captured(step, case, device) if case.launch == "graph" else step


def captured(step: Step, case: "Case", device: torch.device) -> Step:
    """The same step as a CUDA graph, with a batch of its own that each call fills."""
    generator = torch.Generator().manual_seed(SEED)
    own_h = torch.randn(case.batch, HIDDEN, generator=generator).to(device).requires_grad_()
    own_target = draw_targets(case.targets, case.classes, case.batch, generator).to(device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # torch wants a few steps on a side stream first
        for _ in range(3):
            own_h.grad = None
            step(own_h, own_target)
    torch.cuda.current_stream().wait_stream(side)
    own_h.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(own_h, own_target)

    def replay(h: Tensor, target: Tensor, _owner: Step = step) -> None:  # the graph does not keep the head alive
        with torch.no_grad():
            own_h.copy_(h)
        own_target.copy_(target)
        graph.replay()

    return replay


def refactor_step(classes: int, device: torch.device) -> Step:
    layer = zloss.FactoredLinear(HIDDEN, classes, device=device)
    return lambda h, target: layer.refactor()


def draw_targets(law: str, classes: int, batch: int, generator: torch.Generator) -> Tensor:
    if law == "uniform":
        return torch.randint(classes, (batch,), generator=generator)
    # P(class < c) = log(c + 1) / log(C + 1): what sums of 1 / (c + 1) come to.
    u = torch.rand(batch, generator=generator, dtype=torch.float64)
    return ((u * torch.log(torch.tensor(classes + 1.0))).exp() - 1).long().clamp(0, classes - 1)


def gate(entry: Entry, device: torch.device) -> None:
    """The loss of a head must be that of its definition before its time means anything."""
    torch.manual_seed(SEED)
    head = entry.config.build(32, 500, device=device)
    h, target = torch.randn(24, 32, device=device), torch.randint(500, (24,), device=device)
    for _ in range(3):
        value = head(h, target)
        if head.is_likelihood:
            expected = -head.target_log_prob(h, target).mean()
        else:
            assert isinstance(head, zloss.SphericalOutput | zloss.DenseOutput), "the others are likelihoods"
            expected = zloss.ZLoss(a=0.1, b=10.0)(head.logits(h), target)
        error = ((value - expected) / expected).abs().item()
        if not error <= entry.loss_tolerance:
            raise SystemExit(f"{entry.name}: the loss is off by {error:.1e}; not measuring a wrong result")
        optimizer = head.sgd(entry.lr)
        value.backward()
        optimizer.step()


def elapsed_ms(step: Step, h: Tensor, target: Tensor, burst: int) -> float:
    h = h.clone().requires_grad_()
    _wait_for(h.device)
    start = time.perf_counter()
    for _ in range(burst):
        step(h, target)
    _wait_for(h.device)
    return 1000 * (time.perf_counter() - start) / burst


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def by_turns(steps: list[Step], case: "Case", repeats: int, device: torch.device) -> list[list[float]]:
    """Times of each step, taken in turns, on the same batches."""
    generator = torch.Generator().manual_seed(SEED)
    burst = 5 if device.type == "cuda" else 1
    times: list[list[float]] = [[] for _ in steps]
    for turn in range(-1, repeats):
        h = torch.randn(case.batch, HIDDEN, generator=generator).relu().to(device)
        target = draw_targets(case.targets, case.classes, case.batch, generator).to(device)
        for step, own in zip(steps, times, strict=True):
            elapsed = elapsed_ms(step, h, target, burst)
            if turn >= 0:  # the first turn warms up
                own.append(elapsed)
    return times


@dataclass(frozen=True)
class Case:
    """What is measured at a time: a head at one size."""

    entry: Entry
    classes: int
    batch: int
    targets: str
    launch: str = "eager"  # or "graph"

    def record(self) -> Record:
        config = self.entry.config
        return {
            "suite": "output_layer",
            "name": self.entry.name,
            "head": config.head,
            "loss": config.loss,
            "options": dict(self.entry.options),
            "precision": self.entry.precision,
            "batch": self.batch,
            "hidden": HIDDEN,
            "classes": self.classes,
            "targets": self.targets,
            "launch": self.launch,
            "seed": SEED,
        }


def measure(case: Case, device: torch.device) -> Record:
    """Time and peak memory of a case; on a CPU by turns with the factored Z-loss."""
    torch.manual_seed(SEED)
    if device.type == "cuda":
        with peak_memory(device) as peak:
            step = training_step(case, device)
            _two_steps(step, case, device)
        return _times(by_turns([step], case, 10, device)[0]) | {"peak_bytes": peak[0]}
    steps = [training_step(case, device)]
    repeats = _cpu_repeats(steps[0], case)
    if case.entry != FACTORED:
        steps.append(training_step(replace(case, entry=FACTORED), device))
    times = by_turns(steps, case, repeats, device)
    ratio = statistics.median(times[0]) / statistics.median(times[-1])
    return _times(times[0]) | {"ratio_to_factored": round(ratio, 4), "peak_bytes": cpu_peak_bytes(case)}


def _cpu_repeats(step: Step, case: Case) -> int:
    """Five for what takes seconds, thirty for what takes milliseconds."""
    generator = torch.Generator().manual_seed(SEED)
    target = draw_targets(case.targets, case.classes, case.batch, generator)
    return 5 if elapsed_ms(step, torch.randn(case.batch, HIDDEN), target, 1) > 300 else 30


def _times(values: list[float]) -> Record:
    return {
        "time_ms": round(statistics.median(values), 4),
        "time_ms_range": [round(min(values), 4), round(max(values), 4)],
        "repeats": len(values),
    }


@contextmanager
def peak_memory(device: torch.device) -> Iterator[list[int]]:
    """Most memory of the GPU in use at a time, by torch's count; the list has it once the block is left."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    peak: list[int] = []
    yield peak
    peak.append(torch.cuda.max_memory_allocated(device) - before)


def cpu_peak_bytes(case: Case) -> int:
    """Most memory in use during two steps, by a process of its own."""
    place = (case.entry.name, str(case.classes), str(case.batch), case.targets)
    done = subprocess.run([sys.executable, __file__, "--peak", *place], capture_output=True, text=True, check=True)
    return int(done.stdout)


def _two_steps(step: Step, case: Case, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(2):
        h = torch.randn(case.batch, HIDDEN, generator=generator).to(device).requires_grad_()
        step(h, draw_targets(case.targets, case.classes, case.batch, generator).to(device))
    _wait_for(device)


def print_own_peak(case: Case) -> None:
    """The high-water mark of this process over what it needed to start, in bytes."""
    start, device = _status_bytes("VmRSS"), torch.device("cpu")
    _two_steps(training_step(case, device), case, device)
    print(_status_bytes("VmHWM") - start)


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def all_cases(names: list[str], sizes: list[int], device: torch.device) -> Iterator[Case]:
    for entry in ENTRIES:
        if names and entry.name not in names:
            continue
        for classes in sizes:
            for batch in entry.batches if classes == CLASSES[1] else entry.batches[:1]:
                for targets in entry.targets:
                    yield Case(entry, classes, batch, targets)
                    if device.type == "cuda" and entry.capturable:
                        yield Case(entry, classes, batch, targets, launch="graph")


def run(names: list[str], sizes: list[int], device: torch.device, output: Path) -> list[Record]:
    where, records = provenance(device), []  # provenance now: the checkout may change before the end
    cases = list(all_cases(names, sizes, device))
    for entry in {case.entry: None for case in cases if case.entry.missing(device) is None}:
        gate(entry, device)
    with Progress() as progress:
        bar = progress.add_task("measuring", total=len(cases))
        for case in cases:
            progress.update(bar, description=f"{case.entry.name}, {case.classes:,} classes, B = {case.batch}")
            missing = case.entry.missing(device)
            result = {"time_ms": None, "peak_bytes": None, "missing": missing} if missing else measure(case, device)
            records.append(case.record() | result | where)
            write_records(output, records)  # what is measured is not lost
            progress.advance(bar)
    records.append(_refactor_record(device) | where)
    write_records(output, records)
    return records


def _refactor_record(device: torch.device) -> Record:
    case = Case(FACTORED, CLASSES[-1], BATCH, "uniform")
    step = refactor_step(case.classes, device)
    return case.record() | {"name": "refactor"} | _times(by_turns([step], case, 3, device)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu"] + ["cuda"] * torch.cuda.is_available())
    parser.add_argument("--output", type=Path, help="file to write; records/output_layer.DEVICE.jsonl by default")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="some heads only; needs --output")
    parser.add_argument("--classes", nargs="*", type=int, default=list(CLASSES), help="some sizes only; needs --output")
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        name, classes, batch, targets = arguments.peak
        entry = next(entry for entry in ENTRIES if entry.name == name)
        print_own_peak(Case(entry, int(classes), int(batch), targets))
        return
    if (arguments.only or tuple(arguments.classes) != CLASSES) and not arguments.output:
        parser.error("a part of the benchmark would replace the whole record: name another file with --output")
    device = torch.device(arguments.device)
    output = arguments.output or RECORDS / f"output_layer.{device.type}.jsonl"
    for record in run(arguments.only, arguments.classes, device, output):
        time_ms = "missing" if record["time_ms"] is None else f"{record['time_ms']:.2f} ms"
        size = f"{record['classes']:>9,} classes B = {record['batch']:>4}"
        print(f"{record['name']:>36} {size} {record['launch']} {time_ms:>14}")


if __name__ == "__main__":
    main()
