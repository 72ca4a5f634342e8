"""The factored step is the dense step: compared with dense float64 SGD after every single step."""

from functools import partial

import pytest
import torch
from torch import Tensor

import zloss
from tests.layers.twins import SPHERICAL_LOSSES, Twins, make_twins

# 300 steps in float64 gather some 300 eps = 7e-14 of rounding, which a direction of U that shrinks 1e4-fold between two
# refactors may amplify to 7e-10.
EXACT = 1e-9
CLASSES = 211
STEPS = 300
IGNORED = -100


def random_batch(
    rows: int, hidden: int, targets: int, step: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """A batch with repeated targets (every other one from few classes), ignored targets and unequal weights."""
    h = torch.randn(rows, hidden, dtype=torch.float64, device=device)
    target = torch.randint(5 if step % 2 else CLASSES, (rows, targets), device=device)
    target[torch.rand(rows, targets, device=device) < 0.2] = IGNORED
    weight = torch.rand(rows, dtype=torch.float64, device=device)
    return h, target.squeeze(1) if targets == 1 else target, weight


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("hidden", [8, 32])
@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize(("loss", "lr"), SPHERICAL_LOSSES, ids=lambda value: type(value).__name__)
def test_every_step_is_the_dense_step(
    loss: zloss.SphericalLoss, lr: float, rows: int, hidden: int, targets: int, device: torch.device
) -> None:
    twins = make_twins(hidden, CLASSES, device=device, lr=lr, weight_decay=1e-3, synchronous=True)
    start = twins.factored.weight()
    for step in range(STEPS):
        h, target, weight = random_batch(rows, hidden, targets, step, device)
        error = twins.backward(partial(loss, weight=weight), h, target)
        assert error <= EXACT, f"backward {step}"
        assert twins.step() <= EXACT, f"step {step}"
    moved = (twins.factored.weight() - start).norm() / start.norm()
    assert moved > 0.1, "weights that hardly move prove nothing"


@pytest.mark.parametrize("rows", [3, 40])
def test_bias_alone_and_with_weights(rows: int, device: torch.device) -> None:
    twins = make_twins(
        8, CLASSES, device=device, lr=20.0, weight_decay=1e-3, bias=True, synchronous=True
    )
    loss = zloss.ZLoss(a=0.2, b=8.0)
    for step in range(50):
        h, target, _ = random_batch(rows, 8, 1, step, device)
        # Every third batch has h = 0: only the bias sees it, and only the bias may move.
        twins.backward(loss, torch.zeros_like(h) if step % 3 == 0 else h, target)
        assert twins.step() <= EXACT


def _weighted_sum(loss: zloss.SphericalLoss, weight: Tensor, stats: zloss.SphericalStats) -> Tensor:
    per_example: Tensor = loss(stats)
    return (per_example * weight).sum()


def test_non_uniform_upstream_gradients(device: torch.device) -> None:
    twins = make_twins(8, CLASSES, device=device, lr=20.0, synchronous=True)
    loss = zloss.ZLoss(a=0.2, b=8.0, reduction="none")
    for step in range(30):
        h, target, weight = random_batch(12, 8, 2, step, device)
        assert twins.backward(partial(_weighted_sum, loss, weight - 0.5), h, target) <= EXACT
        assert twins.step() <= EXACT


def test_a_loss_of_the_users_own(device: torch.device) -> None:
    """Any function of the statistics trains exactly: here one that uses target, sum and sum of squares in odd ways."""

    def odd(stats: zloss.SphericalStats) -> Tensor:
        return (
            stats.target.sin().sum()
            + (stats.sum * stats.sumsq).tanh().sum()
            + 0.01 * stats.variance.sum()
        ) / 10

    twins = make_twins(8, CLASSES, device=device, lr=0.5, synchronous=True)
    for step in range(30):
        h, target, _ = random_batch(5, 8, 2, step, device)
        assert twins.backward(odd, h, target) <= EXACT
        assert twins.step() <= EXACT


@pytest.mark.parametrize("rows", [[2, 3], [1, 12, 7]])
def test_gradient_accumulation(rows: list[int], device: torch.device) -> None:
    """Several backward passes, of different sizes and numbers of targets, before one step; in both regimes."""
    twins = make_twins(8, CLASSES, device=device, lr=20.0, weight_decay=1e-3, synchronous=True)
    loss = zloss.ZLoss(a=0.2, b=8.0)
    for step in range(30):
        for part, count in enumerate(rows):
            h, target, _ = random_batch(count, 8, 1 + part, step, device)
            twins.backward(loss, h, target)
        assert twins.factored.grad_norm().item() == pytest.approx(
            twins.dense_grad_norm().item(), rel=1e-9
        )
        assert twins.step() <= EXACT


@pytest.mark.parametrize("rows", [5, 20])
def test_retained_graph_counts_twice(rows: int, device: torch.device) -> None:
    twins = make_twins(8, CLASSES, device=device, lr=20.0, synchronous=True)
    h, target, _ = random_batch(rows, 8, 1, 0, device)
    for layer in (twins.factored, twins.dense):
        loss = zloss.ZLoss(a=0.2, b=8.0)(layer(h, target))
        loss.backward(retain_graph=True)
        loss.backward()
    assert twins.step() <= EXACT


def test_learning_rate_schedules(device: torch.device) -> None:
    twins = make_twins(8, CLASSES, device=device, lr=20.0, synchronous=True)
    schedules = [
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
        for optimizer in (twins.factored_optimizer, twins.dense_optimizer)
    ]
    for step in range(20):
        h, target, _ = random_batch(12, 8, 1, step, device)
        twins.backward(zloss.ZLoss(a=0.2, b=8.0), h, target)
        assert twins.step() <= EXACT
        for schedule in schedules:
            schedule.step()
    assert twins.factored_optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_both_regimes_agree(device: torch.device) -> None:
    """A batch padded with ignored rows beyond H takes the other route to the same weights."""
    loss = zloss.ZLoss(a=0.2, b=8.0, reduction="sum")
    twins = make_twins(16, CLASSES, device=device, lr=1.0, synchronous=True)
    wide = zloss.FactoredLinear.from_linear(twins.factored.to_linear(), synchronous=True)
    optimizer = zloss.FactoredSGD(wide, 1.0)
    for step in range(30):
        h, target, _ = random_batch(6, 16, 1, step, device)
        twins.backward(loss, h, target)
        padding = torch.randn(20, 16, dtype=h.dtype, device=device)
        loss(
            wide(torch.cat([h, padding]), torch.cat([target, target.new_full((20,), IGNORED)]))
        ).backward()
        optimizer.step()
        assert twins.step() <= EXACT
    assert (wide.weight() - twins.factored.weight()).abs().max() <= EXACT


def test_empty_batch_and_fully_ignored_batch(device: torch.device) -> None:
    twins = make_twins(8, CLASSES, device=device, lr=20.0, weight_decay=1e-2, synchronous=True)
    loss = zloss.ZLoss(a=0.2, b=8.0)
    empty = torch.randn(0, 8, dtype=torch.float64, device=device)
    h, target, _ = random_batch(4, 8, 1, 0, device)
    ignored = torch.full_like(target, IGNORED)
    for batch in ((empty, target[:0]), (h, ignored)):
        value = loss(twins.factored(batch[0].requires_grad_(), batch[1]))
        assert value.item() == 0
        value.backward()
        assert not batch[0].grad.any()  # type: ignore[union-attr]
        loss(twins.dense(*batch)).backward()
        assert twins.step() <= EXACT, "weight decay alone still moves the weights"


def _mean_dominated(twins: Twins) -> None:
    twins.factored.V.data.add_(1e4)
    twins.factored.adopt_rows()
    twins.dense.linear.weight.data.copy_(twins.factored.weight())


def test_a_dominating_mean_does_not_cancel(device: torch.device) -> None:
    """Activations whose mean is 1e4 times their spread: an uncentred Gram matrix would lose 8 of 16 digits here."""
    twins = make_twins(8, CLASSES, device=device, lr=20.0, synchronous=True)
    _mean_dominated(twins)
    for step in range(50):
        h, target, _ = random_batch(12, 8, 1, step, device)
        twins.backward(zloss.ZLoss(a=0.2, b=8.0), h, target)
        twins.step()
    centred = twins.factored.weight() - twins.factored.weight().mean(0)
    expected = twins.dense.weight() - twins.dense.weight().mean(0)
    # Differences of numbers near 1e4 carry 1e4 eps = 2e-12 of rounding each, in both layers.
    assert (centred - expected).abs().max() / expected.abs().max() <= 1e-8
