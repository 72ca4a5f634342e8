"""Small adaptive softmaxes and batches, and the definition that they are compared with: torch's own module."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from zloss.heads.adaptive import AdaptiveSoftmax

HIDDEN, CLASSES, CUTOFFS = 16, 60, [5, 12, 30]
IGNORED = -100
# Sums of some dozens of terms of size 1 in float64: they are rounded by about 1e-15, and any slip in a formula is far
# above 1e-12.
assert_close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def make_head(
    device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64, **options: Any
) -> AdaptiveSoftmax:
    """Make a head with three clusters of widths 8, 4, 2, and with large weights, so that probabilities differ."""
    head = AdaptiveSoftmax(HIDDEN, CLASSES, **{"cutoffs": CUTOFFS, "div_value": 2.0, **options}).to(
        device, dtype
    )
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(3)
    return head


def clusters(head: AdaptiveSoftmax) -> list[Any]:
    """Return the two layers of each cluster."""
    return list(head.softmax.tail)


def shuffled_counts() -> Tensor:
    """Return random counts, which move nearly all classes. Some counts are equal."""
    return torch.randint(40, (CLASSES,), generator=torch.Generator().manual_seed(1))


def batch(head: AdaptiveSoftmax, rows: int, *columns: int) -> tuple[Tensor, Tensor]:
    weight = head.reference_weight
    h = torch.randn(rows, HIDDEN, dtype=weight.dtype, device=weight.device, requires_grad=True)
    return h, torch.randint(CLASSES, (rows, *columns), device=weight.device)


def log_prob_of_torch(head: AdaptiveSoftmax, h: Tensor) -> Tensor:  # (B, C)
    """Return the log-probabilities of all classes from torch's module, in the order of the classes."""
    log_prob: Tensor = head.softmax.log_prob(h)
    return log_prob if head.order is None else log_prob[:, head.order.positions]


def gradients(value: Tensor, head: AdaptiveSoftmax, h: Tensor) -> list[Tensor | None]:
    return list(
        torch.autograd.grad(value, [h, *head.parameters()], allow_unused=True, retain_graph=True)
    )


def assert_same_gradients(
    value: Tensor, expected: Tensor, head: AdaptiveSoftmax, h: Tensor
) -> None:
    for ours, theirs in zip(gradients(value, head, h), gradients(expected, head, h), strict=True):
        # Torch's full matrix gives a gradient of zero to clusters that the batch does not use.
        zero = torch.zeros((), dtype=h.dtype, device=h.device)
        assert_close(
            *torch.broadcast_tensors(
                zero if ours is None else ours, zero if theirs is None else theirs
            )
        )


with_and_without_counts = pytest.mark.parametrize(
    "counts", [None, shuffled_counts()], ids=["by number", "by counts"]
)
