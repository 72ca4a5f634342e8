"""The gate: a head is measured only if its results are right, launched in the same way as in the measurement.

A small problem is trained for seven steps. After each of them, the loss must be equal to its definition. If the head
stands for one dense weight matrix, its last weights must also be equal to the weights of dense float64 SGD. There are
seven steps so that a captured step is replayed with other inputs than it was captured with.

A factored layer has two kinds of steps: for batches with fewer examples than hidden units, and for all others. The gate
checks the kind that is measured.
"""

import math

import torch
from torch import Tensor

import zloss
from zloss_lab.bench.entries import HeadEntry
from zloss_lab.bench.steps import Launch, launched, layer_step

HIDDEN, CLASSES, STEPS = 32, 500, 7
_SEED = 0


class WrongResultError(ValueError):
    """The error for a head that computes something else than its definition."""


def check_head(
    entry: HeadEntry, launch: Launch, device: torch.device, *, is_full_rank: bool
) -> None:
    """Raise `WrongResultError` if the losses of an entry, or its weights after some steps, differ from the definition.

    Args:
        entry: the head.
        launch: the way to launch its steps.
        device: the device of the check.
        is_full_rank: whether the batch has at least as many examples as there are hidden units.
    """
    torch.manual_seed(_SEED)
    head = entry.build(HIDDEN, CLASSES, device)
    step = launched(layer_step(entry, head, device), launch)
    loss_tolerance, change_tolerance = entry.tolerances
    start = dense_weight(head)
    twin = None if start is None else DenseTwin(entry, start)
    batch = batch_size(is_full_rank=is_full_rank)
    for number in range(STEPS):
        h, target = (
            torch.randn(batch, HIDDEN, device=device),
            torch.randint(CLASSES, (batch,), device=device),
        )
        expected = expected_loss(head, h, target) if twin is None else twin.step(h, target)
        error = abs(float(step(h, target)) / expected - 1)
        require(error <= loss_tolerance, f"the loss of step {number + 1} is off by {error:.1e}")
    weight = dense_weight(head)
    if twin is not None and start is not None and weight is not None:
        change = float((weight - twin.weight).norm() / (twin.weight - start).norm())
        require(
            change <= change_tolerance,
            f"after {STEPS} steps the change of the weights is off by {change:.1e}",
        )


def batch_size(*, is_full_rank: bool) -> int:
    """Return a number of examples: more than there are hidden units for a full rank, else fewer."""
    return HIDDEN + 8 if is_full_rank else HIDDEN - 8


def require(is_right: bool, message: str) -> None:
    """Raise `WrongResultError` with this message if a result is wrong."""
    if not is_right:
        raise WrongResultError(message)


class DenseTwin:
    """Dense float64 SGD from the same weights, as a definition: logits, the loss on them, and autograd."""

    def __init__(self, entry: HeadEntry, weight: Tensor) -> None:
        self.weight, self.lr = weight.clone(), entry.lr
        self.loss_of = entry.config.build_loss(len(weight))

    def step(self, h: Tensor, target: Tensor) -> float:
        """Take one step, and return the loss before it."""
        weight = self.weight.requires_grad_()
        loss: Tensor = self.loss_of(h.double() @ weight.T, target)
        (gradient,) = torch.autograd.grad(loss, weight)
        self.weight = weight.detach() - self.lr * gradient
        return loss.item()


def dense_weight(head: zloss.Head) -> Tensor | None:
    """Return the dense matrix (C, H) in float64 that a head stands for; None for other heads."""
    if isinstance(head, zloss.SphericalOutput):
        return head.layer.weight().detach().double()
    return head.linear.weight.detach().double() if isinstance(head, zloss.DenseOutput) else None


def expected_loss(head: zloss.Head, h: Tensor, target: Tensor) -> float:
    """Return the definition of the loss: from log-probabilities of all classes, or the expectation of an estimate."""
    if isinstance(head, zloss.SampledSoftmax) and head.loss == "nce":
        return _expected_nce(head, h, target)
    return -head.target_log_prob(h, target).double().mean().item()


def _expected_nce(head: zloss.SampledSoftmax, h: Tensor, target: Tensor) -> float:
    """Return the expectation of the NCE loss over all samples that could be drawn."""
    logits = head.logits(h).double()
    log_q = head.sampler.log_prob(torch.arange(head.num_classes, device=h.device))
    log_odds = logits - log_q - math.log(head.num_samples)
    of_noise = head.num_samples * (log_q.exp() * torch.nn.functional.softplus(log_odds)).sum(1)
    of_target = torch.nn.functional.softplus(-log_odds.gather(1, target[:, None]))[:, 0]
    return (of_target + of_noise).mean().item()
