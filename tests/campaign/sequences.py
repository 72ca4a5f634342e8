"""Sequences of everything that a factored layer may meet, beside a dense SGD that was written independently.

After every change of the weights the layer is compared with the judge, a dense float64 SGD. In float64 it must agree to
1e-8. A float32 layer is measured by rulers: dense float32 layers that go through the same sequence. They differ in the
order of their sums alone, over hidden units and over examples. A sequence ends where the rulers have lost their digits,
as training may be chaotic.
"""

import copy
import math
import random
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import zloss
from tests.campaign.attack import Attack, FellError
from tests.campaign.dense_sgd import IGNORED, Batch, DenseSGD

LOSSES: dict[str, Callable[..., zloss.SphericalLoss]] = {
    "z_loss": partial(zloss.ZLoss, a=0.3, b=6.0),
    "squared_error": zloss.SquaredError,
    "taylor_softmax": zloss.TaylorSoftmax,
    "spherical_softmax": partial(zloss.SphericalSoftmax, eps=0.5),
}
MOST_IN_FLOAT64 = 1e-8
NO_CANCELLATION = 1e-4  # the part of the terms of a gradient that may be left of it
# Half of a unit in the last place: what a ruler may have lost even if its luck was better.
HALF_UNIT = {torch.float32: 6e-8, torch.float64: 1.1e-16}
# As many times the error of the worst ruler. Of 5,225 sequences on a CPU 4 were above 4, and the worst was 5.9. With
# one or two hidden units all rulers round alike, so that one lucky dense step decides. A GPU does not take a step
# twice: see tests/layers/test_step_error.py.
MOST_TIMES_DENSE = {"cpu": 8.0, "cuda": 500.0}
# A ruler with a larger error than this many half units shows that the training is chaotic.
CHAOS = 300.0
ACTIONS = 25


