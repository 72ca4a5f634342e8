"""Every loss against its definition: values against slow loops over classes, gradients against finite differences."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import zloss
from tests.losses.registry import (
    LossCase,
    every_loss,
    every_loss_of_the_library,
    every_spherical_loss,
)

# Activations are multiples of 1/8 up to 16 in size: a row has no spread at all or one of at least 1/32, and |o| / sigma
# stays below 1e3. Twelve terms of float64 then round a loss by some 1e3 * 12 * 2e-16 = 3e-12 of its size.
assert_close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
CLASSES = 5


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    rows, classes = draw(st.integers(1, 4)), draw(st.integers(2, 12))
    eighths = draw(
        st.lists(st.integers(-128, 128), min_size=rows * classes, max_size=rows * classes)
    )
    target = draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows))
    return torch.tensor(eighths, dtype=torch.float64).reshape(rows, classes) / 8, torch.tensor(
        target
    )


def by_definition(case: LossCase, logits: Tensor, target: Tensor) -> Tensor:
    values = [case.definition(o, c) for o, c in zip(logits.tolist(), target.tolist(), strict=True)]
    return torch.tensor(values, dtype=torch.float64)


@every_loss
@given(batch=batches())
@settings(deadline=None, max_examples=25)
def test_a_value_is_its_definition(case: LossCase, batch: tuple[Tensor, Tensor]) -> None:
    assert_close(case.make(reduction="none")(*batch), by_definition(case, *batch))


@pytest.mark.parametrize("classes", [2, 257])
@every_loss
def test_a_float32_value_is_its_definition(
    case: LossCase, classes: int, device: torch.device
) -> None:
    logits, target = torch.randn(9, classes), torch.randint(classes, (9,))
    value = case.make(reduction="none")(logits.to(device), target.to(device))
    assert value.dtype == torch.float32
    # A sum of 257 terms, taken pairwise, and a condition of the Z-scores near 1: a few dozen eps = 1.2e-7.
    torch.testing.assert_close(
        value.double().cpu(), by_definition(case, logits, target), rtol=5e-6, atol=5e-6
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@every_loss_of_the_library
def test_half_precision_logits_are_computed_in_float32(
    case: LossCase, dtype: torch.dtype, device: torch.device
) -> None:
    logits, target = (
        torch.randn(6, 9, device=device).to(dtype).requires_grad_(),
        torch.arange(6, device=device),
    )
    value = case.make(reduction="none")(logits, target)
    assert value.dtype == torch.float32
    assert torch.equal(value, case.make(reduction="none")(logits.detach().float(), target))
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


# gradcheck compares the whole Jacobian with central differences: its default tolerances are for float64, as here.
@every_loss
def test_gradients_from_logits(case: LossCase, device: torch.device) -> None:
    logits = torch.randn(3, CLASSES, dtype=torch.float64, device=device, requires_grad=True)
    target = torch.tensor([0, 2, 4], device=device)

    def function(o: Tensor) -> Tensor:
        value: Tensor = case.make(reduction="none")(o, target)
        return value

    assert gradcheck(function, logits)
    assert gradgradcheck(function, logits)


def random_moments() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the activations of two targets (some ignored), the mean, the scatter and the validity of four examples."""
    valid = torch.tensor([[True, True], [True, False], [True, True], [False, True]])
    target, mean = torch.randn(4, 2, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    scatter = 0.5 + torch.rand(4, dtype=torch.float64)
    return target.requires_grad_(), mean.requires_grad_(), scatter.requires_grad_(), valid


@every_spherical_loss
def test_gradients_from_moments(case: LossCase) -> None:
    *moments, valid = random_moments()

    def function(target: Tensor, mean: Tensor, scatter: Tensor) -> Tensor:
        stats = zloss.SphericalStats.from_moments(target, mean, scatter, CLASSES, valid=valid)
        value: Tensor = case.make(reduction="none")(stats)
        return value

    assert gradcheck(function, moments)
    assert gradgradcheck(function, moments)


@every_spherical_loss
def test_gradients_from_sums(case: LossCase) -> None:
    target, mean, scatter, valid = random_moments()
    total = (CLASSES * mean).detach().requires_grad_()
    sumsq = (scatter + CLASSES * mean.square()).detach().requires_grad_()

    def function(target: Tensor, total: Tensor, sumsq: Tensor) -> Tensor:
        value: Tensor = case.make(reduction="none")(
            zloss.SphericalStats(target, total, sumsq, CLASSES, valid=valid),
        )
        return value

    assert gradcheck(function, (target, total, sumsq))
    assert gradgradcheck(function, (target, total, sumsq))


@every_spherical_loss
def test_logits_and_their_statistics_give_one_loss(case: LossCase, device: torch.device) -> None:
    logits = torch.randn(8, CLASSES, device=device)
    target = torch.randint(CLASSES, (8, 3), device=device)
    loss = case.make()
    assert torch.equal(loss(logits, target), loss(zloss.SphericalStats.from_logits(logits, target)))
