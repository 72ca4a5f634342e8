"""An order of the classes that differs from the order of their numbers: by frequency, or cluster by cluster."""

import torch
from torch import Tensor, nn

from zloss.inputs import REALS, fault_of_tensor


class ClassOrder(nn.Module):
    """A permutation of the classes and its inverse, as buffers of the head that uses them.

    Args:
        order: the class at each position, a permutation of 0..C-1.

    >>> order = ClassOrder.by_frequency(torch.tensor([3, 50, 7]))
    >>> order.class_at(torch.tensor([0, 1, 2])), order.position_of(torch.tensor([0, 1, 2]))
    (tensor([1, 2, 0]), tensor([2, 0, 1]))
    """

    classes: Tensor  # (C,) class at each position
    positions: Tensor  # (C,) position of each class

    def __init__(self, order: Tensor) -> None:
        super().__init__()
        order = order.clone()  # loading a checkpoint writes into the buffer
        self.register_buffer("classes", order)
        self.register_buffer(
            "positions",
            torch.empty_like(order).scatter_(
                0, order, torch.arange(len(order), device=order.device)
            ),
        )

    @classmethod
    def by_frequency(cls, counts: Tensor) -> "ClassOrder":
        """Return the order with the most frequent class first. Equally frequent classes are ordered by number."""
        return cls(counts.argsort(descending=True, stable=True))

    def position_of(self, classes: Tensor) -> Tensor:
        """Return the positions of these classes."""
        return self.positions[classes]

    def class_at(self, positions: Tensor) -> Tensor:
        """Return the classes at these positions."""
        return self.classes[positions]


def checked_counts(counts: Tensor, num_classes: int) -> Tensor:
    """Return the counts, or refuse counts that are not one finite number >= 0 for each class."""
    fault = fault_of_tensor(counts, REALS)
    if fault or counts.shape != (num_classes,):
        got = fault or tuple(counts.shape)
        raise ValueError(
            f"counts must be a tensor with one number per class, shape ({num_classes},), got {got}"
        )
    if not (counts >= 0).all() or not counts.double().isfinite().all():
        raise ValueError("counts must be finite numbers >= 0")
    return counts
