"""A linear layer in which every example sees one block of rows: the second level of a hierarchical softmax.

The classes of a big layer are divided into clusters, and the rows of a cluster are consecutive rows of `weight`. An
example costs time for the rows of one block only, never for all C rows. The gradient of `weight` is row-sparse, so it
has the same advantage.

Shape letters: N examples, H width, C rows of weight, S rows of the largest block.
"""

from typing import Any

import torch
from torch import Tensor

from zloss import kernels
from zloss.heads.block_products import PRODUCTS, BlockProducts
from zloss.heads.blocks import RowBlocks
from zloss.inputs import check_choice
from zloss.limits import first_derivatives_only, uncompiled


@uncompiled  # the blocks of the examples would make another program for every batch
def block_linear(
    h: Tensor,  # (N, H)
    weight: Tensor,  # (C, H)
    bias: Tensor | None,  # (C,)
    block: Tensor,  # (N,)
    blocks: RowBlocks,
    *,
    implementation: str = "auto",
    exact_rows: bool = False,
) -> Tensor:  # (N, S)
    """Return the scores (N, S) of each example for the rows of its block, and -inf beyond the end of a block.

    The result equals this code, but without the gather of N x S x H numbers:

        rows = blocks.offsets[block][:, None] + torch.arange(blocks.largest)
        scores = torch.einsum("nsh,nh->ns", weight[rows], h) + bias[rows]

    The gradients of `weight` and `bias` are coalesced sparse tensors of whole blocks of rows, which `torch.optim.SGD`,
    `Adagrad` and `SparseAdam` take. The upstream gradient of an entry of -inf is ignored. `h` and `weight` may have
    different dtypes. Autocast has no effect, so there is never a copy of `weight` in another dtype.

    Args:
        h: the hidden batch, (N, H).
        weight: the rows of all blocks, (C, H).
        bias: one number for each row, (C,), or None.
        block: the number of the block of each example, (N,). On a GPU its values are not checked, because that would
            wait for the device.
        blocks: the division of the rows into blocks.
        implementation: "torch" multiplies block by block, and on a GPU it waits for the numbers of the blocks. "triton"
            computes all blocks at once and does not wait. "auto" takes "triton" on a GPU if it is installed.
        exact_rows: whether the gradient has only rows of the blocks with examples. Without waiting, "triton" does not
            know their number. So it takes the largest number that N examples can have, and fills up the gradient with
            zeros for the first rows of other blocks. SGD and Adagrad do not change such rows, but SparseAdam does: pass
            True there, which waits.

    >>> blocks = RowBlocks([3, 1, 2])
    >>> weight = torch.eye(6, requires_grad=True)
    >>> scores = block_linear(torch.arange(12.0).view(2, 6), weight, None, torch.tensor([2, 0]), blocks)
    >>> scores.detach()
    tensor([[4., 5., -inf],
            [6., 7., 8.]])
    >>> scores[:, 0].sum().backward()
    >>> weight.grad.indices()
    tensor([[0, 1, 2, 4, 5]])
    """
    _check(h, weight, bias, block, blocks)
    products = PRODUCTS[_chosen(implementation, h.device.type)](block, blocks, exact_rows)
    scores: Tensor = _BlockLinear.apply(h, weight, bias, products)  # type: ignore[no-untyped-call]
    return scores


def never_waits_on_a_gpu(implementation: str, exact_rows: bool) -> bool:
    """Return whether `block_linear` with these options never waits for the device."""
    return not exact_rows and _chosen(implementation, "cuda") == "triton"


def _chosen(implementation: str, device_type: str) -> str:
    if implementation == "auto":
        return "triton" if device_type == "cuda" and kernels.available() else "torch"
    check_implementation(implementation)
    return implementation


def check_implementation(implementation: str) -> None:
    """Refuse an unknown implementation of `block_linear`."""
    check_choice("implementation", implementation, ("auto", *PRODUCTS))


class _BlockLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, bias: Tensor | None, products: BlockProducts
    ) -> Tensor:
        ctx.save_for_backward(h, weight, bias)
        ctx.products = products
        return products.scores(h, weight, bias)

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, weight, bias = ctx.saved_tensors
        wants_h, wants_weight, wants_bias, _ = ctx.needs_input_grad
        grad_h = ctx.products.grad_h(grad, weight, h.dtype) if wants_h else None
        if not (wants_weight or wants_bias):
            return grad_h, None, None, None
        rows, weight_values, bias_values = ctx.products.grad_rows(
            grad, h, weight.dtype if wants_weight else None, bias.dtype if wants_bias else None
        )
        return (
            grad_h,
            _row_sparse(rows, weight_values, weight),
            _row_sparse(rows, bias_values, bias),
            None,
        )


def _row_sparse(rows: Tensor, values: Tensor | None, parameter: Tensor) -> Tensor | None:
    """Return a gradient of `parameter` that has these rows and is zero elsewhere."""
    if values is None:
        return None
    indices = rows[None]
    if parameter.is_leaf:
        _restore_coalesced(parameter, indices.data_ptr())
    return torch.sparse_coo_tensor(
        indices, values, parameter.shape, is_coalesced=True, check_invariants=False
    )


def _restore_coalesced(parameter: Tensor, address: int) -> None:
    """Mark `parameter.grad` as coalesced after the backward pass, if its indices are at `address`.

    Autograd keeps the indices and the values of a sparse gradient, but it drops this mark. Without the mark, optimizers
    sort the rows again or add them one number at a time. The address shows that this is the gradient of this pass: a
    sum with another gradient has its indices elsewhere.
    """

    def mark() -> None:
        grad = parameter.grad
        if grad is not None and grad.is_sparse and grad._indices().data_ptr() == address:
            grad._coalesced_(True)

    torch.autograd.Variable._execution_engine.queue_callback(mark)


def _check(
    h: Tensor, weight: Tensor, bias: Tensor | None, block: Tensor, blocks: RowBlocks
) -> None:
    if weight.dim() != 2 or len(weight) != blocks.num_rows:
        raise ValueError(
            f"weight must have shape ({blocks.num_rows}, H), got {tuple(weight.shape)}"
        )
    if h.dim() != 2 or h.shape[1] != weight.shape[1]:
        raise ValueError(f"h must have shape (N, {weight.shape[1]}), got {tuple(h.shape)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape ({len(weight)},), got {tuple(bias.shape)}")
    if block.dtype != torch.long or block.shape != h.shape[:1]:
        raise ValueError(
            f"block must be int64 of shape ({len(h)},), got {block.dtype} of shape {tuple(block.shape)}"
        )
    if not all(tensor.is_floating_point() for tensor in (h, weight, bias) if tensor is not None):
        raise ValueError("h, weight and bias must be floating-point tensors")
    devices = {
        tensor.device for tensor in (h, weight, bias, block, blocks.offsets) if tensor is not None
    }
    if len(devices) > 1:
        raise ValueError(
            f"expected everything on one device, got {', '.join(sorted(map(str, devices)))}"
        )
    if (
        block.device.type == "cpu"
        and len(block)
        and not 0 <= int(block.min()) <= int(block.max()) < blocks.num_blocks
    ):
        raise ValueError(
            f"block must lie in [0, {blocks.num_blocks}), got values from {int(block.min())} to {int(block.max())}"
        )
