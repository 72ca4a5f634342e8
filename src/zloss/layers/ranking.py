"""Exact scores, top-k and ranks over all classes, in blocks of bounded memory.

The rank of a class is **1 + the number of classes that score strictly higher**. So equal scores share the better rank,
and the best class has rank 1.

`Scores` stands for the B x C matrix of the scores of all classes and is evaluated piecewise. An output layer supplies
`block`, `own`, `rows` and `in_blocks_of`; everything else follows. Making one should cost nothing: what is expensive
is computed when first needed.

Shape letters: B rows, C classes, K targets per row, H width of the layer.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from zloss import kernels
from zloss.inputs import NotFiniteError, is_whole, shown
from zloss.layers.storage import Storage
from zloss.precision import splits_pay, tf32_parts, tf32_products
from zloss.targets import Targets

# Classes at a time when the caller names no block size, and rows: their scores take 32 MiB in float32. A GPU that is
# done with those before the next launches come gets more rows, and 128 MiB.
_BLOCK_CLASSES = 4096
_QUERY_ROWS = 2048
_FAST_QUERY_ROWS = 8192
_VECTOR = 64
# Narrow products are slow, and take routes of their own through a library.
_LEAST_COLUMNS = 128
# Targets of a row, ignored ones among them, from which on it is faster to search than to compare with each.
_MANY_TARGETS = 16


class Scores(ABC):
    """A (B, C) matrix of scores that is never formed as a whole."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """The number of rows, B."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """The number of classes, C."""

    @abstractmethod
    def block(self, start: int, stop: int) -> Tensor:  # (B, stop - start)
        """The columns of classes start..stop-1."""

    @abstractmethod
    def own(self, classes: Tensor) -> Tensor:  # (B, K) -> (B, K)
        """The scores of K classes per row, equal to the last bit to those in a block (see `in_blocks_of`)."""

    @abstractmethod
    def rows(self, part: slice) -> "Scores":
        """Some of the rows."""

    @abstractmethod
    def in_blocks_of(self, width: int) -> "Scores":
        """The same scores, for blocks of at most `width` classes.

        Libraries add up products of different shapes in different orders. Equal weights should score equally in every
        place. So all products are then taken with the same number of columns.
        """

    def all(self) -> Tensor:  # (B, C)
        """The whole matrix."""
        return self.block(0, self.num_classes)

    def topk(
        self, k: int, block_size: int | None = None
    ) -> tuple[Tensor, Tensor]:  # (B, k), (B, k)
        """Values and classes of the k best scores of each row, best first."""
        if not is_whole(k) or not 1 <= k <= self.num_classes:
            raise ValueError(
                f"k must be between 1 and the number of classes, {self.num_classes}, got {shown(k)}"
            )
        width, k = self._checked_width(block_size), int(k)
        best = [part._topk_of_rows(k, width) for part in self._row_parts(width)]
        return torch.cat([values for values, _ in best]), torch.cat(
            [classes for _, classes in best]
        )

    def rank(self, targets: Targets, block_size: int | None = None) -> Tensor:  # (B, K)
        """Rank of each target among all classes; 0 for an ignored target."""
        width = self._checked_width(block_size)
        parts = zip(self._row_parts(width), targets.index.split(self._rows_at_once), strict=True)
        ranks = torch.cat([part._rank_of_rows(index, width) for part, index in parts])
        return torch.where(targets.valid, ranks, 0)

    def logsumexp(self) -> Tensor:  # (B,)
        """`log(sum(exp(scores)))` of each row."""
        width = self._checked_width(None)
        return torch.cat([part._logsumexp_of_rows(width) for part in self._row_parts(width)])

    def of_targets(self, index: Tensor) -> Tensor:  # (B, K) -> (B, K)
        """The scores of K classes per row."""
        parts = zip(
            self._row_parts(self._checked_width(None)), index.split(self._rows_at_once), strict=True
        )
        return torch.cat([part.own(index) for part, index in parts])

    def _checked_width(self, block_size: int | None) -> int:
        if block_size is not None and (not is_whole(block_size) or block_size < 1):
            raise ValueError(f"block_size must be at least 1 class, got {shown(block_size)}")
        if block_size is None:
            # Blocks of equal size, so that the last one has little to fill up; of whole vectors, or products are slow.
            even = math.ceil(self.num_classes / math.ceil(self.num_classes / _BLOCK_CLASSES))
            block_size = _VECTOR * math.ceil(even / _VECTOR)
        return min(int(block_size), self.num_classes)

    def _row_parts(self, width: int) -> Iterator["Scores"]:
        for start in range(0, max(1, self.num_rows), self._rows_at_once):
            yield self.rows(slice(start, start + self._rows_at_once)).in_blocks_of(width)

    @property
    def _rows_at_once(self) -> int:
        return _QUERY_ROWS

    def _blocks(self, width: int) -> Iterator[tuple[int, Tensor]]:
        for start in range(0, self.num_classes, width):
            yield start, self.block(start, min(start + width, self.num_classes))

    def _topk_of_rows(self, k: int, width: int) -> tuple[Tensor, Tensor]:
        best: tuple[Tensor, Tensor] | None = None
        for start, scores in self._blocks(width):
            values, classes = scores.topk(min(k, scores.shape[1]))
            classes = classes + start
            if best is not None:
                values, classes = torch.cat([best[0], values], 1), torch.cat([best[1], classes], 1)
                values, order = values.topk(min(k, values.shape[1]))
                classes = classes.gather(1, order)
            best = values, classes
        assert best is not None, "there is at least one class"
        return best

    def _rank_of_rows(self, index: Tensor, width: int) -> Tensor:
        own = self.own(index)
        if own.isnan().any():  # no score is higher than NaN: every target would rank first
            raise NotFiniteError(
                "the score of a target is NaN, which has no rank: have the weights diverged?"
            )
        higher = torch.zeros_like(index)
        for start, scores in self._blocks(width):
            _count_higher_(higher, scores, own, index, start)
        return higher + 1

    def _logsumexp_of_rows(self, width: int) -> Tensor:
        total: Tensor | None = None
        for _, scores in self._blocks(width):
            of_block = scores.logsumexp(1)
            total = of_block if total is None else torch.logaddexp(total, of_block)
        assert total is not None, "there is at least one class"
        return total


@dataclass(frozen=True)
class LinearScores(Scores):
    """`transform(queries @ keys^T + row_shift + class_bias)`, with an elementwise transform."""

    queries: Tensor  # (B, H)
    keys: Storage  # of C rows
    row_shift: Tensor | None = None  # (B,)
    class_bias: Tensor | None = None  # (C,)
    transform: Callable[[Tensor], Tensor] | None = None
    width: int | None = None  # of all products; as wide as what is asked for where None
    split_queries: Tensor | None = None  # (B, 3 H), where products of such parts are faster

    @property
    def num_rows(self) -> int:
        return self.queries.shape[0]

    @property
    def num_classes(self) -> int:
        return self.keys.num_rows

    def block(self, start: int, stop: int) -> Tensor:
        bias = None if self.class_bias is None else self.class_bias[start:stop]
        return self._scores_of(self.keys.block(start, stop), bias)

    def own(self, classes: Tensor) -> Tensor:
        # The fewest products at this width. Each has all rows, and one score of every column is used.
        width, columns = self.width or max(1, self.num_rows), classes.shape[1]
        row_of = torch.arange(self.num_rows, device=classes.device).repeat_interleave(columns)
        own = []
        for part, rows in zip(classes.flatten().split(width), row_of.split(width), strict=True):
            bias = None if self.class_bias is None else self.class_bias[part]
            own.append(self._scores_of(self.keys.gather(part), bias).gather(0, rows[None])[0])
        return torch.cat(own).view_as(classes)

    def rows(self, part: slice) -> "LinearScores":
        shift = None if self.row_shift is None else self.row_shift[part]
        return replace(self, queries=self.queries[part], row_shift=shift, split_queries=None)

    def in_blocks_of(self, width: int) -> "LinearScores":
        split = _repeated_high(self.queries) if splits_pay(self.queries) else None
        return replace(
            self, width=max(_LEAST_COLUMNS, min(width, self.num_classes)), split_queries=split
        )

    @property
    def _rows_at_once(self) -> int:
        return _FAST_QUERY_ROWS if splits_pay(self.queries) else _QUERY_ROWS

    def _rank_of_rows(self, index: Tensor, width: int) -> Tensor:
        # What is added to all scores of a row does not change their order.
        plain = replace(self, row_shift=None) if self.transform is None else self
        return super(LinearScores, plain)._rank_of_rows(index, width)

    def _scores_of(self, keys: Tensor, bias: Tensor | None) -> Tensor:  # (n, H), (n,) -> (B, n)
        scores = self._product(keys)
        if self.row_shift is not None:
            scores += self.row_shift[:, None]
        if bias is not None:
            scores += bias
        return scores if self.transform is None else self.transform(scores)

    def _product(self, keys: Tensor) -> Tensor:  # (n, H) -> (B, n)
        missing = 0 if self.width is None else self.width - len(keys)
        if missing > 0:
            return (
                replace(self, width=None)
                ._product(F.pad(keys, (0, 0, 0, missing)))[:, : len(keys)]
                .contiguous()
            )
        if self.split_queries is None:
            return self.queries @ keys.T
        high, low = tf32_parts(keys)
        with tf32_products():
            return self.split_queries @ torch.cat([high, low, high], 1).T

    def transformed(self, transform: Callable[[Tensor], Tensor]) -> "LinearScores":
        """The same scores seen through an elementwise function."""
        return replace(self, transform=transform)


def _count_higher_(
    higher: Tensor,  # (B, K), added to
    scores: Tensor,  # (B, N) of the classes from `start` on
    own: Tensor,  # (B, K)
    index: Tensor,  # (B, K) the targets
    start: int,
) -> None:
    """Add up, for every target, how many classes of the block score higher; NaN does, as `topk` has it."""
    if own.is_cuda and own.dtype == torch.float32 and kernels.available():
        kernels.load("rank_count").count_higher_(higher, scores, own, index, start)
        return
    local = index - start
    inside = (local >= 0) & (local < scores.shape[1])
    # Its score may differ in the last bit between two products: a target must not outrank itself.
    itself = inside & (scores.gather(1, local.clamp(0, scores.shape[1] - 1)) <= own).logical_not()
    if index.shape[1] > _MANY_TARGETS:
        higher += _higher_by_search(scores, own)
    else:
        for k in range(index.shape[1]):
            higher[:, k] += scores.shape[1] - (scores <= own[:, k, None]).sum(1)
    higher -= itself.long()


def _higher_by_search(scores: Tensor, own: Tensor) -> Tensor:  # (B, N), (B, K) -> (B, K)
    """Return how many scores are higher. Each finds its place among the targets by log K comparisons."""
    ordered, order = own.sort(1)
    places = torch.searchsorted(
        ordered, scores.contiguous()
    )  # how many targets are lower than a score: K for NaN
    rows, size = len(own), own.shape[1] + 1
    places += size * torch.arange(rows, device=own.device)[:, None]
    counts = places.flatten().bincount(minlength=rows * size).view(rows, size)
    beaten = (
        counts.flip(1).cumsum(1).flip(1)[:, 1:]
    )  # the i-th lowest target is, by all scores with a place from i on
    return torch.empty_like(beaten).scatter_(1, order, beaten)


def _repeated_high(queries: Tensor) -> Tensor:  # (B, H) -> (B, 3 H)
    """High, high and low parts, to be multiplied by high, low and high ones."""
    high, low = tf32_parts(queries.contiguous())
    return torch.cat([high, high, low], 1)
