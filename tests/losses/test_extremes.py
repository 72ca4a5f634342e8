"""Values and gradients are finite for rows without spread, huge activations and huge hyper-parameters."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.losses.registry import A, B, LossCase, every_loss

ROWS = {
    "zeros": torch.zeros(7),
    "all 0.1": torch.full((7,), 0.1),  # not a binary fraction: its float32 mean is rounded
    "all -1e4 / 3": torch.full((7,), -1e4 / 3),
    "two equal": torch.full((2,), 0.1),
    "two": torch.tensor([1.0, -2.0]),
    "two close": torch.tensor([1.0, 1.0 + 2**-23]),
    "large": torch.linspace(-1e4, 1e4, 7),
    "large mean": 1e4 + torch.linspace(-1, 1, 7),
    "one huge": torch.tensor([1e18, 0.0, 0.0, 0.0]),  # float32 can hold its square
    "one tiny": torch.tensor([1e-30, 0.0, 0.0, 0.0]),  # its square underflows float32
}
FLAT = ["zeros", "all 0.1", "all -1e4 / 3", "two equal"]
Z_NORMALISED: dict[str, Callable[[float], nn.Module]] = {
    "ZLoss": lambda a: zloss.ZLoss(a=a, b=B, reduction="none"),
    "ZSoftmax": lambda a: zloss.ZNormalized(nn.CrossEntropyLoss(reduction="none"), a=a),
    "ZSigmoid": lambda a: zloss.ZNormalized(zloss.SigmoidCrossEntropy(reduction="none"), a=a),
}
every_row = pytest.mark.parametrize("row", ROWS)


def value_and_gradient(loss: nn.Module, row: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of `row` with each class as the target in turn, and its gradient."""
    logits = row.repeat(len(row), 1).requires_grad_()
    value: Tensor = loss(logits, torch.arange(len(row), device=row.device))
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    return value, gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_row
@every_loss
def test_value_and_gradient_are_finite(
    case: LossCase, row: str, dtype: torch.dtype, device: torch.device
) -> None:
    value, gradient = value_and_gradient(case.make(reduction="none"), ROWS[row].to(device, dtype))
    assert value.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("a", [1e6, 1e30])
@every_row
@pytest.mark.parametrize("name", Z_NORMALISED)
def test_a_huge_a_is_finite(name: str, row: str, a: float, device: torch.device) -> None:
    value, gradient = value_and_gradient(Z_NORMALISED[name](a), ROWS[row].to(device))
    assert value.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("name", "per_class"),
    [
        ("ZLoss", [math.log1p(math.exp(A * B)) / A] * 2),
        ("ZSoftmax", [math.log(7) / A, math.log(2) / A]),
        ("ZSigmoid", [7 * math.log(2) / A, 2 * math.log(2) / A]),
    ],
)
@pytest.mark.parametrize("row", FLAT)
def test_a_row_without_spread_has_z_scores_and_gradient_of_zero(
    name: str, per_class: list[float], row: str
) -> None:
    value, gradient = value_and_gradient(Z_NORMALISED[name](A), ROWS[row])
    expected = per_class[0] if len(ROWS[row]) == 7 else per_class[1]
    torch.testing.assert_close(value, torch.full_like(value, expected))
    assert gradient.count_nonzero() == 0


def test_a_huge_logit_of_the_target_does_not_hide_the_others(device: torch.device) -> None:
    logits = torch.tensor([[1e8, 0.0, 0.0, 0.0]], device=device)
    value = zloss.SigmoidCrossEntropy()(logits, torch.zeros(1, dtype=torch.long, device=device))
    torch.testing.assert_close(value.item(), 3 * math.log(2), rtol=1e-6, atol=0)  # 8 eps of float32


def test_a_confident_sigmoid_keeps_its_tail_in_float64() -> None:
    logits = torch.tensor([[24.0, -24.0]], dtype=torch.float64, requires_grad=True)
    value = zloss.SigmoidCrossEntropy()(logits, torch.tensor([0]))
    (gradient,) = torch.autograd.grad(value, logits)
    tail = math.exp(-24.0)  # of softplus and of sigmoid, up to its square
    # The loss is a difference of numbers near 24, each rounded to 24 * 2e-16 = 5e-15.
    assert value.item() == pytest.approx(2 * tail, abs=1e-14)
    torch.testing.assert_close(
        gradient, torch.tensor([[-tail, tail]], dtype=torch.float64), rtol=0, atol=1e-14
    )
