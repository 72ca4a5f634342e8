"""Evaluation of the adaptive softmax: log-probabilities, ranks and top-k against torch's own module."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.heads.adaptive_problems import (
    CLASSES,
    CUTOFFS,
    HIDDEN,
    IGNORED,
    assert_close,
    batch,
    clusters,
    log_prob_of_torch,
    make_head,
    shuffled_counts,
    with_and_without_counts,
)
from zloss.heads.adaptive import AdaptiveSoftmax


def test_evaluation_is_exact_under_autocast(device: torch.device) -> None:
    head = make_head(device, dtype=torch.float32)
    h, target = batch(head, 9)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        values = head.log_prob(h), head.target_log_prob(h, target), head.rank(h, target)
    expected = head.log_prob(h), head.target_log_prob(h, target), head.rank(h, target)
    assert all(map(torch.equal, values, expected))


@with_and_without_counts
@pytest.mark.parametrize("head_bias", [False, True])
def test_log_prob_is_that_of_torch(
    counts: Tensor | None, head_bias: bool, device: torch.device
) -> None:
    head = make_head(device, counts=counts, head_bias=head_bias)
    h, _ = batch(head, 13)
    log_prob = head.log_prob(h)
    assert_close(log_prob, log_prob_of_torch(head, h).detach())
    assert_close(log_prob.exp().sum(1), torch.ones(13, dtype=torch.float64, device=device))


@with_and_without_counts
@pytest.mark.parametrize("columns", [(), (4,)])
def test_target_log_prob_and_perplexity(
    counts: Tensor | None, columns: tuple[int, ...], device: torch.device
) -> None:
    head = make_head(device, counts=counts, head_bias=True)
    h, target = batch(head, 25, *columns)
    target[::7] = IGNORED
    shaped = target.reshape(25, -1)
    expected = (
        head.log_prob(h)
        .gather(1, shaped.clamp_min(0))
        .masked_fill(shaped == IGNORED, 0)
        .reshape(target.shape)
    )
    assert_close(head.target_log_prob(h, target), expected)
    mean = expected.sum().item() / (target != IGNORED).sum().item()
    assert head.perplexity(h, target) == pytest.approx(math.exp(-mean), rel=1e-12)


def test_target_log_prob_makes_no_pass_over_clusters_without_targets() -> None:
    head = make_head()
    for tail in clusters(head):
        tail.register_forward_pre_hook(lambda *_: pytest.fail("a cluster was evaluated"))
        tail[0].register_forward_pre_hook(lambda *_: pytest.fail("a cluster was evaluated"))
    h, target = batch(head, 5)
    head.target_log_prob(h, target % CUTOFFS[0])


@with_and_without_counts
@pytest.mark.parametrize("block_size", [None, 1, 7, CLASSES, 1000])
@pytest.mark.parametrize("k", [1, 10, CLASSES])
def test_topk_is_that_of_the_log_probabilities(
    counts: Tensor | None, block_size: int | None, k: int, device: torch.device
) -> None:
    head = make_head(device, counts=counts)
    h, _ = batch(head, 13)
    values, classes = head.topk(h, k, block_size=block_size)
    for log_prob in (head.log_prob(h), log_prob_of_torch(head, h)):
        expected = log_prob.topk(k)
        assert torch.equal(classes, expected.indices)
        assert_close(values, expected.values.detach())


@with_and_without_counts
@pytest.mark.parametrize("block_size", [None, 1, 7, CLASSES])
@pytest.mark.parametrize("columns", [1, 3])
def test_rank_counts_strictly_higher_log_probabilities(
    counts: Tensor | None, block_size: int | None, columns: int, device: torch.device
) -> None:
    head = make_head(device, counts=counts, head_bias=True)
    h, target = batch(head, 13, columns)
    target[3, 0] = IGNORED
    for log_prob in (head.log_prob(h), log_prob_of_torch(head, h)):
        own = log_prob.gather(1, target.clamp_min(0))
        expected = 1 + (log_prob[:, None] > own[..., None]).sum(-1)
        expected[target == IGNORED] = 0
        assert torch.equal(head.rank(h, target, block_size=block_size), expected)
        assert torch.equal(head.rank(h, target[:, 0], block_size=block_size), expected[:, 0])


def test_ties_share_the_better_rank(device: torch.device) -> None:
    """With zero weights the classes of a stretch are equally likely, and classes of larger clusters are less likely."""
    head = make_head(device, dtype=torch.float32)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
    h = torch.randn(CLASSES, HIDDEN, device=device)
    expected = [1] * 5 + [6] * 7 + [13] * 18 + [31] * 30
    for block_size in (None, 1, 8):
        assert (
            head.rank(h, torch.arange(CLASSES, device=device), block_size=block_size).tolist()
            == expected
        )


@pytest.mark.parametrize("stretch", range(3))
def test_classes_with_equal_weights_tie(stretch: int, device: torch.device) -> None:
    """Every class of a likely stretch occurs twice. If the best two score equally to the last bit, both have rank 1."""
    head = AdaptiveSoftmax(256, 700, cutoffs=[100, 300], head_bias=True, device=device)
    shortlist = slice(0, 100)
    rows = clusters(head)[stretch - 1][1].weight if stretch else head.softmax.head.weight[shortlist]
    first, twins = [0, 100, 300][stretch], len(rows) // 2
    with torch.no_grad():
        rows[twins:] = rows[:twins]
        head.softmax.head.bias.zero_()
        head.softmax.head.bias[99 + stretch if stretch else shortlist] = 20
    h = torch.randn(500, 256, device=device)
    log_prob = head.log_prob(h)
    best = first + (log_prob.argmax(1) - first) % twins
    pair = torch.stack([best, best + twins], 1)
    values = log_prob.gather(1, pair)
    same = values[:, 0] == values[:, 1]
    assert same.sum() > 400
    assert (head.rank(h, pair)[same] == 1).all()


def test_the_best_class_has_rank_one(device: torch.device) -> None:
    """A float32 score may differ in the last bit between two products. This must not make a class outrank itself."""
    head = AdaptiveSoftmax(300, 1000, counts=torch.randint(100, (1000,)), device=device)
    h = torch.randn(400, 300, device=device)
    assert (head.rank(h, head.topk(h, 1)[1]) == 1).all()


def test_many_rows_are_evaluated_in_parts(device: torch.device) -> None:
    head = make_head(device, counts=shuffled_counts())
    h, target = batch(head, 5000)
    log_prob = log_prob_of_torch(head, h).detach()
    own = log_prob.gather(1, target[:, None])
    assert torch.equal(head.rank(h, target), 1 + (log_prob > own).sum(1))
    assert torch.equal(head.topk(h, 3)[1], log_prob.topk(3).indices)
    assert_close(head.target_log_prob(h, target), own[:, 0])


@given(
    rows=st.integers(0, 5),
    classes=st.integers(2, 40),
    in_features=st.integers(1, 9),
    data=st.data(),
)
@settings(deadline=None, max_examples=50)
def test_any_shape_and_any_cutoffs(
    rows: int, classes: int, in_features: int, data: st.DataObject
) -> None:
    cuts = data.draw(st.none() | st.sets(st.integers(1, classes - 1), min_size=1, max_size=4))
    cutoffs, div_value = (
        (None, None) if cuts is None else (sorted(cuts), 1.2 if in_features > 2 else 1.0)
    )
    head = AdaptiveSoftmax(
        in_features,
        classes,
        cutoffs=cutoffs,
        div_value=div_value,
        counts=torch.rand(classes),
        dtype=torch.float64,
    )
    h, target = torch.randn(rows, in_features, dtype=torch.float64), torch.randint(classes, (rows,))
    log_prob = log_prob_of_torch(head, h).detach()
    own = log_prob.gather(1, target[:, None])[:, 0]
    assert_close(head(h, target), -own.sum() / max(rows, 1))
    assert_close(head.target_log_prob(h, target), own)
    block_size = data.draw(st.integers(1, 50))
    assert_close(
        head.topk(h, classes, block_size=block_size)[0], log_prob.sort(1, descending=True).values
    )
    ranks = head.rank(h, target, block_size=block_size)
    # A cluster of one class may have the same probability as a class in the shortlist, up to rounding. So this checks
    # clear cases only.
    assert (ranks >= 1 + (log_prob > own[:, None] + 1e-12).sum(1)).all()
    assert (ranks <= 1 + (log_prob > own[:, None] - 1e-12).sum(1)).all()
