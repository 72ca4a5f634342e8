"""The kernels of the factored layer against their PyTorch definition, from the same state."""

import pytest
import torch

from tests.kernels.factored_cases import (
    CLASSES,
    DECAY,
    DTYPES,
    FLOAT32,
    GRADIENT,
    HIDDEN,
    LR,
    SINGULAR,
    SIZES,
    TARGET,
    error,
    gradient,
    largest_curvature,
    make_case,
    statistics,
    step,
)
from zloss import kernels
from zloss.layers.matrix import FactoredMatrix
from zloss.layers.storage import InMemory
from zloss.layers.update import exact_step

pytestmark = [
    pytest.mark.skipif(not kernels.available(), reason="triton is not installed"),
    pytest.mark.filterwarnings(
        "ignore::RuntimeWarning"
    ),  # from NumPy in the interpreter, for numbers that are not finite
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "width", "targets"), SIZES)
def test_statistics_and_gradient(
    rows: int, width: int, targets: int, dtype: torch.dtype, kernel_device: torch.device
) -> None:
    case = make_case(rows, width, targets, dtype, kernel_device)
    made = statistics(case)
    for value, expected in [
        (made.scores, case.stats.target),
        (made.mean, case.stats.mean),
        (made.scatter, case.stats.scatter),
        (made.h, case.record.h),
        (made.hg, case.record.hg),
    ]:
        assert error(value, expected) <= FLOAT32
    assert torch.equal(made.valid, case.stats.valid)
    assert torch.equal(made.classes, case.record.index)
    grad, record = gradient(case, made), case.record
    assert case.h.grad is not None
    for value, expected in [
        (grad.h, case.h.grad),
        (grad.curvature, record.curvature),
        (grad.mean, record.mean_grad),
        (grad.target, record.target_grad),
        (grad.target_rows, record.target_rows),
    ]:
        assert error(value, expected) <= FLOAT32
    assert int(case.fault) == int(made.fault) == 0


@pytest.mark.usefixtures("inverse")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "width", "targets"), SIZES)
def test_step(
    rows: int, width: int, targets: int, dtype: torch.dtype, kernel_device: torch.device
) -> None:
    case = make_case(rows, width, targets, dtype, kernel_device)
    before = case.layer.factors()
    expected = exact_step(before, case.record, LR, DECAY, CLASSES)
    V = case.layer.V.detach().clone()
    matrix = FactoredMatrix(InMemory(V), case.layer.factors(), V.dtype)
    matrix.add_rows_(matrix.row_changes(case.record, expected.rows, LR))
    (new_V, *factors), report = step(case)
    assert error(new_V - case.layer.V, V - case.layer.V) <= FLOAT32
    for old, new, right in zip(before, factors, expected.factors, strict=True):
        assert error(new - old, right - old) <= FLOAT32
    U, U_inv, _, _, gram = factors
    assert torch.equal(case.pack, torch.stack([gram, U, U_inv.T]).to(dtype)), "the copies follow"
    parts = report[2:].reshape(2, -1).sum(1).sqrt()
    assert error(parts, torch.stack([U.norm(), U_inv.norm()])) <= 1e-12
    assert report[0] == 0
    assert report[1].item() == pytest.approx(0.5 / (expected.k1_norm.item() + DECAY), rel=FLOAT32)


def test_a_bias_column_is_added(kernel_device: torch.device) -> None:
    case = make_case(6, 12, 2, torch.float64, kernel_device, bias=True)
    made = statistics(case)
    assert torch.equal(made.h, case.record.h)
    assert case.h.grad is not None
    assert error(gradient(case, made).h, case.h.grad) <= FLOAT32


def test_bad_targets_and_activations_raise_their_bits(kernel_device: torch.device) -> None:
    case = make_case(6, 12, 1, torch.float64, kernel_device)
    target = case.target.clone()
    target[2] = CLASSES
    made = statistics(case, target=target)
    assert int(made.fault) == int(case.fault) == TARGET
    assert made.mean.isnan().tolist() == [row == 2 for row in range(6)]
    assert not gradient(case, made).h.any(), "nothing is learnt from such a batch"
    for value in (torch.inf, 1e25):  # the square of 1e25 overflows float32
        h = case.h.detach().clone()
        h[4, 3] = value
        made = statistics(case, h=h)
        assert int(made.fault) == HIDDEN, "the bits of one batch do not stick to the next"
        assert made.mean.isnan().tolist() == [row == 4 for row in range(6)]
    assert int(case.fault) == TARGET | HIDDEN, "but to the layer they do"


