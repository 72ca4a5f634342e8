"""Exact scores, top-k and ranks over all classes, in blocks of bounded memory.

The rank of a class is **1 + the number of classes that score strictly higher**, so that equal scores share the better
rank and the best class has rank 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from zloss.targets import Targets

# Scores held at a time when the caller names no block size: 64 MiB in float32.
_BLOCK_ELEMENTS = 2**24
_QUERY_ROWS = 2048


@dataclass(frozen=True)
class Scores:
    """The score matrix `queries @ keys^T + row_shift + class_bias`, evaluated piecewise."""

    queries: Tensor  # (B, H)
    keys: Tensor  # (C, H)
    row_shift: Tensor | None = None  # (B,)
    class_bias: Tensor | None = None  # (C,)

    def block(self, start: int, stop: int) -> Tensor:  # (B, stop - start)
        scores = self.queries @ self.keys[start:stop].T
        if self.row_shift is not None:
            scores += self.row_shift[:, None]
        if self.class_bias is not None:
            scores += self.class_bias[start:stop]
        return scores

    def all(self) -> Tensor:  # (B, C)
        return self.block(0, self.num_classes)

    def topk(self, k: int, block_size: int | None = None) -> tuple[Tensor, Tensor]:  # (B, k), (B, k)
        """Values and classes of the k best scores of each row, best first."""
        if not 1 <= k <= self.num_classes:
            raise ValueError(f"k must be between 1 and the number of classes, {self.num_classes}, got {k}")
        best = [part._topk_of_rows(k, block_size) for part in self._row_parts()]
        return torch.cat([values for values, _ in best]), torch.cat([classes for _, classes in best])

    def rank(self, targets: Targets, block_size: int | None = None) -> Tensor:  # (B, K)
        """Rank of each target among all classes; 0 for an ignored target."""
        index = targets.index.split(_QUERY_ROWS)
        parts = zip(self._row_parts(), index, strict=True)
        ranks = torch.cat([part._rank_of_rows(index, block_size) for part, index in parts])
        return torch.where(targets.valid, ranks, 0)

    @property
    def num_classes(self) -> int:
        return self.keys.shape[0]

    def _row_parts(self) -> Iterator["Scores"]:
        for start in range(0, max(1, self.queries.shape[0]), _QUERY_ROWS):
            rows = slice(start, start + _QUERY_ROWS)
            shift = None if self.row_shift is None else self.row_shift[rows]
            yield Scores(self.queries[rows], self.keys, shift, self.class_bias)

    def _blocks(self, block_size: int | None) -> Iterator[tuple[int, Tensor]]:
        if block_size is None:
            block_size = max(1024, _BLOCK_ELEMENTS // max(1, self.queries.shape[0]))
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1 class, got {block_size}")
        for start in range(0, self.num_classes, block_size):
            yield start, self.block(start, min(start + block_size, self.num_classes))

    def _topk_of_rows(self, k: int, block_size: int | None) -> tuple[Tensor, Tensor]:
        values = self.queries.new_empty(self.queries.shape[0], 0)
        classes = torch.empty_like(values, dtype=torch.long)
        for start, scores in self._blocks(block_size):
            block_values, block_classes = scores.topk(min(k, scores.shape[1]))
            values = torch.cat([values, block_values], 1)
            classes = torch.cat([classes, block_classes + start], 1)
            values, order = values.topk(min(k, values.shape[1]))
            classes = classes.gather(1, order)
        return values, classes

    def _own(self, classes: Tensor) -> Tensor:  # (B,) -> (B,)
        """The score of one class per row, by a matrix product like a block's, so that equal weights score equally."""
        bias = None if self.class_bias is None else self.class_bias[classes]
        return Scores(self.queries, self.keys[classes], self.row_shift, bias).all().diagonal()

    def _rank_of_rows(self, index: Tensor, block_size: int | None) -> Tensor:
        own = torch.stack([self._own(column) for column in index.T], 1)
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
