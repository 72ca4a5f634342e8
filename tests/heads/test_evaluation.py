"""Ranks, top-k and probabilities of every head, compared with its definition."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import zloss
from tests.heads.batches import (
    BATCHES,
    IGNORED,
    ROWS,
    assert_close,
    good_batch,
    hidden,
    in_columns,
    ragged,
    spread,
    step,
)
from tests.heads.registry import (
    CLASSES,
    HIDDEN,
    HeadCase,
    every_head,
    every_other_head,
    every_probability_model,
)

BLOCK_SIZES = [1, 7, None]


def ranks_by_definition(scores: Tensor, target: Tensor, margin: float = 0.0) -> Tensor:
    own = scores.gather(1, in_columns(target).clamp_min(0))
    ranks = 1 + (scores[:, None] > own[..., None] + margin).sum(2)
    return torch.where(target.reshape(own.shape) == IGNORED, 0, ranks).reshape(target.shape)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@every_head
def test_topk_and_rank(case: HeadCase, block_size: int | None, device: torch.device) -> None:
    head, h = case.made(device), hidden(device=device)
    scores = case.scores(case.weights(head), h.detach())
    for k in (1, 5, CLASSES):
        values, classes = head.topk(h, k, block_size=block_size)
        assert torch.equal(classes, scores.argsort(1, descending=True)[:, :k])
        assert values.shape == (ROWS, k)
        assert not values.requires_grad
        assert (values.diff() <= 0).all()
    for target in (BATCHES["some rows ignored"].to(device), ragged().to(device)):
        ranks = head.rank(h, target, block_size=block_size)
        assert torch.equal(ranks, ranks_by_definition(scores, target))


@every_head
def test_topk_and_rank_after_training(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    h, target = good_batch(head)
    for _ in range(5):
        step(head, h.detach(), target)
    scores = case.scores(case.weights(head), h.detach())
    assert torch.equal(head.topk(h, 5)[1], scores.argsort(1, descending=True)[:, :5])
    assert torch.equal(head.rank(h, target), ranks_by_definition(scores, target))


@every_head
def test_topk_and_rank_agree(case: HeadCase, device: torch.device) -> None:
    head, h = case.made(device), hidden(device=device)
    ranks = head.rank(h, head.topk(h, CLASSES)[1])
    assert torch.equal(ranks, torch.arange(1, CLASSES + 1, device=device).expand(ROWS, -1))


@torch.no_grad()
def forget(head: zloss.Head) -> None:
    """Set all weights to zero."""
    for parameter in head.parameters():
        parameter.zero_()
    if isinstance(head, zloss.SphericalOutput) and isinstance(head.layer, zloss.FactoredLinear):
        head.layer.adopt_rows()


@every_head
def test_ties_share_the_better_rank(case: HeadCase, device: torch.device) -> None:
    """With zero weights all classes tie. In a tree, the classes in clusters of equal size tie."""
    head, h = case.made(device), hidden(2, device=device)
    forget(head)
    every_class = torch.arange(CLASSES, device=device).expand(2, -1)
    # The definition may round equal scores differently. Different scores differ by a factor of at least 7/8.
    scores = case.scores(case.weights(head), h.detach())
    expected = ranks_by_definition(scores, every_class, margin=1e-9)
    for block_size in BLOCK_SIZES:
        assert torch.equal(head.rank(h, every_class, block_size=block_size), expected)
    assert expected.unique().numel() < 8, "there are ties"


@every_head
def test_no_class_outranks_itself_in_float32(case: HeadCase, device: torch.device) -> None:
    """A score may differ in the last bit between two products, but a class must not outrank itself."""
    head = case.made(device, dtype=torch.float32)
    h = torch.randn(300, HIDDEN, device=device)
    assert (head.rank(h, head.topk(h, 1)[1]) == 1).all()


@every_head
def test_evaluation_of_no_rows(case: HeadCase, device: torch.device) -> None:
    head, h, target = case.made(device), hidden(0, device=device), spread(0).to(device)
    assert head.rank(h, target).shape == (0,)
    assert [part.shape for part in head.topk(h, 3)] == [(0, 3), (0, 3)]
    if head.is_likelihood:
        assert head.log_prob(h).shape == (0, CLASSES)
        assert head.target_log_prob(h, target).shape == (0,)


@every_head
def test_evaluation_is_exact_under_autocast(case: HeadCase, device: torch.device) -> None:
    head = case.made(device, dtype=torch.float32)
    h, target = good_batch(head)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        values, classes = head.topk(h, CLASSES)
        ranks = head.rank(h, target)
        log_prob = head.log_prob(h) if head.is_likelihood else None
    assert all(map(torch.equal, head.topk(h, CLASSES), (values, classes)))
    assert torch.equal(head.rank(h, target), ranks)
    assert log_prob is None or torch.equal(head.log_prob(h), log_prob)


def test_what_all_scores_of_a_row_share_costs_no_digits(device: torch.device) -> None:
    layer = zloss.FactoredLinear(HIDDEN, CLASSES, device=device)
    h, target = torch.randn(ROWS, HIDDEN, device=device), spread(ROWS).to(device)
    expected = layer.rank(h, target)
    layer.omega.data.fill_(1e7)  # in a sum with it, float32 would lose all scores
    assert torch.equal(
        zloss.SphericalOutput(layer, zloss.ZLoss(a=0.1, b=10)).rank(h, target), expected
    )


@every_head
def test_half_precision_activations(case: HeadCase, device: torch.device) -> None:
    head = case.made(device, dtype=torch.float32)
    h, target = good_batch(head)
    low = h.detach().bfloat16()
    reads: list[Callable[[Tensor], Tensor]] = [lambda h: head.rank(h, target)]
    if isinstance(head, zloss.SphericalOutput | zloss.DenseOutput | zloss.SampledSoftmax):
        reads.append(head.logits)
    for read in reads:
        assert torch.equal(read(low), read(low.float()))


# ---- probabilities ---------------------------------------------------------------------------------------------------


@every_probability_model
def test_log_prob(case: HeadCase, device: torch.device) -> None:
    head, h = case.made(device), hidden(device=device)
    assert case.log_prob is not None
    log_prob = head.log_prob(h)
    assert_close(log_prob, case.log_prob(case.weights(head), h.detach()))
    assert_close(log_prob.exp().sum(1), torch.ones(ROWS, dtype=torch.float64, device=device))
    assert not log_prob.requires_grad
    of_the_best = log_prob.gather(1, head.topk(h, CLASSES)[1])
    assert (of_the_best.diff() <= 0).all(), "the best classes are the most probable ones"


@every_probability_model
def test_target_log_prob_and_perplexity(case: HeadCase, device: torch.device) -> None:
    head, h = case.made(device), hidden(device=device)
    log_prob = head.log_prob(h)
    for target in (BATCHES["some rows ignored"].to(device), ragged().to(device)):
        valid = target != IGNORED
        expected = log_prob.gather(1, in_columns(target).clamp_min(0)).reshape(target.shape)
        expected = torch.where(valid, expected, 0)
        of_targets = head.target_log_prob(h, target)
        assert_close(of_targets, expected)
        assert of_targets[~valid].count_nonzero() == 0
        perplexity = math.exp(-(expected.sum() / valid.sum()).item())
        assert head.perplexity(h, target) == pytest.approx(perplexity, rel=1e-10)


def test_perplexity_of_targets_that_share_their_bits_with_the_ignored_one(
    device: torch.device,
) -> None:
    head = zloss.DenseOutput(HIDDEN, 200, device=device)
    h, target = (
        torch.randn(2, HIDDEN, device=device),
        torch.tensor([156, 3], device=device),
    )  # 156 = -100 + 256
    assert head.perplexity(h, target.to(torch.uint8)) == head.perplexity(h, target)


@every_probability_model
def test_perplexity_in_two_halves(case: HeadCase, device: torch.device) -> None:
    head, h, target = (
        case.made(device),
        hidden(device=device),
        BATCHES["some rows ignored"].to(device),
    )
    metric = zloss.Perplexity()
    for part in (slice(0, 5), slice(5, None)):  # two parts with different numbers of targets
        metric.update(head.target_log_prob(h[part], target[part]), counted=target[part] != IGNORED)
    assert metric.compute() == pytest.approx(head.perplexity(h, target), rel=1e-10)


@every_probability_model
def test_perplexity_needs_a_target(case: HeadCase, device: torch.device) -> None:
    with pytest.raises(ValueError, match="no targets yet"):
        case.made(device).perplexity(
            hidden(device=device), torch.full((ROWS,), IGNORED, device=device)
        )


@every_other_head
def test_no_probabilities_where_there_is_no_model(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    h, target = good_batch(head)
    calls: list[Callable[[], object]] = [
        lambda: head.log_prob(h),
        lambda: head.target_log_prob(h, target),
        lambda: head.perplexity(h, target),
    ]
    for call in calls:
        with pytest.raises(
            ValueError, match="is not a probability model: it ranks classes and gives them no prob"
        ):
            call()
