"""Bad input gets one `ValueError`, which names what was passed."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.losses.registry import (
    LossCase,
    every_loss_of_the_library,
    every_loss_reduced_here,
    every_spherical_loss,
)

LOGITS, TARGET = torch.zeros(2, 3), torch.tensor([0, 1])
STATS = zloss.SphericalStats.from_logits(LOGITS, TARGET)


@pytest.mark.parametrize("reduction", ["avg", "MEAN", "", None])
@every_loss_reduced_here
def test_a_reduction_that_does_not_exist(case: LossCase, reduction: str | None) -> None:
    message = f"reduction must be one of none, mean, sum, got {reduction!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        case.make(reduction=reduction)


Make = Callable[[float], object]


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a", lambda a: zloss.ZLoss(a=a, b=1)),
        ("a", lambda a: zloss.z_loss(STATS, a=a, b=1)),
        ("a", lambda a: zloss.ZNormalized(nn.CrossEntropyLoss(), a=a)),
        ("eps", lambda eps: zloss.SphericalSoftmax(eps=eps)),
        ("eps", lambda eps: zloss.spherical_softmax(STATS, eps=eps)),
    ],
    ids=["ZLoss", "z_loss", "ZNormalized", "SphericalSoftmax", "spherical_softmax"],
)
def test_a_hyper_parameter_that_must_be_positive(name: str, make: Make, bad: float) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"{name} must be a finite number > 0, got {bad}")
    ):
        make(bad)


@pytest.mark.parametrize("b", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "make",
    [
        lambda b: zloss.ZLoss(a=1, b=b),
        lambda b: zloss.z_loss(STATS, a=1, b=b),
        lambda b: zloss.SigmoidCrossEntropy(b=b),
        lambda b: zloss.ZNormalized(zloss.SigmoidCrossEntropy(), a=1, b=b),
    ],
    ids=["ZLoss", "z_loss", "SigmoidCrossEntropy", "ZNormalized"],
)
def test_b_must_be_finite(make: Make, b: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"b must be a finite number, got {b}")):
        make(b)


@pytest.mark.parametrize("b", [0, -5.0])
def test_b_may_have_any_sign(b: float) -> None:
    value = zloss.ZLoss(a=2.0, b=b)(LOGITS, TARGET)  # z = 0 on a row of equal logits
    assert value.item() == pytest.approx(math.log1p(math.exp(2 * b)) / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.long), "got dtype torch.int64"),
        (torch.zeros(2, 3, dtype=torch.complex64), "got dtype torch.complex64"),
        ([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]], "got list"),
        (torch.zeros(2), "logits must have shape (B, C) with C >= 2, got (2,)"),
        (torch.zeros(2, 3, 1), "logits must have shape (B, C) with C >= 2, got (2, 3, 1)"),
        (torch.zeros(2, 1), "logits must have shape (B, C) with C >= 2, got (2, 1)"),
    ],
)
@every_loss_of_the_library
def test_logits_that_are_none(case: LossCase, logits: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        case.make()(logits, TARGET)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([0, 1], "target must be a tensor of class indices, got list"),
        (torch.zeros(2), "target must hold integer class indices, got dtype torch.float32"),
        (
            torch.zeros(2, dtype=torch.bool),
            "target must hold integer class indices, got dtype torch.bool",
        ),
        (
            torch.zeros(3, dtype=torch.long),
            "target must have shape (2,) or (2, K), one row per example, got (3,)",
        ),
        (torch.tensor(1), "got ()"),
        (torch.zeros(2, 2, 2, dtype=torch.long), "got (2, 2, 2)"),
        (torch.zeros(2, 0, dtype=torch.long), "target has no columns"),
        (
            torch.tensor([0, 3]),
            "target 3 is out of range: expected 0 <= target < 3, or the ignore_index",
        ),
        (torch.tensor([[0, 1], [2, -7]]), "target -7 is out of range"),
    ],
)
@every_loss_reduced_here
def test_targets_that_are_none(case: LossCase, target: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        case.make()(LOGITS, target)


@every_loss_reduced_here
def test_the_default_ignore_index_is_out_of_range_for_another(case: LossCase) -> None:
    with pytest.raises(ValueError, match="target -100 is out of range"):
        case.make(ignore_index=-1)(LOGITS, torch.tensor([0, -100]))


@every_spherical_loss
def test_a_target_beside_statistics(case: LossCase) -> None:
    with pytest.raises(ValueError, match="target was given twice"):
        case.make()(STATS, TARGET)


@every_spherical_loss
def test_logits_without_a_target(case: LossCase) -> None:
    with pytest.raises(
        ValueError, match=re.escape("logits need a target: call loss(logits, target)")
    ):
        case.make()(LOGITS)


@pytest.mark.parametrize(
    "weight", [torch.ones(3), torch.ones(1), torch.ones(2, 1), torch.tensor(1.0)]
)
@pytest.mark.parametrize("reduction", ["none", "mean"])
@every_loss_reduced_here
def test_a_weight_of_the_wrong_shape(case: LossCase, reduction: str, weight: Tensor) -> None:
    message = f"weight must have one entry per example, (2,), got {tuple(weight.shape)}"
    with pytest.raises(ValueError, match=re.escape(message)):
        case.make(reduction=reduction)(LOGITS, TARGET, weight=weight)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (zloss.ZLoss(a=0.1, b=10), "ZLoss(a=0.1, b=10, reduction='mean')"),
        (
            zloss.SphericalSoftmax(eps=0.5, reduction="sum"),
            "SphericalSoftmax(eps=0.5, reduction='sum')",
        ),
        (zloss.ZNormalized(zloss.SigmoidCrossEntropy(), a=2.0, b=3.0), "a=2.0, b=3.0"),
        (zloss.SigmoidCrossEntropy(b=9.0), "SigmoidCrossEntropy(b=9.0, reduction='mean')"),
    ],
)
def test_a_printed_loss_shows_its_hyper_parameters(loss: nn.Module, text: str) -> None:
    assert text in repr(loss)