@pytest.mark.usefixtures("inverse")
@pytest.mark.parametrize(("rows", "width"), [(7, 16), (40, 33)])
@pytest.mark.parametrize(
    ("lr", "scale", "fault"),
    [(None, 1.0, SINGULAR), (LR, float("nan"), GRADIENT), (LR, 1e30, GRADIENT)],
    ids=["singular", "nan", "overflow"],
)
def test_what_cannot_be_taken_changes_nothing(
    lr: float | None, scale: float, fault: int, rows: int, width: int, kernel_device: torch.device
) -> None:
    case = make_case(rows, width, 1, torch.float64, kernel_device)
    lr = 1 / largest_curvature(case) if lr is None else lr
    pack = case.pack.clone()
    state, report = step(case, lr, decay=0, scale=scale)
    assert int(case.fault) & fault
    assert int(report[0]) == int(case.fault)
    for part, old in zip(state, [case.layer.V, *case.layer.factors()], strict=True):
        assert torch.equal(part, old)
    assert torch.equal(pack, case.pack)


def test_weights_decay_without_rows(kernel_device: torch.device) -> None:
    case = make_case(0, 16, 1, torch.float64, kernel_device)
    before = case.layer.factors()
    expected = exact_step(before, case.record, LR, DECAY, CLASSES).factors
    (V, *factors), _ = step(case)
    assert torch.equal(V, case.layer.V)
    for new, right in zip(factors, expected, strict=True):
        assert error(new, right) <= 1e-12
    assert int(case.fault) == 0


@pytest.mark.parametrize(("rows", "width"), [(7, 16), (40, 33)])
def test_beyond_the_series_steps_are_solved(
    rows: int, width: int, kernel_device: torch.device
) -> None:
    """With three times the learning rate that makes P singular, P is indefinite, but not nearly singular."""
    case = make_case(rows, width, 1, torch.float64, kernel_device)
    lr = 3 / largest_curvature(case)
    expected = exact_step(case.layer.factors(), case.record, lr, 0.0, CLASSES)
    (_, _, U_inv, *_), _ = step(case, lr, decay=0)
    assert int(case.fault) == 0
    assert error(U_inv - case.layer.U_inv, expected.factors.U_inv - case.layer.U_inv) <= FLOAT32


@pytest.mark.usefixtures("inverse")
@pytest.mark.parametrize(("rows", "width"), [(7, 16), (40, 33)])
@pytest.mark.parametrize("is_too_large", [False, True])
def test_no_step_is_taken_if_the_last_one_has_reported_a_bad_condition(
    rows: int, width: int, is_too_large: bool, kernel_device: torch.device
) -> None:
    """The host was to refactor before the condition is so large, and has not."""
    case = make_case(rows, width, 1, torch.float64, kernel_device)
    parts = (kernels.load("factored_update").report_length(width) - 2) // 2
    most = 7.0 if is_too_large else 9.0
    # Squared norms of 8 H each make a condition of 8.
    state, report = step(case, decay=0, most_condition=most, norms=8 * width / parts)
    assert int(case.fault) == int(report[0]) == SINGULAR * is_too_large
    assert torch.equal(state[0], case.layer.V) == is_too_large


def test_after_a_fault_no_step_is_taken(kernel_device: torch.device) -> None:
    case = make_case(7, 16, 1, torch.float64, kernel_device)
    case.fault.fill_(TARGET)
    state, _ = step(case)
    assert torch.equal(state[0], case.layer.V)


@pytest.fixture(params=["solved", "series"])
def inverse(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Invert by a factorisation, or by the series of a captured step."""
    if request.param == "series":
        monkeypatch.setattr(kernels.load("factored_system"), "is_capturing", lambda: True)
    return str(request.param)


@pytest.mark.usefixtures("inverse")
@pytest.mark.parametrize(("rows", "width"), [(7, 16), (40, 33)])
def test_steps_up_to_the_limit_of_the_series_are_exact(
    rows: int, width: int, kernel_device: torch.device
) -> None:
    """With half of the learning rate that makes P singular, two dozen terms of the series are needed."""
    case = make_case(rows, width, 1, torch.float64, kernel_device)
    lr = 0.5 / largest_curvature(case)
    expected = exact_step(case.layer.factors(), case.record, lr, 0.0, CLASSES)
    (_, _, U_inv, *_), _ = step(case, lr, decay=0)
    assert int(case.fault) == 0
    # 0.5^32 = 2e-10 is left out; the terms add up to at most 1 / (1 - 0.5).
    assert error(U_inv - case.layer.U_inv, expected.factors.U_inv - case.layer.U_inv) <= 4 * FLOAT32
