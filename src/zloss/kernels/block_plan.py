"""The plan of a batch for `block_linear`: everything about the batch that the kernels need, in one tensor.

A host that launches small operations is slower than the device that runs them. So one launch computes the plan. The
host does not wait for it and reads no value from it. The first 6 N entries describe the examples, sorted by
block, in six vectors of N entries:

    order   the number of the example at this position
    first   the position of the first example of the same block
    stop    the position after the last example of the same block
    row     the first row of the block in W
    size    the number of rows of the block
    place   the first row of the block in the gradient; set for the first example of a block only

Two more entries follow, `prefix` and `total`. The gradient contains every row of W before row `prefix`, including rows
of blocks without an example. `total` is the number of rows in blocks with an example.

Shape letters: N examples, M blocks.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from zloss.kernels.tiles import power_of_2

# Up to this number of examples it is faster to compare all pairs of them than to sort them.
PLAN_BY_PAIRS = 1024


def plan(
    block: Tensor,  # (N,)
    offsets: Tensor,  # (M + 1,)
    num_rows: int,
) -> Tensor:  # (6 N + 2,)
    """Sort the examples by block, and give every block a place in a gradient of `num_rows` rows.

    The gradient needs at least `total` rows. With `num_rows` 0 it has exactly these.
    """
    num = len(block)
    if not 0 < num <= PLAN_BY_PAIRS:
        return _plan_by_sorting(block, offsets, num_rows)
    out = torch.empty(6 * num + 2, dtype=torch.long, device=block.device)
    with torch.cuda.device_of(block):
        _plan[(1,)](block, offsets, out, num, num_rows, NUM=power_of_2(num), UNROLL=8, num_warps=8)
    return out


def _plan_by_sorting(block: Tensor, offsets: Tensor, num_rows: int) -> Tensor:
    """Compute the same as `_plan`, for any number of examples."""
    block, order = block.sort(stable=True)
    first, stop = torch.searchsorted(block, block), torch.searchsorted(block, block, right=True)
    row, size = offsets[block], offsets[block + 1] - offsets[block]
    counted = torch.where(first == torch.arange(len(block), device=block.device), size, 0)
    total = counted.sum()
    spare = (num_rows - total).clamp_min(0)
    taken = counted.cumsum(0) - counted
    absent = row - taken
    prefix = spare + torch.where(absent < spare, counted, 0).sum()
    place = taken + torch.minimum(absent, spare)
    return torch.cat([order, first, stop, row, size, place, prefix[None], total[None]])


@triton.jit
def _plan(block, offsets, out, N, num_rows, NUM: tl.constexpr, UNROLL: tl.constexpr):
    i = tl.arange(0, NUM)
    b = tl.load(block + i, mask=i < N, other=0)
    first = tl.zeros((NUM,), tl.int32)
    count = tl.zeros((NUM,), tl.int32)
    earlier = tl.zeros((NUM,), tl.int32)
    for start in range(0, N, UNROLL):
        for step in tl.static_range(UNROLL):
            j = start + step
            b_j = tl.load(block + j, mask=j < N, other=2**62)
            first += (b_j < b).to(tl.int32)
            count += (b_j == b).to(tl.int32)
            earlier += ((b_j == b) & (j < i)).to(tl.int32)
    row = tl.load(offsets + b)
    here = out + first + earlier
    tl.store(here, i.to(tl.int64), mask=i < N)
    tl.store(here + N, first.to(tl.int64), mask=i < N)
    tl.store(here + 2 * N, (first + count).to(tl.int64), mask=i < N)
    tl.store(here + 3 * N, row, mask=i < N)
    tl.store(here + 4 * N, tl.load(offsets + b + 1) - row, mask=i < N)
    # The rest reads, in sorted order, values that other threads wrote.
    tl.debug_barrier()
    row = tl.load(out + 3 * N + i, mask=i < N, other=0)
    is_first = tl.load(out + N + i, mask=i < N, other=-1) == i
    counted = tl.load(out + 4 * N + i, mask=is_first, other=0)
    total = tl.sum(counted, 0)
    # Rows of absent blocks that still fit into the gradient: the first ones in W.
    spare = tl.maximum(num_rows - total, 0)
    taken = tl.cumsum(counted, 0) - counted
    absent = row - taken
    tl.store(out + 5 * N + i, taken + tl.minimum(absent, spare), mask=i < N)
    tl.store(out + 6 * N, spare + tl.sum(tl.where(absent < spare, counted, 0), 0))
    tl.store(out + 6 * N + 1, total)
