"""Training on several GPUs: the batch of all processes, for an output layer that every one of them has.

    trunk = DistributedDataParallel(trunk)                  # the layers below, as usual; not the output layer
    h, target = zloss.gather_batch(trunk(x), target)        # those of all processes
    loss = loss_of(output(h, target))                       # the same everywhere, and so is the step

The exact step of a factored layer needs B H numbers of the batch, not the C H of a gradient. So they are what travels,
and every process takes the same step.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def gather_batch(
    h: Tensor,  # (B, H)
    target: Tensor,  # (B,) or (B, K)
    *,
    group: Any = None,
) -> tuple[Tensor, Tensor]:  # (n B, H), (n B,) or (n B, K) on n processes
    """The hidden batch and the targets of all processes, in the order of their ranks; on a single one, its own.

    All processes must have as many rows, and output layers that start from the same weights: from the same seed, or
    from one checkpoint. The gradient of h is made for `DistributedDataParallel`, which averages those of all processes:
    layers below get what one process with the whole batch would give them.

    Args:
        h: the hidden batch of this process.
        target: its targets.
        group: the process group; the default one where none is given.
    """
    if not _has_others(group):
        return h, target
    return _GatheredRows.apply(h, group), _gathered(target, group)  # type: ignore[no-untyped-call]


def refuse_data_parallel(layer: nn.Module) -> None:
    """Refuse to be inside of `DistributedDataParallel`: for a layer whose gradient is none that it could average, and
    whose factors it would overwrite with those of rank 0. Nor can `fully_shard` share out its weight; and what the
    replicas of `DataParallel` record goes with them.
    """
    is_replica = getattr(layer, "_is_replica", False)
    is_wrapped = (
        getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None) is not None
    )
    is_sharded = hasattr(layer.V, "device_mesh")
    if is_replica or is_sharded or (is_wrapped and _has_others(None)):
        name = (
            "DataParallel"
            if is_replica
            else "fully_shard"
            if is_sharded
            else "DistributedDataParallel"
        )
        raise ValueError(
            f"FactoredLinear cannot train inside {name}, which knows nothing of its gradient: wrap the "
            "layers below alone, and give this one the gathered batch of all processes (README, several GPUs)"
        )


def _has_others(group: Any) -> bool:
    """Whether this is one of several processes."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


class _GatheredRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, group: Any) -> Tensor:
        ctx.first, ctx.rows, ctx.processes = (
            dist.get_rank(group) * len(h),
            len(h),
            dist.get_world_size(group),
        )
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
