"""Confidence intervals of scores that were measured on a sample.

A sample of n examples is drawn without replacement from N. All intervals are at 95 %.

A top-k error is a share p of the examples. Its interval is Wilson's, with n (N - 1) / (N - n) in place of n:

    (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)         z = 1.96

It lies within 0 and 1, and is never empty, also if all examples or none are errors. It is not symmetric around p. The
half-width is the distance from p to the end that is farther away.

Every other score is a mean m of values with a standard deviation s. Its half-width is that of the normal approximation,

    1.96 s sqrt((1 - n / N) / n)

For the mean rank this is rough, because a few targets have very large ranks. The perplexity is exp(m), where m is the
mean negative log-probability. Its half-width is exp(m) times the half-width of m (delta method). If all values are the
same, or there is a single one, they tell nothing about the others, and the half-width is infinite.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from zloss.metrics import perplexity_of

_NORMAL_95 = 1.959964  # 97.5 % of a normal distribution lie below


@dataclass(frozen=True, kw_only=True)
class HalfWidths:
    """Half the width of the 95 % confidence interval of each score."""

    top_k_error: dict[int, float]
    mean_reciprocal_rank: float
    mean_rank: float
    perplexity: float | None


def half_widths(
    ranks: Tensor,  # (n,)
    log_prob: Tensor | None,  # (n,)
    *,
    ks: Sequence[int],
    population: int,
) -> HalfWidths:
    """Return the half-widths for a sample of a population of N examples.

    >>> round(half_widths(torch.tensor([1, 2, 4, 4]), None, ks=(3,), population=8).top_k_error[3], 3)
    0.298
    """
    left_out = 1 - len(ranks) / population
    return HalfWidths(
        top_k_error={k: _half_width_of_share(ranks > k, population) for k in ks},
        mean_reciprocal_rank=_half_width(1 / ranks.double(), left_out),
        mean_rank=_half_width(ranks, left_out),
        perplexity=None if log_prob is None else _half_width_of_perplexity(log_prob, left_out),
    )


def _half_width_of_share(is_error: Tensor, population: int) -> float:
    """Return the larger distance from a share to the ends of its Wilson interval."""
    share = is_error.double().mean().item()
    examples = len(is_error) * (population - 1) / (population - len(is_error))
    middle = share + _NORMAL_95**2 / (2 * examples)
    spread = math.sqrt(share * (1 - share) / examples + (_NORMAL_95 / (2 * examples)) ** 2)
    low, high = (
        (middle + sign * _NORMAL_95 * spread) / (1 + _NORMAL_95**2 / examples) for sign in (-1, 1)
    )
    return max(share - low, high - share)


def _half_width_of_perplexity(log_prob: Tensor, left_out: float) -> float:
    return perplexity_of(-log_prob.double().mean().item()) * _half_width(log_prob, left_out)


def _half_width(values: Tensor, left_out: float) -> float:
    """Return half the width of the interval of a mean; infinity if the values do not tell how much they vary."""
    if len(values) < 2:
        return math.inf
    variance = values.double().var().item()
    if not (math.isfinite(variance) and variance > 0):
        return math.inf
    return _NORMAL_95 * math.sqrt(variance * left_out / len(values))
