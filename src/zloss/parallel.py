"""Training on several GPUs: every process has the output layer, and gets the batch of all processes.

    trunk = DistributedDataParallel(trunk)                  # the layers below, as usual; not the output layer
    h, target = zloss.gather_batch(trunk(x), target)        # the rows of all processes
    loss = loss_of(output(h, target))                       # the same everywhere, and so is the step

The exact step of a factored layer needs B H numbers of the batch, not the C H numbers of a gradient. So the batch
travels, and every process takes the same step.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zloss.limits import has_other_processes


def gather_batch(
    h: Tensor,  # (B, H)
    target: Tensor,  # (B,) or (B, K)
    *,
    group: Any = None,
) -> tuple[Tensor, Tensor]:  # (n B, H), (n B,) or (n B, K) on n processes
    """Return the hidden batch and the targets of all processes, in the order of their ranks.

    A single process gets its own batch back. All processes must have equally many rows. Their output layers must start
    from the same weights: from the same seed, or from one checkpoint. The gradient of h is made for
    `DistributedDataParallel`, which averages over processes. So layers below get the gradient of one process with the
    whole batch.

    Args:
        h: the hidden batch of this process, (B, H).
        target: its targets, (B,) or (B, K).
        group: the process group; by default the one that holds all processes.

    Returns:
        The hidden batch (n B, H) and the targets (n B,) or (n B, K) of n processes.

    >>> h, target = gather_batch(torch.randn(4, 8), torch.tensor([1, 2, 3, 4]))     # a single process
    >>> h.shape, target
    (torch.Size([4, 8]), tensor([1, 2, 3, 4]))
    """
    if not has_other_processes(group):
        return h, target
    return _GatheredRows.apply(h, group), _gathered(target, group)  # type: ignore[no-untyped-call]


class _GatheredRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, group: Any) -> Tensor:
        ctx.rows, ctx.processes = len(h), dist.get_world_size(group)
        ctx.first = dist.get_rank(group) * len(h)
        return _gathered(h, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        # Every process has the whole loss, so that nothing needs to travel back. The factor makes the average of
        # `DistributedDataParallel` a sum.
        return ctx.processes * grad[ctx.first : ctx.first + ctx.rows], None


def _gathered(rows: Tensor, group: Any) -> Tensor:
    parts = [
        torch.empty_like(rows, memory_format=torch.contiguous_format)
        for _ in range(dist.get_world_size(group))
    ]
    dist.all_gather(parts, rows.detach().contiguous(), group=group)
    return torch.cat(parts)
