"""A kernel that counts the classes of a block that score higher than the targets, in one pass over their scores.

It computes

    for k in range(K):
        higher[:, k] += ((scores > own[:, k, None]) & (classes != index[:, k, None])).sum(1)

where the columns of `scores` are the classes `start, start + 1, ...`. A target is excluded by its number, because its
score comes from another product. Its score in the block may differ in the last bit.

Shape letters: B rows, N classes of the block, K targets per row.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

_COLUMNS = 1024  # the number of scores that a program reads at a time


def count_higher_(
    higher: Tensor,  # (B, K) int64, added to
    scores: Tensor,  # (B, N)
    own: Tensor,  # (B, K)
    index: Tensor,  # (B, K) int64, the targets
    start: int,
) -> None:
    """Add to `higher`, for every target, the number of classes of the block that score higher. NaN counts as higher."""
    rows, classes = scores.shape
    if rows and classes:
        with torch.cuda.device_of(scores):
            _count_higher[(rows,)](
                higher, scores, own.contiguous(), index.contiguous(), start, classes, scores.stride(0),
                K=index.shape[1], COLUMNS=_COLUMNS, num_warps=4,
            )  # fmt: skip


@triton.jit
def _count_higher(
    higher, scores, own, index, start, N, stride, K: tl.constexpr, COLUMNS: tl.constexpr
):
    i = tl.program_id(0).to(tl.int64)
    for k in tl.static_range(K):
        bound, target = tl.load(own + i * K + k), tl.load(index + i * K + k) - start
        count = tl.zeros((COLUMNS,), tl.int32)
        for first in range(0, N, COLUMNS):
            j = first + tl.arange(0, COLUMNS)
            score = tl.load(scores + i * stride + j, mask=j < N, other=float("-inf"))
            count += tl.where((score <= bound) | (j == target), 0, 1)
        place = higher + i * K + k
        tl.store(place, tl.load(place) + tl.sum(count))
