"""The adaptive softmax: frequent classes first, rare ones in clusters that a step seldom touches.

Grave, Joulin, Cissé, Grangier, Jégou, "Efficient softmax approximation for GPUs", 2017, https://arxiv.org/abs/1609.04309.

The classes stand in the order of their frequency and are cut into stretches. The first, the shortlist, and one entry
for each of the others, the clusters, form the head, a softmax over few classes. A cluster is a softmax of its own over
narrower vectors, and a step computes it only for the examples whose target is in it:

    log p(c) = log p_head(c)                                    c in the shortlist
    log p(c) = log p_head(cluster of c) + log p_cluster(c)      else

Shape letters: B examples, H width of the hidden layer, C classes, K targets per example, S classes in the shortlist,
J clusters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from zloss.heads.class_order import ClassOrder, checked_counts
from zloss.heads.cluster_log_prob import Wanting, log_prob_within
from zloss.heads.head import Head
from zloss.heads.softmax import log_softmax
from zloss.layers.ranking import LinearScores, Scores
from zloss.losses.reduction import Reduction, check_reduction, reduce_loss
from zloss.streams import must_not_wait
from zloss.targets import IGNORE_INDEX, Targets

_DIV_VALUE = 4.0
# Default cutoffs: every cluster costs some launches, and vectors of a handful of numbers tell few classes apart.
_MAX_CLUSTERS, _MIN_GROWTH, _MIN_WIDTH = 3, 4, 8


class AdaptiveSoftmax(Head):
    """`nn.AdaptiveLogSoftmaxWithLoss` with what its users miss.

    That is: `ignore_index`, reductions, row weights, K targets per example, autocast, classes in any order, and exact
    ranks, top-k and perplexity in bounded memory. The loss is the negative log-probability of the target under torch's
    module, which is the attribute `softmax`; so `head.softmax.load_state_dict(...)` takes on its weights.

    The classes must be numbered by frequency, the most frequent one 0, unless their `counts` are given.

    Args:
        in_features: H, the width of the hidden layer.
        num_classes: C.
        cutoffs: where the classes, by frequency, are cut: [2000, 10000] makes a shortlist of 2000 classes, a cluster
            of 8000 and one of the rest. By default a shortlist of about 4 sqrt(C) and up to three clusters, each of
            them larger than the last by the same factor. They do not depend on the counts, so that a checkpoint fits
            whatever these have become.
        div_value: cluster i has vectors of width H // div_value^i. By default 4, or less if H is less.
        head_bias: a bias for the shortlist and the clusters.
        counts: (C,) how often each class occurs; only the order matters. It is part of the checkpoint.
        reduction: "mean" over the rows that are not ignored, "sum", or "none" for one value per example.
        ignore_index: the target that counts for nothing.
        device, dtype: of the weights.

    >>> counts = torch.randint(1000, (5000,))                          # from the training set
    >>> head = AdaptiveSoftmax(64, 5000, counts=counts)
    >>> h = torch.randn(4, 64, requires_grad=True)
    >>> target = torch.tensor([7, 0, 4999, -100])                      # the last row is ignored
    >>> head(h, target).backward()
    >>> head.sgd(lr=0.1).step()
    >>> head.rank(h, target).shape, head.topk(h, 10)[1].shape
    (torch.Size([4]), torch.Size([4, 10]))

    On a GPU a step waits for the device once, to learn how many examples each cluster has; torch's module waits twice
    for each of them. As there, the weights of a cluster that no target of the batch is in have no gradient (None).

    A step that is captured as a CUDA graph cannot wait, nor does it have to: with Triton and weights in float32 it goes
    over all clusters, each for the examples that want it. Without, it computes all clusters for all examples, B x C
    scores. Gradients may be zero then, not None.
    """

    has_normalized_scores = True

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        cutoffs: Sequence[int] | None = None,
        div_value: float | None = None,
        head_bias: bool = False,
        counts: Tensor | None = None,
        reduction: Reduction = "mean",
        ignore_index: int = IGNORE_INDEX,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, ignore_index=ignore_index)
        check_reduction(reduction)
        self.reduction: Reduction = reduction
        div_value = (
            min(_DIV_VALUE, in_features) if div_value is None else _checked_div_value(div_value)
        )
        if cutoffs is None:
            cutoffs = default_cutoffs(in_features, num_classes, div_value)
        cutoffs = _checked_cutoffs(cutoffs, num_classes)
        _check_widths(in_features, div_value, len(cutoffs))
        counts = None if counts is None else checked_counts(counts, num_classes)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(
            in_features, num_classes, cutoffs, div_value, head_bias, device=device, dtype=dtype
        )
        if counts is not None:
            self.order = ClassOrder.by_frequency(counts.to(self.reference_weight.device))

    @property
    def cutoffs(self) -> list[int]:
        """Where the classes, by frequency, are cut into the shortlist and the clusters."""
        return self.softmax.cutoffs[:-1]

    def forward(
        self,
        h: Tensor,  # (B, H)
        target: Tensor,  # (B,) or (B, K)
        *,
        weight: Tensor | None = None,  # (B,)
    ) -> Tensor:
        admitted = self._admission.admit(h, target, self.reference_weight)
        targets = admitted.targets.at(self.position_of(admitted.targets.index))
        per_example = targets.mean(-self._log_prob_of(admitted.h, targets))
        return admitted.conclude(reduce_loss(per_example, targets.counted, self.reduction, weight))

    def scores(self, h: Tensor) -> "AdaptiveScores":
        return AdaptiveScores(self.softmax, h)

    def _log_prob_of(self, h: Tensor, targets: Targets) -> Tensor:  # (B, K)
        stretches = Stretches.of(self.softmax)
        log_prob = log_softmax(self.softmax.head(h)).gather(1, stretches.head_column(targets.index))
        if must_not_wait():
            return log_prob + self._log_prob_within_clusters(h, targets)
        for cluster, rows in enumerate(
            stretches.rows_by_cluster(targets.index, targets.valid), start=1
        ):
            if len(rows):
                within_cluster = log_softmax(
                    self.softmax.tail[cluster - 1](h.index_select(0, rows))
                )
                local, inside = stretches.within(cluster, targets.index[rows])
                log_prob = log_prob.index_add(
                    0, rows, torch.where(inside, within_cluster.gather(1, local), 0)
                )
        return log_prob

    def _log_prob_within_clusters(self, h: Tensor, targets: Targets) -> Tensor:  # (B, K)
        """Of each target within its cluster, 0 for those of the shortlist; does not wait."""
        stretches = Stretches.of(self.softmax)
        by_cluster = zip(*stretches.wanting(targets.index, targets.valid), strict=True)
        parts = []
        for cluster, wanting in enumerate(by_cluster, start=1):
            tail: Any = self.softmax.tail[cluster - 1]
            project, classes = tail
            local, inside = stretches.within(cluster, targets.index)
            index = torch.where(inside & targets.valid, local, -1)
            parts.append(log_prob_within(project(h), classes.weight, index, Wanting(*wanting)))
        return torch.stack(parts).sum(0)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.num_classes}, cutoffs={self.cutoffs}, div_value={self.softmax.div_value:g}"


@dataclass(frozen=True)
class Stretches:
    """Positions cut into the shortlist, which is stretch 0, and the clusters 1..J.

    >>> Stretches((0, 2, 5, 9)).cluster_of(torch.tensor([0, 1, 2, 4, 5, 8]))
    tensor([0, 0, 1, 1, 2, 2])
    """

    bounds: tuple[int, ...]  # 0, the cutoffs, C

    @classmethod
    def of(cls, softmax: nn.AdaptiveLogSoftmaxWithLoss) -> "Stretches":
        """Those of torch's module."""
        return cls((0, *softmax.cutoffs))

    @property
    def num_clusters(self) -> int:
        """J."""
        return len(self.bounds) - 2

    def cluster_of(self, positions: Tensor) -> Tensor:
        """The stretch that each position is in."""
        # Few comparisons with numbers of the host: a tensor of bounds would have to follow the head between devices.
        return torch.stack([positions >= cutoff for cutoff in self.bounds[1:-1]]).sum(0)

    def head_column(self, positions: Tensor) -> Tensor:
        """Each position's own column of the head, or that of its cluster."""
        cluster = self.cluster_of(positions)
        return torch.where(cluster == 0, positions, self.bounds[1] - 1 + cluster)

    def within(self, stretch: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Positions counted from the start of a stretch, clamped to it, and which of them really are in it."""
        low, high = self.bounds[stretch : stretch + 2]
        return positions.clamp(low, high - 1) - low, (positions >= low) & (positions < high)

    def wanting(
        self, positions: Tensor, wanted: Tensor
    ) -> tuple[Tensor, Tensor]:  # (B, K), (B, K) -> (J, B), (J,)
        """For each cluster all rows, those first that have a wanted position in it, and how many these are."""
        clusters = torch.arange(1, self.num_clusters + 1, device=positions.device)
        has = ((self.cluster_of(positions) == clusters[:, None, None]) & wanted).any(2)  # (J, B)
        # `nonzero` would wait for the device. A stable sort brings the rows to the front without waiting.
        return has.byte().argsort(dim=1, descending=True, stable=True), has.sum(1)

    def rows_by_cluster(
        self, positions: Tensor, wanted: Tensor
    ) -> list[Tensor]:  # (B, K), (B, K) bool -> J of (n,)
        """For each cluster the rows that have a wanted position in it. Waits for the device, once for all clusters."""
        order, counts = self.wanting(positions, wanted)
        return [rows[:count] for rows, count in zip(order, counts.tolist(), strict=True)]


@dataclass(frozen=True)
class AdaptiveScores(Scores):
    """The log-probabilities of all classes by position: the shortlist and the clusters, side by side.

    The normalisers of the clusters take a pass over all classes, so they are computed when first needed.
    """

    softmax: nn.AdaptiveLogSoftmaxWithLoss
    h: Tensor  # (B, H)
    width: int | None = None  # of blocks

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
        # Of a cluster only the rows that have a target in it: no pass over all classes for the others. Ranks do not
        # come this way: their own scores must agree with a block's to the last bit, the normaliser included.
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
        logits = LinearScores(self.h, head.weight, class_bias=head.bias)
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
        keys, bias = self._head.keys, self._head.class_bias
        size = self.softmax.shortlist_size
        return replace(
            self._head, keys=keys[:size], class_bias=None if bias is None else bias[:size]
        )

    def _cluster(self, cluster: int) -> LinearScores:
        logits = self._cluster_logits(cluster, self.h)
        column = self.softmax.shortlist_size + cluster - 1
        return replace(
            logits, row_shift=self._head.block(column, column + 1)[:, 0] - logits.logsumexp()
        )

    def _cluster_logits(self, cluster: int, h: Tensor) -> LinearScores:
        tail: Any = self.softmax.tail[cluster - 1]
        project, classes = tail
        return LinearScores(project(h), classes.weight)


def default_cutoffs(in_features: int, num_classes: int, div_value: float) -> list[int]:
    """Cutoffs for classes whose frequencies fall like those of words.

    With in_features=512 and Zipf's law a step takes less than 1/15 of the multiplications of a full softmax at 10,000
    classes and less than 1/100 at a million. A shorter shortlist would save more, at the expense of frequent classes.

    >>> default_cutoffs(512, 10_000, 4.0), default_cutoffs(512, 1_000_000, 4.0), default_cutoffs(8, 10, 4.0)
    ([400, 2000], [4000, 25198, 158740], [2])
    """
    shortlist = max(1, min(num_classes // 4, round(4 * math.sqrt(num_classes))))
    growth, clusters = num_classes / shortlist, 1
    while (
        clusters < _MAX_CLUSTERS
        and growth ** (1 / (clusters + 1)) >= _MIN_GROWTH
        and _width(in_features, div_value, clusters + 1) >= _MIN_WIDTH
    ):
        clusters += 1
    return [round(shortlist * growth ** (i / clusters)) for i in range(clusters)]


def _width(in_features: int, div_value: float, cluster: int) -> int:
    return int(in_features // div_value**cluster)


def _checked_div_value(div_value: float) -> float:
    if not (math.isfinite(div_value) and div_value >= 1):
        raise ValueError(f"div_value must be a finite number >= 1, got {div_value}")
    return div_value


def _checked_cutoffs(cutoffs: Sequence[int], num_classes: int) -> list[int]:
    cutoffs = list(cutoffs)
    integers = all(isinstance(cutoff, Integral) for cutoff in cutoffs)  # numpy's too
    if (
        not cutoffs
        or not integers
        or any(low >= high for low, high in pairwise([0, *cutoffs, num_classes]))
    ):
        raise ValueError(
            "cutoffs must be one or more integers in increasing order, each between 1 and num_classes - 1 = "
            f"{num_classes - 1}, got {cutoffs}"
        )
    return [int(cutoff) for cutoff in cutoffs]


def _check_widths(in_features: int, div_value: float, clusters: int) -> None:
    """Refuse clusters whose vectors would have no components: torch would build them and fail obscurely."""
    if _width(in_features, div_value, clusters) < 1:
        largest = math.floor(100 * in_features ** (1 / clusters)) / 100
        raise ValueError(
            f"the last of {clusters} clusters would have vectors of width 0: in_features // div_value**{clusters} with "
            f"in_features={in_features}, div_value={div_value:g}; set div_value to {largest:g} or less"
            + (", or use fewer cutoffs" if clusters > 1 else "")
        )
