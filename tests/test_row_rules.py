"""The options and the state of the rule of looked-up rows in `FactoredSGD`: checkpoints, copies and bad values."""

import copy
import re
from functools import partial
from typing import Any

import pytest
import torch

import zloss
from tests.layers.row_rule_twin import (
    CLASSES,
    EPS,
    HIDDEN,
    ROW_LR,
    make_layer,
    make_optimizer,
    squares_of,
)
from tests.layers.test_exactness import EXACT
from tests.layers.twins import relative_error


def train(layer: zloss.FactoredLinear, optimizer: zloss.FactoredSGD, steps: range) -> None:
    for number in steps:
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(CLASSES, (5,), generator=generator).to(layer.V.device)
        layer.rows(ids).sin().sum().backward()
        optimizer.step()


def test_a_resumed_training_is_the_same(device: torch.device) -> None:
    layer = make_layer(device)
    optimizer = make_optimizer(layer)
    scheduler = partial(torch.optim.lr_scheduler.LinearLR, total_iters=9, end_factor=0.1)
    schedule = scheduler(optimizer)
    train(layer, optimizer, range(4))
    schedule.step()
    saved = copy.deepcopy((layer.state_dict(), optimizer.state_dict(), schedule.state_dict()))
    train(layer, optimizer, range(4, 8))
    other = make_layer(device)
    resumed = zloss.FactoredSGD(other, 7.0, row_lr=1.0)
    resumed_schedule = scheduler(resumed)
    parts: list[Any] = [other, resumed, resumed_schedule]
    for part, state in zip(parts, saved, strict=True):
        part.load_state_dict(state)
    train(other, resumed, range(4, 8))
    assert relative_error(other.weight(), layer.weight()) <= 1e-14
    assert torch.equal(squares_of(resumed), squares_of(optimizer))


def test_the_state_is_plain_data(device: torch.device, tmp_path: Any) -> None:
    layer = make_layer(device)
    optimizer = make_optimizer(layer)
    train(layer, optimizer, range(2))
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    optimizer.load_state_dict(loaded)
    assert loaded["state"][0]["row_squares"].shape == (CLASSES,)


def test_the_state_of_plain_sgd_will_do(device: torch.device) -> None:
    layer = make_layer(device)
    optimizer, plain = make_optimizer(layer), torch.optim.SGD([layer.V], 3.0)
    optimizer.load_state_dict(plain.state_dict())
    group = optimizer.param_groups[0]
    assert [group[name] for name in ("lr", "row_lr", "row_eps", "first_lr")] == [
        3.0,
        ROW_LR,
        EPS,
        0.5,
    ]
    train(layer, optimizer, range(1))


def test_a_copy_and_a_move_keep_the_squares(device: torch.device) -> None:
    layer = make_layer(device)
    optimizer = make_optimizer(layer)
    train(layer, optimizer, range(2))
    twin_layer, twin = copy.deepcopy((layer, optimizer))
    twin_layer.float()
    train(twin_layer, twin, range(2, 4))
    train(layer, optimizer, range(2, 4))
    assert squares_of(twin).dtype == torch.float32
    assert relative_error(squares_of(twin), squares_of(optimizer)) <= 1e-5
    assert relative_error(twin_layer.weight(), layer.weight()) <= 1e-5


def test_without_row_lr_rows_are_plain_sgd(device: torch.device) -> None:
    layer = make_layer(device)
    optimizer, before = zloss.FactoredSGD(layer, 0.5), layer.weight()
    layer.rows(torch.tensor([3], device=device)).sum().backward()
    optimizer.step()
    assert relative_error(layer.weight()[3], before[3] - 0.5) <= EXACT
    assert optimizer.state_dict()["state"] == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row_lr": -1.0}, "row_lr must be a finite number >= 0, got -1.0"),
        ({"row_lr": "fast"}, "row_lr must be a finite number >= 0, got 'fast'"),
        ({"row_lr": 0.3, "row_eps": 0.0}, "row_eps must be a finite number > 0, got 0.0"),
        ({"row_lr": 0.3, "lr": 0.0}, "row_lr belongs to the lr that the group starts with"),
    ],
)
def test_bad_rates(options: dict[str, Any], message: str) -> None:
    layer = zloss.FactoredLinear(HIDDEN, CLASSES)
    with pytest.raises(ValueError, match=re.escape(message)):
        zloss.FactoredSGD(layer, **{"lr": 1.0, **options})
    optimizer = zloss.FactoredSGD(layer, options.get("lr", 1.0))
    optimizer.param_groups[0].update(options)
    layer.rows(torch.tensor([1])).sum().backward()
    before = layer.weight()
    with pytest.raises(ValueError, match=re.escape(message)):
        optimizer.step()
    assert torch.equal(layer.weight(), before)


def test_squares_of_another_layer_are_refused() -> None:
    layer, other = zloss.FactoredLinear(HIDDEN, CLASSES), zloss.FactoredLinear(HIDDEN, 7)
    optimizer, small = make_optimizer(layer), make_optimizer(other)
    other.rows(torch.tensor([1])).sum().backward()
    small.step()
    with pytest.raises(ValueError, match="row_squares of another layer: expected one number for"):
        optimizer.load_state_dict(small.state_dict())


def test_looked_up_rows_alone_have_no_relative_rate() -> None:
    layer = zloss.FactoredLinear(8, 60)
    layer.rows(torch.tensor([3, 4])).sum().backward()
    for row_lr in (None, 0.3):
        with pytest.raises(ValueError, match="first gradient is of looked-up rows alone"):
            zloss.FactoredSGD(layer, row_lr=row_lr).step()


@pytest.mark.parametrize("row_lr", [None, 0.3])
def test_a_relative_rate_counts_looked_up_rows_unless_they_have_a_rule(
    row_lr: float | None,
) -> None:
    layer = zloss.FactoredLinear(8, 60, dtype=torch.float64)
    optimizer = zloss.FactoredSGD(layer, row_lr=row_lr)
    zloss.ZLoss()(layer(torch.randn(9, 8, dtype=torch.float64), torch.arange(9))).backward()
    alone = layer.grad_norm().item()
    layer.rows(torch.tensor([3, 4])).square().sum().backward()
    both, size = layer.grad_norm().item(), layer.weight().norm().item()
    assert both > 1.01 * alone
    optimizer.step()
    # Norms of some hundred float64 numbers, taken in two ways.
    assert optimizer.units == [pytest.approx(size / (both if row_lr is None else alone), rel=1e-9)]
