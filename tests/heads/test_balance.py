"""Weights of classes from counts, by themselves and as the option `balance` of every head."""

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import zloss
from tests.heads.config_problems import CLASSES, COUNTS, HIDDEN, PAIRS, batch, build
from zloss.heads.config import HEADS

# Float32 weights, summed over a few dozen classes in float64.
CLOSE = 1e-6


@settings(max_examples=200, deadline=None)
@given(
    counts=st.lists(st.one_of(st.just(0), st.integers(1, 10**6)), min_size=1, max_size=30).filter(
        any
    ),
    balance=st.floats(0, 2),
    largest=st.floats(1.01, 100),
)
def test_weights_are_powers_below_the_cap(
    counts: list[int], balance: float, largest: float
) -> None:
    weights = zloss.balanced_weights(torch.tensor(counts), balance, largest=largest).double()
    f = torch.tensor(counts).double()
    assert weights.max() <= largest * (1 + CLOSE)
    assert abs((f * weights).sum() / f.sum() - 1) <= CLOSE
    seen = f[f > 0]
    scaled = weights * f.clamp_min(seen.min()) ** balance  # equal where nothing is capped
    is_free = weights < largest * (1 - CLOSE)
    if is_free.any():
        free = scaled[is_free]
        assert free.max() - free.min() <= 10 * CLOSE * free.max()
        # A class is capped only where its power would exceed the cap.
        assert (scaled[~is_free] <= free.max() * (1 + 10 * CLOSE)).all()
    unseen = weights[f == 0]
    assert unseen.numel() == 0 or (unseen == weights[f == seen.min()][0]).all()


def test_a_balance_of_one_gives_classes_equal_shares() -> None:
    counts = torch.tensor([1, 2, 5, 8])
    assert torch.allclose(zloss.balanced_weights(counts, 1.0) * counts, torch.tensor(4.0))
    assert torch.equal(zloss.balanced_weights(counts, 0.0), torch.ones(4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], 0.5), "counts must be a tensor"),
        ((torch.tensor([1.0, -1.0]), 0.5), "counts must be finite numbers >= 0"),
        ((torch.tensor([1.0, math.nan]), 0.5), "counts must be finite numbers >= 0"),
        ((torch.zeros(3), 0.5), "counts are all zero: at least one class must occur"),
        ((torch.zeros(0), 0.5), "counts are all zero: at least one class must occur"),
        ((torch.ones(3), -0.5), "balance must be a finite number >= 0, got -0.5"),
        ((torch.ones(3), "much"), "balance must be a finite number >= 0, got 'much'"),
        ((torch.ones(3), 0.5, 1.0), "largest must be a finite number > 1, got 1.0"),
    ],
)
def test_bad_input(arguments: tuple[Any, ...], message: str) -> None:
    counts, balance, *largest = arguments
    options = {"largest": largest[0]} if largest else {}
    with pytest.raises(ValueError, match=re.escape(message)):
        zloss.balanced_weights(counts, balance, **options)


# ---- as an option of heads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "loss"), [(h, loss) for h, loss in PAIRS if loss in HEADS[h].losses]
)
def test_balance_weights_the_classes_of_every_pair(head: str, loss: str) -> None:
    h, target = batch()
    values = []
    for balance in (0.0, 0.5):
        torch.manual_seed(0)
        built = build(head=head, loss=loss, reduction="none", balance=balance)
        torch.manual_seed(1)  # for the draws
        values.append(built(h, target))
    plain, weighted = values
    weights = zloss.balanced_weights(COUNTS, 0.5)[target.clamp_min(0)]
    # Products of two float32 numbers.
    torch.testing.assert_close(weighted, plain * weights, rtol=1e-5, atol=0)


def test_balance_needs_counts() -> None:
    config = zloss.HeadConfig(options={"balance": 0.25})
    with pytest.raises(ValueError, match=r"balance=0.25 needs counts=, the number of occurrences"):
        config.build(HIDDEN, CLASSES)
    with pytest.raises(ValueError, match="option balance needs weights here: class_weight="):
        config.build_loss(CLASSES)
    with pytest.raises(ValueError, match=r"counts must .* shape \(40,\), got \(3,\)"):
        config.build(HIDDEN, CLASSES, counts=torch.ones(3))
    loss = config.build_loss(CLASSES, zloss.balanced_weights(COUNTS, 0.25))
    assert torch.equal(loss.class_weight, config.build(8, CLASSES, counts=COUNTS).loss.class_weight)  # type: ignore[union-attr, arg-type]


def test_a_balanced_head_without_memory_gets_its_weights_from_a_checkpoint() -> None:
    config = zloss.HeadConfig(options={"balance": 0.25})
    trained = config.build(HIDDEN, CLASSES, counts=COUNTS)
    blank = config.build(HIDDEN, CLASSES, counts=COUNTS, device="meta").to_empty(device="cpu")
    blank.load_state_dict(trained.state_dict())
    h, target = batch()
    assert torch.equal(blank(h, target), trained(h, target))
