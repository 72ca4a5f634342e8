"""Limits of torch's own machinery on these layers, and clear errors where they are reached.

The autograd functions here have first derivatives alone. A factored layer keeps its weight matrix in order between
steps in ways that no graph of operations can show. Without these checks second derivatives would be zeros, exports
would fail with an error about data pointers, and data-parallel wrappers would train something else.
"""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

_Method = TypeVar("_Method", bound=Callable[..., Any])

# What fullgraph=True says. Torch 2.6 may not take it.
_TAKES_REASONS = "reason" in signature(torch.compiler.disable).parameters
_GRAPH_BREAK = {
    "msg": "a FactoredLinear is one break in the graph, as each step changes its factors: compile the model without "
    "fullgraph=True, or only the layers below with it"
}


def first_derivatives_only(
    backward: Callable[..., tuple[Tensor | None, ...]],
) -> Callable[..., tuple[Tensor | None, ...]]:
    """Decorate a backward pass so that it refuses to be differentiated as soon as it runs for that.

    Torch's `once_differentiable` refuses only when the second pass reaches it. `torch.autograd.grad` of chosen inputs
    finds no way to them and never reaches it: a Hessian would be zeros.
    """

    @wraps(backward)
    def refusing(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "create_graph=True asks for second derivatives, and this layer has first ones only: use "
                "zloss.DenseLinear, or DenseOutput as a head, where you need more"
            )
        return backward(ctx, *grads)

    return refusing


def refuse_transforms() -> None:
    """Refuse a transform by `torch.func`, which would fail with a less helpful message."""
    if torch._C._are_functorch_transforms_active():
        raise ValueError(
            "FactoredLinear cannot be transformed by torch.func (grad, vmap, jvp ...): use loss.backward() or "
            "torch.autograd.grad, or zloss.DenseLinear, which can"
        )


def refuse_export() -> None:
    """Refuse to become part of an exported program."""
    is_exporting = getattr(torch.compiler, "is_exporting", bool)  # torch 2.7 has it
    if is_exporting() or torch._C._get_tracing_state() is not None:
        raise export_error()


def export_error() -> ValueError:
    """Return the error for every kind of export."""
    return ValueError(
        "FactoredLinear cannot be exported: put the nn.Linear that its to_linear() returns in its place first"
    )


def uncompiled(method: _Method) -> _Method:
    """Decorate a method so that `torch.compile` leaves it alone, at the price of one break in its graph.

    Otherwise the method would be traced in dozens of pieces. Every step changes numbers that these depend on, so they
    would be compiled anew each time. The decorator `torch.compiler.disable` loads the whole compiler on import.
    """

    @wraps(method)
    def outside(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            if _TAKES_REASONS:
                torch._dynamo.graph_break(**_GRAPH_BREAK)
            return torch.compiler.disable(method)(*args, **kwargs)
        return method(*args, **kwargs)

    return cast(_Method, outside)


def refuse_data_parallel(layer: nn.Module, weight: Tensor) -> None:
    """Refuse to train inside a wrapper for data-parallel training.

    `DistributedDataParallel` cannot average the recorded gradient, and would overwrite the factors by the ones of rank
    0. `fully_shard` cannot share out the weight. Records of a replica of `DataParallel` are lost with the replica.
    """
    is_replica = getattr(layer, "_is_replica", False)
    is_sharded = hasattr(weight, "device_mesh")
    wrapped = getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None) is not None
    is_one_of_several = wrapped and has_other_processes(None)
    if is_replica or is_sharded or is_one_of_several:
        others = "fully_shard" if is_sharded else "DistributedDataParallel"
        name = "DataParallel" if is_replica else others
        raise ValueError(
            f"FactoredLinear cannot train inside {name}, which knows nothing of its gradient: wrap the "
            "layers below alone, and give this one the gathered batch of all processes (guide: several GPUs)"
        )


def has_other_processes(group: Any) -> bool:
    """Return whether this is one of several processes."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1
