"""The clusters of a hierarchical softmax, and the classes that belong to each."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zloss.heads.class_order import checked_counts
from zloss.inputs import INTEGERS, check_count, check_whole, fault_of_tensor, is_whole, shown


@dataclass(frozen=True)
class Clustering:
    """A division of the classes into clusters.

    Make one with `in_order`, `by_frequency`, `by_labels` or `shuffled`. Without labels there are about sqrt(C) clusters
    by default, and their sizes differ by at most one class. This is the layout in which a step costs least.

    >>> Clustering.by_labels(torch.tensor([7, 5, 7, 9]))
    Clustering(order=tensor([1, 0, 2, 3]), sizes=[1, 2, 1])
    """

    order: Tensor  # (C,) the classes of the first cluster, then the classes of the second, ...
    sizes: list[int]  # the number of classes in each cluster

    def __post_init__(self) -> None:
        order = self.order
        fault = fault_of_tensor(order, {torch.long})
        if fault or order.dim() != 1:
            got = fault or tuple(order.shape)
            raise ValueError(f"order must be a one-dimensional int64 tensor of classes, got {got}")
        if not isinstance(self.sizes, list | tuple) or not all(map(is_whole, self.sizes)):
            raise ValueError(f"sizes must be a list of whole numbers, got {shown(self.sizes)}")
        if not torch.equal(order.cpu().sort().values, torch.arange(len(order), device="cpu")):
            raise ValueError(f"order must have each class from 0 to {len(order) - 1} once")
        if min(self.sizes, default=0) < 1 or sum(self.sizes) != len(order):
            raise ValueError(
                f"sizes must be at least 1 each and add up to the {len(order)} classes, got {len(self.sizes)} of them "
                f"with the smallest {min(self.sizes, default=0)} and the sum {sum(self.sizes)}"
            )

    @classmethod
    def in_order(cls, num_classes: int, num_clusters: int | None = None) -> "Clustering":
        """Put neighbouring class numbers together. If classes are numbered by frequency, they are clustered by it."""
        check_count("num_classes", num_classes)
        return cls(torch.arange(num_classes, device="cpu"), _equal_sizes(num_classes, num_clusters))

    @classmethod
    def by_frequency(cls, counts: Tensor, num_clusters: int | None = None) -> "Clustering":
        """Put equally frequent classes together, with the most frequent classes in the first cluster."""
        counts = checked_counts(counts, counts.numel() if isinstance(counts, Tensor) else 0)
        order = counts.cpu().argsort(descending=True, stable=True)
        return cls(order, _equal_sizes(len(counts), num_clusters))

    @classmethod
    def by_labels(cls, labels: Tensor) -> "Clustering":
        """Put classes with the same label together. Clusters may have any sizes."""
        fault = fault_of_tensor(labels, INTEGERS)
        if fault or labels.dim() != 1:
            got = fault or tuple(labels.shape)
            raise ValueError(
                f"labels must be a one-dimensional tensor of integers, one per class, got {got}"
            )
        _, label, sizes = labels.cpu().unique(return_inverse=True, return_counts=True)
        return cls(label.argsort(stable=True), sizes.tolist())

    @classmethod
    def shuffled(
        cls, num_classes: int, num_clusters: int | None = None, *, seed: int = 0
    ) -> "Clustering":
        """Divide the classes at random. The same seed gives the same clusters."""
        check_count("num_classes", num_classes)
        check_whole("seed", seed)
        sizes = _equal_sizes(num_classes, num_clusters)
        generator = torch.Generator("cpu").manual_seed(int(seed))
        return cls(torch.randperm(num_classes, generator=generator, device="cpu"), sizes)


def _equal_sizes(num_classes: int, num_clusters: int | None) -> list[int]:
    if num_clusters is None:
        num_clusters = max(1, round(math.sqrt(num_classes)))
    if not is_whole(num_clusters) or not 1 <= num_clusters <= num_classes:
        raise ValueError(
            f"expected between 1 and {num_classes} clusters, one per class, got {shown(num_clusters)}"
        )
    size, larger = divmod(num_classes, num_clusters)
    return [size + 1] * larger + [size] * (num_clusters - larger)
