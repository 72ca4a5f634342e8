"""Exact expectations of the sampled softmax: its normaliser has no bias, and the bias of its gradient falls as 1/S.

With three classes the loss depends only on how often each class was drawn. There are few such counts. The tests sum
over all of them with their multinomial probabilities, so these are expectations and not means of a sample.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.heads.sampled_problems import (
    SAMPLER_OPTIONS,
    Prescribed,
    every_sampler,
    every_target,
    gradients,
    make_batch,
    make_head,
)
from tests.layers.twins import relative_error
from zloss.heads.sampled import SampledSoftmax

THREE = 3
Q = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)


def all_draws(num_samples: int) -> Iterator[tuple[float, Tensor]]:
    """Yield every outcome of the draws, without their order, with its probability."""
    for first, second in itertools.product(range(num_samples + 1), repeat=2):
        counts = torch.tensor([first, second, num_samples - first - second])
        if counts[2] >= 0:
            log_ways = math.lgamma(num_samples + 1) - torch.lgamma(counts.double() + 1).sum()
            probability = (log_ways + (counts * Q.log()).sum()).exp().item()
            yield probability, torch.arange(THREE).repeat_interleave(counts)


class SignFlipped(SampledSoftmax):
    """A wrong loss: log(S q) is added."""

    def _per_target(self, own: Tensor, drawn: Tensor, index: Tensor, draws: Tensor) -> Tensor:
        return super()._per_target(own, drawn + 2 * self._log_expected(draws), index, draws)


class TargetCorrected(SampledSoftmax):
    """A wrong loss: log(S q) is subtracted from the activation of the target as well."""

    def _per_target(self, own: Tensor, drawn: Tensor, index: Tensor, draws: Tensor) -> Tensor:
        return super()._per_target(own - self._log_expected(index), drawn, index, draws)


def with_hits(*args: Any, **options: Any) -> SampledSoftmax:
    """Make a head with a wrong loss: the target is counted twice."""
    return SampledSoftmax(*args, remove_accidental_hits=False, **options)


WRONG = [SignFlipped, TargetCorrected, with_hits]
LOGITS = torch.tensor([0.3, 1.1, -0.6], dtype=torch.float64)  # of an example with h = 1


def expectations(make: Callable[..., SampledSoftmax], num_samples: int) -> tuple[Tensor, Tensor]:
    """Return the expected normaliser, computed from the loss, and the expected gradient, for target 1."""
    sampler = Prescribed(Q)
    head = make(1, THREE, num_samples=num_samples, sampler=sampler, dtype=torch.float64)
    head.linear.weight.data[:, 0] = LOGITS
    normalizer, gradient = torch.zeros(()).double(), torch.zeros(THREE).double()
    for probability, sampler.draws in all_draws(num_samples):
        loss = head(torch.ones(1, 1, dtype=torch.float64), torch.tensor([1]))
        (grad,) = torch.autograd.grad(loss, head.linear.weight)
        normalizer += probability * (loss.detach() + LOGITS[1]).exp()
        gradient += probability * grad.to_dense()[:, 0]
    return normalizer, gradient


def normalizer_error(make: Callable[..., SampledSoftmax], num_samples: int) -> float:
    return float((expectations(make, num_samples)[0] - LOGITS.exp().sum()).abs())


def gradient_bias(make: Callable[..., SampledSoftmax], num_samples: int) -> float:
    exact = LOGITS.softmax(0) - torch.tensor([0.0, 1.0, 0.0])
    return float((expectations(make, num_samples)[1] - exact).norm())


@pytest.mark.parametrize("num_samples", [1, 2, 9])
def test_the_normalizer_is_unbiased(num_samples: int) -> None:
    # 55 terms, each with a probability from lgamma, which is exact to 1e-14.
    assert normalizer_error(SampledSoftmax, num_samples) < 1e-12


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_normalizers_are_not(wrong: Callable[..., SampledSoftmax]) -> None:
    assert normalizer_error(wrong, 9) > 0.1


def test_the_bias_of_the_gradient_falls_as_one_over_the_number_of_samples() -> None:
    bias = {
        num_samples: gradient_bias(SampledSoftmax, num_samples) for num_samples in (4, 8, 16, 32)
    }
    # bias = c / S + O(1 / S^2), from the second term of the expansion of the logarithm. So doubling S halves the bias,
    # more exactly for a larger S.
    assert 1.6 < bias[4] / bias[8] < 2.4
    assert 1.8 < bias[8] / bias[16] < 2.2
    assert 1.9 < bias[16] / bias[32] < 2.1
    assert bias[32] < 0.003, "of a gradient of length 0.5"


@pytest.mark.parametrize("wrong", WRONG)
def test_the_bias_of_wrong_gradients_does_not(wrong: Callable[..., SampledSoftmax]) -> None:
    bias = {num_samples: gradient_bias(wrong, num_samples) for num_samples in (4, 16)}
    assert bias[16] > bias[4] / 2
    assert bias[16] > 0.05


@every_sampler
@every_target
def test_with_many_samples_a_single_gradient_is_that_of_the_softmax(
    sampler: str, target: Tensor
) -> None:
    head = make_head(num_samples=100_000, bias=True, **SAMPLER_OPTIONS[sampler])
    h, target = make_batch(target)
    value = head(h, target)
    value.backward()
    grads = gradients(head, h)
    valid = target.reshape(len(h), -1) != -100
    log_p = head.linear(h).log_softmax(1).gather(1, target.reshape(len(h), -1).clamp_min(0))
    expected = (
        -(torch.where(valid, log_p, 0).sum(1) / valid.sum(1).clamp_min(1)).sum()
        / valid.any(1).sum()
    )
    expected.backward()
    # A class is drawn at least some 3,000 times, with a deviation of 55. This is two per cent, which bounds all errors.
    assert relative_error(value, expected) < 0.05
    for grad, expected_grad in zip(grads, gradients(head, h), strict=True):
        assert relative_error(grad, expected_grad) < 0.05
