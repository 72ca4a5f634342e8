"""Problems for `block_linear`, and the slow code that defines it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zloss.heads.block_linear import block_linear
from zloss.heads.blocks import RowBlocks


@dataclass(frozen=True)
class Problem:
    h: Tensor  # (N, H)
    weight: Tensor  # (C, H)
    bias: Tensor | None  # (C,)
    block: Tensor  # (N,)
    blocks: RowBlocks

    @property
    def inputs(self) -> list[Tensor]:
        return [self.h, self.weight] if self.bias is None else [self.h, self.weight, self.bias]

    def to(self, dtype: torch.dtype) -> "Problem":
        h, weight, bias = (
            None if x is None else leaf(x.to(dtype)) for x in (self.h, self.weight, self.bias)
        )
        assert h is not None
        assert weight is not None
        return replace(self, h=h, weight=weight, bias=bias)

    def scores(self, implementation: str, *, exact_rows: bool = False) -> Tensor:
        return block_linear(
            self.h,
            self.weight,
            self.bias,
            self.block,
            self.blocks,
            implementation=implementation,
            exact_rows=exact_rows,
        )

    def definition(self) -> Tensor:  # (N, S)
        s = torch.arange(self.blocks.largest, device=self.block.device)
        inside = s < self.blocks.sizes[self.block][:, None]
        rows = torch.where(inside, self.blocks.offsets[self.block][:, None] + s, 0)
        scores = torch.einsum("nsh,nh->ns", self.weight[rows], self.h)
        if self.bias is not None:
            scores = scores + self.bias[rows]
        return torch.where(inside, scores, -torch.inf)

    def gradients(self, scores: Tensor, upstream: Tensor) -> list[Tensor]:
        """Return dense gradients of all inputs."""
        grads = torch.autograd.grad(scores, self.inputs, upstream)
        return [grad.to_dense() if grad.is_sparse else grad for grad in grads]


def problem(
    sizes: Sequence[int],
    block: Sequence[int],
    width: int,
    *,
    bias: bool = True,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Problem:
    def random(*shape: int) -> Tensor:
        return leaf(torch.randn(shape, dtype=dtype).to(device))

    rows = sum(sizes)
    h, weight = random(len(block), width), random(rows, width)
    index = torch.tensor(block, dtype=torch.long, device=device)
    return Problem(
        h, weight, random(rows) if bias else None, index, RowBlocks(sizes, device=device)
    )


def leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


# (sizes, block of each example, H)
SHAPES = {
    "aligned": ([16] * 4, [0, 3, 1, 2, 0, 3, 1, 2], 32),
    "ragged": ([5, 17, 1, 30, 3], [3, 0, 3, 4, 1, 3, 1], 13),
    "blocks of one row": ([1] * 6, [5, 0, 5, 2], 4),
    "one block": ([7], [0, 0, 0], 5),
    "all in one block of many": ([4, 37, 4], [1] * 19, 9),
    "one big, many small": ([3, 3, 200, 3, 3, 3], [5, 0, 4], 6),
    "the big one wanted": ([3, 3, 200, 3, 3, 3], [2, 0, 2, 4], 6),
    "more examples than blocks": (
        [6, 2, 5],
        [0, 1, 2, 2, 1, 0, 1, 1, 2, 0, 0, 1, 2, 1, 1, 1, 1],
        8,
    ),
    "one example": ([4, 9], [1], 3),
    "no example": ([4, 9], [], 3),
    "wide": ([3, 6], [1, 1, 0], 530),
}
