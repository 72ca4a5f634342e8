"""Streaming metrics: means over ranks, and perplexity. Compute the ranks once with `layer.rank`, for all metrics.

The rank of a target is **1 + the number of classes that score strictly higher**. The best possible rank is 1, and
equal scores share the better rank. A rank of 0 stands for an ignored target and counts for nothing.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from zloss.inputs import FLOATS, INTEGERS, check_tensor, check_whole
from zloss.precision import finest_dtype

# `math.exp` raises an error for a larger number, because no float can hold the result.
_LARGEST_EXPONENT = 709.0


class _RankMetric(ABC):
    """A mean over ranks. Sums stay on the device of the ranks if it has float64; only `compute` waits for them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again without ranks."""
        # (3,) sum of scores, number of ranks, number of negative ranks
        self._sums: Tensor | None = None

    @abstractmethod
    def _score(self, ranks: Tensor) -> Tensor:
        """Return the contribution of each rank."""

    def update(self, ranks: Tensor) -> None:
        """Add ranks, in a tensor of any shape; a rank of 0 is ignored."""
        check_tensor("ranks", ranks, INTEGERS)
        ranks = _for_sums(ranks).long()  # k may not fit into a narrower type
        counted = ranks > 0
        score = torch.where(counted, self._score(ranks.clamp_min(1)), 0)
        sums = torch.stack([part.sum(dtype=torch.float64) for part in (score, counted, ranks < 0)])
        self._sums = sums if self._sums is None else self._sums + sums

    def compute(self) -> float:
        """Return the mean over all ranks so far."""
        total, count, negative = (0, 0, 0) if self._sums is None else self._sums.tolist()
        if negative:
            raise ValueError(
                "a rank was negative: ranks start at 1, and 0 stands for an ignored target"
            )
        if not count:
            raise ValueError("no ranks yet: call update(ranks) before compute()")
        return float(total / count)


class TopKError(_RankMetric):
    """The share of targets that are not among the k best classes: the mean of `rank > k`.

    Args:
        k: the number of classes that count as good, at least 1.

    >>> metric = TopKError(5)
    >>> metric.update(torch.tensor([1, 5, 6, 100]))
    >>> metric.compute()
    0.5
    """

    def __init__(self, k: int) -> None:
        check_whole("k", k, least=1)
        self.k = k
        super().__init__()

    def _score(self, ranks: Tensor) -> Tensor:
        return (ranks > self.k).double()


class MeanReciprocalRank(_RankMetric):
    """The mean of `1 / rank` over all targets.

    >>> metric = MeanReciprocalRank()
    >>> metric.update(torch.tensor([1, 2, 4, 4]))
    >>> metric.compute()
    0.5
    """

    def _score(self, ranks: Tensor) -> Tensor:
        return 1 / ranks.double()


class Perplexity:
    """The perplexity: `exp` of the mean negative log-probability of the targets.

    >>> metric = Perplexity()
    >>> metric.update(torch.tensor([0.5, 0.25, 0.125]).log())
    >>> round(metric.compute(), 6)
    4.0
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again without log-probabilities."""
        self._sums: Tensor | None = None  # (2,) sum of log-probabilities, their number

    def update(self, log_prob: Tensor, *, counted: Tensor | None = None) -> None:
        """Add log-probabilities, in a tensor of any shape.

        Args:
            log_prob: the log-probabilities of targets.
            counted: a bool tensor of the same shape, True for the targets that count; all count if it is not given.
        """
        check_tensor("log_prob", log_prob, FLOATS)
        counted = torch.ones_like(log_prob, dtype=torch.bool) if counted is None else counted
        check_tensor("counted", counted, {torch.bool}, like=log_prob)
        log_prob, counted = _for_sums(log_prob.detach()), _for_sums(counted)
        total = torch.where(counted, log_prob, 0).sum(dtype=torch.float64)
        sums = torch.stack([total, counted.sum(dtype=torch.float64)])
        self._sums = sums if self._sums is None else self._sums + sums

    def compute(self) -> float:
        """Return the perplexity over all targets so far."""
        total, count = (0, 0) if self._sums is None else self._sums.tolist()
        if not count:
            raise ValueError(
                "no targets yet: call update(log_prob) with at least one that counts before compute()"
            )
        return perplexity_of(-total / count)


def perplexity_of(surprise: float) -> float:
    """Return `exp` of a mean negative log-probability, or infinity if that is too large for a float."""
    return math.inf if surprise > _LARGEST_EXPONENT else math.exp(surprise)


def _for_sums(values: Tensor) -> Tensor:
    """Return the values on a device that can add them up in float64: the host, if their own device cannot."""
    return values if finest_dtype(values.device) == torch.float64 else values.cpu()
