"""The adaptive softmax: frequent classes in a shortlist, rare classes in clusters that few examples of a batch need.

Grave, Joulin, Cissé, Grangier, Jégou, "Efficient softmax approximation for GPUs", 2017, https://arxiv.org/abs/1609.04309.

The classes are sorted by frequency and cut into stretches. The first stretch is the shortlist, and the other ones are
the clusters. The classes of the shortlist and one entry for each cluster form the head, a softmax over few entries.
Each cluster is a further softmax, over narrower vectors. A step computes it only for the examples whose target is in
the cluster:

    log p(c) = log p_head(c)                                    c in the shortlist
    log p(c) = log p_head(cluster of c) + log p_cluster(c)      c in a cluster

Shape letters: B examples, H width of the hidden layer, C classes, K targets per example, S classes in the shortlist,
J clusters.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zloss.heads.adaptive_scores import AdaptiveScores
from zloss.heads.class_order import ClassOrder, checked_counts
from zloss.heads.cluster_log_prob import WantedExamples, log_prob_within
from zloss.heads.cutoffs import check_widths, checked_cutoffs, checked_div_value, default_cutoffs
from zloss.heads.defaults import ADAPTIVE, HeadDefaults
from zloss.heads.head import Head
from zloss.heads.softmax import log_softmax
from zloss.heads.stretches import Stretches
from zloss.inputs import FLOATS, check_flag, check_hidden, check_place
from zloss.losses.class_weight import register_class_weight, weigh
from zloss.losses.reduction import Reduction, check_reduction, reduce_loss
from zloss.streams import must_not_wait
from zloss.targets import IGNORE_INDEX, Targets

_DIV_VALUE = 4.0


class AdaptiveSoftmax(Head):
    """The adaptive softmax of torch, `nn.AdaptiveLogSoftmaxWithLoss`, as a head.

    It adds `ignore_index`, reductions, row weights, K targets per example, autocast and classes in any order. Ranks,
    top-k and perplexity are exact and need bounded memory. The loss is the negative log-probability of the target under
    torch's module. This module is the attribute `softmax`, so `head.softmax.load_state_dict(...)` loads its weights.

    The classes must be numbered by frequency, with the most frequent class as number 0, unless `counts` are given.

    Args:
        in_features: H, the width of the hidden layer.
        num_classes: C.
        cutoffs: the positions at which the sorted classes are cut. [2000, 10000] makes a shortlist of 2000 classes, a
            cluster of 8000 classes and a cluster of all others. By default the shortlist has about 4 sqrt(C) classes.
            Up to three clusters follow, each one larger than the previous one by the same factor. The default does not
            depend on the counts, so a checkpoint still fits after the counts have changed.
        div_value: cluster i has vectors of width H // div_value^i. By default 4, or H if H is less.
        head_bias: adds a bias to the shortlist and to the entries of the clusters.
        counts: (C,) the number of occurrences of each class. Only their order matters. A checkpoint contains it.
        reduction: "mean" over the rows that are not ignored, "sum", or "none" for one value per example.
        ignore_index: the target that is ignored.
        class_weight: a weight for each class, (C,), which multiplies the losses of its targets: see
            `zloss.balanced_weights`.
        device, dtype: of the weights.

    >>> counts = torch.randint(1000, (5000,))                          # from the training set
    >>> head = AdaptiveSoftmax(64, 5000, counts=counts)
    >>> h = torch.randn(4, 64, requires_grad=True)
    >>> target = torch.tensor([7, 0, 4999, -100])                      # the last row is ignored
    >>> head(h, target).backward()
    >>> head.sgd(lr=0.1).step()
    >>> head.rank(h, target).shape, head.topk(h, 10)[1].shape
    (torch.Size([4]), torch.Size([4, 10]))

    On a GPU a step waits for the device once, to learn how many examples each cluster has. Torch's module waits twice
    for each cluster. In both modules the weights of a cluster without a target in the batch get no gradient (None).

    A step that is captured as a CUDA graph cannot wait. With Triton and weights in float32, it computes each cluster
    for the examples that have a target in it. Otherwise it computes all clusters for all examples, which are B x C
    scores. In a captured step the gradient of an unused cluster is zero instead of None.
    """

    class_weight: Tensor | None  # (C,)
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
        class_weight: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, num_classes, ignore_index=ignore_index)
        check_reduction(reduction)
        register_class_weight(self, class_weight, num_classes)
        check_flag("head_bias", head_bias)
        check_place(device, dtype, FLOATS)
        self.reduction: Reduction = reduction
        div_value = (
            min(_DIV_VALUE, in_features) if div_value is None else checked_div_value(div_value)
        )
        if cutoffs is None:
            cutoffs = default_cutoffs(in_features, num_classes, div_value)
        cutoffs = checked_cutoffs(cutoffs, num_classes)
        check_widths(in_features, div_value, len(cutoffs))
        counts = None if counts is None else checked_counts(counts, num_classes)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(
            in_features, num_classes, cutoffs, div_value, head_bias, device=device, dtype=dtype
        )
        if counts is not None:
            self.order = ClassOrder.by_frequency(counts.to(self.reference_weight.device))

    @property
    def cutoffs(self) -> list[int]:
        """The positions at which the sorted classes are cut into the shortlist and the clusters."""
        return self.softmax.cutoffs[:-1]

    @property
    def defaults(self) -> HeadDefaults:
        return ADAPTIVE

    def forward(
        self,
        h: Tensor,  # (B, H)
        target: Tensor,  # (B,) or (B, K)
        *,
        weight: Tensor | None = None,  # (B,)
    ) -> Tensor:
        admitted = self._admission.admit(h, target, self.reference_weight)
        classes = admitted.targets.index
        targets = admitted.targets.at(self.position_of(classes))
        per_target = -self._log_prob_of(admitted.h, targets)
        per_example = targets.mean(weigh(per_target, classes, self.class_weight, self.num_classes))
        return admitted.conclude(reduce_loss(per_example, targets.counted, self.reduction, weight))

    def scores(self, h: Tensor) -> AdaptiveScores:
        check_hidden(h, self.in_features, self.reference_weight)
        return AdaptiveScores(self.softmax, h.to(self.reference_weight.dtype))

    def _log_prob_of(self, h: Tensor, targets: Targets) -> Tensor:  # (B, K)
        stretches = Stretches.of(self.softmax)
        log_prob = log_softmax(self.softmax.head(h)).gather(1, stretches.head_column(targets.index))
        if must_not_wait():
            return log_prob + self._log_prob_within_clusters(h, targets)
        rows_by_cluster = stretches.rows_by_cluster(targets.index, targets.valid)
        for cluster, rows in enumerate(rows_by_cluster, start=1):
            if len(rows):
                logits = self.softmax.tail[cluster - 1](h.index_select(0, rows))
                local, inside = stretches.within(cluster, targets.index[rows])
                found = torch.where(inside, log_softmax(logits).gather(1, local), 0)
                log_prob = log_prob.index_add(0, rows, found)
        return log_prob

    def _log_prob_within_clusters(self, h: Tensor, targets: Targets) -> Tensor:  # (B, K)
        """Return the log-probability of each target within its cluster, without waiting; 0 in the shortlist."""
        stretches = Stretches.of(self.softmax)
        by_cluster = zip(*stretches.wanted_first(targets.index, targets.valid), strict=True)
        parts = []
        for cluster, wanted in enumerate(by_cluster, start=1):
            tail: Any = self.softmax.tail[cluster - 1]
            project, classes = tail
            local, inside = stretches.within(cluster, targets.index)
            index = torch.where(inside & targets.valid, local, -1)
            examples = WantedExamples(*wanted)
            parts.append(log_prob_within(project(h), classes.weight, index, examples))
        return torch.stack(parts).sum(0)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.num_classes}, cutoffs={self.cutoffs}, div_value={self.softmax.div_value:g}"
