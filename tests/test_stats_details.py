"""Details of the statistics that mutation testing asked for: attributes, defaults, and the limit of no spread."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from zloss.stats import SphericalStats, z_normalize

TARGET, MEAN = torch.tensor([3.0, -1.0]), torch.tensor([0.5, 2.0])


def test_sums_become_mean_and_scatter() -> None:
    scatter = torch.tensor([0.25, 0.5])  # below 1
    stats = SphericalStats(TARGET, 4 * MEAN, scatter + 4 * MEAN.square(), 4)
    assert torch.equal(stats.target, TARGET)
    assert torch.equal(stats.mean, MEAN)
    assert torch.equal(stats.scatter, scatter)
    assert stats.num_classes == 4


def test_rounding_makes_no_negative_scatter() -> None:
    stats = SphericalStats(TARGET, 4 * MEAN, 4 * MEAN.square() - 1e-3, 4)
    assert torch.equal(stats.scatter, torch.zeros(2))


@pytest.mark.parametrize("make", [SphericalStats, SphericalStats.from_moments])
def test_the_defaults(make: Callable[..., SphericalStats]) -> None:
    stats = make(TARGET, MEAN, MEAN, 4)
    assert stats.once_differentiable is False
    assert stats.ignore_index is None
    assert stats.valid.dtype == torch.bool
    assert stats.valid.all()


def test_what_is_said_of_the_layer_is_kept() -> None:
    valid = torch.tensor([True, False])
    stats = SphericalStats.from_moments(
        TARGET, MEAN, MEAN, 4, valid=valid, once_differentiable=True, ignore_index=-7
    )
    assert (stats.once_differentiable, stats.ignore_index) == (True, -7)
    assert stats.valid is valid


def test_the_mean_over_one_target_is_its_value() -> None:
    valid = torch.tensor([True, False])
    stats = SphericalStats.from_moments(TARGET, MEAN, MEAN, 4, valid=valid)
    mean = stats.mean_over_targets(torch.tensor([5.0, 6.0]))
    assert torch.equal(mean, torch.tensor([5.0, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_spread_as_small_as_the_rounding_of_the_mean_is_none(dtype: torch.dtype) -> None:
    """The limit is a standard deviation of four units of the last digit of the mean."""
    mean = torch.tensor([2.0], dtype=dtype)
    unit = torch.finfo(dtype).eps * mean

    def z(deviation: Tensor) -> float:
        return z_normalize(mean + 1, mean, deviation.square()).item()

    assert z(4 * unit) == 0
    assert z(4.5 * unit) == pytest.approx(1 / (4.5 * unit.item()), rel=1e-5)
