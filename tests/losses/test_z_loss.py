"""The mathematics of the Z-loss, and the slips in the printed formulas of the paper.

Notation of the paper: D classes, target c, z_k = (o_k - mu) / sigma, L_Z = softplus(a (b - z_c)) / a.
"""

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from zloss import SphericalStats, ZLoss, ZNormalized, z_loss

A, B = 0.7, 1.5
D, C = 9, 4  # number of classes, target
# |o| / sigma is near 1: rounding in float64 is some 1e-15, and a wrong sign changes a value by 1e-2.
assert_close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-13)


@pytest.fixture
def o() -> Tensor:
    return torch.randn(D, dtype=torch.float64, requires_grad=True)


def z_scores(o: Tensor) -> Tensor:
    return (o - o.mean()) / o.var(correction=0).sqrt()


def z_c(o: Tensor) -> Tensor:
    return SphericalStats.from_logits(o[None], torch.tensor([C])).z[0]


def loss(o: Tensor) -> Tensor:
    value: Tensor = ZLoss(a=A, b=B)(o[None], torch.tensor([C]))
    return value


def gradient(value: Tensor, o: Tensor) -> Tensor:
    return torch.autograd.grad(value, o)[0]


def off_target(vector: Tensor) -> Tensor:
    return torch.cat([vector[:C], vector[C + 1 :]])


def test_the_gradient_of_z_c(o: Tensor) -> None:
    # The paper prints (z_c^2 - D + 1) / (D sigma) for c and (z_c z_k - 1) / (D sigma) for k != c: the first has the
    # opposite sign, the second a wrong one in front of z_c z_k.
    z, scale = z_scores(o.detach()), D * o.detach().var(correction=0).sqrt()
    computed = gradient(z_c(o), o)
    assert_close(computed[C], (D - 1 - z[C] ** 2) / scale)
    assert_close(off_target(computed), -(1 + z[C] * off_target(z)) / scale)
    assert (computed[C] - (z[C] ** 2 - D + 1) / scale).abs() > 1e-2
    assert (off_target(computed) - (z[C] * off_target(z) - 1) / scale).abs().max() > 1e-2


def test_the_gradient_of_the_loss(o: Tensor) -> None:
    # The paper prints (z_c^2 - D + 1) for c, which holds, and (z_c z_k - 1) for k != c, where z_c z_k + 1 holds.
    z, scale = z_scores(o.detach()), D * o.detach().var(correction=0).sqrt()
    slope = torch.sigmoid(A * (B - z[C])) / scale
    computed = gradient(loss(o), o)
    assert_close(computed[C], (z[C] ** 2 - D + 1) * slope)
    assert_close(off_target(computed), (z[C] * off_target(z) + 1) * slope)
    assert (off_target(computed) - (z[C] * off_target(z) - 1) * slope).abs().max() > 1e-2


def test_the_components_of_both_gradients_sum_to_zero(o: Tensor) -> None:
    # The paper says this of z_c, and it says that the components of the loss "still sum to one".
    assert gradient(z_c(o), o).sum().abs() < 1e-14
    assert gradient(loss(o), o).sum().abs() < 1e-14
    assert gradient(loss(o), o).abs().sum() > 1e-2


def test_the_gradient_is_orthogonal_to_the_activations(o: Tensor) -> None:
    # This follows from scale invariance.
    assert (gradient(loss(o), o) @ o.detach()).abs() < 1e-14


@pytest.mark.parametrize("shift", [0.0, -3.0])
@pytest.mark.parametrize("scale", [1.0, 250.0])
def test_the_minimum(scale: float, shift: float) -> None:
    # The paper prints both z_k = 1 / z_c and the optimum z_k = -1 / sqrt(D - 1): the second holds.
    best = torch.zeros(D, dtype=torch.float64)
    best[C] = 1
    best = (scale * best + shift).requires_grad_()
    z = z_scores(best.detach())
    assert z[C].item() == pytest.approx(math.sqrt(D - 1), rel=1e-12)
    assert_close(off_target(z), (-1 / z[C]).expand(D - 1))
    assert gradient(loss(best), best).abs().max() < 1e-14
    assert loss(best).item() == pytest.approx(
        math.log1p(math.exp(A * (B - math.sqrt(D - 1)))) / A, rel=1e-12
    )


