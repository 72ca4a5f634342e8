"""Random sequences of uses: a layer stays equal to the dense layer through all of them. Hypothesis chooses them."""

import copy
import warnings

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import nn

import zloss
from tests.layers.twins import Twins, make_twins, relative_error

CLASSES = 40
LOSS = zloss.ZLoss(a=0.2, b=5.0)


class AnySequence(RuleBasedStateMachine):
    twins: Twins
    recorded = 0

    @initialize(
        hidden=st.integers(1, 6),
        bias=st.booleans(),
        limit=st.sampled_from([None, 1.5]),
        seed=st.integers(0, 99),
    )
    def build(self, hidden: int, bias: bool, limit: float | None, seed: int) -> None:
        torch.manual_seed(seed)
        self.hidden = hidden
        self.twins = make_twins(
            hidden, CLASSES, device=torch.device("cpu"), bias=bias, max_condition=limit
        )

    @precondition(lambda self: self.recorded < 3)
    @rule(
        rows=st.integers(0, 9),
        columns=st.integers(1, 3),
        ignored=st.floats(0, 1),
        scale=st.sampled_from([0.1, 1.0, 10.0]),
    )
    def backward(self, rows: int, columns: int, ignored: float, scale: float) -> None:
        h = scale * torch.randn(rows, self.hidden, dtype=torch.float64)
        target = torch.randint(CLASSES, (rows, columns))
        target[torch.rand(rows, columns) < ignored] = -100
        self.twins.backward(LOSS, h, target)
        self.recorded += 1

    @precondition(lambda self: self.recorded < 3)
    @rule(
        ids=st.lists(st.integers(0, CLASSES - 1), max_size=7),
        is_tied=st.booleans(),
        scale=st.sampled_from([0.1, 1.0]),
    )
    def backward_through_rows(self, ids: list[int], is_tied: bool, scale: float) -> None:
        """A bounded function of rows, alone or as the hidden batch of the layer itself."""
        classes = torch.tensor(ids, dtype=torch.long)
        with_bias = self.twins.factored.has_bias
        for layer in (self.twins.factored, self.twins.dense):
            rows = layer.rows(classes, with_bias=with_bias).sin()
            loss = scale * rows.sum()
            if is_tied:
                loss = loss + LOSS(layer(rows[:, : self.hidden], classes))
            loss.backward()
        self.recorded += 1

    @rule(lr=st.sampled_from([0.0, 0.3, 10.0]), weight_decay=st.sampled_from([0.0, 0.01]))
    def step(self, lr: float, weight_decay: float) -> None:
        for optimizer in (self.twins.factored_optimizer, self.twins.dense_optimizer):
            optimizer.param_groups[0].update(lr=lr, weight_decay=weight_decay)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of a step after zero_grad(), and of hasty refactors: both are meant here
            self.twins.step()
        self.recorded = 0

    @rule()
    def refactor(self) -> None:
        self.twins.factored.refactor()

    @rule(max_norm=st.sampled_from([0.01, 1.0]))
    def clip(self, max_norm: float) -> None:
        zloss.clip_grad_norm_(self.twins.factored, max_norm)
        nn.utils.clip_grad_norm_(self.twins.dense.parameters(), max_norm)

    @rule()
    def zero_grad(self) -> None:
        nn.Sequential(self.twins.factored).zero_grad()
        self.twins.dense.zero_grad()
        self.recorded = 0

    @rule()
    def save_and_load(self) -> None:
        state = copy.deepcopy(self.twins.factored.state_dict())
        self.twins.factored.reset_parameters()
        self.twins.factored.load_state_dict(state)
        self.twins.dense.zero_grad()
        self.recorded = 0

    @rule()
    def through_a_linear(self) -> None:
        linear = self.twins.factored.to_linear()
        self.twins.factored = zloss.FactoredLinear.from_linear(
            linear, max_condition=self.twins.factored.max_condition
        )
        self.twins.factored_optimizer = zloss.FactoredSGD(self.twins.factored, 1.0)
        self.twins.dense.zero_grad()
        self.recorded = 0

    @invariant()
    def same_weights(self) -> None:
        if not hasattr(self, "twins"):
            return
        # 50 operations in float64, with steps that may overshoot: far above their rounding, far below any mistake.
        assert self.twins.weight_error() < 1e-7

    @invariant()
    def same_gradient(self) -> None:
        if not hasattr(self, "twins"):
            return
        grads = [p.grad for p in self.twins.dense.parameters() if p.grad is not None]
        expected = self.twins.dense_grad_norm() if grads else torch.zeros((), dtype=torch.float64)
        norm = self.twins.factored.grad_norm()
        # The norm is the root of a sum that may cancel: half of the digits are left where it is nearly zero.
        assert relative_error(norm, expected) < 1e-6 or (norm - expected).abs() < 1e-7

    @invariant()
    def tracked_moments_are_those_of_the_weights(self) -> None:
        if not hasattr(self, "twins"):
            return
        layer = self.twins.factored
        W = layer.materialised()
        centred = W - W.mean(0)
        assert relative_error(layer.gram, centred.T @ centred) < 1e-7
        assert (layer.wbar - W.mean(0)).abs().max() < 1e-9 * W.abs().max().clamp_min(1)


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
