"""The construction of an adaptive softmax: order of the classes, checkpoints, cutoffs and bad input."""

import copy
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.heads.adaptive_problems import (
    CLASSES,
    CUTOFFS,
    HIDDEN,
    batch,
    clusters,
    make_head,
    shuffled_counts,
)
from zloss.heads.adaptive import AdaptiveSoftmax
from zloss.heads.cutoffs import default_cutoffs


def test_counts_put_the_frequent_classes_first() -> None:
    head = make_head(counts=torch.arange(CLASSES))
    assert head.position_of(torch.tensor([0, CLASSES - 1])).tolist() == [CLASSES - 1, 0]
    assert head.class_at(torch.tensor([0, CLASSES - 1])).tolist() == [CLASSES - 1, 0]
    h, _ = batch(head, 4)
    head(h, torch.full((4,), CLASSES - 1)).backward()
    assert all(parameter.grad is None for parameter in head.softmax.tail.parameters())


def test_a_checkpoint_is_complete() -> None:
    """The checkpoint contains the order of the classes. It loads into a head that was built from other counts."""
    head = AdaptiveSoftmax(32, 500, counts=torch.randint(100, (500,)))
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    other = AdaptiveSoftmax(32, 500, counts=torch.ones(500))
    other.load_state_dict(torch.load(file))
    h = torch.randn(3, 32)
    assert torch.equal(other.log_prob(h), head.log_prob(h))
    assert torch.equal(copy.deepcopy(head).log_prob(h), head.log_prob(h))


def test_weights_of_torch_load() -> None:
    theirs = nn.AdaptiveLogSoftmaxWithLoss(HIDDEN, CLASSES, CUTOFFS, div_value=2.0, head_bias=True)
    head = make_head(dtype=torch.float32, head_bias=True)
    head.softmax.load_state_dict(theirs.state_dict())
    h, target = batch(head, 8)
    torch.testing.assert_close(head(h, target), theirs(h, target).loss)
    assert set(head.state_dict()) == {f"softmax.{name}" for name in theirs.state_dict()}


def test_reference_weight() -> None:
    assert make_head(counts=shuffled_counts()).reference_weight.shape == (CUTOFFS[0] + 3, HIDDEN)


