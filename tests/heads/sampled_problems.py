"""Small heads of `SampledSoftmax`, batches, and the slow definition, which computes the logits of all classes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from tests.layers.twins import relative_error
from zloss.heads.sampled import SampledSoftmax
from zloss.heads.samplers import Sampler

HIDDEN, CLASSES, SAMPLES = (
    5,
    12,
    20,
)  # more samples than classes: there are repeated draws, and targets among them
COUNTS = torch.arange(CLASSES) * 5 % 7 + 1
SEED = 11
# The probabilities of the classes by the definition of each sampler, up to a factor.
WEIGHTS: dict[str, Callable[[int], float]] = {
    "uniform": lambda c: 1.0,
    "log_uniform": lambda c: math.log((c + 2) / (c + 1)),
    "unigram": lambda c: float(COUNTS[c]) ** 0.75,
}
SAMPLER_OPTIONS: dict[str, dict[str, Any]] = {
    "uniform": {"sampler": "uniform"},
    "log_uniform": {"sampler": "log_uniform"},
    "unigram": {"sampler": "unigram", "counts": COUNTS},
}
every_sampler = pytest.mark.parametrize("sampler", WEIGHTS)
every_loss = pytest.mark.parametrize("loss", ["softmax", "nce"])
ONE_TARGET = torch.tensor([3, 0, -100, 3, 11, 0, 7])
# Rows with a class twice, with some targets ignored, and with all targets ignored.
THREE_TARGETS = torch.tensor(
    [[3, 1, 2], [0, 0, 5], [-100] * 3, [3, -100, 0], [11, -100, -100], [2, 4, 2], [1, 1, 1]]
)
TARGETS = {"K=1": ONE_TARGET, "K=3": THREE_TARGETS}
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())


def make_head(device: torch.device | str = "cpu", **options: Any) -> SampledSoftmax:
    """Make a head whose draws start from `SEED`. Its weights are large, so that the loss is curved."""
    torch.manual_seed(0)
    defaults: dict[str, Any] = {
        "num_samples": SAMPLES,
        "dtype": torch.float64,
        "generator": Generator(device).manual_seed(SEED),
    }
    head = SampledSoftmax(HIDDEN, CLASSES, device=device, **defaults | options)
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    return head


def draws_of(head: SampledSoftmax) -> list[int]:
    """Return the first draws of a head from `make_head`."""
    generator = Generator(head.linear.weight.device).manual_seed(SEED)
    draws: list[int] = head.sampler.draw(head.num_samples, generator=generator).tolist()
    return draws


def make_batch(target: Tensor, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    h = torch.randn(len(target), HIDDEN, dtype=torch.float64, device=device, requires_grad=True)
    return h, target.to(device)


# ---- the slow definition ---------------------------------------------------------------------------------------------


def slow_loss(
    logits: Tensor,  # (C,)
    t: int,
    draws: list[int],
    sampler: str,
    loss: str,
    remove_hits: bool = True,
) -> Tensor:
    """Return the loss of one example with one target, computed term by term."""
    total = math.fsum(WEIGHTS[sampler](c) for c in range(CLASSES))
    expected = [len(draws) * WEIGHTS[sampler](c) / total for c in range(CLASSES)]
    if loss == "nce":
        terms = [((expected[s] + logits[s].exp()) / expected[s]).log() for s in draws]
        terms.append(((logits[t].exp() + expected[t]) / logits[t].exp()).log())
        return torch.stack(terms).sum()
    parts = [logits[s].exp() / expected[s] for s in draws if s != t or not remove_hits]
    return torch.stack([logits[t].exp(), *parts]).sum().log() - logits[t]


def slow_losses(head: SampledSoftmax, h: Tensor, target: Tensor, sampler: str) -> Tensor:  # (B,)
    """Return the loss of each example: the mean over its targets, 0 for an example without targets."""
    draws, logits = draws_of(head), head.linear(h)
    rows = []
    for row, classes in zip(logits, target.reshape(len(h), -1).tolist(), strict=True):
        losses = [
            slow_loss(row, t, draws, sampler, head.loss, head.remove_accidental_hits)
            for t in classes
            if t != -100
        ]
        rows.append(torch.stack(losses).mean() if losses else row.new_zeros(()))
    return torch.stack(rows)


def slow_reduction(
    per_example: Tensor, target: Tensor, reduction: str, weight: Tensor | None
) -> Tensor:
    if weight is not None:
        per_example = per_example * weight
    if reduction == "none":
        return per_example
    counted = (target.reshape(len(target), -1) != -100).any(1).sum()
    return per_example.sum() / (counted if reduction == "mean" else 1)


def gradients(head: SampledSoftmax, h: Tensor) -> list[Tensor]:
    """Return the gradients of h and of all parameters as dense tensors, and set them to zero."""
    assert h.grad is not None
    grads = [h.grad]
    for parameter in head.parameters():
        assert parameter.grad is not None
        grads.append(parameter.grad.to_dense())
    h.grad = None
    head.zero_grad()
    return grads


def assert_as_defined(
    head: SampledSoftmax, h: Tensor, target: Tensor, sampler: str, weight: Tensor | None = None
) -> None:
    """Check the value and the gradients. If possible, every example has another upstream gradient."""
    value = head(h, target, weight=weight)
    upstream = torch.rand_like(value) + 0.5
    (value * upstream).sum().backward()
    grads = gradients(head, h)
    expected = slow_reduction(slow_losses(head, h, target, sampler), target, head.reduction, weight)
    (expected * upstream).sum().backward()
    # Sums of some 20 terms of size 1 to 100 in float64 are rounded by less than 1e-13 of the largest term.
    assert relative_error(value, expected) < 1e-12
    for grad, expected_grad in zip(grads, gradients(head, h), strict=True):
        assert relative_error(grad, expected_grad) < 1e-12


class Prescribed(Sampler):
    """A sampler whose distribution and draws are given by the test."""

    def __init__(self, q: Tensor) -> None:
        super().__init__(len(q))
        self.q, self.draws = q, torch.zeros(0, dtype=torch.long)

    def draw(self, num_samples: int, *, generator: Generator | None = None) -> Tensor:
        assert len(self.draws) == num_samples
        return self.draws

    def log_prob(self, classes: Tensor) -> Tensor:
        return self.q.log()[classes]
