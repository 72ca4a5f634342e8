"""Every head with its slow definition. To test a new head, add a row to `CASES`.

`tests.heads.definitions` has the definitions. A row says how the head is made, and how its weights get their names.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.heads.definitions import (
    Weights,
    adaptive_log_prob,
    hierarchical_log_prob,
    linear,
    nce,
    own,
    sampled_softmax,
    softmax_log_prob,
)
from tests.heads.logit_losses import LOGIT_LOSSES
from zloss.heads.samplers import Sampler
from zloss.heads.softmax import IMPLEMENTATIONS

HIDDEN, CLASSES, SAMPLES = 8, 53, 20
# Some counts are equal.
COUNTS = torch.randint(1, 40, (CLASSES,), generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(CLASSES).square() % 11  # six clusters of 5 to 10 classes, scattered
LABELS[7] = 100  # one more cluster, of a single class
SHUFFLED = zloss.Clustering.shuffled(CLASSES, 5, seed=3)
CUTOFFS = [5, 20]
COUNTED_CUTOFFS = [6, 25]

# (weights, h (N, H)) -> (N, C)
OfAllClasses = Callable[[Weights, Tensor], Tensor]
# (weights, h (N, H), class of each row (N,)) -> (N,)
OfPairs = Callable[[Weights, Tensor, Tensor], Tensor]


# ---- the cases -------------------------------------------------------------------------------------------------------


def parameters(head: zloss.Head) -> Weights:
    return {name: parameter.detach().clone() for name, parameter in head.named_parameters()}


def factored_weights(head: zloss.Head) -> Weights:
    assert isinstance(head, zloss.SphericalOutput)
    weight, bias = head.layer.weight(), head.layer.bias()
    return {"weight": weight} if bias is None else {"weight": weight, "bias": bias}


# ---- the cases -------------------------------------------------------------------------------------------------------


class HeadCase(NamedTuple):
    """A head, its definition, and its properties, which tests check."""

    name: str
    kind: str  # its name in `zloss.heads.config.HEADS`
    loss: str  # its name in LOSSES, if it has one
    # Called with reduction, ignore_index, device and dtype, and with class_weight if the loss is of this library.
    make: Callable[..., zloss.Head]
    definition: OfPairs  # the loss of each example for its class
    scores: OfAllClasses  # the scores that rank the classes, up to changes that keep the ranks
    log_prob: OfAllClasses | None  # for probability models
    weights: Callable[[zloss.Head], Weights] = (
        parameters  # copies of the weights for the definitions
    )
    is_row_sparse: bool = False
    # True if the loss is of this library: K targets, row weights, and 0 for a batch without targets.
    is_ours: bool = True
    lr: float = 0.5  # a learning rate at which a few hundred steps of SGD lower the loss
    falls_to: float = 0.5  # the share of its first value that the loss falls below then
    missing: str | None = None  # the reason why it cannot run here

    def made(
        self, device: torch.device | str = "cpu", *, seed: int = 0, **options: Any
    ) -> zloss.Head:
        """Make a head in float64. The same seed gives the same head."""
        torch.manual_seed(seed)
        return self.make(**{"device": device, "dtype": torch.float64, **options})


def logit_case(
    kind: str, make: Callable[..., zloss.Head], loss: str, *, note: str = "", **claims: Any
) -> HeadCase:
    """Return the case of a head whose loss is a function of all logits, even if the head does not form them."""
    entry = LOGIT_LOSSES[loss]
    logits = partial(linear, {"factored": "", "gram": "layer.linear.", "dense": "linear."}[kind])
    return HeadCase(
        f"{kind} {loss}{note}",
        kind,
        loss,
        partial(make, entry.make),
        definition=lambda w, h, index: entry.definition(logits(w, h), index),
        scores=lambda w, h: entry.ranks_by(logits(w, h)),
        log_prob=None if entry.log_prob is None else lambda w, h: entry.log_prob(logits(w, h)),  # type: ignore[misc]
        weights=factored_weights if kind == "factored" else parameters,
        **claims,
    )


def make_dense(
    loss: Callable[..., nn.Module],
    *,
    bias: bool = False,
    softmax: Any = "logits",
    device: Any = None,
    dtype: Any = None,
    **common: Any,
) -> zloss.Head:
    return zloss.DenseOutput(
        HIDDEN,
        CLASSES,
        loss=loss(**common),
        bias=bias,
        softmax=softmax,
        device=device,
        dtype=dtype,
    )


def make_spherical(
    layer: type[zloss.FactoredLinear] | type[zloss.GramLinear],
    loss: Callable[..., zloss.SphericalLoss],
    *,
    reduction: Any = "mean",
    ignore_index: int = -100,
    class_weight: Tensor | None = None,
    **options: Any,
) -> zloss.Head:
    return zloss.SphericalOutput(
        layer(HIDDEN, CLASSES, ignore_index=ignore_index, **options),
        loss(reduction=reduction, class_weight=class_weight),
    )


make_factored = partial(make_spherical, zloss.FactoredLinear)
make_gram = partial(make_spherical, zloss.GramLinear)


def hierarchical_case(note: str, families: Sequence[Tensor], **options: Any) -> HeadCase:
    log_prob = partial(hierarchical_log_prob, families)
    return HeadCase(
        f"hierarchical {note}",
        "hierarchical",
        "softmax",
        partial(zloss.HierarchicalSoftmax, HIDDEN, CLASSES, **options),
        definition=lambda w, h, index: -own(log_prob(w, h), index),
        scores=log_prob,
        log_prob=log_prob,
        is_row_sparse=True,
    )


def adaptive_case(note: str, cutoffs: Sequence[int], order: Tensor, **options: Any) -> HeadCase:
    log_prob = partial(adaptive_log_prob, cutoffs, order)
    return HeadCase(
        f"adaptive {note}",
        "adaptive",
        "softmax",
        partial(zloss.AdaptiveSoftmax, HIDDEN, CLASSES, cutoffs=cutoffs, div_value=2.0, **options),
        definition=lambda w, h, index: -own(log_prob(w, h), index),
        scores=log_prob,
        log_prob=log_prob,
    )


def sampled_case(
    note: str,
    loss: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    sampler: Callable[[torch.device], Sampler],
    q: Tensor,
    lr: float = 0.5,
    **options: Any,
) -> HeadCase:
    """Return the case of a sampled head. Head and definition draw from torch's generator: give both one seed."""
    name: Any = "nce" if loss is nce else "softmax"

    def definition(w: Weights, h: Tensor, index: Tensor) -> Tensor:
        draws = sampler(h.device).draw(SAMPLES)
        return loss(
            linear("linear.", w, h), index, draws, (SAMPLES * q.double()).log().to(h.device)
        )

    def make(**common: Any) -> zloss.Head:
        by = sampler(torch.device(common["device"]))
        return zloss.SampledSoftmax(
            HIDDEN, CLASSES, num_samples=SAMPLES, sampler=by, loss=name, **options, **common
        )

    return HeadCase(
        f"sampled {name} {note}",
        "sampled",
        name,
        make,
        definition,
        scores=partial(linear, "linear."),
        log_prob=lambda w, h: softmax_log_prob(linear("linear.", w, h)),
        is_row_sparse=True,
        lr=lr,
    )


