"""`Head.optimizer` of every head: steps by the dense definition, training by the measured defaults, bad arguments."""

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import zloss
from tests.heads.batches import by_definition, good_batch, hidden, seeded, spread
from tests.heads.definitions import Weights
from tests.heads.registry import CASES, HIDDEN, HeadCase, each, every_head, every_row_sparse_head
from zloss.heads import defaults
from zloss.heads.defaults import HeadDefaults, OptimizerName

every_head_but_factored = each(case for case in CASES if case.kind != "factored")
every_factored_head = each(case for case in CASES if case.kind == "factored")


def adagrad(grad: Tensor, total: Tensor, unused: Tensor, step: int) -> tuple[Tensor, ...]:
    total = total + grad**2
    return grad / (total.sqrt() + 1e-10), total, unused


def adam(grad: Tensor, mean: Tensor, square: Tensor, step: int) -> tuple[Tensor, ...]:
    mean, square = 0.9 * mean + 0.1 * grad, 0.999 * square + 0.001 * grad**2
    scale = (square / (1 - 0.999**step)).sqrt() + 1e-8
    return mean / (1 - 0.9**step) / scale, mean, square


def rows_of(grad: Tensor | None, size: int) -> Tensor:
    """Return the rows that a step may change: those of a row-sparse gradient, all rows of a dense one, none of None."""
    if grad is None:
        return torch.arange(0)
    return grad.coalesce().indices()[0] if grad.is_sparse else torch.arange(size)


class Definition:
    """An optimizer on dense weights, which changes only some rows."""

    def __init__(
        self, rule: Callable[..., tuple[Tensor, ...]], weights: Weights, lr: float
    ) -> None:
        self.rule, self.lr, self.steps = rule, lr, 0
        self.state = {
            name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in weights.items()
        }

    def step(self, weights: Weights, grads: Weights, rows: dict[str, Tensor]) -> None:
        self.steps += 1
        for name, weight in weights.items():
            own = rows[name]
            state = [part[own] for part in self.state[name]]
            change, *state = self.rule(grads[name][own], *state, self.steps)
            weight[own] -= self.lr * change
            for part, new in zip(self.state[name], state, strict=True):
                part[own] = new


@pytest.mark.parametrize("name", ["adagrad", "adam"])
@every_head_but_factored
def test_steps_are_those_of_the_definition(case: HeadCase, name: OptimizerName) -> None:
    """After each of four steps, the rows of the batch have moved as by the dense rule, and others have not."""
    head, lr = case.made(), 0.01
    weights = case.weights(head)
    optimizer = head.optimizer(name, lr=lr)
    definition = Definition({"adagrad": adagrad, "adam": adam}[name], weights, lr)
    for number in range(4):
        h, target = hidden(7 + number), spread(7 + number)
        _, _, grads = by_definition(case, head, h, target)
        optimizer.zero_grad()
        seeded(head, h.detach(), target).backward()
        rows = {key: rows_of(p.grad, len(p)) for key, p in head.named_parameters()}
        definition.step(weights, grads, rows)
        optimizer.step()
        for key, weight in case.weights(head).items():
            # A number moves by up to lr, in proportion to its gradient over the root of a mean of squares. The
            # relative error of a small gradient, 1e-8 at most here, is the error of the move.
            assert (weight - weights[key]).abs().max() <= 1e-7 * lr, (number, key)


@every_head
def test_the_measured_optimizer_trains(case: HeadCase) -> None:
    """Six examples with one target each: within 300 steps every target comes first."""
    head = case.made()
    h, target = hidden(6).detach(), spread(6)
    if head.defaults is None:
        optimizer = head.optimizer(lr=case.lr)
    elif head.defaults.optimizer == "sgd" and not head.defaults.is_relative:
        # Rates of plain SGD are for a mean over some hundred examples.
        optimizer = head.optimizer(lr=head.defaults.lr * 6 / 128)
    else:
        optimizer = head.optimizer()
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = head(h, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(map(math.isfinite, losses))
    assert sum(losses[-10:]) / 10 < max(case.falls_to, 0.9) * losses[0]
    assert (head.rank(h, target) == 1).all()


def test_the_measured_rate_of_the_factored_head_trains_many_classes() -> None:
    torch.manual_seed(0)
    head = zloss.HeadConfig().build(HIDDEN, 20_000)
    h, target = torch.randn(64, HIDDEN), torch.randint(20_000, (64,))
    optimizer, losses = head.optimizer(), []
    for _ in range(300):
        optimizer.zero_grad()
        loss = head(h, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@every_head
def test_defaults_are_in_the_table(case: HeadCase) -> None:
    head = case.made()
    table = [value for value in vars(defaults).values() if isinstance(value, HeadDefaults)]
    if head.defaults is None:
        assert (case.kind, case.loss == "z_loss") == ("factored", False)
        return
    assert head.defaults in table
    (group,) = {group["lr"] for group in head.optimizer().param_groups}
    assert group == head.defaults.lr
    assert type(head.optimizer()) is type(head.optimizer(head.defaults.optimizer))


@every_head
def test_bad_arguments_are_refused(case: HeadCase) -> None:
    head = case.made()
    bad: list[tuple[dict[str, Any], str]] = [
        ({"lr": -1.0}, "lr must be a finite number >= 0, got -1.0"),
        ({"lr": float("nan")}, "lr must be a finite number >= 0"),
        ({"lr": "fast"}, "lr must be a finite number >= 0, got 'fast'"),
        ({"lr": 0.1, "weight_decay": -1.0}, "weight_decay"),
        ({"name": "adamw", "lr": 0.1}, "'adamw'"),
        ({"name": 3, "lr": 0.1}, "got 3|for 3"),
    ]
    for arguments, message in bad:
        with pytest.raises(ValueError, match=message):
            head.optimizer(**arguments)
    for name in get_args(OptimizerName):
        measured = None if head.defaults is None else head.defaults.optimizer
        if name != measured:
            with pytest.raises(
                ValueError, match=r"lr is missing|has no default optimizer|GramLinear"
            ):
                head.optimizer(name)


@every_row_sparse_head
@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_no_optimizer_decays_row_sparse_weights(case: HeadCase, name: OptimizerName) -> None:
    with pytest.raises(ValueError, match=r"weight_decay=0\.1 would change every row"):
        case.made().optimizer(name, lr=0.1, weight_decay=0.1)


@every_factored_head
@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_a_factored_head_has_sgd_only(case: HeadCase, name: OptimizerName) -> None:
    with pytest.raises(ValueError, match=rf"exact step of plain SGD .* '{name}'.*GramLinear"):
        case.made().optimizer(name, lr=0.1)


def test_a_head_of_a_user_has_no_default_optimizer() -> None:
    class Own(zloss.Head):
        """A head that nobody has measured."""

        def __init__(self) -> None:
            super().__init__(HIDDEN, 5)
            self.linear = torch.nn.Linear(HIDDEN, 5)

        forward = scores = None  # type: ignore[assignment]

    head = Own()
    for arguments in ({}, {"lr": 0.1}, {"name": "adam"}):
        with pytest.raises(ValueError, match="this Own has no default optimizer"):
            head.optimizer(**arguments)
    assert isinstance(head.optimizer("adam", lr=0.1), torch.optim.Adam)


def test_good_batches_are_used() -> None:
    """The batches of these tests train every head: a head without a gradient would pass them all."""
    for case in CASES:
        if not case.missing:
            head = case.made()
            before = case.weights(head)
            seeded(head, *good_batch(head)).backward()
            head.sgd(0.1).step()
            assert any(not torch.equal(before[key], w) for key, w in case.weights(head).items())
