"""Weights of classes that follow from their numbers of occurrences."""

import torch
from torch import Tensor

from zloss.heads.class_order import checked_counts
from zloss.inputs import check_number


def balanced_weights(
    counts: Tensor,  # (C,)
    balance: float,
    *,
    largest: float = 10.0,
) -> Tensor:  # (C,) float32
    """Return weights of classes in proportion to `counts ** -balance`, for the `class_weight` of a loss.

    The weights are scaled so that their mean over the data is 1, `sum(counts * weights) = sum(counts)`. So losses and
    learning rates keep their size. No weight exceeds `largest`. The step grows with the largest weight in the batch,
    and so a rare class cannot make it many times as large as usual. A class that never occurs gets the weight of the
    rarest class that does.

    Args:
        counts: the number of occurrences of each class.
        balance: 0 gives every class the weight 1. With 1, every class has the same share of the loss, up to the cap.
            For a Z-loss on items of a shop start from 0.25 or 0.5. Words need none.
        largest: the cap of the weights, > 1.

    >>> balanced_weights(torch.tensor([0, 1, 4, 16]), 0.5)
    tensor([3.0000, 3.0000, 1.5000, 0.7500])
    >>> loss = zloss.ZLoss(a=1.0, b=10, class_weight=balanced_weights(torch.tensor([0, 1, 4, 16]), 0.5))
    """
    counts = checked_counts(counts, counts.numel() if isinstance(counts, Tensor) else 0).double()
    check_number("balance", balance, least=0)
    check_number("largest", largest, above=1)
    occurs = counts > 0
    if not occurs.any():
        raise ValueError("counts are all zero: at least one class must occur")
    rarest = counts[occurs].min()
    parts = (counts.clamp_min(rarest) / rarest) ** -balance
    return (_scale(counts, parts, largest) * parts).clamp(max=largest).float()


def weights_for(
    balance: float, counts: Tensor | None, num_classes: int, device: torch.device | str | None
) -> Tensor | None:  # (C,)
    """Return balanced weights for a head on this device, or None where the balance is 0."""
    if not balance:
        return None
    if counts is None:
        raise ValueError(
            f"balance={balance} needs counts=, the number of occurrences of each class"
        )
    weights = balanced_weights(checked_counts(counts, num_classes), balance)
    where = torch.empty(0, device=device).device
    # A head without memory gets its weights from a checkpoint, like its other tensors.
    return weights if where.type == "meta" else weights.to(where)


def _scale(counts: Tensor, parts: Tensor, largest: float) -> Tensor:  # ()
    """Return the s for which `min(largest, s parts)` has the mean 1 over the data.

    If the k classes with the largest parts are capped, s follows from a linear equation. The right k is the first one
    whose s leaves the other classes below the cap.
    """
    parts, order = parts.sort(descending=True)
    counts = counts[order]
    uncapped = (counts * parts).flip(0).cumsum(0).flip(0)
    capped = counts.cumsum(0) - counts
    scales = (counts.sum() - largest * capped) / uncapped
    return scales[(scales * parts <= largest).nonzero()[0, 0]]
