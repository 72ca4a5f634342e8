"""A linear layer of which every example sees one block of rows: the second level of a hierarchical softmax.

The classes of a big layer are split into clusters, and their rows in `weight` stand together: block b is the rows
`offsets[b] : offsets[b + 1]`. An example pays for the rows of one block, never for all C of them; so does the gradient
of `weight`, which is row-sparse.

Shape letters: N examples, H width, C rows of weight, M blocks, S rows of the largest block, R rows of the gradient.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from zloss import kernels
from zloss.layers.limits import first_derivatives_only, uncompiled


class RowBlocks(nn.Module):
    """How the rows of a weight matrix are divided: consecutive blocks of the given sizes.

    >>> blocks = RowBlocks([3, 1, 2])
    >>> blocks.num_rows, blocks.num_blocks, blocks.largest
    (6, 3, 3)
    >>> blocks.offsets
    tensor([0, 3, 4, 6])
    """

    offsets: Tensor  # (M + 1,)
    sizes: Tensor  # (M,)

    def __init__(self, sizes: Sequence[int], *, device: torch.device | str | None = None) -> None:
        super().__init__()
        sizes = [int(size) for size in sizes]
        if not sizes or min(sizes) < 1:
            raise ValueError(
                f"expected one or more blocks of at least one row, got sizes {_shortened(sizes)}"
            )
        self.num_blocks, self.num_rows, self.largest = len(sizes), sum(sizes), max(sizes)
        # Entry n: the rows of the n largest blocks.
        self._most_rows = [0, *accumulate(sorted(sizes, reverse=True))]
        self._host_offsets = [
            0,
            *accumulate(sizes),
        ]  # which say how it is, also where the tensors have no memory yet
        offsets = torch.tensor(self._host_offsets, device=device)
        self.register_buffer("offsets", offsets)
        self.register_buffer("sizes", offsets.diff(), persistent=False)

    def most_rows(self, num_examples: int) -> int:
        """The most rows that the blocks of so many examples can have together."""
        return self._most_rows[min(num_examples, self.num_blocks)]

    def check_same(self, offsets: Tensor | None) -> None:
        """Refuse the offsets of a checkpoint that divides its rows in another way."""
        if offsets is not None and offsets.tolist() != self._host_offsets:
            raise ValueError(
                f"the clusters of the checkpoint ({len(offsets) - 1} of them) have other sizes than those here "
                f"({self.num_blocks}): build with the same clusters"
            )

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        if not self.offsets.is_meta:  # they may have got their memory only now
            self.sizes = (
                self.offsets.diff() if self.sizes.is_meta else self.sizes.copy_(self.offsets.diff())
            )

    def extra_repr(self) -> str:
        return f"{self.num_rows} rows in {self.num_blocks} blocks of at most {self.largest}"


@uncompiled  # how the examples fall into blocks is another program for every batch
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
    """The scores of each example for the rows of its block, in the block's order; -inf beyond the end of a shorter one.

    Equal to this, without the N x S x H gather:

        rows = blocks.offsets[block][:, None] + torch.arange(blocks.largest)
        scores = torch.einsum("nsh,nh->ns", weight[rows], h) + bias[rows]

    The gradients of `weight` and `bias` are coalesced sparse tensors of whole blocks of rows, as `torch.optim.SGD`,
    `Adagrad` and `SparseAdam` take them; what comes back for an entry of -inf is not looked at. `h` and `weight` may
    differ in dtype, and autocast changes nothing: there is no copy of `weight` in another one.

    Args:
        block: the block of each example. On a GPU the caller vouches for its values: a look at them would wait.
        blocks: which rows belong to which block.
        implementation: "torch" multiplies block by block, and on a GPU waits to learn which; "triton" does neither;
            "auto" takes "triton" on a GPU where it is installed.
        exact_rows: "triton" cannot know how many rows take part without waiting, and fills the gradient up to the most
            that N examples can reach with the first rows of absent blocks, as zeros. SGD and Adagrad leave such rows
            alone; SparseAdam does not: there, pass True and wait.

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
    products = _PRODUCTS[_taken(implementation, h.device.type)](block, blocks, exact_rows)
    scores: Tensor = _BlockLinear.apply(h, weight, bias, products)  # type: ignore[no-untyped-call]
    return scores


def never_waits_on_a_gpu(implementation: str, exact_rows: bool) -> bool:
    """Whether `block_linear` with these options leaves the host free to go ahead of the device."""
    return not exact_rows and _taken(implementation, "cuda") == "triton"


def _taken(implementation: str, device_type: str) -> str:
    if implementation == "auto":
        return "triton" if device_type == "cuda" and kernels.available() else "torch"
    if implementation not in _PRODUCTS:
        raise ValueError(f"implementation must be auto, torch or triton, got {implementation!r}")
    return implementation


class RowGradient(NamedTuple):
    """The rows of a row-sparse gradient, ascending, and what stands in them."""

    rows: Tensor  # (R,)
    weight: Tensor | None  # (R, H)
    bias: Tensor | None  # (R,)


