"""Metrics of ranks, and perplexity: the definition, in one piece or streamed."""

import math
import re
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zloss import MeanReciprocalRank, Perplexity, TopKError

Metric = TopKError | MeanReciprocalRank
METRICS: list[Metric] = [TopKError(1), TopKError(5), MeanReciprocalRank()]
every_metric = pytest.mark.parametrize("metric", METRICS, ids=["top-1", "top-5", "MRR"])
SUMMED = 1e-12  # for float64 sums of some dozen terms below 1


@pytest.fixture(autouse=True)
def emptied() -> None:
    for metric in METRICS:
        metric.reset()


def top_k_error(ranks: list[int], k: int) -> float:
    counted = [rank for rank in ranks if rank]
    return float(Fraction(sum(rank > k for rank in counted), len(counted)))


def mean_reciprocal_rank(ranks: list[int]) -> float:
    counted = [rank for rank in ranks if rank]
    return float(sum(Fraction(1, rank) for rank in counted) / len(counted))


ranks_with_padding = st.lists(st.integers(0, 100), min_size=1, max_size=40).filter(any)


@given(ranks=ranks_with_padding, k=st.integers(1, 101))
@settings(deadline=None, max_examples=100)
def test_metrics_are_their_definition(ranks: list[int], k: int) -> None:
    error, mrr = TopKError(k), MeanReciprocalRank()
    for metric in (error, mrr):
        metric.update(torch.tensor(ranks))
    assert error.compute() == pytest.approx(top_k_error(ranks, k), abs=SUMMED)
    assert mrr.compute() == pytest.approx(mean_reciprocal_rank(ranks), abs=SUMMED)


@every_metric
@given(pieces=st.lists(ranks_with_padding, min_size=1, max_size=6))
@settings(deadline=None, max_examples=50)
def test_streaming_is_the_same_as_all_at_once(metric: Metric, pieces: list[list[int]]) -> None:
    metric.reset()
    metric.update(torch.tensor([rank for piece in pieces for rank in piece]))
    whole = metric.compute()
    metric.reset()
    for piece in pieces:
        metric.update(torch.tensor(piece))
    assert metric.compute() == pytest.approx(whole, abs=SUMMED)


def test_the_error_counts_ranks_above_k() -> None:
    # The paper defines the top-k *error* as the mean of r_c <= k, which is the accuracy.
    metric = TopKError(5)
    ranks = torch.tensor([1, 2, 5, 6])
    metric.update(ranks)
    assert metric.compute() == 0.25
    assert (ranks <= 5).double().mean() == 0.75


def test_a_perfect_classifier_has_no_error_and_an_mrr_of_one(device: torch.device) -> None:
    for metric, perfect in zip(METRICS, (0.0, 0.0, 1.0), strict=True):
        metric.update(torch.ones(3, dtype=torch.long, device=device))
        assert metric.compute() == perfect


@every_metric
def test_ranks_may_have_any_shape(metric: Metric, device: torch.device) -> None:
    ranks = torch.tensor([[1, 7, 0], [3, 0, 0]], device=device)
    metric.update(ranks)
    shaped = metric.compute()
    metric.reset()
    metric.update(ranks.flatten())
    assert metric.compute() == pytest.approx(shaped, abs=SUMMED)
    metric.reset()
    metric.update(ranks[ranks > 0])
    assert metric.compute() == pytest.approx(shaped, abs=SUMMED)


@every_metric
def test_computing_does_not_end_the_stream(metric: Metric) -> None:
    metric.update(torch.tensor([1, 1]))
    assert metric.compute() == metric.compute()
    before = metric.compute()
    metric.update(torch.tensor([50, 50]))
    assert metric.compute() != before


@every_metric
def test_reset_forgets_everything(metric: Metric) -> None:
    metric.update(torch.tensor([50, -1]))
    metric.reset()
    with pytest.raises(ValueError, match="no ranks yet"):
        metric.compute()
    metric.update(torch.tensor([1]))
    assert metric.compute() == (1.0 if isinstance(metric, MeanReciprocalRank) else 0.0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("k", [5, 150, 1000, 10**6])
def test_every_integer_type_counts_alike(dtype: torch.dtype, k: int) -> None:
    ranks = torch.tensor([1, 5, 100, 0])
    wide, narrow = TopKError(k), TopKError(k)
    wide.update(ranks)
    narrow.update(ranks.to(dtype))
    assert narrow.compute() == wide.compute()


def test_many_ranks_are_counted_exactly() -> None:
    # float32 could not count past 2^24 = 16,777,216.
    metric = TopKError(1)
    metric.update(torch.ones(2**24, dtype=torch.uint8))
    metric.update(torch.full((1,), 2))
    assert metric.compute() == 1 / (2**24 + 1)


@pytest.mark.parametrize(
    "ranks", [torch.zeros(3, dtype=torch.long), torch.zeros(0, dtype=torch.long), None]
)
@every_metric
def test_there_is_no_mean_of_nothing(metric: Metric, ranks: Tensor | None) -> None:
    if ranks is not None:
        metric.update(ranks)
    with pytest.raises(
        ValueError, match=re.escape("no ranks yet: call update(ranks) before compute()")
    ):
        metric.compute()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64, torch.bool])
@every_metric
def test_ranks_must_be_integers(metric: Metric, dtype: torch.dtype) -> None:
    metric.update(torch.tensor([1]))
    before = metric.compute()
    with pytest.raises(ValueError, match=f"ranks must be a tensor of integers, got dtype {dtype}"):
        metric.update(torch.ones(3, dtype=dtype))
    assert metric.compute() == before


