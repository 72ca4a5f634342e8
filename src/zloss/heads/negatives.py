r"""Explicit negatives beside a spherical loss: a softmax over few classes that the whole batch shares.

A spherical loss pushes on all classes at once, through their mean and their spread. The top of a ranking needs more:
the few classes that score nearly as high as the target. This term scores some classes one by one, as rows of the layer.
Its step is exact and free of C, as for all looked-up rows.

Shape letters: B examples, K targets per example, S draws, H width of the layer, C classes.
"""

import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zloss.heads.class_order import checked_counts
from zloss.heads.samplers import Sampler, SamplerName, UnigramSampler, make_sampler
from zloss.inputs import (
    check_choice,
    check_count,
    check_device,
    check_hidden,
    check_number,
    shown,
    with_bias_column,
)
from zloss.layers import DenseLinear, FactoredLinear
from zloss.limits import has_other_processes
from zloss.losses.functions import SOFTPLUS_IS_LINEAR, check_stats
from zloss.losses.loss import HyperParameters
from zloss.stats import SphericalStats, z_normalize

NegativeSampler = Literal["batch"] | SamplerName
ScoredBy = Literal["z", "logits"]


class SharedNegatives(HyperParameters):
    r"""A softmax cross-entropy of the target against S classes that all examples share, for `SphericalOutput`.

    With scores r it is `log(exp(r_t) + sum_{s != t} exp(r_s - log(S q_s))) - r_t`. The sum is over draws s from a
    distribution q, without the targets of the example. The correction makes it an estimate of the softmax over all
    classes, as in `SampledSoftmax`. The scores are `c z` with z-scores among all classes and a learnt number c, or the
    activations.

    Targets and draws are rows of the layer. Under `FactoredSGD(..., row_lr=...)` they follow row-wise Adagrad, and the
    spherical loss follows SGD. The mean and the spread in z have gradients too, which belong to the SGD part. Where the
    layer has a bias, the scores have it as well. With K targets the term is the average over them.

    The module has one parameter, `log_scale`, the logarithm of c. Give it to the optimizer of the layers below.

    Args:
        num_classes: C.
        num_samples: S.
        sampler: "uniform", "unigram", "log_uniform" or a `Sampler`, as in `SampledSoftmax`; or "batch", which takes the
            targets of the batch for negatives. Then S is their number. They are corrected if there are `counts`.
        counts: the number of occurrences of each class.
        power: the exponent of the counts for "unigram".
        strength: the factor of this term in the loss. It may change from step to step; 0 leaves the term out.
        scored_by: "z" or "logits".
        scale: the first value of c, > 0.
        device: the device of the head.

    >>> negatives = SharedNegatives(100_000, num_samples=64)
    >>> head = zloss.SphericalOutput(zloss.FactoredLinear(16, 100_000), zloss.ZLoss(a=1.0, b=10), negatives)
    >>> optimizers = [torch.optim.Adam(negatives.parameters()), zloss.FactoredSGD(head.layer, row_lr=0.3)]
    >>> head(torch.randn(4, 16), torch.tensor([7, 0, 99_999, -100])).backward()
    >>> for optimizer in optimizers:
    ...     optimizer.step()
    """

    def __init__(
        self,
        num_classes: int,
        *,
        num_samples: int = 256,
        sampler: NegativeSampler | Sampler = "uniform",
        counts: Tensor | None = None,  # (C,)
        power: float = 0.75,
        strength: float = 1.0,
        scored_by: ScoredBy = "z",
        scale: float = 1.0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check_count("num_classes", num_classes)
        check_count("num_samples", num_samples)
        check_number("strength", strength, least=0)
        check_choice("scored_by", scored_by, get_args(ScoredBy))
        check_number("scale", scale, above=0)
        check_device("device", device)
        where = torch.empty(0, device=device).device
        self.num_classes, self.num_samples = num_classes, num_samples
        self.strength, self.scored_by = strength, scored_by
        self.takes_batch = isinstance(sampler, str) and sampler == "batch"
        self.sampler: Sampler | None = None
        if not self.takes_batch:
            given: Any = sampler
            self.sampler = make_sampler(
                given, num_classes, counts=counts, power=power, device=where
            )
        elif counts is not None:
            self.sampler = _sampler_of_targets(checked_counts(counts, num_classes), where)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale), device=device))

    def forward(
        self,
        layer: FactoredLinear | DenseLinear,
        h: Tensor,  # (B, H)
        stats: SphericalStats,
    ) -> Tensor:  # (B,)
        """Return the term of each example, without its strength; 0 where every target is ignored."""
        targets, valid = _checked_targets(layer, h, stats, self.num_classes)
        if not self.takes_batch and has_other_processes(None) and torch.is_grad_enabled():
            raise ValueError(
                "SharedNegatives would draw other classes in each process, and their layers would drift apart: use "
                'sampler="batch", or train in one process'
            )
        draws, log_expected, is_kept = self._draw(targets, valid)
        own, drawn = self._scores(layer, h, stats, targets, draws)
        drawn = drawn - log_expected.to(drawn.dtype)
        left_out = ~is_kept.expand(len(h), -1)
        for k in range(targets.shape[1]):  # all together would need B K S numbers
            left_out = left_out | ((draws == targets[:, k, None]) & valid[:, k, None])
        # A number that stands for log(0): with -inf, a sum of such terms alone would have the gradient NaN.
        rest = drawn.masked_fill(left_out, torch.finfo(drawn.dtype).min).logsumexp(1, keepdim=True)
        values = F.softplus(rest - own, threshold=SOFTPLUS_IS_LINEAR)
        return stats.mean_over_targets(values.to(stats.target.dtype).reshape(stats.target.shape))

    def _draw(
        self, targets: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:  # (S,), (S,) or (), (S,) bool
        """Return classes, the logarithm of how often each is drawn on average, and which of them count."""
        if self.takes_batch:
            draws, is_kept = targets.flatten(), valid.flatten()
            if self.sampler is None:
                return draws, torch.zeros((), device=draws.device), is_kept
            number = is_kept.sum().clamp_min(1).double()
            return draws, self.sampler.log_prob(draws) + number.log(), is_kept
        assert self.sampler is not None, "without a batch there is a sampler"
        self.sampler.follow_(targets.device)
        draws = self.sampler.draw(self.num_samples)
        log_expected = self.sampler.log_prob(draws) + math.log(self.num_samples)
        return draws, log_expected, torch.ones_like(draws, dtype=torch.bool)

    def _scores(
        self,
        layer: FactoredLinear | DenseLinear,
        h: Tensor,
        stats: SphericalStats,
        targets: Tensor,  # (B, K)
        draws: Tensor,  # (S,)
    ) -> tuple[Tensor, Tensor]:  # (B, K), (B, S)
        if isinstance(layer, FactoredLinear):
            has_bias = layer.has_bias
            if not layer.waits_for_device:
                # The mean of a batch that the device has refused is NaN. The layers below must not learn from it.
                h = torch.where(stats.mean.isnan().any(), 0, h)
        else:
            has_bias = layer.linear.bias is not None
        # One look-up makes one gradient of the layer. Autocast would be too coarse for what is left of z.
        with torch.autocast(h.device.type, enabled=False):
            rows = layer.rows(torch.cat([targets.flatten(), draws]), with_bias=has_bias)
            h = with_bias_column(h.to(rows.dtype), rows.shape[1])
            own_rows, drawn_rows = rows.split([targets.numel(), len(draws)])
            own = (h[:, None] * own_rows.reshape(*targets.shape, rows.shape[1])).sum(2)
            drawn = h @ drawn_rows.T
            if self.scored_by == "logits":
                return own, drawn
            scale = self.log_scale.exp().to(rows.dtype)
            moments = stats.mean.to(rows.dtype), stats.variance.to(rows.dtype)
            own, drawn = (z_normalize(scores, *moments) for scores in (own, drawn))
            return scale * own, scale * drawn

    def extra_repr(self) -> str:
        size = "batch" if self.takes_batch else f"num_samples={self.num_samples}"
        return f"{size}, strength={self.strength}, scored_by={self.scored_by!r}"


def _sampler_of_targets(counts: Tensor, device: torch.device) -> UnigramSampler:
    """Return the distribution of targets by their counts. No class has the probability 0, as any may be a target."""
    if not counts.any():
        raise ValueError("counts are all zero: at least one class must occur")
    return UnigramSampler(counts.clamp_min(counts[counts > 0].min()), power=1.0, device=device)


def _checked_targets(
    layer: FactoredLinear | DenseLinear, h: Tensor, stats: SphericalStats, num_classes: int
) -> tuple[Tensor, Tensor]:  # (B, K), (B, K) bool
    """Return the targets of the statistics, and which of them count. Refuses what does not fit together."""
    if not isinstance(layer, FactoredLinear | DenseLinear):
        raise ValueError(
            f"layer must be a FactoredLinear, GramLinear or DenseLinear, got {shown(layer)}"
        )
    check_stats(stats)
    check_hidden(h, layer.in_features, next(layer.parameters()))
    classes, valid = stats.classes, stats.valid
    if classes is None or len(classes) != len(h) or stats.num_classes != num_classes:
        raise ValueError(
            f"stats must be the statistics that the layer has given for h, with {len(h)} examples and {num_classes} "
            f"classes, got {stats!r}"
        )
    return (classes, valid) if classes.dim() == 2 else (classes[:, None], valid[:, None])
