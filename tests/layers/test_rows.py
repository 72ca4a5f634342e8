"""Rows of W that a network looks up: their gradients are part of the same exact step, in every use of the layer."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.layers.test_exactness import EXACT
from tests.layers.twins import Twins, k1_of, make_twins, relative_error

HIDDEN, CLASSES = 8, 61
LOSS = zloss.ZLoss(a=0.2, b=6.0)
# Weights move by their own size in 60 steps. At four times the rate training with tied embeddings is chaotic: dense SGD
# itself, disturbed by 1e-15, ends up 1e-9 away.
LR = 0.5
Layer = zloss.FactoredLinear | zloss.DenseLinear
Use = Callable[[Layer], Tensor]


def normal(*shape: int, device: torch.device) -> Tensor:
    return torch.randn(*shape, device=device, dtype=torch.float64)


def ids_like(chance: random.Random, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Ids of which many repeat, from all integer types that have the classes."""
    dtype = chance.choice([torch.int8, torch.int32, torch.int64])
    return torch.randint(chance.choice([1, 5, CLASSES]), shape, device=device, dtype=dtype)


def batch_use(chance: random.Random, device: torch.device) -> Use:
    count, targets = chance.choice([0, 1, 3, 12]), chance.choice([1, 3])
    h, target = normal(count, HIDDEN, device=device), ids_like(chance, (count, targets), device)
    target = torch.where(torch.rand(count, targets, device=device) < 0.2, -100, target.long())
    return lambda layer: LOSS(layer(h, target))


def tied_use(chance: random.Random, device: torch.device) -> Use:
    """Embeddings below a batch: some ids are targets too."""
    count = chance.choice([0, 1, 4, 11])
    ids, mix = ids_like(chance, (count, 3), device), normal(HIDDEN, HIDDEN, device=device) / 3
    target = ids[:, 0].long().clone()
    target[::2] = 7
    return lambda layer: LOSS(layer((layer.rows(ids).sum(1) @ mix).tanh(), target))


def negatives_use(chance: random.Random, device: torch.device) -> Use:
    """Explicit scores with biases, of classes that all examples share."""
    h, ids = normal(4, HIDDEN, device=device), ids_like(chance, (chance.choice([1, 20]),), device)

    def use(layer: Layer) -> Tensor:
        rows = layer.rows(ids, with_bias=layer.bias() is not None)
        scores = h @ rows[:, :HIDDEN].T + rows[:, HIDDEN:].sum(1)
        return scores.logsumexp(1).mean()

    return use


def penalty_use(chance: random.Random, device: torch.device) -> Use:
    shape = chance.choice([(), (0,), (5,), (2, 0, 3), (2, 3, 2)])
    ids, weight = ids_like(chance, shape, device), normal(*shape, 1, device=device)
    return lambda layer: (layer.rows(ids).square() * weight).sum() / 10


USES = [batch_use, tied_use, negatives_use, penalty_use]


def record_uses(twins: Twins, uses: list[Use]) -> None:
    for use in uses:
        value, expected = use(twins.factored), use(twins.dense)
        assert (value - expected).abs() <= EXACT * expected.abs().clamp_min(1)
        value.backward()
        expected.backward()
    parameters = list(twins.dense.parameters())
    if any(p.grad is not None for p in parameters):
        for parameter in parameters:  # the factored layer has one matrix, and all of it decays
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def change_both(twins: Twins, chance: random.Random) -> None:
    """Do to both layers what may stand between backward passes and the step."""
    match chance.randrange(5):
        case 0:
            norms = (
                zloss.clip_grad_norm_(twins.factored, 0.3),
                nn.utils.clip_grad_norm_(twins.dense.parameters(), 0.3),
            )
            assert relative_error(*norms) <= EXACT
        case 1:
            twins.factored.scale_grad_(0.5)
            for parameter in twins.dense.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)
        case 2:
            twins.factored.refactor()


