"""Train a network with the factored Z-loss, measure what it learns, and what its steps cost beside dense softmax.

The task is synthetic (`zloss_lab.synthetic`), so nothing is downloaded. Nothing here prints: `zloss_lab.million` does.
"""

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

import zloss
from zloss_lab.synthetic import ZipfCodes

TOP_K = (1, 10, 100)
_FLOAT_BYTES = 4
_SHOW_EVERY = 50  # steps


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """What to train. The defaults take a minute or two on two cores."""

    classes: int = 1_000_000
    hidden: int = 64
    batch: int = 128
    steps: int = 20_000
    seed: int = 0
    lr: float = 60.0  # of the output layer
    trunk_lr: float = 0.1
    a: float = 0.2  # of the Z-loss
    b: float = 30.0
    inputs: int = 64
    noise: float = 0.3
    held_out: int = 2_000
    dense_steps: int = 5
    dense_limit_bytes: int = 3 * 10**9  # no comparison with a dense layer that needs more

    def __post_init__(self) -> None:
        for name, least in {"classes": 2, "hidden": 1, "batch": 1, "steps": 1, "seed": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.seed >= 2**32:
            raise ValueError(f"seed must be below 2^32, got {self.seed}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr must be a finite number > 0, got {self.lr}")

    @property
    def factored_bytes(self) -> int:
        """Memory of all that has a row per class: V, and the codes and frequencies of the task."""
        return self.classes * (_FLOAT_BYTES * (self.hidden + self.inputs) + 8)

    @property
    def dense_bytes(self) -> int:
        """Memory of a step of a dense layer: weights and their gradient, logits, log-probabilities, their gradient."""
        return _FLOAT_BYTES * self.classes * (2 * self.hidden + 3 * self.batch)


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How well targets rank among all classes."""

    top_k_error: dict[int, float]
    mean_reciprocal_rank: float


@dataclass(frozen=True, kw_only=True)
class DenseCost:
    """What softmax on a dense output layer costs."""

    step_ms: float
    weight_bytes: int
    gradient_bytes: int
    logit_bytes: int
    peak_bytes: int | None  # of the process, this far


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What a run measured."""

    most_frequent: Quality  # of always predicting the most frequent classes
    before: Quality
    after: Quality
    unseen: float  # share of the held-out targets that never occurred in training
    step_ms: float  # median
    training_s: float
    condition: float
    refactors: int
    weight_bytes: int
    peak_bytes: int | None  # of the process, before the dense layer was made
    dense: DenseCost | None  # None where it would not fit


class TrainingError(RuntimeError):
    """Training broke down: the learning rate is too large."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands."""

    stage: str
    step: int = 0
    loss: float = math.nan
    lr: float = math.nan
    condition: float = math.nan


Watcher = Callable[[Progress], None]


def run_demo(config: DemoConfig, watch: Watcher = lambda _: None) -> DemoResult:
    """Train with the factored Z-loss, measure before and after, and time softmax on a dense layer beside it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        watch(Progress(stage="making the task"))
        task = ZipfCodes(
            classes=config.classes, inputs=config.inputs, noise=config.noise, seed=config.seed
        )
        x, target = task.draw(config.held_out, torch.Generator().manual_seed(config.seed + 1))
        trunk, layer = build_trunk(config), zloss.FactoredLinear(config.hidden, config.classes)
        watch(Progress(stage="ranking held-out examples"))
        before = quality(rank(trunk, layer, x, target))
        run = train(config, task, trunk, layer, watch)
        watch(Progress(stage="ranking held-out examples", step=config.steps))
        after = quality(rank(trunk, layer, x, target))
        peak = peak_bytes()
        watch(Progress(stage="timing dense softmax", step=config.steps))
        return DemoResult(
            most_frequent=quality(target + 1),  # class 0 is the most frequent
            before=before,
            after=after,
            unseen=1 - run.seen[target].double().mean().item(),
            step_ms=statistics.median(run.step_ms),
            training_s=run.seconds,
            condition=layer.condition(),
            refactors=layer.refactors,
            weight_bytes=layer.V.nbytes,
            peak_bytes=peak,
            dense=dense_cost(config, task)
            if config.dense_bytes <= config.dense_limit_bytes
            else None,
        )


def build_trunk(config: DemoConfig) -> nn.Sequential:
    """The part of the network below the output layer."""
    width = 2 * config.hidden
    return nn.Sequential(
        nn.Linear(config.inputs, width), nn.ReLU(), nn.Linear(width, config.hidden)
    )


@dataclass(frozen=True, kw_only=True)
class _Run:
    step_ms: list[float]
    seconds: float
    seen: Tensor  # (C,) bool, the classes that occurred


def train(
    config: DemoConfig,
    task: ZipfCodes,
    trunk: nn.Module,
    layer: zloss.FactoredLinear,
    watch: Watcher,
) -> _Run:
    """Train with learning rates that fall linearly to zero."""
    criterion = zloss.ZLoss(a=config.a, b=config.b)
    optimizers = (
        torch.optim.SGD(trunk.parameters(), lr=config.trunk_lr),
        zloss.FactoredSGD(layer, lr=config.lr),
    )
    schedules = [
        torch.optim.lr_scheduler.LinearLR(o, 1.0, 1e-3, total_iters=config.steps)
        for o in optimizers
    ]
    examples = torch.Generator().manual_seed(config.seed + 2)
    seen = torch.zeros(config.classes, dtype=torch.bool)
    start, step_ms = time.perf_counter(), []
    for step in range(1, config.steps + 1):
        x, target = task.draw(config.batch, examples)
        seen[target] = True
        began = time.perf_counter()
        try:
            loss = criterion(layer(trunk(x), target))
            descend(loss, *optimizers)
        except ValueError as error:  # the layer refuses what is not finite
            raise TrainingError(
                f"training broke down in step {step} with learning rate {config.lr:g}: {error}"
            ) from error
        step_ms.append(1e3 * (time.perf_counter() - began))
        if step % _SHOW_EVERY == 0:
            lr = optimizers[1].param_groups[0]["lr"]
            watch(
                Progress(
                    stage="training",
                    step=step,
                    loss=loss.item(),
                    lr=lr,
                    condition=layer.condition(),
                )
            )
        for schedule in schedules:
            schedule.step()
    return _Run(step_ms=step_ms, seconds=time.perf_counter() - start, seen=seen)


def descend(loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
    """One step of gradient descent."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


def dense_cost(config: DemoConfig, task: ZipfCodes) -> DenseCost:
    """Time whole training steps of the same network with `nn.Linear`, softmax and SGD; the first step warms up."""
    trunk, linear = build_trunk(config), nn.Linear(config.hidden, config.classes, bias=False)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(chain(trunk.parameters(), linear.parameters()), lr=0.1)
    x, target = task.draw(config.batch, torch.Generator().manual_seed(config.seed + 3))
    step_ms = []
    for _ in range(1 + config.dense_steps):
        began = time.perf_counter()
        logits = linear(trunk(x))
        descend(criterion(logits, target), optimizer)
        step_ms.append(1e3 * (time.perf_counter() - began))
    assert linear.weight.grad is not None
    return DenseCost(
        step_ms=statistics.median(step_ms[1:]),
        weight_bytes=linear.weight.nbytes,
        gradient_bytes=linear.weight.grad.nbytes,
        logit_bytes=logits.nbytes,
        peak_bytes=peak_bytes(),
    )


@torch.no_grad()
def rank(
    trunk: nn.Module, layer: zloss.FactoredLinear, x: Tensor, target: Tensor
) -> Tensor:  # (B,)
    """The rank of each target among all classes."""
    return layer.rank(trunk(x), target)


def quality(ranks: Tensor) -> Quality:
    """Top-k errors and mean reciprocal rank."""
    errors, mrr = {k: zloss.TopKError(k) for k in TOP_K}, zloss.MeanReciprocalRank()
    for metric in (*errors.values(), mrr):
        metric.update(ranks)
    return Quality(
        top_k_error={k: error.compute() for k, error in errors.items()},
        mean_reciprocal_rank=mrr.compute(),
    )


def peak_bytes() -> int | None:
    """The most memory that this process has held so far; None on systems that do not say."""
    try:
        import resource
    except ModuleNotFoundError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # macOS counts bytes, others kilobytes
