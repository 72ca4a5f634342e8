"""Arguments of the statistics: each wrong one gets an error that names it, and the border cases are accepted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from zloss.stats import SphericalStats

B, K, C = 3, 2, 5
SINGLE, SEVERAL, SUMS = torch.randn(B), torch.randn(B, K), torch.rand(B) + 1


def stats_of(target: Any = SEVERAL, **others: Any) -> SphericalStats:
    return SphericalStats.from_moments(target, SUMS, SUMS, C, **others)


def wrong_tensors(like: Tensor) -> dict[str, Any]:
    """Values that differ from the right ones in one respect each."""
    return {
        "text": "values",
        "list": like.tolist(),
        "shape": like[:-1],
        "more axes": like[..., None],
        "whole numbers": like.long(),
        "complex": like.to(torch.complex64),
        "layout": like.to_sparse(),
        "device": like.to("meta"),
        "nested": torch.nested.nested_tensor([like[0:1], like[1:]]),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "text",
        "list",
        "shape",
        "more axes",
        "whole numbers",
        "complex",
        "layout",
        "device",
        "nested",
    ],
)
@pytest.mark.parametrize("target", [SINGLE, SEVERAL], ids=["single", "several"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_wrong_values_are_refused_by_name(kind: str, target: Tensor) -> None:
    stats = stats_of(target)
    with pytest.raises(ValueError, match=r"^vector must be"):
        stats.per_row(wrong_tensors(SUMS)[kind])
    with pytest.raises(ValueError, match=r"^values must be"):
        stats.mean_over_targets(wrong_tensors(target)[kind])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_other_floats_are_accepted(dtype: torch.dtype) -> None:
    stats = stats_of()
    assert stats.per_row(SUMS.to(dtype)).shape == (B, 1)
    assert stats.mean_over_targets(torch.nn.Parameter(SEVERAL.to(dtype))).shape == (B,)


@pytest.mark.parametrize("make", [SphericalStats, SphericalStats.from_moments])
def test_wrong_sums_are_refused(make: Callable[..., SphericalStats]) -> None:
    assert make(SINGLE, SUMS, SUMS, 2).num_classes == 2
    for number in (1, 0, -2, 2.0, "2", True):
        with pytest.raises(ValueError, match="num_classes must be a whole number of at least 2"):
            make(SINGLE, SUMS, SUMS, number)
    for place in range(3):
        for wrong in ("text", SUMS.long(), SUMS.tolist(), SUMS.to("meta")):
            parts: list[Any] = [SINGLE, SUMS, SUMS]
            parts[place] = wrong
            with pytest.raises(ValueError, match="must be tensors of floating-point numbers"):
                make(*parts, C)
    with pytest.raises(ValueError, match=r"^valid must be"):
        make(SINGLE, SUMS, SUMS, C, valid=torch.ones(B))


def test_what_is_said_of_the_layer_is_checked() -> None:
    with pytest.raises(ValueError, match=r"^once_differentiable must be"):
        stats_of(once_differentiable=1)
    with pytest.raises(ValueError, match="ignore_index must be"):
        stats_of(ignore_index=1.5)
    logits, target = torch.randn(B, C), torch.zeros(B, dtype=torch.long)
    with pytest.raises(ValueError, match="ignore_index must be"):
        SphericalStats.from_logits(logits, target, ignore_index=1.5)  # type: ignore[arg-type]


def test_logits_and_targets_are_on_one_device() -> None:
    logits, target = torch.randn(B, C), torch.zeros(B, dtype=torch.long)
    with pytest.raises(
        ValueError, match=r"^logits and target must be on one device, got cpu and meta"
    ):
        SphericalStats.from_logits(logits, target.to("meta"))


def test_statistics_of_logits_have_the_shape_of_the_targets() -> None:
    logits, target = torch.randn(B, C), torch.tensor([0, -100, 2])
    stats = SphericalStats.from_logits(logits, target)
    assert stats.valid.shape == stats.target.shape == (B,)
    assert stats.valid.tolist() == [True, False, True]
    assert stats.once_differentiable is False
    assert stats.ignore_index == -100