def test_nothing_is_below_the_minimum() -> None:
    one_hot = torch.eye(D, dtype=torch.float64)[C]
    others = torch.randn(1000, D, dtype=torch.float64)
    rows = torch.cat([others, one_hot + 0.01 * others])
    values = ZLoss(a=A, b=B, reduction="none")(rows, torch.full((2000,), C))
    assert values.min() > loss(one_hot)


@pytest.mark.parametrize("classes", [2, 3, 1000])
def test_z_c_lies_between_its_bounds_and_reaches_them(classes: int) -> None:
    bound = math.sqrt(classes - 1)
    rows = torch.cat(
        [torch.randn(500, classes), torch.eye(classes)[:1], -torch.eye(classes)[:1]]
    ).double()
    z = SphericalStats.from_logits(rows, torch.zeros(502, dtype=torch.long)).z
    assert z.abs().max() <= bound * (1 + 1e-12)
    assert z[-2:].tolist() == pytest.approx([bound, -bound], rel=1e-12)


def test_two_classes_are_either_won_or_lost() -> None:
    # D = 2 pins z_c to +1 or -1: the loss only counts, and its gradient is zero.
    logits = torch.tensor([[3.0, 1.0], [0.1, 0.2]], dtype=torch.float64, requires_grad=True)
    values = ZLoss(a=A, b=B, reduction="none")(logits, torch.tensor([0, 0]))
    expected = [math.log1p(math.exp(A * (B - z))) / A for z in (1, -1)]
    assert values.tolist() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.grad(values.sum(), logits)[0].abs().max() < 1e-13


def stats_of(z: Tensor) -> SphericalStats:
    """Return statistics with the Z-scores `z`."""
    return SphericalStats.from_moments(z, torch.zeros_like(z), torch.full_like(z, 1e3), 1000)


@pytest.mark.parametrize("a", [0.1, 1.0, 100.0, 1e6, 1e30])
def test_a_large_a_makes_a_hinge(a: float) -> None:
    z = torch.linspace(-20, 20, 101, dtype=torch.float64)
    excess = z_loss(stats_of(z), a=a, b=B) - (B - z).clamp_min(0)
    # softplus(x) - max(x, 0) lies between 0 and log(2), which it takes at 0; 4e-15 is one rounding of 21.5.
    assert excess.min() > -4e-15
    assert excess.max() < math.log(2) / a + 4e-15


def test_the_softness_is_largest_at_b() -> None:
    at_b = z_loss(stats_of(torch.tensor([B], dtype=torch.float64)), a=A, b=B)
    assert at_b.item() == pytest.approx(math.log(2) / A, rel=1e-12)


def test_the_loss_falls_with_z_and_ever_more_slowly() -> None:
    z = torch.linspace(-20, 20, 101, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(z_loss(stats_of(z), a=A, b=B).sum(), z)
    assert_close(slope, -torch.sigmoid(A * (B - z.detach())))
    assert slope.diff().min() > 0


def test_only_z_c_matters(o: Tensor) -> None:
    expected = z_loss(stats_of(z_scores(o.detach())[C : C + 1]), a=A, b=B)
    assert_close(loss(o), expected[0])


@pytest.mark.parametrize("a", [0.1, 1.0, 30.0])
def test_z_normalised_softmax(o: Tensor, a: float) -> None:
    # L_S-Z(o, c) = -1/a log softmax_c(a z). Scaled activations would give another loss.
    z = z_scores(o.detach())
    value = ZNormalized(nn.CrossEntropyLoss(), a=a)(o[None], torch.tensor([C]))
    assert_close(value, -(a * z).log_softmax(0)[C] / a)
    assert (value + (a * o.detach()).log_softmax(0)[C] / a).abs() > 1e-3
    assert gradient(value, o).sum().abs() < 1e-13
