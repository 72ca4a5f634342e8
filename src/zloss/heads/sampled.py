"""An ordinary weight matrix, trained on the targets and a sample of the other classes."""

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from zloss.heads.linear import LinearHead
from zloss.heads.samplers import Sampler, SamplerName, make_sampler
from zloss.losses.reduction import Reduction, check_reduction, reduce_loss
from zloss.losses.spherical import SOFTPLUS_IS_LINEAR
from zloss.targets import IGNORE_INDEX

SampledLoss = Literal["softmax", "nce"]

_MOST_SAMPLES_BY_DEFAULT = 8192


class SampledSoftmax(LinearHead):
    r"""A softmax over all classes, trained at the cost of a few of them: O(B (K + S) H) a step.

    Each step draws S classes from a distribution q, the same for all examples of the batch, to stand in for all that
    are not the target. The gradient of the weights is row-sparse: torch's SGD then changes these rows alone. Evaluation
    is that of the full softmax over all classes.

    **loss="softmax"**, an estimate of the softmax (Bengio and Senécal 2008, Jean et al. 2015). For target t and
    negatives s,

        log(exp(o_t) + sum_{s != t} exp(o_s - log(S q_s))) - o_t

    A class s is among the S draws `S q_s` times on average. Divide its term by as much, and the expected value of the
    sum is that of all classes other than t, each once: hence the *minus* before the logarithm. The target is in the sum
    with certainty, once, so nothing is to be corrected there; and it must not be in it a second time, so draws that hit
    it are left out. That makes the normaliser unbiased. Its logarithm, and with it the gradient, has a bias that falls
    as 1/S.

    **loss="nce"**, noise-contrastive estimation (Gutmann and Hyvärinen 2010, Mnih and Teh 2012): tell the target from
    the S draws, by logistic regression. `exp(o_c)` against `S q_c` are the odds that a class c is the target, so

        softplus(-(o_t - log(S q_t))) + sum_s softplus(o_s - log(S q_s))

    Here a draw may well be the target: noise can be any class, and all of it counts. Nothing normalises `exp(o)`; the
    optimum does so by itself, with `sum_c exp(o_c)` near 1. That is far from where an ordinary layer starts, near C. So
    the bias starts at -log(C): use `bias=True` with this loss.

    With K targets per example the loss is the average of its K single-target values, all against the same draws.

    Args:
        num_samples: S. By default an eighth of the classes, and no more than 8192.
        sampler: "log_uniform" for classes numbered by frequency, or whose `counts` give that order; "unigram" for
            probabilities in proportion to `counts ** power`; "uniform"; or a `Sampler`. The closer q is to the softmax,
            the smaller the variance.
        counts: how often each class occurs.
        power: of the counts, for "unigram".
        remove_accidental_hits: for the softmax. False leaves draws that hit the target in the sum, which then counts it
            twice on average: only to compare with implementations that do so.
        generator: the source of the draws, on the device of the head; by default torch's global one. It is not part of
            the state dict.

    >>> head = SampledSoftmax(8, 1000, num_samples=50)
    >>> optimizer = head.sgd(lr=0.1)
    >>> head(torch.randn(4, 8), torch.tensor([1, 2, 3, 4])).backward()
    >>> head.linear.weight.grad.layout, head.linear.weight.grad._indices().shape    # 4 targets and 50 draws
    (torch.sparse_coo, torch.Size([1, 54]))
    >>> optimizer.step()
    >>> head.topk(torch.randn(4, 8), 3)[1].shape
    torch.Size([4, 3])
    """

    is_row_sparse = True

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        num_samples: int | None = None,
        sampler: SamplerName | Sampler = "log_uniform",
        counts: Tensor | None = None,  # (C,)
        power: float = 0.75,
        loss: SampledLoss = "softmax",
        remove_accidental_hits: bool = True,
        generator: Generator | None = None,
        bias: bool = False,
        reduction: Reduction = "mean",
        ignore_index: int = IGNORE_INDEX,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if num_samples is None:
            num_samples = min(max(1, num_classes // 8), _MOST_SAMPLES_BY_DEFAULT)
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        if loss not in get_args(SampledLoss):
            raise ValueError(
                f"loss must be one of {', '.join(get_args(SampledLoss))}, got {loss!r}"
            )
        check_reduction(reduction)
        super().__init__(
            in_features,
            num_classes,
            bias=bias,
            device=device,
            dtype=dtype,
            ignore_index=ignore_index,
        )
        where = self.linear.weight.device
        self.sampler = make_sampler(sampler, num_classes, counts=counts, power=power, device=where)
        self.num_samples, self.loss, self.remove_accidental_hits = (
            num_samples,
            loss,
            remove_accidental_hits,
        )
        self.generator = generator
        self.reduction: Reduction = reduction
        if loss == "nce":
            self._prepare_for_nce()

    @property
    def is_capturable(self) -> bool:
        return (
            self.generator is None
        )  # torch's own has a graph draw anew at every replay; others it does not know

    def _prepare_for_nce(self) -> None:
        never = self.sampler.log_prob(
            torch.arange(self.num_classes, device=self.linear.weight.device)
        ).isneginf()
        if never.any():
            raise ValueError(
                f"noise-contrastive estimation needs a sampler that can draw every class, and this one never draws "
                f"{int(never.sum())} of {self.num_classes}, class {int(never.nonzero()[0])} for one; "
                "add one to the counts, or choose another sampler"
            )
        if self.linear.bias is not None:
            nn.init.constant_(self.linear.bias, -math.log(self.num_classes))

    def forward(
        self,
        h: Tensor,  # (B, H)
        target: Tensor,  # (B,) or (B, K)
        *,
        weight: Tensor | None = None,  # (B,)
    ) -> Tensor:
        admitted = self._admission.admit(h, target, self.linear.weight)
        targets = admitted.targets
        self.sampler.follow_(self.linear.weight.device)
        draws = self.sampler.draw(self.num_samples, generator=self.generator)
        own, drawn = self._logits(admitted.h, targets.index, draws)
        drawn -= self._log_expected(draws).to(drawn.dtype)
        per_target = self._per_target(own, drawn, targets.index, draws)
        return admitted.conclude(
            reduce_loss(targets.mean(per_target), targets.counted, self.reduction, weight)
        )

    def _logits(
        self, h: Tensor, index: Tensor, draws: Tensor
    ) -> tuple[Tensor, Tensor]:  # (B, K), (B, S)
        """Activations of the targets and of the draws, in float32 or better.

        The product of the draws follows autocast; a single target in half precision would be too coarse.
        """
        wide = torch.promote_types(self.linear.weight.dtype, torch.float32)
        classes = torch.cat([index.flatten(), draws])  # one gather, and so one sparse gradient
        sizes = [index.numel(), len(draws)]
        own_rows, drawn_rows = F.embedding(classes, self.linear.weight, sparse=True).split(sizes)
        own = (h[:, None].to(wide) * own_rows.view(*index.shape, h.shape[1])).sum(2)
        drawn = (h @ drawn_rows.T).to(wide)
        if self.linear.bias is not None:
            own_bias, drawn_bias = self.linear.bias.gather(0, classes, sparse_grad=True).split(
                sizes
            )
            own, drawn = own + own_bias.view(index.shape), drawn.add_(drawn_bias)
        return own, drawn

    def _log_expected(self, classes: Tensor) -> Tensor:  # as classes, float64
        """`log(S q)`, the logarithm of how often a class is drawn in a step on average."""
        return self.sampler.log_prob(classes) + math.log(self.num_samples)

    def _per_target(
        self, own: Tensor, drawn: Tensor, index: Tensor, draws: Tensor
    ) -> Tensor:  # (B, K)
        """The loss of each target, from its activation and those of the draws less `log(S q)`."""
        if self.loss == "nce":
            return self._nce(own, drawn, index)
        return self._softmax(own, drawn, index, draws)

    def _nce(self, own: Tensor, drawn: Tensor, index: Tensor) -> Tensor:  # (B, K)
        log_odds = own - self._log_expected(index).to(own.dtype)
        return _softplus(-log_odds) + _softplus(drawn).sum(1, keepdim=True)

    def _softmax(
        self, own: Tensor, drawn: Tensor, index: Tensor, draws: Tensor
    ) -> Tensor:  # (B, K)
        if self.remove_accidental_hits:
            log_rest = self._log_sum_without_hits(own, drawn, index, draws)
        else:
            log_rest = drawn.logsumexp(1, keepdim=True)
        return _softplus(log_rest - own)  # log(exp(own) + exp(log_rest)) - own

    def _log_sum_without_hits(
        self, own: Tensor, drawn: Tensor, index: Tensor, draws: Tensor
    ) -> Tensor:  # (B, K)
        """For each target, the logarithm of the sum over the draws that are not that target.

        A draw that hits one of K targets of an example still counts for the others. To hold K sums of S terms for
        that would take B K S numbers, so: first the draws that hit no target of the example, once for all of them; to
        these each target adds those that hit another one, whose activation is known from there.
        """
        if index.shape[1] == 1:
            return _log_sum_except(drawn, draws == index)
        hits, times = _accidental_hits(index, draws)
        return torch.logaddexp(
            _log_sum_except(drawn, hits), self._log_sum_of_hits(own, index, times)
        )

    def _log_sum_of_hits(self, own: Tensor, index: Tensor, times: Tensor) -> Tensor:  # (B, K)
        """For each target, the logarithm of the sum over the draws that hit another target of the example."""
        same = index[:, :, None] == index[:, None, :]  # (B, K, K)
        times = times.double() / same.sum(
            2
        )  # a class that is a target twice brings its hits in two halves
        log_part = own + (times.log() - self._log_expected(index)).to(own.dtype)
        others = torch.where(~same & (times > 0)[:, None], log_part[:, None], _nothing(own.dtype))
        return others.logsumexp(2)

    def extra_repr(self) -> str:
        return f"num_samples={self.num_samples}, loss={self.loss!r}, reduction={self.reduction!r}"


def _accidental_hits(index: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:  # (B, S) bool, (B, K)
    """Which draws are a target of the example, and how many of them are each of its targets."""
    hits = torch.zeros(len(index), len(draws), dtype=torch.bool, device=index.device)
    times = torch.empty_like(index)
    for k, column in enumerate(index.T):  # one after the other: all at once would be B K S numbers
        hits_of_column = draws == column[:, None]
        hits |= hits_of_column
        times[:, k] = hits_of_column.sum(1)
    return hits, times


def _log_sum_except(drawn: Tensor, hits: Tensor) -> Tensor:  # (B, S), (B, S) bool -> (B, 1)
    """Logarithm of the sum over the draws that are no hits; overwrites `drawn`."""
    return drawn.masked_fill_(hits, _nothing(drawn.dtype)).logsumexp(1, keepdim=True)


def _nothing(dtype: torch.dtype) -> float:
    """The logarithm of nothing. Not -inf: where a sum has no other terms its gradient would be NaN."""
    return torch.finfo(dtype).min


def _softplus(x: Tensor) -> Tensor:
    return F.softplus(x, threshold=SOFTPLUS_IS_LINEAR)
