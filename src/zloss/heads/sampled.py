"""The sampled softmax and noise-contrastive estimation: training on the targets and a sample of the other classes."""

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from zloss.heads.defaults import NCE, NUM_SAMPLES, SAMPLED, HeadDefaults
from zloss.heads.linear import LinearHead
from zloss.heads.samplers import Sampler, SamplerName, check_generator, make_sampler
from zloss.inputs import check_choice, check_count, check_flag, check_sizes
from zloss.losses.class_weight import register_class_weight, weigh
from zloss.losses.functions import SOFTPLUS_IS_LINEAR
from zloss.losses.reduction import Reduction, check_reduction, reduce_loss
from zloss.targets import IGNORE_INDEX

SampledLoss = Literal["softmax", "nce"]


class SampledSoftmax(LinearHead):
    r"""A softmax over all classes, trained at the cost of few classes: O(B (K + S) H) per step.

    Each step draws S classes from a distribution q. These draws stand for all classes other than the target, and all
    examples of the batch share them. The gradient of the weights is row-sparse, so torch's SGD changes only the rows of
    targets and draws. Evaluation uses the full softmax over all classes.

    **loss="softmax"**, an estimate of the softmax (Bengio and Senécal 2008, Jean et al. 2015). For target t and
    negatives s,

        log(exp(o_t) + sum_{s != t} exp(o_s - log(S q_s))) - o_t

    A class s is among the S draws `S q_s` times on average. Its term is divided by this number, which is the *minus*
    before the logarithm. So the expected sum contains every class other than t once. The target itself is always in the
    sum, exactly once, and needs no correction. It must not be in the sum a second time, so draws that hit it are left
    out. That makes the normaliser unbiased. Its logarithm and the gradient have a bias that falls as 1/S.

    **loss="nce"**, noise-contrastive estimation (Gutmann and Hyvärinen 2010, Mnih and Teh 2012): logistic regression
    that distinguishes the target from the S draws. The odds that a class c is the target are `exp(o_c)` to `S q_c`, so

        softplus(-(o_t - log(S q_t))) + sum_s softplus(o_s - log(S q_s))

    Here a draw may be the target: noise can be any class, and all draws count. The loss does not normalise `exp(o)`,
    but at its optimum `sum_c exp(o_c)` is near 1. A new layer has a sum near C, which is far from it. So this
    loss has a bias by default, which starts at -log(C).

    With K targets per example the loss is the average of K single-target losses with the same draws.

    Args:
        in_features: H, the width of the hidden layer.
        num_classes: C.
        num_samples: S. The default suits any number of classes: see the measurements in the guide on heads.
        sampler: the distribution q: "log_uniform", "unigram", "uniform" or a `Sampler`. "log_uniform" is for classes
            that are numbered by frequency, or that `counts` sort by frequency. "unigram" draws in proportion to
            `counts ** power`. The variance is smaller if q is closer to the softmax.
        counts: the number of occurrences of each class.
        power: the exponent of the counts for "unigram".
        loss: "softmax" or "nce".
        remove_accidental_hits: for the softmax. False leaves draws that hit the target in the sum, which then counts
            the target twice on average. Use it only to compare with implementations that do so.
        generator: the source of the draws, on the device of the head. By default it is torch's global generator. It is
            not part of the state dict.
        bias: adds a bias to the classes. By default only noise-contrastive estimation has one.
        device, dtype: as in `nn.Linear`.
        reduction: "mean" over the rows that are not ignored, "sum", or "none" for one value per example.
        ignore_index: the target that is ignored.
        class_weight: a weight for each class, (C,), which multiplies the losses of its targets: see
            `zloss.balanced_weights`.

    >>> head = SampledSoftmax(8, 1000, num_samples=50)
    >>> optimizer = head.sgd(lr=0.1)
    >>> head(torch.randn(4, 8), torch.tensor([1, 2, 3, 4])).backward()
    >>> head.linear.weight.grad.layout, head.linear.weight.grad._indices().shape    # 4 targets and 50 draws
    (torch.sparse_coo, torch.Size([1, 54]))
    >>> optimizer.step()
    >>> head.topk(torch.randn(4, 8), 3)[1].shape
    torch.Size([4, 3])
    """

    class_weight: Tensor | None  # (C,)
    is_row_sparse = True

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        num_samples: int = NUM_SAMPLES,
        sampler: SamplerName | Sampler = "log_uniform",
        counts: Tensor | None = None,  # (C,)
        power: float = 0.75,
        loss: SampledLoss = "softmax",
        remove_accidental_hits: bool = True,
        generator: Generator | None = None,
        bias: bool | None = None,
        reduction: Reduction = "mean",
        ignore_index: int = IGNORE_INDEX,
        class_weight: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sizes(in_features, num_classes)
        check_count("num_samples", num_samples)
        check_choice("loss", loss, get_args(SampledLoss))
        bias = loss == "nce" if bias is None else bias
        check_flag("remove_accidental_hits", remove_accidental_hits)
        check_generator(generator)
        check_reduction(reduction)
        super().__init__(
            in_features,
            num_classes,
            bias=bias,
            device=device,
            dtype=dtype,
            ignore_index=ignore_index,
        )
        register_class_weight(self, class_weight, num_classes)
        where = self.linear.weight.device
        self.sampler = make_sampler(sampler, num_classes, counts=counts, power=power, device=where)
        self.num_samples, self.loss = num_samples, loss
        self.remove_accidental_hits, self.generator = remove_accidental_hits, generator
        self.reduction: Reduction = reduction
        if loss == "nce":
            self._prepare_for_nce()

    @property
    def defaults(self) -> HeadDefaults:
        return NCE if self.loss == "nce" else SAMPLED

    @property
    def is_capturable(self) -> bool:
        # A graph draws new numbers at every replay, but only from torch's global generator.
        return self.generator is None

    def _prepare_for_nce(self) -> None:
        never = self.sampler.log_prob(
            torch.arange(self.num_classes, device=self.linear.weight.device)
        ).isneginf()
        if never.any():
            raise ValueError(
                f"noise-contrastive estimation needs a sampler that can draw every class, and this one never draws "
                f"{int(never.sum())} of {self.num_classes} classes, such as class {int(never.nonzero()[0])}; "
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
        weighted = weigh(per_target, targets.index, self.class_weight, self.num_classes)
        return admitted.conclude(
            reduce_loss(targets.mean(weighted), targets.counted, self.reduction, weight)
        )

    def _logits(
        self, h: Tensor, index: Tensor, draws: Tensor
    ) -> tuple[Tensor, Tensor]:  # (B, K), (B, S)
        """Return the activations of the targets and of the draws, in float32 or better.

        The product of the draws follows autocast. The activation of a target does not: half precision is too coarse.
        """
        wide = torch.promote_types(self.linear.weight.dtype, torch.float32)
        classes = torch.cat([index.flatten(), draws])  # one gather makes one sparse gradient
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
        """Return `log(S q)`, where `S q` is how often a step draws a class on average."""
        return self.sampler.log_prob(classes) + math.log(self.num_samples)

    def _per_target(
        self, own: Tensor, drawn: Tensor, index: Tensor, draws: Tensor
    ) -> Tensor:  # (B, K)
        """Return the loss of each target. `drawn` are the activations of the draws minus `log(S q)`."""
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
        """Return for each target the logarithm of the sum over the draws that are not that target.

        A draw that hits one of the K targets of an example still counts for the other targets. The direct way would
        need B K S numbers, for K sums of S terms. So one sum has the draws that hit no target of the example, and all
        targets share it. A second sum has the draws that hit other targets, and takes the activations of these targets.
        """
        if index.shape[1] == 1:
            return _log_sum_except(drawn, draws == index)
        hits, times = _accidental_hits(index, draws)
        return torch.logaddexp(
            _log_sum_except(drawn, hits), self._log_sum_of_hits(own, index, times)
        )

    def _log_sum_of_hits(self, own: Tensor, index: Tensor, times: Tensor) -> Tensor:  # (B, K)
        """Return for each target the logarithm of the sum over the draws that hit another target of the example."""
        same = index[:, :, None] == index[:, None, :]  # (B, K, K)
        # If a class is a target twice, each of the two targets counts half of the hits.
        times = times.double() / same.sum(2)
        log_part = own + (times.log() - self._log_expected(index)).to(own.dtype)
        others = torch.where(~same & (times > 0)[:, None], log_part[:, None], _log_zero(own.dtype))
        return others.logsumexp(2)

    def extra_repr(self) -> str:
        return f"num_samples={self.num_samples}, loss={self.loss!r}, reduction={self.reduction!r}"


def _accidental_hits(index: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:  # (B, S) bool, (B, K)
    """Return a mask of the draws that hit a target of the example, and the number of hits of each target."""
    hits = torch.zeros(len(index), len(draws), dtype=torch.bool, device=index.device)
    times = torch.empty_like(index)
    # One column at a time: all columns together would need B K S numbers.
    for k, column in enumerate(index.T):
        hits_of_column = draws == column[:, None]
        hits |= hits_of_column
        times[:, k] = hits_of_column.sum(1)
    return hits, times


def _log_sum_except(drawn: Tensor, hits: Tensor) -> Tensor:  # (B, S), (B, S) bool -> (B, 1)
    """Return the logarithm of the sum over the draws without hits. Overwrites `drawn`."""
    return drawn.masked_fill_(hits, _log_zero(drawn.dtype)).logsumexp(1, keepdim=True)


def _log_zero(dtype: torch.dtype) -> float:
    """Return a number that stands for log(0). With -inf, a sum that has only such terms would have the gradient NaN."""
    return torch.finfo(dtype).min


def _softplus(x: Tensor) -> Tensor:
    return F.softplus(x, threshold=SOFTPLUS_IS_LINEAR)
