"""Weights of classes: each target's loss counts as often as the weight of its class says, in every loss."""

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import zloss
from tests.layers.twins import SPHERICAL_LOSSES, make_twins
from tests.losses.registry import LossCase, every_loss_reduced_here, every_spherical_loss
from tests.losses.test_reduction import CLASSES, IGNORED, assert_close, gradient, random_logits

CLASS_WEIGHT = torch.tensor([0.0, 0.5, 1.0, 2.0, 3.5, 10.0], dtype=torch.float64)
RAGGED = torch.tensor([[0, 3], [5, IGNORED], [IGNORED, IGNORED], [4, 4], [IGNORED, 1]])


def by_definition(case: LossCase, logits: Tensor, target: Tensor) -> Tensor:
    """The average over the valid targets of weight times loss, in plain Python."""
    rows = []
    for o, classes in zip(logits.tolist(), target.reshape(len(target), -1).tolist(), strict=True):
        valid = [c for c in classes if c != IGNORED]
        terms = [CLASS_WEIGHT[c].item() * case.definition(o, c) for c in valid]
        rows.append(math.fsum(terms) / max(len(valid), 1))
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("target", [RAGGED, RAGGED[:, 0], RAGGED[:, :1]], ids=["K", "B", "column"])
@every_loss_reduced_here
def test_each_target_has_the_weight_of_its_class(
    case: LossCase, target: Tensor, device: torch.device
) -> None:
    logits = random_logits(5, device)
    expected = by_definition(case, logits, target).to(device)
    target, weight = target.to(device), torch.tensor([2.0, 1.0, 9.0, -1.0, 0.5], device=device)
    made = {
        reduction: case.make(reduction=reduction, class_weight=CLASS_WEIGHT.to(device))
        for reduction in ("none", "sum", "mean")
    }
    counted = (target.reshape(5, -1) != IGNORED).any(1)
    assert_close(made["none"](logits, target), expected)
    assert_close(made["none"](logits, target, weight=weight), expected * weight * counted)
    assert_close(made["sum"](logits, target), expected.sum())
    # The mean is over the rows that are not ignored, for any weights.
    assert_close(made["mean"](logits, target), expected.sum() / counted.sum())


@every_loss_reduced_here
def test_gradients_are_those_of_the_weighted_sum(case: LossCase) -> None:
    logits, loss = random_logits(5), case.make(reduction="sum", class_weight=CLASS_WEIGHT)
    plain = case.make(reduction="none")
    valid = RAGGED != IGNORED
    shares = torch.where(valid, CLASS_WEIGHT[RAGGED.clamp_min(0)], 0) / valid.sum(
        1, keepdim=True
    ).clamp_min(1)
    expected = sum((plain(logits, RAGGED[:, k]) * shares[:, k]).sum() for k in range(2))
    assert isinstance(expected, Tensor)
    assert_close(gradient(loss(logits, RAGGED), logits), gradient(expected, logits))


@every_loss_reduced_here
def test_weights_of_one_change_nothing(case: LossCase) -> None:
    logits = random_logits(5)
    value = case.make(class_weight=torch.ones(CLASSES))(logits, RAGGED)
    assert_close(value, case.make()(logits, RAGGED))
    assert value.dtype == torch.float64


@pytest.mark.parametrize("columns", [None, 1, 3])
@pytest.mark.parametrize("layer", ["factored", "gram"])
@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize(("loss", "lr"), SPHERICAL_LOSSES, ids=lambda x: type(x).__name__)
def test_every_step_is_the_dense_step(
    loss: zloss.SphericalLoss,
    lr: float,
    rows: int,
    layer: str,
    columns: int | None,
    device: torch.device,
) -> None:
    twins = make_twins(8, 60, device=device, lr=lr, synchronous=True)
    weights = torch.rand(60, dtype=torch.float64, device=device) * 3
    weighted: Any = type(loss)(
        **{name: value for name, value in vars(loss).items() if name in ("a", "b", "eps")},
        class_weight=weights,
    )
    gram = zloss.GramLinear.from_linear(twins.dense.linear)
    for step in range(8):
        h = torch.randn(rows, 8, dtype=torch.float64, device=device)
        shape = (rows,) if columns is None else (rows, columns)
        target = torch.randint(60, shape, device=device)
        target[torch.rand(shape, device=device) < 0.2] = IGNORED
        if layer == "gram":
            assert_close(weighted(gram(h, target)), weighted(h @ gram.weight().T, target))
            continue
        # Rounding of float64, as in the tests of exactness; a wrong weight is far above it.
        assert twins.backward(weighted, h, target) <= 1e-10, f"step {step}"
        assert twins.step() <= 1e-10, f"step {step}"


