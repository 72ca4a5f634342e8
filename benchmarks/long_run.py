"""Compare a float32 factored layer with dense float64 SGD over 20,000 steps.

    python -m benchmarks.long_run                 on the CPU, writes records/long_run.cpu.jsonl
    python -m benchmarks.long_run --device cuda   on a GPU, writes records/long_run.cuda.jsonl

Three layers see the same batches: the factored layer in float32, dense SGD in float64, and dense SGD in float32. The
last one shows the errors of float32 without any factors. On a CPU there is a fourth one, the factored layer with its
small state in float32. The learning rate is large enough that the layers learn the task `ZipfCodes`.
"""

import argparse
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

import zloss
from benchmarks.training_records import LAYER_TITLES, Layer, LongRunRecord
from zloss_lab.records import provenance, write_records

RECORDS = Path(__file__).parent / "records"


class ZipfCodes:
    """A classification task with any number of classes, made in memory from a seed.

    Every class has a random code; an input is the code of its class plus noise. Classes occur with Zipf's frequencies:
    class c in proportion to `1 / (c + 1)`, so that class 0 is the most frequent one.

    >>> task = ZipfCodes(classes=1000, inputs=8, noise=0.1, seed=0)
    >>> x, target = task.draw(4, torch.Generator().manual_seed(1))
    >>> x.shape, target.shape
    (torch.Size([4, 8]), torch.Size([4]))
    """

    def __init__(self, *, classes: int, inputs: int, noise: float, seed: int) -> None:
        self.noise = noise
        self.codes = torch.randn(
            classes, inputs, generator=torch.Generator().manual_seed(seed)
        )  # (C, D)
        frequencies = 1 / torch.arange(1, classes + 1, dtype=torch.float64)
        self.cumulative = frequencies.cumsum(0)  # (C,)

    def draw(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:  # (B, D), (B,)
        """Return inputs and targets of `size` new examples."""
        place = torch.rand(size, generator=generator, dtype=torch.float64) * self.cumulative[-1]
        target = torch.searchsorted(self.cumulative, place).clamp_max(len(self.codes) - 1)
        noise = torch.randn(size, self.codes.shape[1], generator=generator)
        return self.codes[target] + self.noise * noise, target


@dataclass(frozen=True, kw_only=True)
class LongRun:
    """The sizes, the learning rate and the seed of a run."""

    classes: int = 5000
    hidden: int = 64
    batch: int = 50
    steps: int = 20_000
    lr: float = 100.0
    seed: int = 0


class Runner:
    """A layer with its optimizer, and the errors of its losses in all steps."""

    def __init__(self, layer: zloss.FactoredLinear | zloss.DenseLinear, lr: float) -> None:
        self.layer = layer
        self.optimizer: torch.optim.Optimizer
        if isinstance(layer, zloss.FactoredLinear):
            self.optimizer = zloss.FactoredSGD(layer, lr)
        else:
            self.optimizer = torch.optim.SGD(layer.parameters(), lr)
        self.loss_errors: list[Tensor] = []
        # On a GPU, the factored layer is trained by a CUDA graph. A dense layer checks its targets on the host, which a
        # graph cannot do.
        can_be_captured = isinstance(layer, zloss.FactoredLinear) and layer.uses_kernels
        self._step = zloss.CapturedStep(self._take_step) if can_be_captured else self._take_step

    def step(self, h: Tensor, target: Tensor) -> Tensor:
        """Take one step of SGD on the Z-loss, and return the loss before it."""
        return self._step(h, target)

    def _take_step(self, h: Tensor, target: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss: Tensor = zloss.ZLoss(a=0.2, b=8.0)(self.layer(h, target))
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def compare(self, loss: Tensor, expected: Tensor) -> None:
        """Keep the error of a loss."""
        self.loss_errors.append((loss - expected).abs())

    def report(self, expected: Tensor) -> dict[str, Any]:
        """Return fields of a record: errors of weights and losses against the reference, and the state of factors."""
        weight = self.layer.weight().double()
        errors = {
            "weight_error": float((weight - expected).norm() / expected.norm()),
            "largest_loss_error": float(torch.stack(self.loss_errors).max()),
            "finite": bool(weight.isfinite().all()),
        }
        if isinstance(self.layer, zloss.DenseLinear):
            return errors
        layer = self.layer
        factors = {
            "refactors": layer.refactors,
            "drift": layer.drift(),
            "product_dtype": str(layer.product_dtype),
        }
        return errors | factors


def batches(run: LongRun, device: torch.device) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield the hidden batches (B, H) and targets (B,) of all steps."""
    task = ZipfCodes(classes=run.classes, inputs=run.hidden, noise=1.0, seed=run.seed)
    generator = torch.Generator().manual_seed(run.seed)
    for _ in range(run.steps):
        x, target = task.draw(run.batch, generator)
        yield x.relu().to(device), target.to(device)


def compare_with_dense(
    run: LongRun, device: torch.device, *, progress: bool = False
) -> list[LongRunRecord]:
    """Return the errors of the float32 layers against dense float64 SGD, after all steps."""
    where = provenance(device)  # taken now, because the checkout may change before the end
    torch.manual_seed(run.seed)
    linear = nn.Linear(run.hidden, run.classes, bias=False, device=device)
    start = linear.weight.detach().double().clone()
    factored = zloss.FactoredLinear.from_linear(linear)
    runners: dict[Layer, Runner] = {
        "factored": Runner(factored, run.lr),
        "dense": Runner(zloss.DenseLinear.from_linear(linear), run.lr),
    }
    if device.type == "cpu":  # shows why the state is in float64; a GPU would give the same result
        float32_state = zloss.FactoredLinear.from_linear(linear, state_dtype=torch.float32)
        runners["factored-float32-state"] = Runner(float32_state, run.lr)
    reference = Runner(zloss.DenseLinear.from_linear(linear.double()), run.lr)
    losses = []
    stream = batches(run, device)
    for h, target in track(stream, "stepping", run.steps) if progress else stream:
        expected = reference.step(h.double(), target)
        losses.append(expected)
        for runner in runners.values():
            runner.compare(runner.step(h, target).clone(), expected)
    weight = reference.layer.weight()
    common: dict[str, Any] = {
        "loss": "z_loss",
        "first_loss": float(losses[0]),
        "last_loss": float(torch.stack(losses[-100:]).mean()),
        "weights_moved": float((weight - start).norm() / start.norm()),
    }
    return [
        LongRunRecord(layer=layer, **asdict(run), **common, **runner.report(weight), **where)
        for layer, runner in runners.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--device", default="cpu", choices=["cpu"] + ["cuda"] * torch.cuda.is_available()
    )
    parser.add_argument("--steps", type=int, default=LongRun.steps)
    parser.add_argument(
        "--output", type=Path, help="file to write; records/long_run.DEVICE.jsonl by default"
    )
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    device = torch.device(arguments.device)
    records = compare_with_dense(LongRun(steps=arguments.steps), device, progress=True)
    write_records(arguments.output or RECORDS / f"long_run.{device.type}.jsonl", records)
    for record in records:
        errors = (
            f"weights off by {record.weight_error:.1e}, loss by {record.largest_loss_error:.1e}"
        )
        print(f"{LAYER_TITLES[record.layer]:>26}: {errors}")


if __name__ == "__main__":
    main()
