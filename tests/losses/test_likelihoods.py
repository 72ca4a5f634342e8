"""The squared error and the likelihoods of the spherical family, for which the paper has slips or no formula."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from zloss import SphericalSoftmax, SphericalStats, SquaredError, TaylorSoftmax, spherical_softmax

D, C = 6, 2
assert_close = partial(
    torch.testing.assert_close, rtol=1e-12, atol=1e-13
)  # a few terms of size 1 in float64


@pytest.fixture
def o() -> Tensor:
    return torch.randn(D, dtype=torch.float64, requires_grad=True)


def test_the_gradient_of_the_squared_error(o: Tensor) -> None:
    # The paper prints -o_k for k != c, where o_k holds, and says that the components sum to zero: they sum to s - 1.
    value = SquaredError()(o[None], torch.tensor([C]))
    (gradient,) = torch.autograd.grad(value, o)
    activations = o.detach()
    assert_close(gradient, activations - torch.eye(D, dtype=torch.float64)[C])
    assert_close(gradient.sum(), activations.sum() - 1)
    assert gradient.sum().abs() > 1e-3
    assert (gradient + activations)[torch.arange(D) != C].abs().max() > 1e-2


def test_the_squared_error_vanishes_at_the_one_hot_target() -> None:
    value = SquaredError()(torch.eye(D, dtype=torch.float64), torch.arange(D))
    assert value.abs() < 1e-15  # a few eps of the terms of size 1 that cancel


@pytest.mark.parametrize("eps", [1e-6, 0.3, 10.0])
def test_the_spherical_softmax_adds_eps_to_every_class(o: Tensor, eps: float) -> None:
    # The paper names the spherical softmax without defining it: (o_c^2 + eps) / sum_k (o_k^2 + eps), with eps in every
    # term of the sum. With a single eps in the denominator it would not be a distribution.
    squares = o.detach().square()
    expected = (squares[C] + eps) / sum(square + eps for square in squares)
    likelihood = torch.exp(-SphericalSoftmax(eps=eps)(o[None], torch.tensor([C])))
    assert_close(likelihood, expected)
    single = (squares[C] + eps) / (squares.sum() + eps)
    assert (likelihood - single).abs() > 0.1 * eps / (squares.sum() + D * eps)


def test_the_spherical_softmax_cannot_tell_the_sign(o: Tensor) -> None:
    loss = SphericalSoftmax(eps=0.1)
    assert torch.equal(loss(o[None], torch.tensor([C])), loss(-o[None], torch.tensor([C])))


def test_eps_bounds_the_loss_of_a_zero_activation() -> None:
    stats = SphericalStats.from_logits(
        torch.tensor([[0.0, 1.0]], dtype=torch.float64), torch.tensor([0])
    )
    assert spherical_softmax(stats, eps=1e-9).item() == pytest.approx(
        math.log(1 + 2e-9) - math.log(1e-9), rel=1e-12
    )


def test_the_taylor_softmax_is_least_likely_at_minus_one() -> None:
    # 1 + x + x^2/2 is never below 1/2, which it takes at -1: there the loss has its largest value, log(2 sum).
    rows = torch.zeros(201, D, dtype=torch.float64)
    rows[:, C] = torch.linspace(-2, 0, 201, dtype=torch.float64)
    values = TaylorSoftmax(reduction="none")(rows, torch.full((201,), C))
    assert values.argmax() == 100
    assert values[100].item() == pytest.approx(math.log(2 * (D - 1 + 0.5)), rel=1e-12)


def test_the_taylor_softmax_agrees_with_the_softmax_to_second_order(o: Tensor) -> None:
    target, small = torch.tensor([C]), 1e-3 * o[None].detach()
    taylor = TaylorSoftmax()(small, target)
    softmax = torch.nn.functional.cross_entropy(small, target)
    # The numerators differ by x^3 / 6 with |x| < 3e-3.
    assert (taylor - softmax).abs() < 2 * 3e-3**3 / 6
    assert (taylor - math.log(D)).abs() > 1e-5
