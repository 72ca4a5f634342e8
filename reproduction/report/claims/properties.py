"""Claims about the loss itself, computed with the loss of the library."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import zloss
from reproduction.report.evidence import Evidence
from reproduction.report.score_texts import MINUS
from reproduction.report.verdicts import Claim, Finding, Verdict

CLASSES, A, B = 1000, 0.1, 10.0  # of figure 1
_EXACT = 1e-9  # float64 has 16 digits, of which sums over a thousand classes cost a few


def is_invariant(evidence: Evidence) -> Finding:
    """Check that shifts and scalings of the activations change the Z-loss by rounding alone, and softmax by more."""
    logits = _logits()
    changes = [_relative_change(loss, logits, 3 * logits + 7) for loss in (_z_loss, _softmax)]
    holds = changes[0] < _EXACT < changes[1]
    return Finding(
        f"exact to rounding, while softmax changes by up to {changes[1]:.0%}", _verdict(holds)
    )


def is_bounded(evidence: Evidence) -> Finding:
    """Check that a one-hot output has the largest possible z."""
    reached = [_stats(sign * _one_hot()).z.item() for sign in (1, -1)]
    random = _stats(_logits()).z.abs().max().item()
    bound = math.sqrt(CLASSES - 1)
    holds = random < bound and all(math.isclose(abs(z), bound, rel_tol=_EXACT) for z in reached)
    return Finding(
        f"±{bound:.2f} for {CLASSES:,} classes, reached by a one-hot output and its negative",
        _verdict(holds),
    )


def makes_classes_compete(evidence: Evidence) -> Finding:
    """Check that the gradient sums to zero, and that it reaches no other class without normalisation."""
    logits = _logits()
    gradient = _gradient(_z_loss(logits).sum(), logits)
    largest = gradient.abs().max().item()
    total = gradient.sum(1).abs().max().item() / largest
    plain = _gradient(F.softplus(B - logits[:, 0], beta=A).sum(), logits)
    others = plain[:, 1:].abs().max().item()
    holds = total < _EXACT and others == 0
    return Finding(
        f"sums to zero but for rounding; without normalisation the others get {others:g}",
        _verdict(holds),
    )


def has_its_minimum_at_the_bound(evidence: Evidence) -> Finding:
    """Check that the gradient vanishes at z_c = sqrt(D - 1) and z_k = -1 / sqrt(D - 1)."""
    one_hot = _one_hot()
    rest = _gradient(_z_loss(one_hot).sum(), one_hot).norm().item()
    start = _logits()
    usual = _gradient(_z_loss(start).sum(), start).norm(dim=1).mean().item()
    others = _stats(one_hot, target=1).z.item()
    holds = rest < _EXACT * usual and math.isclose(
        others, -1 / math.sqrt(CLASSES - 1), rel_tol=_EXACT
    )
    return Finding("the gradient vanishes there, but for rounding", _verdict(holds))


def _logits() -> Tensor:
    """Return activations without order that are the same on every machine, so that documents made from them are too."""
    return (
        torch.arange(100 * CLASSES, dtype=torch.float64)
        .sin()
        .reshape(100, CLASSES)
        .requires_grad_()
    )


def _one_hot() -> Tensor:
    return torch.eye(1, CLASSES, dtype=torch.float64).requires_grad_()


def _stats(logits: Tensor, target: int = 0) -> zloss.SphericalStats:
    return zloss.SphericalStats.from_logits(logits, torch.full((len(logits),), target))


def _z_loss(logits: Tensor) -> Tensor:
    return zloss.z_loss(_stats(logits), a=A, b=B)


def _softmax(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long), reduction="none")


def _relative_change(loss: Callable[[Tensor], Tensor], before: Tensor, after: Tensor) -> float:
    return ((loss(after) - loss(before)).abs() / loss(before)).max().item()


def _gradient(loss: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss, logits)[0]


def _verdict(holds: bool) -> Verdict:
    return Verdict.REPRODUCED if holds else Verdict.NOT_REPRODUCED


PROPERTY_CLAIMS = (
    Claim(
        about="figure 1",
        where="section 2",
        says="Shifted or scaled outputs do not change the Z-loss; log-softmax changes when they are scaled.",
        paper="exact",
        check=is_invariant,
    ),
    Claim(
        about="figure 1",
        where="section 2, figure 1",
        says=f"z_c lies between ±√(D {MINUS} 1).",
        paper="±31.61 for D = 1,000",
        check=is_bounded,
    ),
    Claim(
        about="figure 1",
        where="section 2",
        says=f"The loss is least at z_c = √(D {MINUS} 1), with all other z_k = {MINUS}1 / √(D {MINUS} 1).",
        paper="exact",
        check=has_its_minimum_at_the_bound,
    ),
    Claim(
        about="figure 1",
        where="section 2, figure 5",
        says="Z-normalisation makes classes compete: the gradient sums to zero, else none reaches the others.",
        paper="exact",
        check=makes_classes_compete,
    ),
)
