"""Confidence intervals of scores that were measured on a sample.

A sample is drawn without replacement. For every score it gives a mean m and a standard deviation s. The half-width of
the 95 % confidence interval follows from the normal approximation,

    1.96 s sqrt((1 - n / N) / n)                    n examples of N

For the mean rank this is rough, because a few targets have very large ranks. For an error near 0 or 1 it is too small.
The perplexity is exp(m), where m is the mean negative log-probability. Its half-width is exp(m) times the half-width
of m (delta method).
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
    0.4
    """
    left_out = 1 - len(ranks) / population
    return HalfWidths(
        top_k_error={k: _half_width(ranks > k, left_out) for k in ks},
        mean_reciprocal_rank=_half_width(1 / ranks.double(), left_out),
        mean_rank=_half_width(ranks, left_out),
        perplexity=None if log_prob is None else _half_width_of_perplexity(log_prob, left_out),
    )


def _half_width_of_perplexity(log_prob: Tensor, left_out: float) -> float:
    return perplexity_of(-log_prob.double().mean().item()) * _half_width(log_prob, left_out)


def _half_width(values: Tensor, left_out: float) -> float:
    """Return half the width of the interval of a mean; infinity if the values are infinite or a single one."""
    if len(values) < 2:
        return math.inf
    variance = values.double().var().item()
    if not math.isfinite(variance):
        return math.inf
    return _NORMAL_95 * math.sqrt(variance * left_out / len(values))
