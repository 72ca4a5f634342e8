"""The scores of an adaptive softmax for evaluation: log-probabilities of all classes, computed piece by piece.

Shape letters: B examples, H width of the hidden layer, C classes, S classes in the shortlist, J clusters.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from zloss.heads.stretches import Stretches
from zloss.layers.ranking import LinearScores, Scores
from zloss.layers.storage import InMemory


@dataclass(frozen=True)
class AdaptiveScores(Scores):
    """The log-probabilities of all classes, in the order of their positions.

    The normalisers of the clusters need a pass over all classes, so they are computed on first use.
    """

    softmax: nn.AdaptiveLogSoftmaxWithLoss
    h: Tensor  # (B, H)
    width: int | None = None  # of blocks, see `Scores.in_blocks_of`

    @property
    def num_rows(self) -> int:
        return self.h.shape[0]

    @property
    def num_classes(self) -> int:
        return self.softmax.n_classes

    def block(self, start: int, stop: int) -> Tensor:
        return torch.cat(
            [
                segment.block(max(start, low) - low, min(stop, high) - low)
                for segment, (low, high) in zip(
                    self._segments, pairwise(self._stretches.bounds), strict=True
                )
                if start < high and low < stop
            ],
            dim=1,
        )

    def own(self, classes: Tensor) -> Tensor:
        own = self.h.new_zeros(classes.shape)
        for stretch, segment in enumerate(self._segments):
            local, inside = self._stretches.within(stretch, classes)
            if inside.any():
                own = torch.where(inside, segment.own(local), own)
        return own

    def rows(self, part: slice) -> "AdaptiveScores":
        return replace(self, h=self.h[part])

    def in_blocks_of(self, width: int) -> "AdaptiveScores":
        return replace(self, width=width)

    def of_targets(self, index: Tensor) -> Tensor:
        # A cluster is computed only for the rows with a target in it, which saves the others a pass over all classes.
        # Ranks use `own` instead: their scores must agree with a block to the last bit, including the normaliser.
        log_prob = self._head.of_targets(self._stretches.head_column(index))
        rows_by_cluster = self._stretches.rows_by_cluster(
            index, torch.ones_like(index, dtype=torch.bool)
        )
        for cluster, rows in enumerate(rows_by_cluster, start=1):
            if len(rows):
                logits = self._cluster_logits(cluster, self.h[rows])
                local, inside = self._stretches.within(cluster, index[rows])
                log_prob[rows] += torch.where(
                    inside, logits.of_targets(local) - logits.logsumexp()[:, None], 0
                )
        return log_prob

    @cached_property
    def _stretches(self) -> Stretches:
        return Stretches.of(self.softmax)

    @cached_property
    def _head(self) -> LinearScores:  # (B, S + J)
        head = self.softmax.head
        logits = LinearScores(self.h, InMemory(head.weight), class_bias=head.bias)
        return replace(logits, row_shift=-logits.logsumexp())

    @cached_property
    def _segments(self) -> list[LinearScores]:
        clusters = range(1, self._stretches.num_clusters + 1)
        segments = [self._shortlist(), *(self._cluster(cluster) for cluster in clusters)]
        return (
            segments
            if self.width is None
            else [segment.in_blocks_of(self.width) for segment in segments]
        )

    def _shortlist(self) -> LinearScores:  # (B, S)
        head, size = self.softmax.head, self.softmax.shortlist_size
        bias = None if head.bias is None else head.bias[:size]
        return replace(self._head, keys=InMemory(head.weight[:size]), class_bias=bias)

    def _cluster(self, cluster: int) -> LinearScores:
        logits = self._cluster_logits(cluster, self.h)
        column = self.softmax.shortlist_size + cluster - 1
        return replace(
            logits, row_shift=self._head.block(column, column + 1)[:, 0] - logits.logsumexp()
        )

    def _cluster_logits(self, cluster: int, h: Tensor) -> LinearScores:
        tail: Any = self.softmax.tail[cluster - 1]
        project, classes = tail
        return LinearScores(project(h), InMemory(classes.weight))
