"""Heads with explicit negatives, and the definition of these on a dense W."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import zloss
from tests.layers.row_rule_twin import DenseTwin
from zloss.heads.samplers import Sampler

HIDDEN, CLASSES, SAMPLES, IGNORED = 8, 61, 20, -100
COUNTS = torch.arange(CLASSES) % 7 + 1
SAMPLERS: dict[str, dict[str, Any]] = {
    "uniform": {"sampler": "uniform"},
    "unigram": {"sampler": "unigram", "counts": COUNTS},
    "batch": {"sampler": "batch"},
    "corrected batch": {"sampler": "batch", "counts": COUNTS},
}
SCORED_BY = ["z", "logits"]
LOSS: dict[str, Any] = {"a": 0.2, "b": 6.0}


def expected_draws(name: str, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the draws and the logarithm of how often each is drawn on average."""
    if "batch" in name:
        draws = target[target != IGNORED]
        q = (COUNTS.double() / COUNTS.sum()).to(draws.device)
        correction = (q[draws] * len(draws)).log() if name != "batch" else torch.zeros(len(draws))
        return draws, correction.to(draws.device)
    sampler: Sampler = zloss.UniformSampler(CLASSES, device=target.device)
    weights = torch.ones(CLASSES, dtype=torch.float64)
    if name == "unigram":
        sampler = zloss.UnigramSampler(COUNTS, device=target.device)
        weights = COUNTS.double() ** 0.75
    draws, q = sampler.draw(SAMPLES), (weights / weights.sum()).to(target.device)
    return draws, (SAMPLES * q[draws]).log()


def definition(
    activations: Tensor, rows: Tensor, target: Tensor, draws: Tensor, correction: Tensor, c: Any
) -> Tensor:  # (B,)
    """The term of each example. `rows` are the activations of which single classes are scored; c is None for logits."""
    mean, std = activations.mean(1, keepdim=True), activations.std(1, correction=0, keepdim=True)
    scores = rows if c is None else c * (rows - mean) / std
    terms = []
    for i, classes in enumerate(target.reshape(len(target), -1).tolist()):
        valid = [k for k in classes if k != IGNORED]
        rest = [j for j, s in enumerate(draws.tolist()) if s not in valid]
        values = [
            torch.cat([scores[i, t, None], scores[i, draws[rest]] - correction[rest]]).logsumexp(0)
            - scores[i, t]
            for t in valid
        ]
        terms.append(torch.stack(values).mean() if values else scores.new_zeros(()))
    return torch.stack(terms)


def make_head(
    name: str, device: torch.device, *, bias: bool = False, **options: Any
) -> zloss.SphericalOutput:
    layer = zloss.FactoredLinear(
        HIDDEN, CLASSES, bias=bias, dtype=torch.float64, device=device, synchronous=True
    )
    given: dict[str, Any] = {
        "num_samples": SAMPLES,
        "strength": 0.7,
        "scale": 1.5,
        "device": device,
    }
    negatives = zloss.SharedNegatives(CLASSES, **given | SAMPLERS[name] | options).double()
    return zloss.SphericalOutput(layer, zloss.ZLoss(**LOSS), negatives)


class Batch(NamedTuple):
    """Ids below a batch with tied embeddings, and the targets and weights of its rows."""

    ids: Tensor  # (B, 2)
    mix: Tensor  # (H, H)
    target: Tensor  # (B,) or (B, K)
    weight: Tensor  # (B,)

    def hidden(self, rows: Callable[[Tensor], Tensor]) -> Tensor:  # (B, H)
        return (rows(self.ids).sum(1) @ self.mix).tanh()


def random_batch(chance: random.Random, device: torch.device) -> Batch:
    rows, columns = chance.choice([3, 12]), chance.choice([(), (1,), (3,)])
    target = torch.randint(CLASSES, (rows, *columns), device=device)
    target[torch.rand(target.shape, device=device) < 0.2] = IGNORED
    return Batch(
        ids=torch.randint(CLASSES, (rows, 2), device=device),
        mix=torch.randn(HIDDEN, HIDDEN, dtype=torch.float64, device=device),
        target=target,
        weight=torch.rand(rows, dtype=torch.float64, device=device),
    )


def dense_loss(
    twin: DenseTwin, name: str, batch: Batch, strength: float, c: Tensor | None
) -> Tensor:
    """The loss of a head on a dense W: the mean and the spread come from one leaf, single classes from the other."""
    h, target = batch.hidden(twin.rows), batch.target
    full = torch.cat([h, h.new_ones(len(h), 1)], 1) if twin.has_bias else h
    activations, rows = full @ twin.of_loss.T, full @ twin.of_rows.T
    term = definition(activations, rows, target, *expected_draws(name, target), c)
    counted = (target.reshape(len(h), -1) != IGNORED).any(1).sum().clamp_min(1)
    loss: Tensor = zloss.ZLoss(**LOSS)(twin(h, target), weight=batch.weight)
    return loss + strength * (term * batch.weight).sum() / counted
