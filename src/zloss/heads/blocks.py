"""The blocks of rows that the members of each cluster have in one weight matrix.

Block b are the rows `offsets[b] : offsets[b + 1]` of the matrix.

Shape letters: M blocks.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn


class RowBlocks(nn.Module):
    """A division of the rows of a weight matrix into consecutive blocks of the given sizes.

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
        # Entry n is the number of rows of the n largest blocks.
        self._most_rows = [0, *accumulate(sorted(sizes, reverse=True))]
        # A copy on the host, which has values even while the tensors are on the "meta" device.
        self._host_offsets = [0, *accumulate(sizes)]
        offsets = torch.tensor(self._host_offsets, device=device)
        self.register_buffer("offsets", offsets)
        self.register_buffer("sizes", offsets.diff(), persistent=False)

    def most_rows(self, num_examples: int) -> int:
        """Return the largest number of rows that the blocks of this number of examples can have together."""
        return self._most_rows[min(num_examples, self.num_blocks)]

    def check_same(self, offsets: Tensor | None) -> None:
        """Refuse the offsets of a checkpoint if its blocks have other sizes."""
        if offsets is not None and offsets.tolist() != self._host_offsets:
            raise ValueError(
                f"the clusters of the checkpoint ({len(offsets) - 1} of them) have other sizes than those here "
                f"({self.num_blocks}): build with the same clusters"
            )

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        if not self.offsets.is_meta:  # loading may have moved them from the "meta" device
            sizes = self.offsets.diff()
            self.sizes = sizes if self.sizes.is_meta else self.sizes.copy_(sizes)

    def extra_repr(self) -> str:
        return f"{self.num_rows} rows in {self.num_blocks} blocks of at most {self.largest}"


def _shortened(sizes: list[int]) -> str:
    return str(sizes) if len(sizes) <= 8 else f"[{', '.join(map(str, sizes[:8]))}, ...]"
