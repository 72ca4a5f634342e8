"""The products of `block_linear` for one batch, by PyTorch and by Triton.

Shape letters: N examples, H width, C rows of weight, S rows of the largest block, R rows of the gradient.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from zloss import kernels
from zloss.heads.blocks import RowBlocks


class RowGradient(NamedTuple):
    """The rows of a row-sparse gradient, in ascending order, and their values."""

    rows: Tensor  # (R,) int64
    weight: Tensor | None  # (R, H)
    bias: Tensor | None  # (R,)


class BlockProducts(Protocol):
    """The three products of `block_linear`, for the blocks of one batch."""

    def scores(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the scores (N, S), which are -inf beyond the end of a block."""

    def grad_h(self, grad: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the gradient of h, (N, H). The gradient `grad` of the scores is (N, S)."""

    def grad_rows(
        self,
        grad: Tensor,
        h: Tensor,
        weight_dtype: torch.dtype | None,
        bias_dtype: torch.dtype | None,
    ) -> RowGradient:
        """Return the gradients of the weights and of the bias, or None for one without a dtype."""


class _Group(NamedTuple):
    """The examples of one block, and its rows in weight."""

    examples: Tensor
    start: int
    stop: int


class TorchProducts:
    """Products by PyTorch, one for each block. This is the definition of the kernels."""

    def __init__(self, block: Tensor, blocks: RowBlocks, exact_rows: bool) -> None:
        # The rows are exact with and without `exact_rows`: the loop over the blocks knows them.
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


class TritonProducts:
    """Products by Triton kernels, of all blocks at once, which do not wait for the device."""

    def __init__(self, block: Tensor, blocks: RowBlocks, exact_rows: bool) -> None:
        self._largest, self._exact_rows = blocks.largest, exact_rows
        self._num_rows = 0 if exact_rows else blocks.most_rows(len(block))
        plan = kernels.load("block_plan").plan
        self._plan: Tensor = plan(block, blocks.offsets, self._num_rows)

    def scores(self, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        scores = kernels.load("block_linear").scores
        result: Tensor = scores(h, weight, bias, self._plan, self._largest)
        return result

    def grad_h(self, grad: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
        grad_h = kernels.load("block_linear").grad_h
        result: Tensor = grad_h(grad, weight, self._plan, dtype)
        return result

    def grad_rows(
        self,
        grad: Tensor,
        h: Tensor,
        weight_dtype: torch.dtype | None,
        bias_dtype: torch.dtype | None,
    ) -> RowGradient:
        num_rows = int(self._plan[-1]) if self._exact_rows else self._num_rows
        grad_rows = kernels.load("block_row_gradient").grad_rows
        return RowGradient(*grad_rows(grad, h, self._plan, num_rows, weight_dtype, bias_dtype))


PRODUCTS: dict[str, Callable[[Tensor, RowBlocks, bool], BlockProducts]] = {
    "torch": TorchProducts,
    "triton": TritonProducts,
}
