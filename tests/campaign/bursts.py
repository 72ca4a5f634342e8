"""Bursts of training steps on a GPU, between which nobody looks: the host runs ahead, and refactors come late.

A burst is eager or captured as a CUDA graph. After it the weights are compared with the weights of the judge, as in
`sequences.py`. If a step was refused, they must equal the weights before some step of the burst.
"""

import math
import random
import warnings
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import zloss
from tests.campaign.attack import Attack, FellError
from tests.campaign.dense_sgd import Batch, DenseSGD
from tests.campaign.sequences import CHAOS, HALF_UNIT, LOSSES, MOST_TIMES_DENSE
from zloss.inputs import NotFiniteError

BURSTS = 5


class Training:
    """A factored layer on a GPU that trains on random batches, with its judge and its rulers."""

    def __init__(self, chance: random.Random, *, is_captured: bool, implementation: str) -> None:
        self.chance = chance
        generator = torch.Generator().manual_seed(chance.randrange(2**40))
        self.draw = partial(torch.randn, generator=generator)
        self.hidden, self.classes = (
            chance.choice([2, 5, 16, 40]),
            chance.choice([11, 60, 600, 5000]),
        )
        self.rows, self.columns = chance.choice([1, 4, 30, 64]), chance.choice([1, 1, 3])
        self.loss = chance.choice(list(LOSSES))
        linear = nn.Linear(self.hidden, self.classes, bias=False)
        with torch.no_grad():
            size = 10 ** chance.uniform(-2, 0) / math.sqrt(self.hidden)
            linear.weight.copy_(self.draw(self.classes, self.hidden) * size)
        # Activations behind a ReLU have a mean, along which the weights shrink.
        self.mean = self.draw(self.hidden).abs() * chance.choice([0.0, 1.0, 3.0])
        weight = linear.weight.detach().double()
        orders = [torch.randperm(self.hidden, generator=generator) for _ in range(3)]
        self.judge = DenseSGD(
            weight, torch.float64, has_bias=False, order=torch.arange(self.hidden)
        )
        self.rulers = [
            DenseSGD(weight, torch.float32, has_bias=False, order=order) for order in orders
        ]
        self.layer = zloss.FactoredLinear.from_linear(
            linear, device="cuda", implementation=implementation
        )
        self.optimizer = zloss.FactoredSGD(self.layer, lr=self.learning_rate())
        self.step = zloss.CapturedStep(self.eager_step) if is_captured else self.eager_step
        self.worst = 0.0  # the error as a multiple of the worst ruler's
        self.steps = self.refused = 0

    def batch(self) -> Batch:
        """Draw a batch of the shape of all batches."""
        target = (self.draw(self.rows, self.columns).abs() * 1e6).long() % self.classes
        h = self.draw(self.rows, self.hidden) + self.mean
        return Batch(h.double(), target, None, self.loss, "mean", 1.0)

    def learning_rate(self) -> float:
        """Return a rate at which the first step changes the weights by a part of their size."""
        self.judge.backward(self.batch())
        part = 10 ** self.chance.uniform(-3, 0)
        lr = part * float(self.judge.weight.norm()) / max(self.judge.grad_norm(), 1e-12)
        self.judge.zero_grad()
        return lr

    def eager_step(self, h: Tensor, target: Tensor) -> Tensor:
        """Take a step."""
        loss: Tensor = LOSSES[self.loss]()(self.layer(h, target))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def burst(self, length: int) -> bool:
        """Take some steps and compare. Returns whether it makes sense to go on."""
        batches = [self.batch() for _ in range(length)]
        try:
            for batch in batches:
                self.step(batch.h.float().cuda(), batch.target.cuda())
            self.layer.raise_faults()
        except (zloss.RefusedStepError, NotFiniteError):  # the latter if training diverges
            self.refused += 1
        found = self.layer.materialised().double().cpu()
        states = [self.compare(found)]
        for batch in batches:
            for dense in (self.judge, *self.rulers):
                dense.backward(batch)
                dense.step(self.optimizer.param_groups[0]["lr"], 0.0)
            states.append(self.compare(found))
        self.steps += length
        candidates = states if self.refused else states[-1:]
        error, ruler = min(candidates, key=lambda state: state[0] / state[1])
        unit = HALF_UNIT[torch.float32]
        if not ruler <= CHAOS * unit:
            return False
        self.worst = max(self.worst, error / ruler)
        if not error <= MOST_TIMES_DENSE["cuda"] * ruler:
            raise FellError(
                f"the weights are wrong by {error:.1e}, {error / ruler:.1f} times a dense layer, after {self.steps} "
                f"steps: H = {self.hidden}, C = {self.classes}, B = {self.rows}, {self.loss}, "
                f"{self.layer.refactors} refactors"
            )
        return not self.refused

    def compare(self, found: Tensor) -> tuple[float, float]:
        """Return the error of the weights of the layer beside the state of the judge, and of the worst ruler."""
        expected, unit = self.judge.weight, HALF_UNIT[torch.float32]
        size = expected.norm()
        lost = [float((ruler.weight - expected).norm() / size) for ruler in self.rulers]
        return float((found - expected).norm() / size), max(*lost, unit)


def run_bursts(
    chance: random.Random, _: Path, *, is_captured: bool, implementation: str = "auto"
) -> None:
    """Train in bursts of different lengths."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of hasty refactors, which are meant here
        training = Training(chance, is_captured=is_captured, implementation=implementation)
        lengths = [chance.choice([1, 7, 30, 90]) for _ in range(BURSTS)]
        all(training.burst(length) for length in lengths)  # stops at the first that is False


ATTACKS = [
    Attack(
        key=key,
        title=title,
        attempt=partial(run_bursts, is_captured=is_captured),
        tries_in_tests=5,
        needs_gpu=True,
    )
    for key, title, is_captured in (
        ("bursts_eager", "bursts of steps on a GPU", False),
        ("bursts_captured", "bursts of steps on a GPU, captured", True),
    )
]
