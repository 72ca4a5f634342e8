"""How far torch's own machinery reaches through these layers, and words for where it ends.

The autograd functions here have first derivatives alone, and a factored layer keeps its weight matrix in order between
steps in ways that no graph of operations can show. Left to themselves, second derivatives would come out as zeros, and
exports would fail with something about data pointers.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

_Method = TypeVar("_Method", bound=Callable[..., Any])


def first_derivatives_only(
    backward: Callable[..., tuple[Tensor | None, ...]],
) -> Callable[..., tuple[Tensor | None, ...]]:
    """Have a backward pass refuse to be differentiated, as soon as it is run for that.

    Torch's `once_differentiable` refuses when the second pass comes by. `torch.autograd.grad` of chosen inputs does
    not: it finds no way to them, and who asks for a Hessian gets zeros.
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
    """Refuse to be transformed by `torch.func`, which would not find the way either, and says less about it."""
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
    """The one sentence about exports."""
    return ValueError(
        "FactoredLinear cannot be exported: put the nn.Linear that its to_linear() returns in its place first"
    )


def uncompiled(method: _Method) -> _Method:
    """Have `torch.compile` leave a method alone: one break in its graph.

    It would trace the method in dozens of pieces, and compile them anew with every step, which changes numbers that
    they depend on. `torch.compiler.disable` as a decorator does the same, but loads the whole compiler on import.
    """

    @wraps(method)
    def outside(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(method)(*args, **kwargs)
        return method(*args, **kwargs)

    return cast(_Method, outside)
