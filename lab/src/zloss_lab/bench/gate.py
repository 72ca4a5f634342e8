"""The gate: a head is measured only if its result is right, in the very way that it is launched.

On a small problem, step by step, the loss must be that of the definition. Where the head stands for one dense weight
matrix, its weights after the last step must also be those of dense float64 SGD on that loss. Seven steps, so that a
captured one is replayed, with other inputs than it was captured with.

A factored layer steps in one of two ways, by whether the batch has fewer examples than there are hidden units or not:
the one that is measured is checked.
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
    """A fast path that does not compute what it should."""


def check_head(
    entry: HeadEntry, launch: Launch, device: torch.device, *, is_full_rank: bool
) -> None:
    """Refuse an entry whose losses, or whose weights after some steps, are not those of its definition."""
    torch.manual_seed(_SEED)
    head = entry.build(HIDDEN, CLASSES, device)
    step = launched(layer_step(entry, head, device), launch)
    of_loss, of_change = entry.tolerances
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
        require(error <= of_loss, f"the loss of step {number + 1} is off by {error:.1e}")
    weight = dense_weight(head)
    if twin is not None and start is not None and weight is not None:
        change = float((weight - twin.weight).norm() / (twin.weight - start).norm())
        require(
            change <= of_change,
            f"after {STEPS} steps the change of the weights is off by {change:.1e}",
        )


def batch_size(*, is_full_rank: bool) -> int:
    """So many examples that there are fewer of them than hidden units, or not."""
    return HIDDEN + 8 if is_full_rank else HIDDEN - 8


def require(is_right: bool, message: str) -> None:
    """Refuse a wrong result."""
    if not is_right:
        raise WrongResultError(message)


class DenseTwin:
    """Dense float64 SGD from the same weights: logits, the loss on them, autograd, and nothing else."""

    def __init__(self, entry: HeadEntry, weight: Tensor) -> None:
        self.weight, self.lr = weight.clone(), entry.lr
        self.loss_of = entry.config.build_loss(len(weight))

    def step(self, h: Tensor, target: Tensor) -> float:
        """One step; returns the loss before it."""
        weight = self.weight.requires_grad_()
        loss: Tensor = self.loss_of(h.double() @ weight.T, target)
        (gradient,) = torch.autograd.grad(loss, weight)
        self.weight = weight.detach() - self.lr * gradient
        return loss.item()


def dense_weight(head: zloss.Head) -> Tensor | None:
    """The dense matrix that a head stands for, (C, H) float64; None where there is more to it."""
    if isinstance(head, zloss.SphericalOutput):
        return head.layer.weight().detach().double()
    return head.linear.weight.detach().double() if isinstance(head, zloss.DenseOutput) else None


def expected_loss(head: zloss.Head, h: Tensor, target: Tensor) -> float:
    """From the log-probabilities of all classes; where the head samples, what it estimates."""
    if isinstance(head, zloss.SampledSoftmax) and head.loss == "nce":
        return _expected_nce(head, h, target)
    return -head.target_log_prob(h, target).double().mean().item()


def _expected_nce(head: zloss.SampledSoftmax, h: Tensor, target: Tensor) -> float:
    """The mean over all that could have been drawn."""
    logits = head.logits(h).double()
    log_q = head.sampler.log_prob(torch.arange(head.num_classes, device=h.device))
    log_odds = logits - log_q - math.log(head.num_samples)
    of_noise = head.num_samples * (log_q.exp() * torch.nn.functional.softplus(log_odds)).sum(1)
    of_target = torch.nn.functional.softplus(-log_odds.gather(1, target[:, None]))[:, 0]
    return (of_target + of_noise).mean().item()
