"""Random sequences under `zloss.Optimizer`: a model stays equal to its dense twin. Hypothesis chooses them.

The twin is trained by one `torch.optim.SGD` with two groups. Both use torch's own clipping, scaler and schedulers.
"""

import copy
import io
import warnings
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor, nn

import zloss
from tests.layers.twins import relative_error

CLASSES, FEATURES, HIDDEN = 40, 3, 5
LOSS = zloss.ZLoss(a=0.2, b=5.0)


class Network(nn.Module):
    def __init__(self, linear: nn.Linear, *, is_dense: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(FEATURES, HIDDEN, dtype=torch.float64), nn.Tanh())
        layer = zloss.DenseLinear if is_dense else zloss.FactoredLinear
        self.output = layer.from_linear(linear)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = LOSS(self.output(self.trunk(x), target))
        return loss

    def weights(self) -> list[Tensor]:
        return [*(p.detach() for p in self.trunk.parameters()), self.output.weight().detach()]


def schedule_of(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + step % 4) / 3)


class Sequences(RuleBasedStateMachine):
    recorded = 0

    @initialize(
        seed=st.integers(0, 99),
        bias=st.booleans(),
        momentum=st.sampled_from([0.0, 0.9]),
        decay=st.sampled_from([0.0, 0.01]),
    )
    def build(self, seed: int, bias: bool, momentum: float, decay: float) -> None:
        torch.manual_seed(seed)
        self.has_bias = bias
        linear = nn.Linear(HIDDEN, CLASSES, bias=bias, dtype=torch.float64)
        self.options: dict[str, Any] = {"lr": 0.1, "momentum": momentum}
        self.output_options: dict[str, Any] = {"output_lr": 2.0, "output_weight_decay": decay}
        self.factored = Network(linear, is_dense=False)
        self.dense = Network(linear, is_dense=True)
        self.dense.trunk.load_state_dict(self.factored.trunk.state_dict())
        self.make_optimizers()
        self.scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)] * 2
        self.scalers[1] = copy.deepcopy(self.scalers[0])
        self.is_scaled = self.is_unscaled = False

    def make_optimizers(self) -> None:
        output = {
            "params": self.dense.output.parameters(),
            "lr": self.output_options["output_lr"],
            "weight_decay": self.output_options["output_weight_decay"],
            "momentum": 0.0,
        }
        trunk = {"params": self.dense.trunk.parameters()}
        self.optimizers: list[torch.optim.Optimizer] = [
            zloss.Optimizer(self.factored, torch.optim.SGD, **self.options, **self.output_options),
            torch.optim.SGD([trunk, output], **self.options),
        ]
        self.schedules = [schedule_of(optimizer) for optimizer in self.optimizers]

    @property
    def networks(self) -> tuple[Network, Network]:
        return self.factored, self.dense

    @precondition(lambda self: self.recorded < 3)
    @rule(
        rows=st.integers(1, 9), scaled=st.booleans(), spoilt=st.sampled_from([False] * 7 + [True])
    )
    def backward(self, rows: int, scaled: bool, spoilt: bool) -> None:
        """The first pass after `zero_grad` decides whether a GradScaler is in use."""
        if self.recorded == 0:
            self.is_scaled, self.is_unscaled = scaled, False
        if self.is_unscaled:
            return  # torch scales no gradient once more
        x, target = torch.randn(rows, FEATURES).double(), torch.randint(CLASSES, (rows,))
        for network, scaler in zip(self.networks, self.scalers, strict=True):
            loss = network(x, target)
            if self.is_scaled:
                scaler.scale(loss * (float("inf") if spoilt else 1.0)).backward()
            else:
                loss.backward()
        self.recorded += 1

    @rule(max_norm=st.sampled_from([0.01, 0.3, 100.0]), own=st.booleans())
    def clip(self, max_norm: float, own: bool) -> None:
        if self.is_scaled and self.recorded and not self.is_unscaled:
            for scaler, optimizer in zip(self.scalers, self.optimizers, strict=True):
                scaler.unscale_(optimizer)
            self.is_unscaled = True
        clips = zloss.clip_grad_norm_ if own else nn.utils.clip_grad_norm_
        norm = clips(self.factored.parameters(), max_norm)
        expected = nn.utils.clip_grad_norm_(self.dense.parameters(), max_norm)
        if expected.isfinite():
            # Half of the digits of a norm are left where it is nearly zero.
            assert relative_error(norm, expected) < 1e-8 or (norm - expected).abs() < 1e-9

    @rule()
    def step(self) -> None:
        for scaler, optimizer in zip(self.scalers, self.optimizers, strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a step after zero_grad()
                if self.is_scaled and self.recorded:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
            optimizer.zero_grad()
        self.recorded = 0
        assert self.scalers[0].get_scale() == self.scalers[1].get_scale()

    @rule()
    def schedule(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of the order of steps, and of copies: both are meant here
            for schedule in self.schedules:
                schedule.step()

    @precondition(lambda self: not self.is_scaled or not self.recorded)
    @rule(set_to_none=st.booleans(), by_model=st.booleans())
    def zero_grad(self, set_to_none: bool, by_model: bool) -> None:
        things = self.networks if by_model else self.optimizers
        for one in things:
            one.zero_grad(set_to_none=set_to_none)
        self.dense.output.zero_grad()  # zeros in place drop a recorded gradient too
        self.recorded = 0

    @precondition(lambda self: not self.recorded)
    @rule()
    def save_and_load(self) -> None:
        saved = io.BytesIO()
        states = [
            one.state_dict() for one in (self.factored, self.optimizers[0], self.schedules[0])
        ]
        torch.save(states, saved)
        saved.seek(0)
        states = torch.load(saved, weights_only=True)
        dense = [one.state_dict() for one in (self.optimizers[1], self.schedules[1])]
        linear = nn.Linear(HIDDEN, CLASSES, bias=self.has_bias, dtype=torch.float64)
        self.factored = Network(linear, is_dense=False)
        for part, twin in zip(self.factored.children(), self.dense.children(), strict=True):
            part.requires_grad_(next(twin.parameters()).requires_grad)
        self.make_optimizers()
        self.factored.load_state_dict(states[0])
        self.schedules[0].load_state_dict(states[2])
        self.optimizers[0].load_state_dict(states[1])
        self.schedules[1].load_state_dict(dense[1])
        self.optimizers[1].load_state_dict(dense[0])

    @precondition(lambda self: not self.recorded)
    @rule()
    def copy_all(self) -> None:
        pair = (self.factored, self.optimizers[0], self.schedules[0])
        self.factored, self.optimizers[0], self.schedules[0] = copy.deepcopy(pair)

    @rule(trunk=st.booleans(), trains=st.booleans())
    def freeze(self, trunk: bool, trains: bool) -> None:
        if self.recorded:
            return  # torch keeps the gradients of a layer that is frozen
        for network in self.networks:
            (network.trunk if trunk else network.output).requires_grad_(trains)
        if not any(p.requires_grad for p in self.factored.parameters()):
            for network in self.networks:
                network.requires_grad_(True)

    @rule()
    def refactor(self) -> None:
        layer = self.factored.output
        assert isinstance(layer, zloss.FactoredLinear)
        layer.refactor()

    @invariant()
    def same_weights(self) -> None:
        if not hasattr(self, "factored"):
            return
        for own, expected in zip(self.factored.weights(), self.dense.weights(), strict=True):
            # Up to 30 steps in float64.
            assert relative_error(own, expected) < 1e-9


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