class Sequence:
    """One factored layer with its judge and its rulers."""

    def __init__(
        self, chance: random.Random, dtype: torch.dtype, device: str, **options: Any
    ) -> None:
        self.chance, self.dtype, self.device = chance, dtype, device
        generator = torch.Generator().manual_seed(chance.randrange(2**40))
        self.draw = partial(torch.randn, generator=generator)
        self.hidden = chance.choice([1, 2, 3, 4, 6, 9, 16, 24])
        self.classes = chance.choice([11, 17, 40, 150, 600])
        self.has_bias = chance.random() < 0.3
        weight = self.draw(self.classes, self.hidden + self.has_bias) / math.sqrt(self.hidden)
        weight *= 10 ** chance.uniform(-3, 0)
        options |= {"max_condition": chance.choice([None, None, 1.5, 20.0])}
        if dtype == torch.float32 and chance.random() < 0.2:
            options |= {"state_dtype": torch.float32}
        self.options = options
        self.layer = self.layer_of(weight)
        width = weight.shape[1]
        # A float32 layer must not be worse than the worst of a few dense layers. In float64 one shows what is chaotic.
        number = 1 if dtype == torch.float64 else 3
        orders = [torch.randperm(width, generator=generator) for _ in range(number)]
        make = partial(DenseSGD, weight.double(), has_bias=self.has_bias)
        self.judge = make(torch.float64, order=torch.arange(width))
        ways = zip(orders, (False, True, False), strict=False)
        self.rulers = [make(dtype, order=order, adds_at_once=way) for order, way in ways]
        self.recorded = 0
        self.worst = 0.0  # the error as a multiple of the worst ruler's
        self.past: list[str] = []

    def layer_of(self, weight: Tensor) -> zloss.FactoredLinear:
        """Return a factored layer with these weights."""
        linear = nn.Linear(self.hidden, self.classes, bias=self.has_bias, dtype=self.dtype)
        with torch.no_grad():
            linear.weight.copy_(weight[:, : self.hidden])
            if self.has_bias:
                linear.bias.copy_(weight[:, -1])
        return zloss.FactoredLinear.from_linear(linear, device=self.device, **self.options)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def batch(self) -> Batch:
        """Draw a batch of any kind."""
        chance = self.chance
        rows = chance.choice([0, 1, 2, 3, self.hidden, 2 * self.hidden, chance.randint(1, 80)])
        h = self.draw(rows, self.hidden) * 10 ** chance.uniform(-1, 1)
        if chance.random() < 0.3:
            h = h.relu() + 0.01
        if chance.random() < 0.2:
            h = h[:1] + 0.01 * h  # nearly one direction
        if chance.random() < 0.1:
            h = h.bfloat16().float()
        columns = chance.choice([None, None, 1, 2, 5])
        shape = (rows,) if columns is None else (rows, columns)
        few = chance.choice([self.classes, self.classes, 2])  # with few classes, targets repeat
        target = (self.draw(*shape).abs() * 1e6).long() % few
        target[self.draw(*shape) < chance.choice([-9.0, -9.0, -1.0, 9.0])] = IGNORED
        return Batch(
            h=h.double(),
            target=target,
            weight=self.draw(rows).abs().double() if chance.random() < 0.2 else None,
            loss=chance.choice(list(LOSSES)),
            reduction=chance.choice(["mean", "mean", "sum"]),
            scale=chance.choice([1.0, 1.0, 0.25, -0.1]),
        )

    def backward(self) -> None:
        """Run a forward and a backward pass, and compare the gradient of h."""
        batch = self.batch()
        if self.recorded == 3:
            return
        h = batch.h.to(device=self.device, dtype=self.dtype, copy=True)
        h = h.t().contiguous().t() if self.chance.random() < 0.3 else h
        h = h.bfloat16() if torch.equal(h.bfloat16().to(h.dtype), h) else h
        h.requires_grad_()
        loss = LOSSES[batch.loss](reduction=batch.reduction)
        weight = None if batch.weight is None else batch.weight.to(h.device, self.dtype)
        value = loss(self.layer(h, batch.target.to(h.device)), weight=weight)
        (batch.scale * value).backward()
        assert h.grad is not None
        expected = self.judge.backward(batch)
        for ruler in self.rulers:
            ruler.backward(batch)
        self.recorded += 1
        if h.dtype == torch.float64:  # a gradient in bfloat16 is rounded to that
            self.expect_near("the loss", value.detach(), expected.loss, 1.0)
            self.expect_near("the gradient of h", h.grad, expected.grad, expected.terms)

    def expect_near(self, what: str, found: Tensor, expected: Tensor, terms: float) -> None:
        """Compare a result in float64, which is a sum of terms of a size."""
        size = max(float(expected.norm()), NO_CANCELLATION * terms)
        error = float((found.double().cpu() - expected).norm())
        if not error <= MOST_IN_FLOAT64 * size:
            raise FellError(f"{what} is wrong by {error:.1e} of {size:.1e} after {self.past}")

    # ---- what changes the weights ------------------------------------------------------------------------------------

    def step(self) -> None:
        """Take a step that changes the weights by a part of their size, small or large."""
        norm, size = self.judge.grad_norm(), float(self.judge.weight.norm())
        part = 10 ** self.chance.uniform(-3, 0.3)
        lr = part * size / norm if norm > 1e-9 * size else self.chance.choice([0.0, 0.1])
        weight_decay = self.chance.choice([0.0, 0.0, 0.01 / lr if lr else 0.1])
        optimizer = zloss.FactoredSGD(self.layer, lr=lr, weight_decay=weight_decay)
        optimizer.step()
        try:
            self.layer.raise_faults()
        except zloss.RefusedStepError:
            if self.device == "cpu":
                raise
            self.forget()  # a GPU may refuse a step; the weights are as before
            return
        if self.recorded:  # without a gradient, SGD passes over a parameter, weight decay included
            for dense in (self.judge, *self.rulers):
                dense.step(lr, weight_decay)
        self.recorded = 0

    def clip(self) -> None:
        """Clip the gradient, and compare its norm."""
        norm = self.judge.grad_norm()
        if not self.recorded or norm < 1e-6:
            return
        max_norm = norm * self.chance.choice([0.1, 0.9, 2.0])
        zloss.clip_grad_norm_(self.layer, max_norm)
        for dense in (self.judge, *self.rulers):
            dense.clip(max_norm)

    def zero_grad(self) -> None:
        """Drop the gradient."""
        nn.Sequential(self.layer).zero_grad(set_to_none=self.chance.random() < 0.5)
        self.forget()

    def forget(self) -> None:
        """Drop the gradients of the dense layers."""
        for dense in (self.judge, *self.rulers):
            dense.zero_grad()
        self.recorded = 0

    def refactor(self) -> None:
        """Refactor, in the middle of an accumulation or not."""
        self.layer.refactor()

    # ---- what must not change the weights ----------------------------------------------------------------------------

    def save_and_load(self) -> None:
        """Save the layer and load it into another one, or into itself."""
        state = copy.deepcopy(self.layer.state_dict())
        if self.chance.random() < 0.5:
            self.layer = self.layer_of(self.draw(self.classes, self.hidden + self.has_bias))
        self.layer.load_state_dict(state)
        self.forget()

    def copied(self) -> None:
        """Go on with a copy."""
        self.layer = copy.deepcopy(self.layer)
        self.forget()

    def through_a_linear(self) -> None:
        """Go on with a factored layer of the exported weights, which are rounded, and so for the dense layers."""
        linear = self.layer.to_linear()
        self.layer = zloss.FactoredLinear.from_linear(linear, **self.options)
        self.layer.to(self.device)
        self.forget()

    def evaluated(self) -> None:
        """Rank targets and look at scores, in the middle of an accumulation or not."""
        h = self.draw(5, self.hidden).to(device=self.device, dtype=self.dtype)
        scores, classes = self.layer.topk(h, min(3, self.classes))
        logits = self.layer.logits(h)
        if not torch.allclose(
            logits.gather(1, classes), scores, rtol=1e-4, atol=1e-6 * float(logits.abs().max())
        ):
            raise FellError(f"topk and logits disagree after {self.past}")

    def moved(self) -> None:
        """Move the layer to where it is, and to float64 and back if it is float64."""
        self.layer.to(self.device).to(self.dtype).train(self.chance.random() < 0.5)

    # ---- the whole ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Draw actions and compare the weights after each."""
        frequent = [self.backward] * 4 + [self.step] * 4
        rare = [self.clip, self.zero_grad, self.refactor, self.save_and_load, self.copied]
        rare += [self.through_a_linear, self.evaluated, self.moved]
        for _ in range(ACTIONS):
            action = self.chance.choice(frequent + rare)
            self.past.append(action.__name__)
            action()
            if not self.still_tells():
                return

    def still_tells(self) -> bool:
        """Compare the weights. Returns False where the rulers have lost their digits."""
        expected = self.judge.weight
        size = expected.norm().clamp_min(1e-300)
        lost = [float((ruler.weight - expected).norm() / size) for ruler in self.rulers]
        unit = HALF_UNIT[self.dtype]
        if not max(lost) <= CHAOS * unit:
            return False
        error = float((self.layer.materialised().double().cpu() - expected).norm() / size)
        times_dense, most = error / max(*lost, unit), MOST_TIMES_DENSE[self.device]
        self.worst = max(self.worst, times_dense)
        if not (times_dense <= most if self.dtype == torch.float32 else error <= MOST_IN_FLOAT64):
            raise FellError(
                f"the weights are wrong by {error:.1e}, {times_dense:.1f} times a dense layer "
                f"(H = {self.hidden}, C = {self.classes}) after {self.past}"
            )
        return True