class BlockProducts(Protocol):
    """The three products behind `block_linear`, for one batch of blocks."""

    def scores(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(N, S)."""

    def grad_h(self, grad: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """(N, H)."""

    def grad_rows(
        self,
        grad: Tensor,
        h: Tensor,
        weight_dtype: torch.dtype | None,
        bias_dtype: torch.dtype | None,
    ) -> RowGradient:
        """The gradients that have a dtype."""


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
    """A gradient for `parameter` that has these rows and is zero elsewhere."""
    if values is None:
        return None
    indices = rows[None]
    if parameter.is_leaf:
        _restore_coalesced(parameter, indices.data_ptr())
    return torch.sparse_coo_tensor(
        indices, values, parameter.shape, is_coalesced=True, check_invariants=False
    )


def _restore_coalesced(parameter: Tensor, address: int) -> None:
    """Once backward is done, mark `parameter.grad` as coalesced if it is the gradient with its indices at `address`.

    Autograd takes over the indices and values of a sparse gradient but not the mark, and without it optimizers sort the
    rows again or add them one number at a time. A gradient that was added to another one has its indices elsewhere.
    """

    def mark() -> None:
        grad = parameter.grad
        if grad is not None and grad.is_sparse and grad._indices().data_ptr() == address:
            grad._coalesced_(True)

    torch.autograd.Variable._execution_engine.queue_callback(mark)


# ---- PyTorch: one dense product per block ----------------------------------------------------------------------------


class _Group(NamedTuple):
    """The examples of one block, and its rows in weight."""

    examples: Tensor
    start: int
    stop: int


class _TorchProducts:
    def __init__(self, block: Tensor, blocks: RowBlocks, exact_rows: bool) -> None:
        # Rows are always exact here: the loop over the blocks knows them anyway.
        self._largest = blocks.largest
        self._groups = _groups(block, blocks)

    def scores(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        dtype = torch.promote_types(h.dtype, weight.dtype)
        scores = h.new_full((len(h), self._largest), -torch.inf, dtype=dtype)
        with torch.autocast(h.device.type, enabled=False):
            for examples, start, stop in self._groups:
                product = h[examples].to(dtype) @ weight[start:stop].to(dtype).T
                scores[examples, : stop - start] = (
                    product if bias is None else product + bias[start:stop].to(dtype)
                )
        return scores

    def grad_h(self, grad: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        grad_h = grad.new_empty(len(grad), weight.shape[1], dtype=dtype)
        with torch.autocast(grad.device.type, enabled=False):
            for examples, start, stop in self._groups:
                product = grad[examples, : stop - start] @ weight[start:stop].to(grad.dtype)
                grad_h[examples] = product.to(dtype)
        return grad_h

    def grad_rows(
        self,
        grad: Tensor,
        h: Tensor,
        weight_dtype: torch.dtype | None,
        bias_dtype: torch.dtype | None,
    ) -> RowGradient:
        rows = [torch.arange(start, stop, device=h.device) for _, start, stop in self._groups]
        row = torch.cat(rows) if rows else grad.new_empty(0, dtype=torch.long)
        weight = (
            None if weight_dtype is None else h.new_empty(len(row), h.shape[1], dtype=weight_dtype)
        )
        bias = None if bias_dtype is None else h.new_empty(len(row), dtype=bias_dtype)
        first = 0
        with torch.autocast(grad.device.type, enabled=False):
            for examples, start, stop in self._groups:
                part, g = slice(first, first + stop - start), grad[examples, : stop - start]
                if weight is not None:
                    weight[part] = g.T @ h[examples].to(grad.dtype)
                if bias is not None:
                    bias[part] = g.sum(0)
                first += stop - start
        return RowGradient(row, weight, bias)


def _groups(block: Tensor, blocks: RowBlocks) -> list[_Group]:
    present, order = block.sort(stable=True)
    present, counts = present.unique_consecutive(return_counts=True)
    starts, stops = blocks.offsets[present].tolist(), blocks.offsets[present + 1].tolist()
    return [
        _Group(*group) for group in zip(order.split(counts.tolist()), starts, stops, strict=True)
    ]


# ---- Triton: all blocks at once, without asking the device which they are --------------------------------------------


class _TritonProducts:
    def __init__(self, block: Tensor, blocks: RowBlocks, exact_rows: bool) -> None:
        self._kernels = kernels.load("block_linear")
        self._largest, self._exact_rows = blocks.largest, exact_rows
        self._num_rows = 0 if exact_rows else blocks.most_rows(len(block))
        self._plan: Tensor = self._kernels.plan(block, blocks.offsets, self._num_rows)

    def scores(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        scores: Tensor = self._kernels.scores(h, weight, bias, self._plan, self._largest)
        return scores

    def grad_h(self, grad: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        grad_h: Tensor = self._kernels.grad_h(grad, weight, self._plan, dtype)
        return grad_h

    def grad_rows(
        self,
        grad: Tensor,
        h: Tensor,
        weight_dtype: torch.dtype | None,
        bias_dtype: torch.dtype | None,
    ) -> RowGradient:
        num_rows = int(self._plan[-1]) if self._exact_rows else self._num_rows
        return RowGradient(
            *self._kernels.grad_rows(grad, h, self._plan, num_rows, weight_dtype, bias_dtype)
        )


_PRODUCTS: dict[str, Callable[[Tensor, RowBlocks, bool], BlockProducts]] = {
    "torch": _TorchProducts,
    "triton": _TritonProducts,
}


# ---- input -----------------------------------------------------------------------------------------------------------


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


def _shortened(sizes: list[int]) -> str:
    return str(sizes) if len(sizes) <= 8 else f"[{', '.join(map(str, sizes[:8]))}, ...]"
