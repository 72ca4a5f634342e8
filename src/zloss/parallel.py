"""Training on several GPUs: every process has the output layer, and gets the batch of all processes.

    trunk = DistributedDataParallel(trunk)                  # the layers below, as usual; not the output layer
    h, target = zloss.gather_batch(trunk(x), target)        # the rows of all processes
    loss = loss_of(output(h, target))                       # the same everywhere, and so is the step

The exact step of a factored layer needs B H numbers of the batch, not the C H numbers of a gradient. So the batch
travels, and every process takes the same step.

The batches of the processes may have different numbers of rows. So each process first tells the others in a few numbers
what it has: its `_Header`. Then all of them know the sizes to expect, and all refuse what does not fit together.

Shape letters: B rows of this process, N rows of all processes, H width of the hidden layer, K targets per row.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor

from zloss.inputs import FLOATS, check_flag, check_same_device, check_tensor, shown
from zloss.limits import has_other_processes
from zloss.streams import must_not_wait
from zloss.targets import target_columns

# Every process has this list in the same order, so a place in it stands for a dtype.
_DTYPES = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    *(torch.uint16, torch.uint32),
)
_MOST_NAMED = 8  # processes in a message


def gather_batch(
    h: Tensor,  # (B, H)
    target: Tensor,  # (B,) or (B, K)
    *,
    group: Any = None,
    equal_rows: bool = False,
) -> tuple[Tensor, Tensor]:  # (N, H), (N,) or (N, K)
    """Return the hidden batch and the targets of all processes, in the order of their ranks.

    A single process gets its own batch back. The processes may have different numbers of rows, and some may have none.
    Their output layers must start from the same weights: from the same seed, or from one checkpoint. The gradient of h
    is made for `DistributedDataParallel`, which averages over processes. So layers below get the gradient of one
    process with the whole batch. A mean over rows is the mean over the rows of all processes.

    Args:
        h: the hidden batch of this process, (B, H).
        target: its targets, (B,) or (B, K).
        group: the process group; by default the one that holds all processes.
        equal_rows: promise that all processes have equally many rows, and batches of one kind. The processes then do
            not tell each other what they have, and no host waits. With a broken promise torch aborts or hangs.

    Returns:
        The hidden batch (N, H) and the targets (N,) or (N, K), with the N rows of all processes.

    Every process raises the same `ValueError` if widths, dtypes or numbers of targets differ.

    >>> h, target = gather_batch(torch.randn(4, 8), torch.tensor([1, 2, 3, 4]))     # a single process
    >>> h.shape, target
    (torch.Size([4, 8]), tensor([1, 2, 3, 4]))
    """
    check_flag("equal_rows", equal_rows)
    if group is not None and not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        raise ValueError(f"group must be a process group or None, got {shown(group)}")
    if not has_other_processes(group):
        _check_batch(h, target)
        return h, target
    if equal_rows:
        _check_batch(h, target)
        rows = [len(h)] * dist.get_world_size(group)
    else:
        rows = _rows_of_all(h, target, group)
    gathered: Tensor = _GatheredRows.apply(h, rows, group)  # type: ignore[no-untyped-call]
    return gathered, _gathered(target, rows, group)


class _GatheredRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, rows: Sequence[int], group: Any) -> Tensor:
        rank = dist.get_rank(group)
        ctx.processes, ctx.stop = len(rows), sum(rows[: rank + 1])
        ctx.start = ctx.stop - rows[rank]
        return _gathered(h, rows, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        # Every process has the whole loss, so that nothing needs to travel back. The factor makes the average of
        # `DistributedDataParallel` a sum.
        return ctx.processes * grad[ctx.start : ctx.stop], None, None


def _gathered(own: Tensor, rows: Sequence[int], group: Any) -> Tensor:
    """Return the rows of all processes. Shorter batches travel with rows that are cut off again."""
    longest = max(rows)
    sent = own.detach().contiguous()
    if len(own) < longest:
        sent = torch.cat([sent, sent.new_zeros(longest - len(own), *own.shape[1:])])
    parts = [torch.empty_like(sent) for _ in rows]
    if longest:  # as bytes: no backend takes all dtypes
        places = [part.view(torch.uint8) for part in parts]
        dist.all_gather(places, sent.view(torch.uint8), group=group)
    return torch.cat([part[:count] for part, count in zip(parts, rows, strict=True)])


def _check_batch(h: Tensor, target: Tensor) -> None:
    check_tensor("h", h, FLOATS, dims=(2,))
    check_same_device(h, target)
    target_columns(target, len(h), num_classes=0)


# ---- what each process has -------------------------------------------------------------------------------------------


class _Header(NamedTuple):
    """The batch of one process in numbers that other processes can read."""

    is_bad: int  # 1 if the process has refused its batch by itself
    rows: int
    width: int
    h_dtype: int  # a place in `_DTYPES`
    columns: int  # K, or 0 for targets (B,)
    target_dtype: int
    is_on_cpu: int

    @classmethod
    def of(cls, h: Tensor, target: Tensor) -> Self:
        """Return the header of a batch that has been checked."""
        return cls(
            is_bad=0,
            rows=len(h),
            width=h.shape[1],
            h_dtype=_DTYPES.index(h.dtype),
            columns=target.shape[1] if target.dim() == 2 else 0,
            target_dtype=_DTYPES.index(target.dtype),
            is_on_cpu=int(h.device.type == "cpu"),
        )

    @property
    def kind(self) -> tuple[int, ...]:
        """The numbers that have to be the same everywhere."""
        return self[2:]

    def __str__(self) -> str:
        target = f"({self.rows}, {self.columns})" if self.columns else f"({self.rows},)"
        return (
            f"h ({self.rows}, {self.width}) {_DTYPES[self.h_dtype]} and target {target} "
            f"{_DTYPES[self.target_dtype]} on {'the CPU' if self.is_on_cpu else 'a GPU'}"
        )


def _rows_of_all(h: Tensor, target: Tensor, group: Any) -> list[int]:
    """Return the number of rows of each process, or raise on all of them if their batches cannot be gathered."""
    devices = _devices_of(group)
    refusal, header = None, _Header(1, *[0] * (len(_Header._fields) - 1))
    try:
        _check_batch(h, target)
        _check_device(h, devices)
        header = _Header.of(h, target)
    except ValueError as error:
        refusal = error  # only after the others know of it: they would wait for ever
    headers = _exchanged(header, devices, group)
    if refusal is not None:
        raise refusal
    if bad := [rank for rank, other in enumerate(headers) if other.is_bad]:
        raise ValueError(
            f"{_processes(bad)} refused the batch that it was given, and says why: nothing was gathered"
        )
    if len({other.kind for other in headers}) > 1:
        raise ValueError(f"the batches of the processes do not fit together: {_listed(headers)}")
    return [other.rows for other in headers]


def _exchanged(header: _Header, devices: Sequence[str], group: Any) -> list[_Header]:
    """Return the headers of all processes. On the CPU this leaves a GPU alone; else the host waits for the GPU."""
    if must_not_wait():
        raise ValueError(
            "a captured step cannot ask for the numbers of rows: call gather_batch(..., equal_rows=True) there, with "
            "batches of one size"
        )
    device = "cpu" if "cpu" in devices else devices[0]
    own = torch.tensor(header, dtype=torch.int64, device=device)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, own, group=group)
    return [_Header(*numbers) for numbers in torch.stack(parts).tolist()]


def _devices_of(group: Any) -> list[str]:
    """Return the kinds of devices whose tensors can travel in this group, such as "cpu" and "cuda"."""
    backends = str(dist.get_backend_config(group))  # such as "cpu:gloo,cuda:nccl"
    return [pair.partition(":")[0] for pair in backends.split(",")]


def _check_device(h: Tensor, devices: Sequence[str]) -> None:
    if h.device.type not in devices:
        raise ValueError(
            f"h is on {h.device}, but this process group only sends tensors on {' and '.join(devices)}: move the "
            'batch, or start with init_process_group("cpu:gloo,cuda:nccl")'
        )


def _listed(headers: Sequence[_Header]) -> str:
    """Return which processes have which batches; processes with equal batches stand together."""
    ranks: dict[_Header, list[int]] = {}
    for rank, header in enumerate(headers):
        ranks.setdefault(header, []).append(rank)
    told = [f"{_processes(same)} has {header}" for header, same in ranks.items()]
    return "; ".join(told[:_MOST_NAMED])


def _processes(ranks: Sequence[int]) -> str:
    more = ", ..." if len(ranks) > _MOST_NAMED else ""
    return f"process {', '.join(map(str, ranks[:_MOST_NAMED]))}{more}"
