"""The mark of a factored layer: its norm, what others may do to it, and what the layer makes of that."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.layers.small_layers import batch, loss_of, make_layer
from zloss.layers.mark import GradientMark, WrittenNorm


def marked_layer(**options: object) -> tuple[zloss.FactoredLinear, zloss.Optimizer]:
    layer = make_layer(torch.device("cpu"), **options)
    return layer, zloss.Optimizer(layer, output_lr=1.0)


def written(norm: float, dtype: torch.dtype = torch.float64) -> tuple[GradientMark, WrittenNorm]:
    mark = GradientMark.like(torch.zeros(1, dtype=dtype).requires_grad_())
    return mark, WrittenNorm(mark, torch.tensor(norm, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mark_is_as_long_as_the_gradient(dtype: torch.dtype) -> None:
    layer, _ = marked_layer(dtype=dtype)
    for _ in range(3):  # they accumulate
        loss_of(layer).backward()
        grad = layer.gradient_mark.grad
        assert type(grad) is Tensor
        found = torch.nn.utils.get_total_norm([grad])
        torch.testing.assert_close(found.double(), layer.grad_norm().double(), rtol=1e-6, atol=0)


def test_a_gradient_of_zeros_is_a_gradient() -> None:
    """Weight decay acts on it, as in torch.optim.SGD, where None is no gradient."""
    layer = make_layer(torch.device("cpu"))
    optimizer = zloss.Optimizer(layer, output_lr=1.0, output_weight_decay=0.5)
    before = layer.weight()
    h, target = batch(layer)
    zloss.ZLoss(a=0.1, b=10)(layer(h, torch.full_like(target, -100))).backward()
    assert layer.grad_norm() == 0
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
    torch.testing.assert_close(layer.weight(), before / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", [0.0, 1e-15, 3.0, 1e30])
def test_factors_are_found(norm: float, dtype: torch.dtype) -> None:
    mark, norm_of = written(norm, dtype)
    assert mark.grad is not None
    assert norm_of.factor_since() is None
    expected = 1.0
    for factor in (0.5, 1 / 3, -7.0, 1e-4, 1 / 65536):
        mark.grad.mul_(factor)
        expected *= factor
        found = norm_of.factor_since()
        assert found is not None
        # A rounding for each multiplication.
        assert found.item() == pytest.approx(expected, rel=8 * torch.finfo(dtype).eps)
    mark.grad.data.mul_(2)  # which torch does not count
    found = norm_of.factor_since()
    assert found is not None
    assert found.item() == pytest.approx(2 * expected, rel=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_factor_that_is_not_finite_is_no_mistake(value: float) -> None:
    """A norm that is not finite spoils all gradients alike; the step refuses them."""
    mark, norm_of = written(3.0)
    assert mark.grad is not None
    mark.grad.mul_(value)
    found = norm_of.factor_since()
    assert found is not None
    assert not found.isfinite()


OTHER_CHANGES: dict[str, Callable[[Tensor], object]] = {
    "clipped by value": lambda grad: grad.clamp_(-1.0, 1.0),
    "clipped by a small value": lambda grad: grad.clamp_(-1e-9, 1e-9),
    "clipped just below its length": lambda grad: grad.clamp_(-2.9999, 2.9999),
    "noise": lambda grad: grad.add_(torch.tensor([1e-5, -2e-5]).to(grad)),
    "sign": lambda grad: grad.sign_(),
    "centred": lambda grad: grad.sub_(grad.mean()),
    "one entry": lambda grad: grad[0].mul_(2),
    "data": lambda grad: grad.data.clamp_(-1.0, 1.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("change", OTHER_CHANGES.values(), ids=OTHER_CHANGES)
def test_other_changes_are_refused(change: Callable[[Tensor], object], dtype: torch.dtype) -> None:
    mark, norm_of = written(3.0, dtype)
    assert mark.grad is not None
    change(mark.grad)
    with pytest.raises(ValueError, match="more than a common factor"):
        norm_of.factor_since()


def test_a_limit_above_the_norm_changes_nothing() -> None:
    """No entry of a gradient is larger than its norm."""
    mark, norm_of = written(3.0)
    assert mark.grad is not None
    mark.grad.clamp_(-3.0, 3.0)
    assert norm_of.factor_since() is None or norm_of.factor_since() == 1


def test_a_refused_change_leaves_everything_as_it_was() -> None:
    trunk, layer = nn.Linear(3, 6, dtype=torch.float64), make_layer(torch.device("cpu"))
    optimizer = zloss.Optimizer([trunk, layer], torch.optim.SGD, lr=1.0, output_lr=1.0)
    target = torch.tensor([1, 2])
    before = layer.weight(), trunk.weight.detach().clone()

    def backward() -> None:
        zloss.ZLoss(a=0.2, b=8.0)(layer(trunk(torch.ones(2, 3).double()), target)).backward()

    backward()
    nn.utils.clip_grad_value_([*trunk.parameters(), *layer.parameters()], 1e-3)
    for use in (optimizer.step, layer.grad_norm, backward):
        with pytest.raises(ValueError, match="more than a common factor"):
            use()
    assert torch.equal(layer.weight(), before[0])
    assert torch.equal(trunk.weight, before[1])
    optimizer.zero_grad()
    backward()
    optimizer.step()
    assert not torch.equal(layer.weight(), before[0])


def test_our_own_clipping_and_torchs_agree() -> None:
    """They can also follow each other."""
    layers = [marked_layer()[0]]
    layers.append(copy.deepcopy(layers[0]))
    optimizers = [zloss.Optimizer(layer, output_lr=1.0) for layer in layers]
    h, target = batch(layers[0])
    for layer in layers:
        zloss.ZLoss(a=0.2, b=8.0)(layer(h, target)).backward()
    limit = layers[0].grad_norm().item() / 3
    nn.utils.clip_grad_norm_(layers[0].parameters(), limit)
    zloss.clip_grad_norm_(layers[1].parameters(), limit)
    for layer in layers:
        assert layer.grad_norm().item() == pytest.approx(limit, rel=1e-5)  # torch adds 1e-6
    zloss.clip_grad_norm_(layers[0], limit / 2)
    nn.utils.clip_grad_norm_(layers[1].parameters(), limit / 2)
    for optimizer in optimizers:
        optimizer.step()
    torch.testing.assert_close(layers[0].weight(), layers[1].weight(), rtol=1e-12, atol=0)


def test_scaling_by_hand_comes_on_top_of_clipping() -> None:
    layer, optimizer = marked_layer()
    loss_of(layer).backward()
    before, limit = layer.weight(), layer.grad_norm().item() / 2
    nn.utils.clip_grad_norm_(layer.parameters(), limit)
    layer.scale_grad_(0.1)
    optimizer.step()
    moved = (layer.weight() - before).norm().item()
    assert moved == pytest.approx(0.1 * limit, rel=1e-5)  # torch adds 1e-6


def test_a_reversed_gradient_keeps_its_norm() -> None:
    """As where somebody climbs instead of descending, and clips after that."""
    layer, optimizer = marked_layer()
    loss_of(layer).backward()
    before, norm = layer.weight(), layer.grad_norm().item()
    grad = layer.gradient_mark.grad
    assert grad is not None
    grad.mul_(-1)
    assert layer.grad_norm().item() == pytest.approx(norm, rel=1e-12)
    found = nn.utils.clip_grad_norm_(layer.parameters(), norm / 2)
    assert found.item() == pytest.approx(norm, rel=1e-12)
    optimizer.step()
    assert (layer.weight() - before).norm().item() == pytest.approx(norm / 2, rel=1e-5)


def test_copies_have_marks_of_their_own() -> None:
    layer, _ = marked_layer()
    loss_of(layer).backward()
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert isinstance(twin.gradient_mark, GradientMark)
        assert twin.gradient_mark is not layer.gradient_mark
        assert twin.recorded_gradient() is None
        assert twin.pending.mark is twin.gradient_mark


def test_an_optimizer_that_comes_after_the_backward_pass_finds_the_norm() -> None:
    layer = make_layer(torch.device("cpu"))
    loss_of(layer).backward()
    before = layer.weight()
    optimizer = zloss.Optimizer(layer, output_lr=1.0)
    nn.utils.clip_grad_norm_(layer.parameters(), 1e-3)
    optimizer.step()
    assert (layer.weight() - before).norm().item() == pytest.approx(1e-3, rel=1e-2)