@every_metric
def test_negative_ranks_are_reported_when_the_device_is_read(
    metric: Metric, device: torch.device
) -> None:
    metric.update(torch.tensor([3, -1], device=device))
    metric.update(torch.tensor([1], device=device))
    with pytest.raises(ValueError, match="a rank was negative: ranks start at 1"):
        metric.compute()


@pytest.mark.parametrize("k", [0, -5])
def test_k_must_be_positive(k: Any) -> None:
    with pytest.raises(ValueError, match=f"k must be a whole number of at least 1, got {k}"):
        TopKError(k)


# ---- perplexity ------------------------------------------------------------------------------------------------------

log_probs = st.lists(st.floats(-50, 0), min_size=1, max_size=40)


def perplexity(log_prob: list[float]) -> float:
    return math.exp(-math.fsum(log_prob) / len(log_prob))


@given(log_prob=log_probs)
@settings(deadline=None, max_examples=100)
def test_perplexity_is_its_definition(log_prob: list[float]) -> None:
    metric = Perplexity()
    metric.update(torch.tensor(log_prob, dtype=torch.float64))
    # Exponents up to 50 are summed in float64 with an error of some 1e-14. Exp makes it a relative error.
    assert metric.compute() == pytest.approx(perplexity(log_prob), rel=1e-12)


@given(pieces=st.lists(log_probs, min_size=1, max_size=6))
@settings(deadline=None, max_examples=50)
def test_streamed_perplexity_weighs_targets_and_not_batches(pieces: list[list[float]]) -> None:
    metric = Perplexity()
    for piece in pieces:
        metric.update(torch.tensor(piece, dtype=torch.float64))
    assert metric.compute() == pytest.approx(
        perplexity([value for piece in pieces for value in piece]), rel=1e-12
    )


def test_a_uniform_model_has_the_perplexity_of_its_number_of_classes(device: torch.device) -> None:
    metric = Perplexity()
    metric.update(torch.full((3, 4), -math.log(1000), device=device))
    assert metric.compute() == pytest.approx(
        1000, rel=1e-5
    )  # log(1000) is rounded to 5e-7 in float32
    metric.reset()
    metric.update(torch.zeros(5, device=device))
    assert metric.compute() == 1


@pytest.mark.parametrize("ignored", [0.0, -7.0, math.nan, -math.inf])
def test_only_what_is_counted_counts(ignored: float, device: torch.device) -> None:
    log_prob = torch.tensor([[-1.0, ignored], [-3.0, -2.0]], device=device, requires_grad=True)
    metric = Perplexity()
    metric.update(log_prob, counted=torch.tensor([[True, False], [True, True]], device=device))
    metric.update(
        torch.full((2,), ignored, device=device),
        counted=torch.zeros(2, dtype=torch.bool, device=device),
    )
    assert metric.compute() == pytest.approx(math.exp(2), rel=1e-12)


def test_what_a_model_cannot_be_forgiven() -> None:
    """A target with the probability 0 makes it infinite, and so does one too small for a float. NaN stays NaN."""
    for log_prob, expected in (
        (-math.inf, math.inf),
        (-800.0, math.inf),
        (-700.0, math.exp(700)),
        (math.nan, math.nan),
    ):
        metric = Perplexity()
        metric.update(torch.tensor([log_prob], dtype=torch.float64))
        assert metric.compute() == pytest.approx(expected, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_many_log_probabilities_are_summed_in_float64(dtype: torch.dtype) -> None:
    metric = Perplexity()
    metric.update(torch.full((100_000,), -2.0, dtype=dtype))
    metric.update(torch.full((100_000,), -4.0, dtype=dtype))
    assert metric.compute() == pytest.approx(math.exp(3), rel=1e-12)


def test_perplexity_reset_and_computed_twice() -> None:
    metric = Perplexity()
    metric.update(torch.tensor([-5.0]))
    assert metric.compute() == metric.compute() == pytest.approx(math.exp(5), rel=1e-12)
    metric.reset()
    with pytest.raises(ValueError, match="no targets yet"):
        metric.compute()
    metric.update(torch.tensor([-1.0]))
    assert metric.compute() == pytest.approx(math.e, rel=1e-12)


@pytest.mark.parametrize("counted", [None, torch.zeros(0, dtype=torch.bool)])
def test_there_is_no_perplexity_of_nothing(counted: Tensor | None) -> None:
    metric = Perplexity()
    metric.update(torch.zeros(0), counted=counted)
    with pytest.raises(
        ValueError,
        match=re.escape("no targets yet: call update(log_prob) with at least one that counts"),
    ):
        metric.compute()


@pytest.mark.parametrize(
    ("log_prob", "counted", "message"),
    [
        (
            torch.tensor([1, 2]),
            None,
            "log_prob must be a tensor of floating-point numbers, got dtype torch.int64",
        ),
        ([-1.0], None, "log_prob must be a tensor of floating-point numbers, got list"),
        (
            torch.zeros(2),
            torch.ones(2),
            "counted must be a tensor of torch.bool of shape (2,) on cpu, got dtype torch.float32",
        ),
        (
            torch.zeros(2),
            torch.ones(3, dtype=torch.bool),
            "of shape (2,) on cpu, got torch.bool (3,) on cpu",
        ),
        (torch.zeros(2), [True, False], "of shape (2,) on cpu, got list"),
    ],
)
def test_log_probabilities_that_are_none(log_prob: Any, counted: Any, message: str) -> None:
    metric = Perplexity()
    metric.update(torch.tensor([-1.0]))
    with pytest.raises(ValueError, match=re.escape(message)):
        metric.update(log_prob, counted=counted)
    assert metric.compute() == pytest.approx(math.e, rel=1e-12)
