"""The stretches of an adaptive softmax: its classes, sorted by frequency, are cut into a shortlist and clusters.

Shape letters: B examples, K targets per example, J clusters.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Stretches:
    """Consecutive ranges of positions: stretch 0 is the shortlist, and the stretches 1..J are the clusters.

    >>> Stretches((0, 2, 5, 9)).cluster_of(torch.tensor([0, 1, 2, 4, 5, 8]))
    tensor([0, 0, 1, 1, 2, 2])
    """

    bounds: tuple[int, ...]  # 0, the cutoffs, C

    @classmethod
    def of(cls, softmax: nn.AdaptiveLogSoftmaxWithLoss) -> "Stretches":
        """Return the stretches of torch's module."""
        return cls((0, *softmax.cutoffs))

    @property
    def num_clusters(self) -> int:
        """The number of clusters, J."""
        return len(self.bounds) - 2

    def cluster_of(self, positions: Tensor) -> Tensor:
        """Return the number of the stretch that contains each position."""
        # These are few comparisons with numbers of the host. A tensor of bounds would have to move with the head.
        return torch.stack([positions >= cutoff for cutoff in self.bounds[1:-1]]).sum(0)

    def head_column(self, positions: Tensor) -> Tensor:
        """Return the column of each position in the head: its own column, or the column of its cluster."""
        cluster = self.cluster_of(positions)
        return torch.where(cluster == 0, positions, self.bounds[1] - 1 + cluster)

    def within(self, stretch: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions counted from the start of a stretch and clamped to it, and a mask of the ones inside."""
        low, high = self.bounds[stretch : stretch + 2]
        return positions.clamp(low, high - 1) - low, (positions >= low) & (positions < high)

    def wanted_first(
        self, positions: Tensor, wanted: Tensor
    ) -> tuple[Tensor, Tensor]:  # (B, K), (B, K) -> (J, B), (J,)
        """Return for each cluster all rows, sorted so that the wanted rows come first, and the number of wanted rows.

        A row is wanted if one of its `wanted` positions lies in the cluster.
        """
        clusters = torch.arange(1, self.num_clusters + 1, device=positions.device)
        has = ((self.cluster_of(positions) == clusters[:, None, None]) & wanted).any(2)  # (J, B)
        # `nonzero` would wait for the device. A stable sort brings the rows to the front without waiting.
        return has.byte().argsort(dim=1, descending=True, stable=True), has.sum(1)

    def rows_by_cluster(
        self, positions: Tensor, wanted: Tensor
    ) -> list[Tensor]:  # (B, K), (B, K) bool -> J of (n,)
        """Return the wanted rows of each cluster. Waits for the device, once for all clusters."""
        order, counts = self.wanted_first(positions, wanted)
        return [rows[:count] for rows, count in zip(order, counts.tolist(), strict=True)]
