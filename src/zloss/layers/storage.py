"""The home of the C x H rows of V.

The rows are the only part of a factored layer that grows with the number of classes. A step reads and changes the rows
of its targets; a refactor passes over all of them in blocks. `Storage` is what such work needs of the rows, and nothing
else in a layer knows where they are. `InMemory` keeps them as one tensor on the device of the layer.

Shape letters: C classes, H width of the layer, N rows at a time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zloss.precision import finest_dtype

# Size of the blocks of a pass over all rows; a pass holds two or three. Larger ones are faster on a GPU, but memory is
# promised to stay near that of the rows. So a block may grow to a part of them only.
_BLOCK_BYTES = 2**24
_GPU_BLOCK_BYTES, _GPU_PART = 2**27, 32

Stamp = tuple[int, int]


class Scratch:
    """Memory for one block at a time, used again for each block of a pass.

    An allocator that gives new memory to every block can leave gaps that no later block fits into.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def like(self, block: Tensor, dtype: torch.dtype) -> Tensor:
        """Return memory of the shape of a block, which is overwritten for the next block."""
        if self._memory is None or len(self._memory) < len(block):
            self._memory = torch.empty_like(block, dtype=dtype)
        return self._memory[: len(block)]

    def copy_of(self, block: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a copy of a block in such memory. Arithmetic with two dtypes would make one in new memory."""
        return self.like(block, dtype).copy_(block)


def stamp_of(tensor: Tensor) -> Stamp:
    """Return where a tensor is, and how often torch has seen it written to.

    Kernels and replays of graphs are not counted. Neither is a write through `.data`.
    """
    return tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version


class Storage(ABC):
    """The C rows of H weights that a factored layer gathers, changes and passes over."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """The number of rows, C."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of weights in a row, H."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of the numbers in the rows."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of gathered rows and of blocks, which is that of the small state."""

    @property
    @abstractmethod
    def tensor(self) -> Tensor:  # (C, H)
        """The rows as one tensor on `device`, without gradient, for kernels that gather and change rows themselves."""

    @property
    @abstractmethod
    def has_memory(self) -> bool:
        """True unless there is only a shape without rows ("meta")."""

    @abstractmethod
    def stamp(self) -> Stamp:
        """Return a value that changes when the rows are written to."""

    @abstractmethod
    def block(self, start: int, stop: int) -> Tensor:  # (stop - start, H)
        """Return the rows from `start` to `stop - 1`, to be read only."""

    @abstractmethod
    def gather(self, classes: Tensor) -> Tensor:  # (N,) -> (N, H)
        """Return a copy of the rows of some classes."""

    @abstractmethod
    def add_(self, classes: Tensor, changes: Tensor) -> None:  # (N,), (N, H)
        """Add to the rows of some classes; where a class is repeated, the changes add up."""

    @abstractmethod
    def replace_(self, function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
        """Replace every block of rows by a function of it. The function computes in `dtype`."""

    @abstractmethod
    def add_up_(
        self,
        totals: Sequence[Tensor],
        function: Callable[[Tensor], Sequence[Tensor]],
        dtype: torch.dtype,
    ) -> None:
        """Add what a function yields for every block of rows to the totals. The function computes in `dtype`."""

    @abstractmethod
    def copied(self) -> "InMemory":
        """Return a copy of all rows in the memory of the device."""


@dataclass(frozen=True)
class InMemory(Storage):
    """Rows that are one tensor on the device of the layer."""

    rows: Tensor  # (C, H)
    least_block_bytes: int = _BLOCK_BYTES

    @property
    def num_rows(self) -> int:
        return self.rows.shape[0]

    @property
    def width(self) -> int:
        return self.rows.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def tensor(self) -> Tensor:
        return self.rows.detach()

    @property
    def has_memory(self) -> bool:
        return not self.rows.is_meta

    def stamp(self) -> Stamp:
        return stamp_of(self.rows)

    def block(self, start: int, stop: int) -> Tensor:
        return self.rows.detach()[start:stop]

    def gather(self, classes: Tensor) -> Tensor:
        return self.rows.detach()[classes]

    def add_(self, classes: Tensor, changes: Tensor) -> None:
        if len(classes) <= self.num_rows:
            self.rows.index_add_(0, classes, changes.to(self.dtype))
            return
        # Many changes of each row: their sum is rounded once, not after every change.
        total = torch.zeros_like(self.rows, dtype=finest_dtype(self.device))
        self.rows.add_(total.index_add_(0, classes, changes.to(total.dtype)))

    def replace_(self, function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
        for block in self._blocks(dtype):
            block.copy_(function(block))

    def add_up_(
        self,
        totals: Sequence[Tensor],
        function: Callable[[Tensor], Sequence[Tensor]],
        dtype: torch.dtype,
    ) -> None:
        for block in self._blocks(dtype):
            for total, part in zip(totals, function(block), strict=True):
                total += part

    def copied(self) -> "InMemory":
        return InMemory(self.rows.detach().clone(), self.least_block_bytes)

    def _blocks(self, dtype: torch.dtype) -> Iterator[Tensor]:
        size = self.least_block_bytes
        if self.rows.is_cuda:
            size = max(size, min(self.rows.nbytes // _GPU_PART, _GPU_BLOCK_BYTES))
        return iter(self.rows.split(max(1, size // (self.width * dtype.itemsize))))
