"""The count of higher scores against its definition."""

import pytest
import torch
from torch import Tensor

from zloss import kernels

pytestmark = pytest.mark.skipif(not kernels.available(), reason="triton is not installed")


def definition(higher: Tensor, scores: Tensor, own: Tensor, index: Tensor, start: int) -> Tensor:
    classes = start + torch.arange(scores.shape[1], device=scores.device)
    counted = (scores[:, None] <= own[..., None]).logical_not() & (
        classes != index[..., None]
    )  # NaN is higher
    return higher + counted.sum(-1)


@pytest.mark.parametrize("classes", [1, 700, 1024, 2500])
@pytest.mark.parametrize("targets", [1, 3])
def test_it_is_the_definition(classes: int, targets: int, kernel_device: torch.device) -> None:
    rows, start = 5, 300
    scores = torch.randn(rows, classes, device=kernel_device).round(decimals=1)  # some are equal
    index = torch.randint(
        start + classes, (rows, targets), device=kernel_device
    )  # in this block or before it
    own = torch.randn(rows, targets, device=kernel_device).round(decimals=1)
    own[0], scores[1, 0], scores[2, 0] = -torch.inf, torch.nan, torch.inf
    higher = torch.randint(10, (rows, targets), device=kernel_device)
    expected = definition(higher, scores, own, index, start)
    kernels.load("rank_count").count_higher_(higher, scores, own, index, start)
    assert torch.equal(higher, expected)


def test_a_target_does_not_outrank_itself(kernel_device: torch.device) -> None:
    scores = torch.tensor([[1.0, 2.0 + 2e-7, 3.0]], device=kernel_device)
    higher = torch.zeros(1, 1, dtype=torch.long, device=kernel_device)
    own, index = (
        torch.tensor([[2.0]], device=kernel_device),
        torch.tensor([[11]], device=kernel_device),
    )
    kernels.load("rank_count").count_higher_(higher, scores, own, index, 10)
    assert higher.item() == 1


def test_rows_may_have_a_stride(kernel_device: torch.device) -> None:
    scores = torch.randn(4, 20, device=kernel_device)[:, :7]
    higher = torch.zeros(4, 1, dtype=torch.long, device=kernel_device)
    own, index = (
        torch.zeros(4, 1, device=kernel_device),
        torch.full((4, 1), 99, device=kernel_device),
    )
    kernels.load("rank_count").count_higher_(higher, scores, own, index, 0)
    assert torch.equal(higher, (scores > 0).sum(1, keepdim=True))