@every_spherical_loss
def test_the_caller_may_overwrite_the_targets(case: LossCase) -> None:
    layer, h = zloss.FactoredLinear(8, CLASSES), torch.randn(3, 8)
    loss, target = case.make(class_weight=CLASS_WEIGHT), torch.tensor([1, 3, 5])
    expected, stats = loss(layer(h, target)), layer(h, target)
    target.fill_(0)  # the class with the weight 0
    assert torch.equal(loss(stats), expected)


class Margin(zloss.SphericalLoss):
    """A loss of a user, which averages over targets in its own way."""

    def per_example(self, stats: zloss.SphericalStats) -> Tensor:
        return (
            torch.where(stats.valid, (3 - stats.z).relu(), 0).reshape(len(stats.mean), -1).mean(1)
        )


def test_a_loss_of_a_users_own_has_weights_too() -> None:
    logits, target = random_logits(3), torch.tensor([[1, 3], [5, 5], [2, 0]])
    value = Margin(reduction="none", class_weight=CLASS_WEIGHT)(logits, target)
    parts = [Margin(reduction="none")(logits, column) * CLASS_WEIGHT[column] for column in target.T]
    assert_close(value, (parts[0] + parts[1]) / 2)


# ---- the module ------------------------------------------------------------------------------------------------------


@every_loss_reduced_here
def test_weights_are_a_buffer(case: LossCase) -> None:
    """They move with the loss and are part of its checkpoint, as a loss with other weights is another loss."""
    given = CLASS_WEIGHT.clone()
    loss, other = case.make(class_weight=given), case.make(class_weight=torch.ones(CLASSES))
    other.load_state_dict(loss.state_dict())
    loss.to(torch.float32)
    given.zero_()
    logits, target = random_logits(2), torch.tensor([3, 5])
    assert_close(loss(logits, target), other(logits, target))
    assert list(loss.parameters()) == []
    (saved,) = other.state_dict().values()
    assert torch.equal(saved.double(), CLASS_WEIGHT)


@every_loss_reduced_here
def test_new_weights_make_a_captured_step_capture_again(case: LossCase) -> None:
    loss: Any = case.make(class_weight=CLASS_WEIGHT)
    own = loss.loss if isinstance(loss, zloss.ZNormalized) else loss
    assert any(value is own.class_weight for value in loss.captured_constants())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([1.0, 2.0], "class_weight must be a tensor of real numbers"),
        (torch.ones(CLASSES, dtype=torch.cfloat), "class_weight must be a tensor of real numbers"),
        (torch.ones(CLASSES, 1), "with 1 dimensions, got torch.float32 (6, 1) on cpu"),
        (torch.tensor([1.0, math.nan]), "class_weight must hold finite numbers >= 0"),
        (torch.tensor([1.0, -1.0]), "class_weight must hold finite numbers >= 0"),
        (torch.tensor([1.0, math.inf]), "class_weight must hold finite numbers >= 0"),
    ],
)
@every_loss_reduced_here
def test_bad_weights_are_refused(case: LossCase, bad: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        case.make(class_weight=bad)


@every_loss_reduced_here
def test_weights_of_other_classes_are_refused(case: LossCase) -> None:
    loss = case.make(class_weight=torch.ones(5))
    message = "class_weight must have one entry per class, (6,), got (5,)"
    with pytest.raises(ValueError, match=re.escape(message)):
        loss(random_logits(2), torch.tensor([1, 2]))


@every_loss_reduced_here
def test_weights_on_another_device_are_refused(case: LossCase, cuda: torch.device) -> None:
    with pytest.raises(ValueError, match="class_weight is on cpu and the batch on cuda"):
        case.make(class_weight=CLASS_WEIGHT)(
            random_logits(2, cuda), torch.tensor([1, 2], device=cuda)
        )


@every_spherical_loss
def test_statistics_without_classes_are_refused(case: LossCase) -> None:
    known = zloss.SphericalStats.from_logits(random_logits(2), torch.tensor([1, 2]))
    moments = (known.target, known.mean, known.scatter)
    loss = case.make(class_weight=CLASS_WEIGHT)
    with pytest.raises(ValueError, match="class_weight needs the classes of the targets"):
        loss(zloss.SphericalStats.from_moments(*moments, CLASSES))
    told = zloss.SphericalStats.from_moments(*moments, CLASSES, classes=torch.tensor([1, 2]))
    assert_close(loss(told), loss(known))
