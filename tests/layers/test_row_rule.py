"""Looked-up rows by row-wise Adagrad: every step is that of a dense twin in which each use of W has its own weight."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.layers.row_rule_twin import (
    EPS,
    HIDDEN,
    ROW_LR,
    DenseTwin,
    make_layer,
    make_optimizer,
    squares_of,
)
from tests.layers.test_exactness import EXACT
from tests.layers.test_rows import batch_use, negatives_use, normal, penalty_use, tied_use
from tests.layers.twins import k1_of, relative_error

USES = [batch_use, tied_use, negatives_use, penalty_use]


def record_uses(layers: list[Any], uses: list[Callable[[Any], Tensor]]) -> None:
    for use in uses:
        for layer in layers:
            use(layer).backward()


def change_both(layer: zloss.FactoredLinear, twin: DenseTwin, chance: random.Random) -> None:
    match chance.randrange(5):
        case 0:  # the norm is that of the true gradient, before the rule
            norm = twin.norm()
            assert (zloss.clip_grad_norm_(layer, 0.3) - norm).abs() <= EXACT * norm.clamp_min(1)
            twin.scale((0.3 / (norm + 1e-6)).clamp(max=1))
        case 1:
            layer.scale_grad_(-0.5)
            twin.scale(-0.5)
        case 2:
            layer.refactor()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_step_is_the_dense_step(seed: int, bias: bool, device: torch.device) -> None:
    """Random steps: repeated ids, ids that are targets, several backward passes, and rates that change and vanish."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    layer = make_layer(device, bias=bias)
    twin, optimizer, start = DenseTwin(layer), make_optimizer(layer), layer.weight()
    for step in range(40):
        uses = chance.choices(USES, k=chance.randint(1, 4))
        record_uses([layer, twin], [use(chance, device) for use in uses])
        change_both(layer, twin, chance)
        if layer.recorded_gradient() is None:
            twin.scale(0.0)
            continue
        schedule = chance.choice([1.0, 1.0, 0.3, 1e-12, 0.0])
        optimizer.param_groups[0]["lr"] = 0.5 * schedule
        optimizer.step()
        twin.step(0.5 * schedule, ROW_LR * schedule)
        assert relative_error(layer.materialised(), twin.W) <= EXACT, f"step {step}"
        assert relative_error(squares_of(optimizer), twin.squares) <= EXACT, f"step {step}"
    assert (layer.weight() - start).norm() / start.norm() > 0.05
    centred = twin.W - twin.W.mean(0)
    assert relative_error(layer.wbar, twin.W.mean(0)) <= EXACT
    assert relative_error(layer.gram, centred.T @ centred) <= EXACT


@pytest.mark.parametrize("count", [3, 12])
def test_a_singular_step_is_explicit(count: int, device: torch.device) -> None:
    layer = make_layer(device)
    twin, ids = DenseTwin(layer), torch.tensor([0, 5, 5, 40], device=device)
    h, target = normal(count, HIDDEN, device=device), torch.arange(count, device=device)
    uses: list[Any] = [
        lambda x: zloss.SquaredError()(x(h, target)),
        lambda x: x.rows(ids).square().sum(),
    ]
    record_uses([layer, twin], uses)
    lr = 1 / float(torch.linalg.eigvalsh(k1_of(layer)).max())
    zloss.FactoredSGD(layer, lr, row_lr=ROW_LR, row_eps=EPS).step()
    twin.step(lr, ROW_LR, decay=0.0)
    assert layer.refactors == 1
    assert relative_error(layer.weight(), twin.W) <= EXACT


def test_gradients_that_cancel_leave_a_row_alone(device: torch.device) -> None:
    """Adagrad divides by the size of a gradient, and must not blow up the rounding of a sum that is zero."""
    layer = make_layer(device)
    optimizer, before = make_optimizer(layer), layer.weight()
    rows = layer.rows(torch.tensor([3, 3, 9], device=device))
    weight = torch.tensor([[0.1], [-0.1], [0.0]], dtype=torch.float64, device=device)
    (rows * weight).sum().backward()
    layer.rows(torch.tensor([7], device=device)).sum().backward()
    (-layer.rows(torch.tensor([7], device=device))).sum().backward()
    optimizer.param_groups[0]["weight_decay"] = 0.0
    optimizer.step()
    assert relative_error(layer.weight(), before) <= 1e-14
    assert not squares_of(optimizer).any()


# ---- steps that are not taken ----------------------------------------------------------------------------------------


def test_a_refused_step_changes_nothing(device: torch.device) -> None:
    layer = make_layer(device)
    optimizer, ids = make_optimizer(layer), torch.tensor([3, 4], device=device)
    layer.rows(ids).sum().backward()
    optimizer.step()
    squares, weight = squares_of(optimizer).clone(), layer.weight()
    spoilt = torch.ones(2, HIDDEN, dtype=torch.float64, device=device)
    for bad in (torch.nan, torch.inf, 1e300):
        spoilt[1, 2] = bad
        layer.rows(ids).backward(spoilt)
        with pytest.raises(ValueError, match="the gradient has a NaN or an infinity"):
            optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(squares_of(optimizer), squares)
        assert torch.equal(layer.weight(), weight)


def test_a_grad_scaler_divides_first_and_skips(device: torch.device) -> None:
    layer = make_layer(device)
    twin, optimizer = DenseTwin(layer), make_optimizer(layer)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    ids, factor = torch.tensor([3, 4, 3], device=device), torch.ones(2, device=device)
    trunk = nn.Parameter(torch.ones(2, device=device))
    ordinary = torch.optim.SGD([trunk], 0.1)
    for bad in (False, True, False):
        loss = layer.rows(ids).sin().sum() + (trunk * factor).sum()
        scaler.scale(loss * torch.inf if bad else loss).backward()
        for each in (ordinary, optimizer):
            scaler.step(each)
        scaler.update()
        optimizer.zero_grad()
        ordinary.zero_grad()
        if not bad:
            twin.rows(ids).sin().sum().backward()
            twin.step(0.5, ROW_LR)
        assert relative_error(layer.weight(), twin.W) <= EXACT
        assert relative_error(squares_of(optimizer), twin.squares) <= EXACT
