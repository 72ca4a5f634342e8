"""`SphericalStats`: the same numbers from logits, from moments and from sums, as far as rounding allows."""

import math
import re
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zloss import SphericalStats
from zloss.stats import checked_logits, mean_and_scatter, z_normalize

# Sums of some dozen terms of size 10 in float64.
assert_close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Logits that are multiples of 1/8, and one or more targets per row."""
    rows, classes = draw(st.integers(1, 5)), draw(st.integers(2, 9))
    shape = draw(st.sampled_from([(rows,), (rows, 1), (rows, 3)]))
    eighths = draw(st.lists(st.integers(-80, 80), min_size=rows * classes, max_size=rows * classes))
    size = math.prod(shape)
    target = draw(st.lists(st.integers(0, classes - 1), min_size=size, max_size=size))
    logits = torch.tensor(eighths, dtype=torch.float64).reshape(rows, classes) / 8
    return logits, torch.tensor(target).reshape(shape)


@given(batch=batches())
@settings(deadline=None, max_examples=100)
def test_statistics_of_logits_are_their_definition(batch: tuple[Tensor, Tensor]) -> None:
    logits, target = batch
    stats = SphericalStats.from_logits(logits, target)
    rows = logits.tolist()
    assert stats.num_classes == len(rows[0])
    assert stats.target.shape == target.shape
    own = [
        [row[c] for c in columns]
        for row, columns in zip(rows, target.reshape(len(rows), -1).tolist(), strict=True)
    ]
    assert stats.target.reshape(len(rows), -1).tolist() == own
    assert stats.sum.tolist() == pytest.approx([math.fsum(row) for row in rows], abs=1e-12)
    assert stats.sumsq.tolist() == pytest.approx(
        [math.fsum(x * x for x in row) for row in rows], abs=1e-11
    )
    assert stats.valid.all()
    assert stats.counted.all()


@given(batch=batches())
@settings(deadline=None, max_examples=50)
def test_sums_moments_and_logits_agree(batch: tuple[Tensor, Tensor]) -> None:
    logits, target = batch
    dense = SphericalStats.from_logits(logits, target)
    for other in (
        SphericalStats(dense.target, logits.sum(1), logits.square().sum(1), dense.num_classes),
        SphericalStats.from_moments(dense.target, dense.mean, dense.scatter, dense.num_classes),
    ):
        for name in ("sum", "sumsq", "mean", "scatter", "variance"):
            # A sum of squares is below 9 * 100, and loses 900 * 2e-16 = 2e-13 to cancellation.
            torch.testing.assert_close(
                getattr(other, name), getattr(dense, name), rtol=1e-12, atol=1e-11
            )


def test_the_variance_has_denominator_c(device: torch.device) -> None:
    logits = torch.randn(4, 9, dtype=torch.float64, device=device)
    stats = SphericalStats.from_logits(logits, torch.arange(4, device=device))
    assert_close(stats.variance, logits.var(1, correction=0))
    z = (logits - logits.mean(1, keepdim=True)) / logits.std(1, correction=0, keepdim=True)
    assert_close(stats.z, z[torch.arange(4), torch.arange(4)])


def test_several_targets_keep_their_columns() -> None:
    logits = torch.randn(3, 5, dtype=torch.float64)
    target = torch.tensor([[0, 4], [2, 2], [1, 3]])
    stats = SphericalStats.from_logits(logits, target)
    columns = [SphericalStats.from_logits(logits, target[:, k]).z for k in range(2)]
    assert_close(stats.z, torch.stack(columns, 1))


def test_ignored_targets_are_cut_off() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    stats = SphericalStats.from_logits(
        logits, torch.tensor([[7, 1], [2, 7], [7, 7]]), ignore_index=7
    )
    assert stats.valid.tolist() == [[False, True], [True, False], [False, False]]
    assert stats.counted.tolist() == [True, True, False]
    assert stats.target[~stats.valid].count_nonzero() == 0
    (gradient,) = torch.autograd.grad(stats.target.sum(), logits)
    # Padding has the index 0, which must not give class 0 a gradient.
    assert gradient.nonzero().tolist() == [[0, 1], [1, 2]]


def test_the_mean_over_targets_skips_ignored_ones() -> None:
    valid = torch.tensor([[True, True, False], [False, True, False], [False, False, False]])
    zeros = torch.zeros(3)
    stats = SphericalStats.from_moments(torch.zeros(3, 3), zeros, zeros, 5, valid=valid)
    values = torch.tensor([[1.0, 3.0, math.nan], [math.inf, 5.0, 7.0], [9.0, 9.0, 9.0]])
    assert stats.mean_over_targets(values).tolist() == [2.0, 5.0, 0.0]


def test_a_vector_broadcasts_against_targets_of_both_shapes() -> None:
    vector = torch.tensor([1.0, 2.0])
    for target in (torch.zeros(2), torch.zeros(2, 3)):
        stats = SphericalStats.from_moments(target, vector, vector, 5)
        spread = stats.per_row(vector).expand_as(target).reshape(2, -1)
        assert torch.equal(spread, vector[:, None].expand_as(spread))


# In float32 with a mean of 1e4 and a deviation of 1, the mean is rounded to a few ulp = 1e-3. With two passes over the
# rows this adds (1e-3)^2 = 1e-6 to the variance of 1, and summing adds some eps = 1e-7. But a sum of squares is rounded
# to 1e8 * 6e-8 = 6, several times the variance.
MEAN_DOMINATED = 1e-5
LOST = 0.1


def mean_dominated_logits(device: torch.device) -> tuple[Tensor, Tensor]:
    """float32 logits with a mean 1e4 times their deviation, and their variance, computed in float64."""
    logits = 1e4 + torch.randn(32, 1000, device=device)
    return logits, logits.double().var(1, correction=0)


def relative_error(variance: Tensor, expected: Tensor) -> float:
    return (variance.double() / expected - 1).abs().max().item()


def test_logits_keep_a_variance_that_the_mean_dominates(device: torch.device) -> None:
    logits, variance = mean_dominated_logits(device)
    stats = SphericalStats.from_logits(logits, torch.zeros(32, dtype=torch.long, device=device))
    assert relative_error(stats.variance, variance) < MEAN_DOMINATED


def test_moments_keep_a_variance_that_the_mean_dominates(device: torch.device) -> None:
    logits, variance = mean_dominated_logits(device)
    mean, scatter = mean_and_scatter(logits)
    stats = SphericalStats.from_moments(logits[:, 0], mean, scatter, 1000)
    assert relative_error(stats.variance, variance) < MEAN_DOMINATED


def test_float32_sums_lose_a_variance_that_the_mean_dominates(device: torch.device) -> None:
    logits, variance = mean_dominated_logits(device)
    stats = SphericalStats(logits[:, 0], logits.sum(1), logits.square().sum(1), 1000)
    assert relative_error(stats.variance, variance) > LOST
    assert stats.variance.min() >= 0  # cancellation may give 0, but never a negative variance


def test_float64_sums_keep_it(device: torch.device) -> None:
    logits, variance = mean_dominated_logits(device)
    wide = logits.double()
    stats = SphericalStats(wide[:, 0], wide.sum(1), wide.square().sum(1), 1000)
    assert (
        relative_error(stats.variance, variance) < 1e-6
    )  # 1e8 * 1e-16, with room for the sum of 1000 terms


# 0.1, 0.3 and 1e4 / 3 are not binary fractions. Their sum is rounded, and the error grows with the number of terms.
@pytest.mark.parametrize(
    ("classes", "value"),
    [*product([2, 7, 1000], [0.0, 0.1, 0.3, -1e4 / 3, 1e-30]), (10**6, 0.1), (10**7, 0.3)],
)
def test_equal_activations_have_z_scores_and_gradient_of_zero(classes: int, value: float) -> None:
    logits = torch.full((1, classes), value, requires_grad=True)
    z = SphericalStats.from_logits(logits, torch.tensor([0])).z
    assert z.item() == 0
    assert torch.autograd.grad(z, logits)[0].count_nonzero() == 0


@pytest.mark.parametrize(("deviation_in_eps", "is_noise"), [(0.5, True), (100.0, False)])
def test_a_spread_below_the_rounding_of_the_mean_is_noise(
    deviation_in_eps: float, is_noise: bool
) -> None:
    mean = torch.tensor([1e4])
    std = deviation_in_eps * torch.finfo(torch.float32).eps * mean
    stats = SphericalStats.from_moments(mean + 8 * std, mean, 1000 * std.square(), 1000)
    assert (stats.z.item() == 0) == is_noise


def test_z_scores_stay_in_bounds_where_squares_underflow() -> None:
    # Squares of 1e-20 are denormal. Their few digits must not make a score above sqrt(C - 1).
    sizes = torch.logspace(-25, -15, 201)
    logits = torch.zeros(201, 4)
    logits[:, 0] = sizes
    z = SphericalStats.from_logits(logits, torch.zeros(201, dtype=torch.long)).z
    assert z.max() <= math.sqrt(3) * (1 + 1e-6)
    assert z[-1].item() == pytest.approx(math.sqrt(3), rel=1e-6)


def test_a_row_without_spread_leaves_the_others_alone() -> None:
    logits = torch.tensor([[0.1, 0.1, 0.1], [0.0, 0.0, 1.0]], requires_grad=True)
    z = SphericalStats.from_logits(logits, torch.tensor([1, 2])).z
    assert z.tolist() == pytest.approx([0, math.sqrt(2)], rel=1e-6)
    (gradient,) = torch.autograd.grad(z.sum(), logits)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("scale", [1e-15, 1e-3, 1e15])
def test_z_scores_do_not_depend_on_the_scale(scale: float) -> None:
    logits, target = torch.randn(16, 40), torch.arange(16)
    scaled, plain = (SphericalStats.from_logits(o, target).z for o in (scale * logits, logits))
    torch.testing.assert_close(
        scaled, plain, rtol=1e-5, atol=1e-6
    )  # the scaled logits are rounded to eps = 1e-7


def test_z_normalize_takes_the_width_of_its_values() -> None:
    logits = torch.randn(3, 5, dtype=torch.float64)
    mean, scatter = mean_and_scatter(logits)
    z = z_normalize(logits, mean, scatter / 5)
    assert_close(z.mean(1), torch.zeros(3, dtype=torch.float64))
    assert_close(z.var(1, correction=0), torch.ones(3, dtype=torch.float64))
    assert_close(z_normalize(logits[:, 2], mean, scatter / 5), z[:, 2])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    # 4096 ones: float16 and bfloat16 could not count them one by one.
    logits = torch.ones(1, 4096, dtype=dtype)
    stats = SphericalStats.from_logits(logits, torch.tensor([5]))
    assert stats.sum.dtype == stats.target.dtype == torch.float32
    assert stats.sum.item() == stats.sumsq.item() == 4096


ONE, TWO = torch.zeros(1), torch.zeros(2)


@pytest.mark.parametrize("num_classes", [1, 0, -3])
def test_there_must_be_two_classes(num_classes: int) -> None:
    for make in (SphericalStats, SphericalStats.from_moments):
        with pytest.raises(
            ValueError, match=f"num_classes must be a whole number of at least 2, got {num_classes}"
        ):
            make(TWO, TWO, TWO, num_classes)


@pytest.mark.parametrize(
    ("target", "first", "second", "shapes"),
    [
        (TWO, ONE, TWO, "(2,)"),
        (TWO, TWO, ONE, "(2,)"),
        (TWO, torch.zeros(3), torch.zeros(3), "(2,), (3,) and (3,)"),
        (TWO, torch.zeros(3), TWO, "(2,), (3,)"),
        (torch.zeros(2, 3), torch.zeros(2, 3), TWO, "(2, 3)"),
        (torch.zeros(()), TWO, TWO, "()"),
        (torch.zeros(2, 1, 1), TWO, TWO, "(2, 1, 1)"),
    ],
)
def test_shapes_must_agree(target: Tensor, first: Tensor, second: Tensor, shapes: str) -> None:
    for make in (SphericalStats, SphericalStats.from_moments):
        with pytest.raises(ValueError, match=re.escape(shapes)):
            make(target, first, second, 5)


def test_valid_must_have_the_shape_of_target() -> None:
    message = (
        "valid must be a tensor of torch.bool of shape (2,) on cpu, got torch.bool (2, 1) on cpu"
    )
    for make in (SphericalStats, SphericalStats.from_moments):
        with pytest.raises(ValueError, match=re.escape(message)):
            make(TWO, TWO, TWO, 5, valid=torch.ones(2, 1, dtype=torch.bool))


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.int32), "got dtype torch.int32"),
        (None, "got NoneType"),
        (torch.zeros(3), "got (3,)"),
        (torch.zeros(2, 1), "with C >= 2, got (2, 1)"),
    ],
)
def test_logits_are_checked(logits: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        checked_logits(logits)
    with pytest.raises(ValueError, match=re.escape(message)):
        SphericalStats.from_logits(logits, torch.tensor([0, 0]))


def test_statistics_print_their_shape() -> None:
    stats = SphericalStats.from_moments(torch.zeros(2, 3), TWO, TWO, 5)
    assert repr(stats) == "SphericalStats(target=(2, 3), num_classes=5)"