def run_sequence(
    chance: random.Random, _: Path, *, dtype: torch.dtype, device: str = "cpu", **options: Any
) -> None:
    """Run one sequence."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of steps after zero_grad() and of hasty refactors: both are meant
        Sequence(chance, dtype, device, **options).run()


def gpu_attack(key: str, title: str, dtype: torch.dtype, **options: Any) -> Attack:
    """Return an attack on a GPU."""
    attempt = partial(run_sequence, dtype=dtype, device="cuda", **options)
    return Attack(key=key, title=title, attempt=attempt, tries_in_tests=20, needs_gpu=True)


ATTACKS = [
    Attack(
        key="sequences_float64",
        title="sequences, float64",
        attempt=partial(run_sequence, dtype=torch.float64),
        tries_in_tests=60,
        weight=2,
    ),
    Attack(
        key="sequences_float32",
        title="sequences, float32",
        attempt=partial(run_sequence, dtype=torch.float32),
        tries_in_tests=60,
        weight=2,
    ),
    gpu_attack("sequences_gpu_float64", "sequences on a GPU, float64", torch.float64),
    gpu_attack("sequences_gpu_kernels", "sequences on a GPU, kernels", torch.float32),
    gpu_attack(
        "sequences_gpu_torch", "sequences on a GPU, torch", torch.float32, implementation="torch"
    ),
    gpu_attack(
        "sequences_gpu_waiting",
        "sequences on a GPU that waits",
        torch.float32,
        synchronous=True,
    ),
]
