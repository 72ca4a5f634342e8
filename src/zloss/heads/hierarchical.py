"""The two-level hierarchical softmax: first the cluster, then the class in the cluster, at O(sqrt(C)) per example."""

import math
from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zloss.heads.block_linear import block_linear, check_implementation, never_waits_on_a_gpu
from zloss.heads.blocks import RowBlocks
from zloss.heads.class_order import ClassOrder, checked_counts
from zloss.heads.clustering import Clustering
from zloss.heads.defaults import HIERARCHICAL, HeadDefaults
from zloss.heads.head import Head
from zloss.heads.softmax import log_softmax
from zloss.inputs import FLOATS, check_flag, check_hidden, check_place, checked_classes
from zloss.layers.ranking import LinearScores, Scores
from zloss.layers.storage import InMemory
from zloss.losses.class_weight import register_class_weight, weigh
from zloss.losses.reduction import Reduction, check_reduction, reduce_loss
from zloss.targets import IGNORE_INDEX

# The largest number of scores of members in memory during evaluation: 256 MiB in float32.
_MEMBER_ELEMENTS = 2**26


class HierarchicalSoftmax(Head):
    """The model `p(class | h) = p(cluster | h) p(class | cluster, h)`: two softmaxes over about sqrt(C) entries each.

    This is an exact probability model: the probabilities of all classes sum to one. A training step computes the scores
    of the clusters, and the scores of the classes in the clusters of the targets. These classes are the *members* of
    the cluster. Examples with the same cluster share one product. The gradients of the members' weights are row-sparse
    tensors for `torch.optim.SGD`, `Adagrad` and `SparseAdam`.

    Args:
        in_features: H, the width of the hidden layer.
        num_classes: C.
        clusters: a `Clustering`, or the number of clusters of equal size, by default about sqrt(C). Without a
            `Clustering` or `counts`, neighbouring class numbers form a cluster: number the classes by frequency then.
        counts: the number of occurrences of each class, for clusters by frequency.
        bias: adds a bias to the clusters and to the classes.
        implementation: the implementation of the second level, see `block_linear`. "triton" runs on GPUs and "torch"
            anywhere. "auto" takes "triton" on a GPU if it is installed.
        exact_rows: if True, the gradient of the members has only rows of the targets' clusters. That makes a step on a
            GPU wait for the device. If False, it may have further rows of zeros there, which SparseAdam would move.
        reduction: "mean" over the rows that are not ignored, "sum", or "none" for one value per example.
        ignore_index: the target that is ignored.
        class_weight: a weight for each class, (C,), which multiplies the losses of its targets: see
            `zloss.balanced_weights`.

    >>> head = HierarchicalSoftmax(16, 1000)
    >>> head.blocks
    RowBlocks(1000 rows in 32 blocks of at most 32)
    >>> optimizer = head.sgd(lr=0.1)
    >>> head(torch.randn(4, 16), torch.tensor([7, 0, 999, -100])).backward()
    >>> head.members.grad.layout
    torch.sparse_coo
    >>> optimizer.step()

    References: Morin and Bengio, Hierarchical probabilistic neural network language model, 2005. The two levels follow
    Goodman, Classes for fast maximum entropy training, 2001.
    """

    class_weight: Tensor | None  # (C,)
    is_row_sparse = True
    has_normalized_scores = True

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        clusters: Clustering | int | None = None,
        counts: Tensor | None = None,
        bias: bool = False,
        implementation: str = "auto",
        exact_rows: bool = False,
        reduction: Reduction = "mean",
        ignore_index: int = IGNORE_INDEX,
        class_weight: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, ignore_index=ignore_index)
        check_reduction(reduction)
        register_class_weight(self, class_weight, num_classes)
        check_flag("bias", bias)
        check_flag("exact_rows", exact_rows)
        check_implementation(implementation)
        check_place(device, dtype, FLOATS)
        clustering = _clustering(num_classes, clusters, counts)
        self.reduction: Reduction = reduction
        self.implementation, self.exact_rows = implementation, exact_rows
        self.blocks = RowBlocks(clustering.sizes, device=device)
        self.clusters = nn.Linear(
            in_features, self.blocks.num_blocks, bias=bias, device=device, dtype=dtype
        )
        self.order = ClassOrder(clustering.order.to(self.clusters.weight.device))
        self.members = nn.Parameter(
            torch.empty(num_classes, in_features, device=device, dtype=dtype)
        )
        self.member_bias = (
            nn.Parameter(torch.empty(num_classes, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    @property
    def is_capturable(self) -> bool:
        return never_waits_on_a_gpu(self.implementation, self.exact_rows)

    @property
    def defaults(self) -> HeadDefaults:
        return HIERARCHICAL

    def reset_parameters(self) -> None:
        """Draw new weights from the distribution of `nn.Linear`."""
        self.clusters.reset_parameters()
        bound = 1 / math.sqrt(self.in_features)
        for parameter in (self.members, self.member_bias):
            if parameter is not None:
                nn.init.uniform_(parameter, -bound, bound)

    def forward(self, h: Tensor, target: Tensor, *, weight: Tensor | None = None) -> Tensor:
        admitted = self._admission.admit(h, target, self.clusters.weight)
        targets = admitted.targets
        per_target = -self._log_prob_of(admitted.h, self.position_of(targets.index))
        weighted = weigh(per_target, targets.index, self.class_weight, self.num_classes)
        loss = targets.mean(weighted)
        return admitted.conclude(reduce_loss(loss, targets.counted, self.reduction, weight))

    def _log_prob_of(self, h: Tensor, positions: Tensor) -> Tensor:  # (B, H), (B, K) -> (B, K)
        block = self.block_of(positions)
        of_cluster = log_softmax(self.clusters(h)).gather(1, block)
        pairs = h.repeat_interleave(positions.shape[1], 0) if positions.shape[1] > 1 else h
        scores = block_linear(
            pairs,
            self.members,
            self.member_bias,
            block.flatten(),
            self.blocks,
            implementation=self.implementation,
            exact_rows=self.exact_rows,
        )
        member = positions - self.blocks.offsets[block]
        of_member = log_softmax(scores).gather(1, member.reshape(-1, 1))
        return of_cluster + of_member.reshape(positions.shape)

    def block_of(self, positions: Tensor) -> Tensor:
        """Return the cluster of each position."""
        positions = checked_classes("positions", positions, self.num_classes)
        return torch.searchsorted(self.blocks.offsets[1:], positions.contiguous(), right=True)

    def scores(self, h: Tensor) -> Scores:
        check_hidden(h, self.in_features, self.reference_weight)
        return HierarchicalScores(self, h.to(self.reference_weight.dtype))

    def target_log_prob(self, h: Tensor, target: Tensor) -> Tensor:  # as target
        """Return the log-probability of each target, at the cost of a training step; 0 for an ignored target."""
        with self._evaluation(h):
            targets = self._positions(target, h)
            rows = max(1, _MEMBER_ELEMENTS // self.blocks.largest)
            h = h.to(self.members.dtype)
            parts = zip(h.split(rows), targets.index.split(rows), strict=True)
            log_prob = torch.cat([self._log_prob_of(part, index) for part, index in parts])
            return torch.where(targets.valid, log_prob, 0).reshape(target.shape)

    @property
    def reference_weight(self) -> Tensor:
        return self.clusters.weight

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # This comes before loading, because the weights of other clusters may have the right shapes.
        self.blocks.check_same(state_dict.get(prefix + "blocks.offsets"))
        super()._load_from_state_dict(state_dict, prefix, *args)


class HierarchicalScores(Scores):
    """The log-probabilities of all classes: the activation of each member, plus a shift of its cluster."""

    def __init__(self, head: HierarchicalSoftmax, h: Tensor, width: int | None = None) -> None:
        self.head, self.h = head, h
        activations = LinearScores(h, InMemory(head.members), class_bias=head.member_bias)
        self.activations = activations if width is None else activations.in_blocks_of(width)

    @property
    def num_rows(self) -> int:
        return self.h.shape[0]

    @property
    def num_classes(self) -> int:
        return self.head.num_classes

    def block(self, start: int, stop: int) -> Tensor:
        block = self.head.block_of(torch.arange(start, stop, device=self.h.device))
        return self.activations.block(start, stop).add_(self.shift[:, block])

    def own(self, classes: Tensor) -> Tensor:
        return self.activations.own(classes) + self.shift.gather(1, self.head.block_of(classes))

    def rows(self, part: slice) -> "HierarchicalScores":
        return HierarchicalScores(self.head, self.h[part], self.activations.width)

    def in_blocks_of(self, width: int) -> "HierarchicalScores":
        return HierarchicalScores(self.head, self.h, width)

    @cached_property
    def shift(self) -> Tensor:  # (B, clusters)
        """The number `log p(cluster) - logsumexp(activations of its members)` of each cluster."""
        of_cluster = log_softmax(self.head.clusters(self.h))
        return of_cluster - torch.cat([self._normalizers(run) for run in self._runs()], 1)

    def _normalizers(self, run: "_Run") -> Tensor:  # (B, clusters of the run)
        activations = self.activations.block(run.start, run.start + run.clusters * run.size)
        return activations.reshape(self.num_rows, run.clusters, run.size).logsumexp(2)

    def _runs(self) -> Iterator["_Run"]:
        """Yield runs of consecutive clusters of equal size. The activations of a run fit into a bounded block."""
        start = 0
        for size, same in groupby(self.head.blocks.sizes.tolist()):
            left = len(list(same))
            at_a_time = max(1, _MEMBER_ELEMENTS // (size * max(1, self.num_rows)))
            while left:
                run = _Run(start, min(at_a_time, left), size)
                yield run
                start, left = start + run.clusters * size, left - run.clusters


class _Run(NamedTuple):
    start: int  # position of the first member
    clusters: int  # the number of clusters
    size: int  # the number of members of each cluster


def _clustering(
    num_classes: int, clusters: Clustering | int | None, counts: Tensor | None
) -> Clustering:
    if isinstance(clusters, Clustering):
        if counts is not None:
            raise ValueError(
                "give counts or a Clustering, not both: a Clustering decides the clusters by itself"
            )
        if len(clusters.order) != num_classes:
            raise ValueError(
                f"the Clustering has {len(clusters.order)} classes, the head {num_classes}"
            )
        return clusters
    if counts is None:
        return Clustering.in_order(num_classes, clusters)
    return Clustering.by_frequency(checked_counts(counts, num_classes), clusters)
