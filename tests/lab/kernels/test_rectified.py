"""The gradient through a rectifier and a bias, against its definition."""

import pytest
import torch

from zloss_lab import kernels

pytestmark = pytest.mark.skipif(not kernels.available(), reason="triton is not installed")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("rows", "width"), [(200, 48), (256, 16), (300, 17), (1, 1), (5, 33), (0, 4)]
)
def test_it_is_its_definition(
    rows: int, width: int, dtype: torch.dtype, kernel_device: torch.device
) -> None:
    y = torch.randn(rows, width, device=kernel_device).relu().to(dtype)
    grad = torch.randn(rows, width, device=kernel_device).to(dtype)
    masked, total = kernels.load("rectified").grad_through_relu(grad, y)
    expected = grad.masked_fill(y <= 0, 0)
    assert masked.dtype == total.dtype == dtype
    assert torch.equal(masked, expected)
    # There are `rows` additions in any order. Each rounds a number that is no larger than the sum of all sizes. The
    # result is rounded once more to a shorter format, where Triton's interpreter cuts off.
    exact, sizes = expected.double().sum(0), expected.double().abs().sum(0)
    tolerance = 1.01 * rows * torch.finfo(torch.promote_types(dtype, torch.float32)).eps * sizes
    assert (
        (total.double() - exact).abs() <= tolerance + torch.finfo(dtype).eps * exact.abs()
    ).all()


def test_rows_need_not_stand_one_after_another(kernel_device: torch.device) -> None:
    """The gradient of a sum is one number, expanded."""
    grad = torch.ones((), device=kernel_device).expand(3, 4)
    y = torch.tensor([[1.0, 0.0, 2.0, 0.0]] * 6, device=kernel_device)[::2]
    masked, total = kernels.load("rectified").grad_through_relu(grad, y)
    assert masked.tolist() == [[1, 0, 1, 0]] * 3
    assert total.tolist() == [3, 0, 3, 0]


def test_what_is_not_a_number_lets_the_gradient_pass(kernel_device: torch.device) -> None:
    y = torch.tensor([[torch.nan, torch.inf, 0.0]], device=kernel_device)
    masked, total = kernels.load("rectified").grad_through_relu(torch.full_like(y, 2), y)
    assert masked.tolist() == [[2, 2, 0]]
    assert total.tolist() == [2, 2, 0]


def test_a_gradient_that_is_not_a_number_stays_behind_the_rectifier(
    kernel_device: torch.device,
) -> None:
    y = torch.tensor([[1.0, 0.0]], device=kernel_device)
    masked, total = kernels.load("rectified").grad_through_relu(torch.full_like(y, torch.nan), y)
    assert masked.isnan().tolist() == [[True, False]]
    assert total.isnan().tolist() == [True, False]
