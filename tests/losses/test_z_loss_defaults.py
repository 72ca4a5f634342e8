"""The defaults of the Z-loss: one rule, the same wherever it is used, for any number of classes."""

import math
from typing import Any

import pytest
import torch

import zloss
from zloss.heads.config import LOSSES
from zloss.losses.spherical import has_kernel


def a_batch(classes: int, rows: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, classes, dtype=torch.float64), torch.randint(classes, (rows,))


@pytest.mark.parametrize("classes", [2, 3, 10, 101, 1000, 54_321])
def test_without_a_and_b_it_is_the_rule_everywhere(classes: int) -> None:
    a, b = zloss.ZLoss().parameters_for(classes).values()
    assert a * math.sqrt(classes) == pytest.approx(10, rel=5e-3), "three digits"
    assert b == pytest.approx(min(10, math.sqrt(classes) / 3), rel=5e-3)
    logits, target = a_batch(classes)
    stats = zloss.SphericalStats.from_logits(logits, target)
    expected = zloss.ZLoss(a=a, b=b)(logits, target)
    for found in (
        zloss.ZLoss()(logits, target),
        zloss.ZLoss()(stats),
        zloss.z_loss(stats).mean(),
        zloss.HeadConfig().build_loss(classes)(logits, target),
    ):
        assert torch.equal(found, expected)
    assert LOSSES["z_loss"].starts(classes) == {"a": a, "b": b}


def test_one_loss_serves_layers_with_different_numbers_of_classes() -> None:
    loss_of = zloss.ZLoss()
    for classes in (50, 5000):
        layer = zloss.FactoredLinear(8, classes)
        h, target = torch.randn(3, 8), torch.tensor([0, 1, 49])
        a, b = loss_of.parameters_for(classes).values()
        expected = zloss.ZLoss(a=a, b=b)(layer(h, target))
        assert torch.equal(loss_of(layer(h, target)), expected)


def test_what_is_given_stays() -> None:
    assert zloss.ZLoss(a=0.3).parameters_for(1_000_000) == {"a": 0.3, "b": 10.0}
    assert zloss.ZLoss(b=7.0).parameters_for(100) == {"a": 1.0, "b": 7.0}


def test_it_has_a_kernel_and_a_captured_step_sees_a_change_of_a() -> None:
    loss_of = zloss.ZLoss()
    assert has_kernel(loss_of)
    before = loss_of.captured_constants()
    loss_of.a = 0.1
    assert loss_of.captured_constants() != before


@pytest.mark.parametrize("wrong", [0, 2.5, "many"])
def test_a_number_of_classes_is_checked(wrong: Any) -> None:
    with pytest.raises(ValueError, match="num_classes must be a whole number of at least 1"):
        zloss.ZLoss().parameters_for(wrong)


@pytest.mark.parametrize("classes", [3, 5, 30])
def test_it_trains_where_no_z_can_reach_b(classes: int) -> None:
    """The largest z is sqrt(C - 1). With two classes it is 1 or -1, and nothing can be learnt."""
    torch.manual_seed(0)
    layer, codes = zloss.FactoredLinear(16, classes), torch.randn(classes, 16)
    optimizer, target = zloss.FactoredSGD(layer), torch.arange(classes)
    for _ in range(300):
        zloss.ZLoss()(layer(codes, target)).backward()
        optimizer.step()
    assert (layer.rank(codes, target) == 1).all()
