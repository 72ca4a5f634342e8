"""Exact scores, top-k and ranks over all classes, in blocks of bounded memory.

The rank of a class is **1 + the number of classes that score strictly higher**, so that equal scores share the better
rank and the best class has rank 1.

`Scores` stands for the B x C matrix of the scores of all classes and is evaluated piecewise. An output layer supplies
`block`, `own` and `rows`; everything else follows.

Shape letters: B rows, C classes, K targets per row, H width of the layer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from zloss.targets import Targets

# Scores held at a time when the caller names no block size: 64 MiB in float32.
_BLOCK_ELEMENTS = 2**24
_QUERY_ROWS = 2048
# Narrow products take other routes through a library, which add up in another order.
_LEAST_COLUMNS = 128


class Scores(ABC):
    """A (B, C) matrix of scores that is never formed as a whole."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """B."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """C."""

    @abstractmethod
    def block(self, start: int, stop: int) -> Tensor:  # (B, stop - start)
        """The columns of classes start..stop-1."""

    @abstractmethod
    def own(self, classes: Tensor) -> Tensor:  # (B,) -> (B,)
        """The score of one class per row, by a matrix product like a block's, so that equal weights score equally."""

    @abstractmethod
    def rows(self, part: slice) -> "Scores":
        """Some of the rows."""

    def all(self) -> Tensor:  # (B, C)
        """The whole matrix."""
        return self.block(0, self.num_classes)

    def topk(self, k: int, block_size: int | None = None) -> tuple[Tensor, Tensor]:  # (B, k), (B, k)
        """Values and classes of the k best scores of each row, best first."""
        if not 1 <= k <= self.num_classes:
            raise ValueError(f"k must be between 1 and the number of classes, {self.num_classes}, got {k}")
        best = [part._topk_of_rows(k, block_size) for part in self._row_parts()]
        return torch.cat([values for values, _ in best]), torch.cat([classes for _, classes in best])

    def rank(self, targets: Targets, block_size: int | None = None) -> Tensor:  # (B, K)
        """Rank of each target among all classes; 0 for an ignored target."""
        parts = zip(self._row_parts(), targets.index.split(_QUERY_ROWS), strict=True)
        ranks = torch.cat([part._rank_of_rows(index, block_size) for part, index in parts])
        return torch.where(targets.valid, ranks, 0)

    def logsumexp(self, block_size: int | None = None) -> Tensor:  # (B,)
        """`log(sum(exp(scores)))` of each row."""
        return torch.cat([part._logsumexp_of_rows(block_size) for part in self._row_parts()])

    def of_targets(self, index: Tensor) -> Tensor:  # (B, K) -> (B, K)
        """The scores of K classes per row."""
        parts = zip(self._row_parts(), index.split(_QUERY_ROWS), strict=True)
        return torch.cat([part._own_of_rows(index) for part, index in parts])

    def _row_parts(self) -> Iterator["Scores"]:
        for start in range(0, max(1, self.num_rows), _QUERY_ROWS):
            yield self.rows(slice(start, start + _QUERY_ROWS))

    def _blocks(self, block_size: int | None) -> Iterator[tuple[int, Tensor]]:
        if block_size is None:
            block_size = max(1024, _BLOCK_ELEMENTS // max(1, self.num_rows))
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1 class, got {block_size}")
        for start in range(0, self.num_classes, block_size):
            yield start, self.block(start, min(start + block_size, self.num_classes))

    def _topk_of_rows(self, k: int, block_size: int | None) -> tuple[Tensor, Tensor]:
        best: tuple[Tensor, Tensor] | None = None
        for start, scores in self._blocks(block_size):
            values, classes = scores.topk(min(k, scores.shape[1]))
            classes = classes + start
            if best is not None:
                values, classes = torch.cat([best[0], values], 1), torch.cat([best[1], classes], 1)
                values, order = values.topk(min(k, values.shape[1]))
                classes = classes.gather(1, order)
            best = values, classes
        assert best is not None, "there is at least one class"
        return best

    def _own_of_rows(self, index: Tensor) -> Tensor:
        return torch.stack([self.own(column) for column in index.T], 1)

    def _rank_of_rows(self, index: Tensor, block_size: int | None) -> Tensor:
        own = self._own_of_rows(index)
        higher = torch.zeros_like(index)
        for start, scores in self._blocks(block_size):
            local = index - start
            inside = (local >= 0) & (local < scores.shape[1])
            # Its score may differ in the last bit between two products: a target must not outrank itself.
            itself = inside & (scores.gather(1, local.clamp(0, scores.shape[1] - 1)) > own)
            for k in range(index.shape[1]):
                higher[:, k] += (scores > own[:, k, None]).sum(1)
            higher -= itself.long()
        return higher + 1

    def _logsumexp_of_rows(self, block_size: int | None) -> Tensor:
        total: Tensor | None = None
        for _, scores in self._blocks(block_size):
            of_block = scores.logsumexp(1)
            total = of_block if total is None else torch.logaddexp(total, of_block)
        assert total is not None, "there is at least one class"
        return total


@dataclass(frozen=True)
class LinearScores(Scores):
    """`transform(queries @ keys^T + row_shift + class_bias)`, with an elementwise transform."""

    queries: Tensor  # (B, H)
    keys: Tensor  # (C, H)
    row_shift: Tensor | None = None  # (B,)
    class_bias: Tensor | None = None  # (C,)
    transform: Callable[[Tensor], Tensor] | None = None

    @property
    def num_rows(self) -> int:
        return self.queries.shape[0]

    @property
    def num_classes(self) -> int:
        return self.keys.shape[0]

    def block(self, start: int, stop: int) -> Tensor:
        scores = _product(self.queries, self.keys[start:stop])
        if self.row_shift is not None:
            scores += self.row_shift[:, None]
        if self.class_bias is not None:
            scores += self.class_bias[start:stop]
        return scores if self.transform is None else self.transform(scores)

    def own(self, classes: Tensor) -> Tensor:
        bias = None if self.class_bias is None else self.class_bias[classes]
        return replace(self, keys=self.keys[classes], class_bias=bias).all().diagonal()

    def rows(self, part: slice) -> "LinearScores":
        shift = None if self.row_shift is None else self.row_shift[part]
        return replace(self, queries=self.queries[part], row_shift=shift)

    def transformed(self, transform: Callable[[Tensor], Tensor]) -> "LinearScores":
        """The same scores seen through an elementwise function."""
        return replace(self, transform=transform)


def _product(queries: Tensor, keys: Tensor) -> Tensor:  # (B, H), (n, H) -> (B, n)
    """`queries @ keys^T`, in which equal keys score equally however many others are with them."""
    missing = _LEAST_COLUMNS - len(keys)
    if missing <= 0:
        return queries @ keys.T
    return (queries @ F.pad(keys, (0, 0, 0, missing)).T)[:, : len(keys)].contiguous()
