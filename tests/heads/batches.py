"""Batches for the tests of all heads, and the results for them by the definition of a head."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import zloss
from tests.heads.definitions import Weights
from tests.heads.registry import CLASSES, HIDDEN, HeadCase

ROWS = 12
IGNORED = -100
DRAWS = 5  # the seed of the random draws of a step
# Sums of up to 53 terms of size 1 and products of 8 terms, in float64, err by some 1e-14. Any slip in a formula is far
# above 1e-10.
assert_close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


def hidden(
    rows: int = ROWS, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64
) -> Tensor:
    h = torch.randn(
        rows, HIDDEN, generator=torch.Generator().manual_seed(rows), dtype=torch.float64
    )
    return h.to(device, dtype).requires_grad_()


def spread(*shape: int) -> Tensor:
    """Return classes from the whole range. Up to a dozen are all different, and three dozen are not."""
    return (
        torch.arange(math.prod(shape))
        .mul(17)
        .remainder(CLASSES + 3)
        .remainder(CLASSES)
        .reshape(shape)
    )


def repeated(target: Tensor) -> Tensor:
    return torch.cat([target[:1].expand(3, *target.shape[1:]), target[3:]])


def with_ignored(target: Tensor, *rows: int) -> Tensor:
    target = target.clone()
    target[list(rows)] = IGNORED
    return target


def ragged() -> Tensor:
    """Return up to three targets per row with padding. Row 2 has no target, and the first one of row 4 is padding."""
    target = with_ignored(spread(ROWS, 3), 2)
    target[::3, 1:] = IGNORED
    target[1, 2] = target[4, 0] = IGNORED
    target[5] = target[5, 0]  # three equal targets
    return target


def with_value(tensor: Tensor, value: float) -> Tensor:
    tensor = tensor.detach().clone()
    tensor.view(-1)[-1] = value
    return tensor


BATCHES: dict[str, Tensor] = {
    "one target": spread(ROWS),
    "repeated": repeated(spread(ROWS)),
    "some rows ignored": with_ignored(spread(ROWS), 0, 5, 6),
    "one row": spread(1),
    "as a column": spread(ROWS, 1),
    "three targets": spread(ROWS, 3),
    "ragged": ragged(),
    "mostly padding": F.pad(ragged(), (4, 5), value=IGNORED),
    "all ignored": torch.full((ROWS,), IGNORED),
    "all of several ignored": torch.full((ROWS, 2), IGNORED),
    "no rows": spread(0),
    "no rows of two": spread(0, 2),
}


def seeded(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Call a function that may draw at random, always from the same seed."""
    torch.manual_seed(DRAWS)
    return function(*args, **kwargs)


def leaves(weights: Weights) -> Weights:
    return {name: weight.requires_grad_() for name, weight in weights.items()}


def in_columns(target: Tensor) -> Tensor:  # (B,) or (B, K) -> (B, K)
    return target[:, None] if target.dim() == 1 else target


def per_example(
    case: HeadCase,
    weights: Weights,
    h: Tensor,
    target: Tensor,
    ignored: int = IGNORED,
    class_weight: Tensor | None = None,
) -> Tensor:  # (B,)
    """Return the loss of each example by definition: the average over its targets that are not ignored."""
    shaped = in_columns(target).long()
    rows, columns = (shaped != ignored).nonzero(as_tuple=True)
    pairs = case.definition(weights, h[rows], shaped[rows, columns])
    if class_weight is not None:
        pairs = pairs * class_weight[shaped[rows, columns]]
    return h.new_zeros(len(h)).index_add(0, rows, pairs) / (shaped != ignored).sum(1).clamp_min(1)


def reduced(rows: Tensor, target: Tensor, reduction: str, ignored: int = IGNORED) -> Tensor:
    counted = (in_columns(target) != ignored).any(1).sum()
    return {"none": rows, "sum": rows.sum(), "mean": rows.sum() / counted.clamp_min(1)}[reduction]


def gradients(value: Tensor, weights: Weights) -> Weights:
    found = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
    pairs = zip(weights.items(), found, strict=True)
    return {
        name: torch.zeros_like(weight) if grad is None else grad for (name, weight), grad in pairs
    }


def by_definition(
    case: HeadCase, head: zloss.Head, h: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Weights]:
    """Return the mean loss of a batch, and its gradients for h and for each weight."""
    weights = leaves(case.weights(head))
    value = reduced(seeded(per_example, case, weights, h, target), target, "mean")
    grads = gradients(value, {"h": h, **weights})
    return value.detach(), grads.pop("h"), grads


def assert_stepped(case: HeadCase, head: zloss.Head, before: Weights, change: Weights) -> None:
    """Check that every weight has changed by `change`, up to 1e-10 of it and the rounding of the weight."""
    for name, after in case.weights(head).items():
        error = (after - (before[name] + change[name])).abs().max()
        rounding = 4 * torch.finfo(after.dtype).eps * before[name].abs().max()
        assert error <= 1e-10 * change[name].abs().max() + rounding, name


def stepped_by(grads: Weights, lr: float) -> Weights:
    return {name: -lr * grad for name, grad in grads.items()}


def gradient_of(h: Tensor) -> Tensor:
    assert h.grad is not None
    return h.grad


def has_gradient(head: zloss.Head) -> bool:
    """Return whether any parameter has a gradient. A factored layer marks one while it has a recorded gradient."""
    return any(parameter.grad is not None for parameter in head.parameters())


# Small enough for every loss: on a GPU a factored layer refuses steps that would make its factors singular.
LR = 0.05


def step(head: zloss.Head, h: Tensor, target: Tensor, lr: float = LR) -> Tensor:
    loss = seeded(head, h, target)
    loss.backward()
    optimizer = head.sgd(lr)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def good_batch(head: zloss.Head) -> tuple[Tensor, Tensor]:
    weight = head.reference_weight
    return hidden(device=weight.device, dtype=weight.dtype), spread(ROWS).to(weight.device)


def trained(case: HeadCase, device: torch.device, **options: Any) -> zloss.Head:
    head = case.made(device, **options)
    for _ in range(3):
        step(head, *good_batch(head))
    return head
