"""Small hierarchical softmaxes, and the classes of each cluster."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from zloss import Clustering, HierarchicalSoftmax

HIDDEN, IGNORED = 6, -100
# Sums of at most some hundred terms in float64.
assert_close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def make_head(
    num_classes: int, *, dtype: torch.dtype = torch.float64, **options: Any
) -> HierarchicalSoftmax:
    """Make a head with large weights, so that probabilities differ."""
    head = HierarchicalSoftmax(HIDDEN, num_classes, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(3)
    return head


def families(clustering: Clustering) -> list[Tensor]:
    return list(clustering.order.split(clustering.sizes))