@pytest.mark.parametrize(
    "num_classes", [2, 3, 4, 10, 17, 100, 999, 10_000, 267_735, 793_471, 10_000_000]
)
@pytest.mark.parametrize("in_features", [1, 2, 3, 4, 16, 64, 512, 4096])
def test_defaults_fit_any_size(in_features: int, num_classes: int) -> None:
    head = AdaptiveSoftmax(in_features, num_classes, device="meta")
    assert 1 <= len(head.cutoffs) <= 3
    assert head.cutoffs[0] <= max(1, num_classes // 4)
    assert head.softmax.cutoffs == sorted({*head.cutoffs, num_classes})
    assert all(tail[1].in_features >= 1 for tail in clusters(head))


def test_default_cutoffs() -> None:
    assert default_cutoffs(512, 793_471, 4.0) == [3563, 21597, 130906]
    assert default_cutoffs(512, 10_000_000, 4.0) == [12649, 116960, 1081481]
    assert default_cutoffs(512, 10_000, 4.0) == [400, 2000]
    assert default_cutoffs(64, 10_000, 4.0) == [
        400
    ]  # a second cluster would have vectors of 4 numbers
    assert default_cutoffs(8, 2, 4.0) == [1]


@pytest.mark.parametrize(("num_classes", "saving"), [(10_000, 15), (1_000_000, 100)])
def test_default_cutoffs_save_what_their_docstring_says(num_classes: int, saving: float) -> None:
    width, cutoffs = 512, default_cutoffs(512, num_classes, 4.0)
    zipf = 1 / torch.arange(1, num_classes + 1, dtype=torch.float64)
    share = [part.sum() / zipf.sum() for part in zipf.tensor_split(cutoffs)]
    sizes = [high - low for low, high in zip(cutoffs, [*cutoffs[1:], num_classes], strict=True)]
    step = width * (cutoffs[0] + len(cutoffs)) + sum(
        share[i] * (width // 4**i) * (width + size) for i, size in enumerate(sizes, start=1)
    )
    assert width * num_classes / step > saving


@pytest.mark.parametrize("cutoffs", [(5, 12), np.array([5, 12]), range(5, 13, 7)])
def test_cutoffs_may_be_any_integers(cutoffs: Sequence[int]) -> None:
    assert AdaptiveSoftmax(HIDDEN, CLASSES, cutoffs=cutoffs).cutoffs == [5, 12]


def test_its_text_tells_the_cutoffs() -> None:
    assert "16, 60, cutoffs=[5, 12, 30], div_value=2" in repr(make_head())


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"cutoffs": []},
            r"one or more integers in increasing order, each between 1 and .* = 59, got \[\]",
        ),
        ({"cutoffs": [12, 5]}, r"increasing order.*got \[12, 5\]"),
        ({"cutoffs": [5, 5]}, r"increasing order.*got \[5, 5\]"),
        ({"cutoffs": [0, 5]}, r"between 1 and .*got \[0, 5\]"),
        ({"cutoffs": [5, CLASSES]}, r"between 1 and .*got \[5, 60\]"),
        ({"cutoffs": [5.5]}, r"integers.*got \[5\.5\]"),
        ({"div_value": 0.5}, r"div_value must be a finite number >= 1, got 0\.5"),
        ({"div_value": math.nan}, "div_value must be a finite number >= 1, got nan"),
        (
            {"cutoffs": CUTOFFS, "div_value": 4.0},
            r"last of 3 clusters.*width 0: in_features // div_value\*\*3 with in_features=16, div_value=4; "
            r"set div_value to 2\.51 or less, or use fewer cutoffs",
        ),
        ({"cutoffs": [5], "div_value": 17}, "set div_value to 16 or less$"),
        ({"counts": torch.ones(3)}, r"one number per class, shape \(60,\), got \(3,\)"),
        ({"counts": [1] * CLASSES}, "counts must be a tensor .* got list"),
        ({"counts": torch.full((CLASSES,), math.nan)}, "finite numbers >= 0"),
        ({"reduction": "average"}, "reduction must be one of none, mean, sum, got 'average'"),
        ({"num_classes": 1}, "num_classes >= 2, got 16 and 1"),
        ({"in_features": 0}, "in_features >= 1 and num_classes >= 2, got 0 and 60"),
    ],
)
def test_bad_constructions(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdaptiveSoftmax(**{"in_features": HIDDEN, "num_classes": CLASSES} | options)


def test_the_advice_on_div_value_is_good() -> None:
    assert clusters(make_head(div_value=2.51))[2][1].in_features == 1


BAD_BATCHES: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Any, Any]], str]] = {
    "target too large": (lambda h, t: (h, t + CLASSES), "out of range: expected 0 <= target < 60"),
    "target negative": (lambda h, t: (h, t - CLASSES), "out of range: expected 0 <= target < 60"),
    "target float": (
        lambda h, t: (h, t.float()),
        r"integer class indices, got dtype torch\.float32",
    ),
    "target too short": (lambda h, t: (h, t[:-1]), r"shape \(4,\) or \(4, K\).*got \(3,\)"),
    "h NaN": (lambda h, t: (h * math.nan, t), "h has a NaN or an infinity"),
    "h too narrow": (lambda h, t: (h[:, :-1], t), r"shape \(B, 16\), got \(4, 15\)"),
    "h three-dimensional": (lambda h, t: (h[None], t), "flatten leading dimensions"),
    "h wider than the layer": (
        lambda h, t: (h.double(), t),
        r"h has dtype torch\.float64 but the layer",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_bad_batches(spoil: Callable[[Tensor, Tensor], tuple[Any, Any]], message: str) -> None:
    head = make_head(dtype=torch.float32, counts=shuffled_counts())
    before = copy.deepcopy(head.state_dict())
    h, target = spoil(*batch(head, 4))
    for use in (head, head.rank, head.target_log_prob, head.perplexity):
        with pytest.raises(ValueError, match=message):
            use(h, target)
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    assert all(parameter.grad is None for parameter in head.parameters())


@pytest.mark.parametrize("weight", [torch.ones(3), torch.ones(4, 1)])
def test_bad_weights(weight: Tensor) -> None:
    head = make_head()
    with pytest.raises(ValueError, match=r"one entry per example, \(4,\), got"):
        head(*batch(head, 4), weight=weight)