def moments_of(layer: zloss.FactoredLinear) -> tuple[Tensor, Tensor]:
    W = layer.materialised()
    centred = W - W.mean(0)
    return W.mean(0), centred.T @ centred


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_step_is_the_dense_step(seed: int, bias: bool, device: torch.device) -> None:
    """Random steps: with and without a batch, with one use of rows and with many, in both regimes."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    twins = make_twins(
        HIDDEN, CLASSES, device=device, lr=LR, weight_decay=1e-3, bias=bias, synchronous=True
    )
    start = twins.factored.weight()
    for step in range(60):
        uses = chance.choices(USES, k=chance.randint(1, 4))
        record_uses(twins, [use(chance, device) for use in uses])
        if any(p.grad is not None for p in twins.dense.parameters()):
            expected = twins.dense_grad_norm()
            # The norm is the root of a sum that may cancel.
            assert (twins.factored.grad_norm() - expected).abs() <= EXACT * expected.clamp_min(1)
        change_both(twins, chance)
        assert twins.step() <= EXACT, f"step {step}"
    assert (twins.factored.weight() - start).norm() / start.norm() > 0.1
    for tracked, plain in zip(
        twins.factored.factors()[3:], moments_of(twins.factored), strict=True
    ):
        assert relative_error(tracked, plain) <= EXACT


@pytest.mark.parametrize("count", [3, 12])
def test_a_singular_step_with_rows_is_explicit(count: int, device: torch.device) -> None:
    twins = make_twins(HIDDEN, CLASSES, device=device, synchronous=True)
    h, target = normal(count, HIDDEN, device=device), torch.arange(count, device=device)
    ids = torch.tensor([0, 5, 5, 40], device=device)
    for layer in (twins.factored, twins.dense):
        (zloss.SquaredError()(layer(h, target)) + layer.rows(ids).square().sum()).backward()
    lr = 1 / float(torch.linalg.eigvalsh(k1_of(twins.factored)).max())
    for optimizer in (twins.factored_optimizer, twins.dense_optimizer):
        optimizer.param_groups[0]["lr"] = lr
    assert twins.step() <= EXACT
    assert twins.factored.refactors == 1


def test_weights_that_vanish_keep_the_gradients_of_rows(device: torch.device) -> None:
    """With lr times weight decay = 1 nothing is left of W but its gradient, and U has no inverse."""
    twins = make_twins(HIDDEN, CLASSES, device=device, lr=4.0, weight_decay=0.25, synchronous=True)
    ids = torch.tensor([3, 60], device=device)
    record_uses(twins, [lambda layer: layer.rows(ids).sin().sum()])
    assert twins.step() <= EXACT
    assert int((twins.factored.weight().abs().sum(1) > 0).sum()) == 2


def test_rows_are_those_of_the_weights(device: torch.device) -> None:
    layer = make_twins(HIDDEN, CLASSES, device=device, bias=True, synchronous=True).factored
    for _ in range(3):
        LOSS(layer(normal(4, HIDDEN, device=device), torch.arange(4, device=device))).backward()
        layer.step_(5.0)
    ids = torch.randint(CLASSES, (2, 3, 4), device=device)
    full = layer.materialised()
    for rows, expected in [
        (layer.rows(ids), full[ids][..., :-1]),
        (layer.rows(ids, with_bias=True), full[ids]),
        (layer.rows(ids[0, 0, 0]), full[ids[0, 0, 0]][:-1]),
        (layer.rows(ids[:0]), full[ids[:0]][..., :-1]),
    ]:
        assert rows.shape == expected.shape
        assert rows.dtype == layer.V.dtype
        assert relative_error(rows, expected) <= 1e-14


def test_float32_training_with_tied_embeddings_is_as_precise_as_dense_training() -> None:
    """Frequent ids come back at every step, and some are targets. Precision is judged by dense float64 training."""
    linear = nn.Linear(32, 2000, bias=False)
    mix = torch.randn(32, 32) / 2
    layers: list[Layer] = [
        zloss.FactoredLinear.from_linear(linear),
        zloss.DenseLinear.from_linear(linear),
        zloss.DenseLinear.from_linear(linear.double()),
    ]
    optimizers: list[torch.optim.Optimizer] = [
        zloss.FactoredSGD(layer, 1.0)
        if isinstance(layer, zloss.FactoredLinear)
        else torch.optim.SGD(layer.parameters(), 1.0)
        for layer in layers
    ]
    for _ in range(150):
        ids = (torch.rand(40, 3).pow(3) * 2000).long()
        for layer, optimizer in zip(layers, optimizers, strict=True):
            rows = layer.rows(ids)
            LOSS(layer((rows.sum(1) @ mix.to(rows.dtype)).tanh(), ids[:, 0])).backward()
            optimizer.step()
            optimizer.zero_grad()
    factored, dense, exact = (layer.weight().double() for layer in layers)
    # The promise for one step: see `test_step_error.py`.
    assert (factored - exact).norm() <= 4 * (dense - exact).norm()
    assert (exact - linear.weight).norm() > 0.3 * exact.norm()