def uniform(device: torch.device) -> Sampler:
    return zloss.UniformSampler(CLASSES, device=device)


def log_uniform(device: torch.device) -> Sampler:
    return zloss.LogUniformSampler(CLASSES, device=device)


def unigram(device: torch.device) -> Sampler:
    return zloss.UnigramSampler(COUNTS, device=device)


IN_ORDER = torch.arange(CLASSES)
BY_COUNTS = COUNTS.argsort(descending=True, stable=True)
SIZES = [8, 8, 8, 8, 7, 7, 7]  # 53 classes in round(sqrt(53)) clusters
BY_LABELS = [(label == LABELS).nonzero()[:, 0] for label in LABELS.unique()]
UNIFORM_Q = torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64)
LOG_UNIFORM_Q = ((IN_ORDER.double() + 2) / (IN_ORDER.double() + 1)).log() / math.log(CLASSES + 1)
UNIGRAM_Q = COUNTS.double() ** 0.75 / (COUNTS.double() ** 0.75).sum()

CASES = [
    logit_case("dense", make_dense, "softmax"),
    logit_case("dense", partial(make_dense, bias=True), "softmax", note=" bias"),
    logit_case(
        "dense",
        partial(make_dense, bias=True, softmax="linear_cross_entropy"),
        "softmax",
        note=" by linear_cross_entropy",
        missing=IMPLEMENTATIONS["linear_cross_entropy"].missing(None),
    ),
    logit_case("dense", partial(make_dense, bias=True), "sigmoid", lr=0.2),
    logit_case("dense", make_dense, "z_softmax"),
    # Z-scores have the mean 0, so their mean softplus is at least log(2), even if they rank well. The loss falls by 9
    # from 57.
    logit_case("dense", partial(make_dense, bias=True), "z_sigmoid", falls_to=0.87),
    logit_case("dense", partial(make_dense, bias=True), "z_loss"),
    logit_case("dense", make_dense, "squared_error", lr=0.1),
    logit_case("dense", make_dense, "taylor_softmax"),
    logit_case("dense", make_dense, "spherical_softmax"),
    logit_case("dense", partial(make_dense, bias=True), "torch's softmax", is_ours=False),
    logit_case("dense", make_dense, "torch's z_softmax", is_ours=False),
    logit_case("factored", make_factored, "z_loss"),
    logit_case("factored", partial(make_factored, bias=True), "z_loss", note=" bias"),
    logit_case("factored", partial(make_factored, bias=True), "squared_error", lr=0.1),
    logit_case("factored", make_factored, "taylor_softmax"),
    logit_case("factored", make_factored, "spherical_softmax"),
    logit_case("gram", make_gram, "z_loss"),
    logit_case("gram", partial(make_gram, bias=True), "z_loss", note=" bias"),
    logit_case("gram", make_gram, "squared_error", lr=0.1),
    logit_case("gram", partial(make_gram, bias=True), "taylor_softmax"),
    logit_case("gram", make_gram, "spherical_softmax"),
    hierarchical_case("in order", IN_ORDER.split(SIZES)),
    hierarchical_case("in order, bias", IN_ORDER.split(SIZES), bias=True),
    hierarchical_case("by counts", BY_COUNTS.split(SIZES), counts=COUNTS),
    hierarchical_case(
        "by labels, bias", BY_LABELS, clusters=zloss.Clustering.by_labels(LABELS), bias=True
    ),
    hierarchical_case("shuffled", SHUFFLED.order.split(SHUFFLED.sizes), clusters=SHUFFLED),
    adaptive_case("in order", CUTOFFS, IN_ORDER),
    adaptive_case("by counts, bias", COUNTED_CUTOFFS, BY_COUNTS, counts=COUNTS, head_bias=True),
    sampled_case("uniform", sampled_softmax, uniform, UNIFORM_Q),
    sampled_case("log-uniform, bias", sampled_softmax, log_uniform, LOG_UNIFORM_Q, bias=True),
    sampled_case("unigram", sampled_softmax, unigram, UNIGRAM_Q),
    sampled_case("uniform", nce, uniform, UNIFORM_Q),
    sampled_case("log-uniform, bias", nce, log_uniform, LOG_UNIFORM_Q, bias=True),
    sampled_case("unigram, bias", nce, unigram, UNIGRAM_Q, bias=True),
]


def each(cases: Iterable[HeadCase]) -> pytest.MarkDecorator:
    """Run a test once for each case, as its argument `case`; skip those that cannot run here."""
    rows = [
        pytest.param(
            case,
            id=case.name,
            marks=[pytest.mark.skip(reason=case.missing)] if case.missing else [],
        )
        for case in cases
    ]
    return pytest.mark.parametrize("case", rows)


every_head = each(CASES)
every_head_of_ours = each(case for case in CASES if case.is_ours)
every_head_with_a_foreign_loss = each(case for case in CASES if not case.is_ours)
every_probability_model = each(case for case in CASES if case.log_prob is not None)
every_other_head = each(case for case in CASES if case.log_prob is None)
every_row_sparse_head = each(case for case in CASES if case.is_row_sparse)
every_head_but_row_sparse = each(case for case in CASES if not case.is_row_sparse)
