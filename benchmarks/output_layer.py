"""Time of one training step of the output layer: dense softmax beside the factored Z-loss.

    python benchmarks/output_layer.py                 on the CPU, writes records/output_layer.cpu.jsonl
    python benchmarks/output_layer.py --device cuda   on a GPU, writes records/output_layer.cuda.jsonl

A step is forward, backward and the SGD update of the output layer, from a given hidden batch, gradient of h included.
Heads take turns, so that a slow minute of the machine hits all of them; medians are reported. Nothing is reported if
the factored step disagrees with the dense one on a small problem first. The machine must have nothing else to do.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn

import zloss
from zloss.lab.records import Record, provenance, write_records

RECORDS = Path(__file__).parent / "records"
BATCH, HIDDEN, ONE_BILLION_WORD = 200, 512, 793_471
SEED = 0

Step = Callable[[Tensor, Tensor], None]


def softmax(
    loss_of: Callable[[Tensor, Tensor, Tensor], Tensor],  # h, weight, target
    classes: int,
    device: torch.device,
) -> Step:
    linear = nn.Linear(HIDDEN, classes, bias=False, device=device)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)

    def step(h: Tensor, target: Tensor) -> None:
        optimizer.zero_grad()
        loss_of(h, linear.weight, target).backward()
        optimizer.step()

    return step


def plain_cross_entropy(h: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(h, weight), target)


def factored_z_loss(classes: int, device: torch.device) -> Step:
    layer = zloss.FactoredLinear(HIDDEN, classes, device=device)
    optimizer = zloss.FactoredSGD(layer, lr=classes / 100)  # any rate takes the same time
    loss = zloss.ZLoss(a=0.1, b=10.0)

    def step(h: Tensor, target: Tensor) -> None:
        loss(layer(h, target)).backward()
        optimizer.step()

    return step


def refactor(classes: int, device: torch.device) -> Step:
    layer = zloss.FactoredLinear(HIDDEN, classes, device=device)
    return lambda h, target: layer.refactor()


def time_ms(step: Step, h: Tensor, target: Tensor) -> float:
    h = h.clone().requires_grad_()
    _wait_for(h.device)
    start = time.perf_counter()
    step(h, target)
    _wait_for(h.device)
    return 1000 * (time.perf_counter() - start)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gate(device: torch.device) -> None:
    """The factored step must be the dense step before its time means anything."""
    linear = nn.Linear(32, 500, bias=False, device=device)
    factored, dense = zloss.FactoredLinear.from_linear(linear), zloss.DenseLinear.from_linear(linear)
    optimizers = [zloss.FactoredSGD(factored, lr=20.0), torch.optim.SGD(dense.parameters(), lr=20.0)]
    for _ in range(20):
        h, target = torch.randn(24, 32, device=device), torch.randint(500, (24,), device=device)
        for layer, optimizer in zip((factored, dense), optimizers, strict=True):
            optimizer.zero_grad()
            zloss.ZLoss(a=0.1, b=10.0)(layer(h, target)).backward()
            optimizer.step()
    error = (factored.weight() - dense.weight()).norm() / dense.weight().norm()
    if not error < 1e-5:
        raise SystemExit(f"the factored step is off by {error:.1e}: not measuring a wrong result")


def measure(heads: dict[tuple[str, str, int], tuple[Step, int]], device: torch.device) -> list[Record]:
    """Interleave the heads; `repeats` says how often each takes part."""
    where = provenance(device)  # now: the checkout may change before the end
    generator = torch.Generator().manual_seed(SEED)
    times: dict[tuple[str, str, int], list[float]] = {key: [] for key in heads}
    rounds = max(repeats for _, repeats in heads.values())
    for turn in track(range(-1, rounds), description="measuring"):
        h = torch.randn(BATCH, HIDDEN, generator=generator).relu().to(device)
        for key, (step, repeats) in heads.items():
            if turn < repeats:
                target = torch.randint(key[2], (BATCH,), generator=generator).to(device)
                elapsed = time_ms(step, h, target)
                if turn >= 0:  # the first turn warms up
                    times[key].append(elapsed)
    return [_record(key, values) | where for key, values in times.items()]


def _record(key: tuple[str, str, int], values: list[float]) -> Record:
    head, loss, classes = key
    return {
        "suite": "output_layer",
        "head": head,
        "loss": loss,
        "batch": BATCH,
        "hidden": HIDDEN,
        "classes": classes,
        "time_ms": round(statistics.median(values), 4),
        "time_ms_range": [round(min(values), 4), round(max(values), 4)],
        "repeats": len(values),
        "seed": SEED,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu"] + ["cuda"] * torch.cuda.is_available())
    parser.add_argument("--output", type=Path, help="file to write; records/output_layer.DEVICE.jsonl by default")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(SEED)
    gate(device)
    few, many = (5, 30) if device.type == "cpu" else (30, 200)
    records = []
    # In groups, because three dense layers at once would not fit into memory.
    dense = {("dense", "softmax", ONE_BILLION_WORD): (softmax(plain_cross_entropy, ONE_BILLION_WORD, device), few)}
    factored = ("factored", "z_loss", ONE_BILLION_WORD), (factored_z_loss(ONE_BILLION_WORD, device), many)
    records += measure(dense | dict([factored]), device)
    del dense
    if hasattr(F, "linear_cross_entropy"):
        key = ("dense, linear_cross_entropy", "softmax", ONE_BILLION_WORD)
        chunked = softmax(F.linear_cross_entropy, ONE_BILLION_WORD, device)  # torch's own, with its default chunks
        records += measure({key: (chunked, few)}, device)
    records += measure(
        {("factored", "z_loss", classes): (factored_z_loss(classes, device), many) for classes in (10_000, 1_000_000)},
        device,
    )
    records += measure({("refactor", "any", ONE_BILLION_WORD): (refactor(ONE_BILLION_WORD, device), 3)}, device)
    output = arguments.output or RECORDS / f"output_layer.{device.type}.jsonl"
    write_records(output, records)
    for record in records:
        print(f"{record['head']:>28} {record['classes']:>9,} classes {record['time_ms']:>10.2f} ms")


if __name__ == "__main__":
    main()
