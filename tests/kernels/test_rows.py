"""A step by kernels whose record has gradients of looked-up rows below the batch, against its PyTorch definition."""

import pytest
import torch

from tests.kernels.factored_cases import (
    CLASSES,
    DECAY,
    DTYPES,
    FLOAT32,
    GRADIENT,
    LR,
    Case,
    error,
    make_case,
)
from zloss import kernels
from zloss.layers.gradient import RecordedGradient
from zloss.layers.matrix import FactoredMatrix
from zloss.layers.storage import InMemory
from zloss.layers.supervisor import Conditioning, Supervisor
from zloss.layers.triton_backend import TritonBackend
from zloss.layers.update import Factors, exact_step

pytestmark = pytest.mark.skipif(not kernels.available(), reason="triton is not installed")
# Rows of the batch, width, targets per row, looked-up rows: on all sides of B < H and M < H, and without a batch.
SIZES = [
    (7, 16, 1, 5),
    (7, 16, 2, 30),
    (40, 33, 1, 20),
    (5, 40, 3, 1),
    (0, 16, 1, 6),
    (0, 16, 1, 40),
]


def record_with_rows(case: Case, count: int) -> RecordedGradient:
    """Look up rows of which some repeat, and some are targets of the batch too."""
    ids = torch.randint(40, (count,), device=case.h.device)
    case.layer.rows(ids).sin().mean().backward()
    record = case.layer.recorded_gradient()
    assert record is not None
    return record


def copied(case: Case, dtype: torch.dtype) -> FactoredMatrix:
    factors = Factors(*(part.clone() for part in case.layer.factors()))
    return FactoredMatrix(InMemory(case.layer.V.detach().clone()), factors, dtype)


@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "width", "targets", "count"), SIZES)
def test_step(
    rows: int,
    width: int,
    targets: int,
    count: int,
    dtype: torch.dtype,
    is_captured: bool,
    kernel_device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_captured:  # the inverse comes from its series then
        monkeypatch.setattr(kernels.load("factored_system"), "is_capturing", lambda: True)
    case = make_case(rows, width, targets, torch.float64, kernel_device)
    record, before = record_with_rows(case, count), case.layer.factors()
    assert len(record.h) > len(record.batch) == rows
    expected = exact_step(before, record, LR, DECAY, CLASSES)
    right, matrix = copied(case, dtype), copied(case, dtype)
    right.add_rows_(right.row_changes(record, expected.rows, LR))
    supervisor = Supervisor(CLASSES)
    backend = TritonBackend(supervisor, Conditioning(None), matrix)
    backend.step_(matrix, record, LR, DECAY)
    assert int(supervisor.fault) == 0
    assert error(matrix.rows.tensor - case.layer.V, right.rows.tensor - case.layer.V) <= FLOAT32
    for old, new, wanted in zip(before, matrix.factors, expected.factors, strict=True):
        assert error(new - old, wanted - old) <= FLOAT32


def test_a_gradient_of_a_row_that_is_not_finite_changes_nothing(
    kernel_device: torch.device,
) -> None:
    case = make_case(7, 16, 1, torch.float64, kernel_device)
    rows = case.layer.rows(torch.tensor([3, 4], device=kernel_device))
    weight = torch.ones_like(rows)
    weight[1, 2] = torch.nan
    rows.backward(weight)
    record, matrix = case.layer.recorded_gradient(), copied(case, torch.float64)
    assert record is not None
    supervisor = Supervisor(CLASSES)
    TritonBackend(supervisor, Conditioning(None), matrix).step_(matrix, record, LR, DECAY)
    assert int(supervisor.fault) & GRADIENT
    assert torch.equal(matrix.rows.tensor, case.layer.V)
    for part, old in zip(matrix.factors, case.layer.factors(), strict=True):
        assert torch.equal(part, old)
