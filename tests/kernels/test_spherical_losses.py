"""The fused spherical losses against their definitions in float64, and when they stand in for them.

On a machine without a GPU the kernels run in Triton's interpreter.
"""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.gpu import no_synchronisation
from tests.losses.registry import LossCase, every_spherical_loss
from tests.losses.test_extremes import FLAT, ROWS
from zloss import SphericalStats, kernels
from zloss.losses import spherical
from zloss.losses.spherical import has_kernel, kernel_loss, suits_kernels

if not kernels.available():
    pytest.skip("triton is not installed", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("poisoned")

CLASSES = 50
REDUCTIONS = ["mean", "sum", "none"]
DTYPES = [torch.float64, torch.float32]
SHAPES = [(1,), (13,), (7, 3), (16, 1)]  # of the targets
# Both sides compute in float64 from the same numbers: a dozen roundings of 2e-16 each, in terms of one sign or, summed
# over rows and targets, of a size that is part of the scale below. The result is rounded once more, to its own dtype.
ROUNDINGS = 1e-14


@pytest.fixture
def module() -> ModuleType:
    return kernels.load("spherical_losses")


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loss that has a kernel takes it, wherever its statistics come from."""
    monkeypatch.setattr(spherical, "suits_kernels", lambda stats, weight: True)


def random_stats(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> SphericalStats:
    """Some rows are ignored, some of them hold NaN; the last of many rows has no spread."""
    rows = shape[0]
    valid = torch.rand(shape) < 0.7
    target = torch.where(valid, 2 * torch.randn(shape), torch.nan)
    mean, scatter = torch.randn(rows), CLASSES * (0.1 + torch.rand(rows))
    if rows > 2:
        valid[0], valid[1], valid[-1] = True, False, True
        target[0], target[-1] = 1.0, 2.0
        scatter[-1] = 0
    stats = moved(
        SphericalStats.from_moments(target, mean, scatter, CLASSES, valid=valid), dtype, device
    )
    stats.once_differentiable = True
    return stats


def moved(stats: SphericalStats, dtype: torch.dtype, device: torch.device) -> SphericalStats:
    """The same numbers elsewhere, as leaves of a graph; no loss takes its kernel for these by itself."""
    target, mean, scatter = (
        x.detach().to(device, dtype, copy=True).requires_grad_() for x in moments(stats)
    )
    return SphericalStats.from_moments(
        target, mean, scatter, stats.num_classes, valid=stats.valid.to(device)
    )


def moments(stats: SphericalStats) -> tuple[Tensor, Tensor, Tensor]:
    return stats.target, stats.mean, stats.scatter


def by_definition(
    loss: nn.Module, stats: SphericalStats, weight: Tensor | None, upstream: Tensor | None = None
) -> list[Tensor]:
    """Value and gradients by autograd in float64."""
    exact = moved(stats, torch.float64, stats.target.device)
    exact.target.data.nan_to_num_()  # an ignored NaN would spoil the gradients of autograd, which knows no better
    value = loss(exact, weight=None if weight is None else weight.double())
    upstream = torch.ones_like(value) if upstream is None else upstream.double()
    return [value.detach(), *torch.autograd.grad(value, moments(exact), upstream)]


def by_kernel(
    loss: Any, stats: SphericalStats, weight: Tensor | None, upstream: Tensor | None = None
) -> list[Tensor]:
    value = kernel_loss(loss, stats, weight)
    assert value.dtype == stats.target.dtype
    upstream = torch.ones_like(value) if upstream is None else upstream
    grads = torch.autograd.grad(value, moments(stats), upstream)
    assert [grad.dtype for grad in grads] == 3 * [stats.target.dtype]
    return [value.detach(), *grads]


def assert_close(got: list[Tensor], expected: list[Tensor]) -> None:
    """Half a unit of the dtype, elementwise, and the roundings of float64 on the scale of the largest."""
    for name, x, y in zip(
        ("value", "by target", "by mean", "by scatter"), got, expected, strict=True
    ):
        assert x.shape == y.shape
        rounding = torch.finfo(x.dtype).eps / 2 * y.abs() if x.dtype != torch.float64 else 0
        bound = rounding + ROUNDINGS * y.abs().max().clamp_min(1e-30)
        assert ((x.double() - y).abs() <= bound).all(), f"{name}: {x} is not {y}"


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@every_spherical_loss
def test_value_and_gradients_are_those_of_the_definition(
    case: LossCase,
    reduction: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    weighted: bool,
    kernel_device: torch.device,
) -> None:
    stats = random_stats(shape, dtype, kernel_device)
    weight = torch.randn(shape[0], device=kernel_device, dtype=dtype) if weighted else None
    upstream = torch.randn(
        shape[0] if reduction == "none" else (), device=kernel_device, dtype=dtype
    )
    loss = case.make(reduction=reduction)
    assert_close(
        by_kernel(loss, stats, weight, upstream), by_definition(loss, stats, weight, upstream)
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@every_spherical_loss
def test_in_small_tiles(
    case: LossCase,
    reduction: str,
    module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    kernel_device: torch.device,
) -> None:
    monkeypatch.setattr(
        module, "_TILE", 16
    )  # a program takes several turns, the last of which is not full
    stats, weight = (
        random_stats((37, 3), torch.float64, kernel_device),
        torch.randn(37, device=kernel_device),
    )
    loss = case.make(reduction=reduction)
    assert_close(by_kernel(loss, stats, weight.double()), by_definition(loss, stats, weight))
    monkeypatch.setattr(module, "_TILE", 4)
    wide = random_stats(
        (5, 7), torch.float64, kernel_device
    )  # even a single row is more than a tile
    assert_close(by_kernel(loss, wide, None), by_definition(loss, wide, None))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(3,), (3, 2)])
@every_spherical_loss
def test_a_batch_without_targets_is_zero(
    case: LossCase, shape: tuple[int, ...], reduction: str, kernel_device: torch.device
) -> None:
    stats = random_stats(shape, torch.float32, kernel_device)
    stats.valid = torch.zeros_like(stats.valid)
    weight = torch.full(
        (3,), torch.nan, device=kernel_device
    )  # which does not matter on ignored rows
    for x in by_kernel(case.make(reduction=reduction), stats, weight):
        assert x.count_nonzero() == 0


@every_spherical_loss
def test_an_ignored_row_has_no_gradient_whatever_is_upstream(
    case: LossCase, kernel_device: torch.device
) -> None:
    stats = random_stats((5,), torch.float32, kernel_device)
    upstream = torch.tensor(
        [1.0, math.nan, 1.0, 1.0, 1.0], device=kernel_device
    )  # row 1 is ignored
    for grad in by_kernel(case.make(reduction="none"), stats, None, upstream)[1:]:
        assert grad[1] == 0
        assert grad.isfinite().all()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("flat", [False, True])
@every_spherical_loss
def test_a_mean_that_is_nan_is_seen(
    case: LossCase, flat: bool, reduction: str, kernel_device: torch.device
) -> None:
    stats = random_stats((5,), torch.float32, kernel_device)
    with torch.no_grad():
        stats.mean[0] = torch.nan
        stats.scatter[0] *= not flat
    value, _, by_mean, _ = by_kernel(case.make(reduction=reduction), stats, None)
    assert value.reshape(-1)[0].isnan()
    if case.name != "SquaredError":
        assert by_mean[0].isnan()
    assert by_mean[1:].isfinite().all()


@pytest.mark.parametrize("reduction", ["mean", "none"])
@every_spherical_loss
def test_any_strides(case: LossCase, reduction: str, kernel_device: torch.device) -> None:
    stats = random_stats((6, 2), torch.float64, kernel_device)
    strided = SphericalStats.from_moments(
        stats.target.detach().T.contiguous().T.requires_grad_(),
        stats.mean.detach()[:, None].expand(6, 2)[:, 0].requires_grad_(),
        stats.scatter[0].detach().expand(6).requires_grad_(),
        CLASSES,
        valid=stats.valid.T.contiguous().T,
    )
    weight = torch.rand(6, 2, dtype=torch.float64, device=kernel_device)[:, 1]
    upstream = (
        torch.randn(12, dtype=torch.float64, device=kernel_device)[::2]
        if reduction == "none"
        else None
    )
    loss = case.make(reduction=reduction)
    assert_close(
        by_kernel(loss, strided, weight, upstream), by_definition(loss, strided, weight, upstream)
    )


@every_spherical_loss
def test_exact_weights_make_an_exact_loss(case: LossCase, kernel_device: torch.device) -> None:
    stats = random_stats((6,), torch.float32, kernel_device)
    weight = torch.rand(6, dtype=torch.float64, device=kernel_device)
    loss: Any = case.make()
    value = kernel_loss(loss, stats, weight)
    assert value.dtype == torch.float64
    expected = by_definition(loss, stats, weight)[0]
    torch.testing.assert_close(value, expected, rtol=ROUNDINGS, atol=0)


# ---- extremes --------------------------------------------------------------------------------------------------------


def stats_of_row(row: Tensor) -> SphericalStats:
    """Those of `row` with each class as the target in turn."""
    stats = SphericalStats.from_logits(
        row.repeat(len(row), 1), torch.arange(len(row), device=row.device)
    )
    return moved(stats, row.dtype, row.device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", ROWS)
@every_spherical_loss
def test_extreme_values_and_gradients_are_those_of_autograd(
    case: LossCase, row: str, dtype: torch.dtype, kernel_device: torch.device
) -> None:
    stats, loss = stats_of_row(ROWS[row].to(kernel_device, dtype)), case.make(reduction="none")
    value = loss(stats)
    expected = [value.detach(), *torch.autograd.grad(value.sum(), moments(stats))]
    for x, y in zip(by_kernel(loss, stats, None), expected, strict=True):
        assert x.isfinite().all()
        # What autograd rounds in this dtype, on its way through a dozen operations; of the largest, as 1 + x cancels.
        torch.testing.assert_close(
            x, y, rtol=0, atol=12 * torch.finfo(dtype).eps * float(y.abs().max())
        )


@pytest.mark.parametrize("a", [1e-6, 1e6, 1e30])
@pytest.mark.parametrize("row", ROWS)
def test_an_extreme_a_is_finite(row: str, a: float, kernel_device: torch.device) -> None:
    loss = zloss.ZLoss(a=a, b=1e9, reduction="none")
    for x in by_kernel(loss, stats_of_row(ROWS[row].to(kernel_device)), None):
        assert x.isfinite().all()


@pytest.mark.parametrize("b", [0.0, 5e-324, -5e-324, 1e-310, 10])
def test_a_small_b_is_a_number_like_others(b: float, kernel_device: torch.device) -> None:
    """It goes to the kernel as an integer, and Triton has two kinds of these."""
    stats, loss = random_stats((5,), torch.float64, kernel_device), zloss.ZLoss(a=0.5, b=b)
    assert_close(by_kernel(loss, stats, None), by_definition(loss, stats, None))


@pytest.mark.parametrize("row", FLAT)
def test_a_row_without_spread_has_a_gradient_of_zero(row: str, kernel_device: torch.device) -> None:
    loss = zloss.ZLoss(a=0.7, b=1.5, reduction="none")
    value, *grads = by_kernel(loss, stats_of_row(ROWS[row].to(kernel_device)), None)
    # Rounded once, to float32: half a unit is 6e-8.
    torch.testing.assert_close(
        value, torch.full_like(value, math.log1p(math.exp(0.7 * 1.5)) / 0.7), rtol=6e-8, atol=0
    )
    for grad in grads:
        assert grad.count_nonzero() == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_counts_as_spread(dtype: torch.dtype, kernel_device: torch.device) -> None:
    # Standard deviations from half to twice the rounding error of the mean, 4 eps of it.
    mean = torch.full((5,), 3.0, dtype=dtype, device=kernel_device)
    std = (
        4
        * torch.finfo(dtype).eps
        * mean
        * torch.tensor([0.5, 0.9, 1.1, 2.0, 0.0], device=kernel_device)
    )
    stats = SphericalStats.from_moments(mean + 8 * std, mean, CLASSES * std.square(), CLASSES)
    stats = moved(stats, dtype, kernel_device)
    for grad in by_kernel(zloss.ZLoss(a=1.0, b=1.0, reduction="none"), stats, None)[1:]:
        assert (grad != 0).tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("z", [-1000.0, -50.0, -0.1, 0.0, 1e-9, 5.0, 36.7, 37.0, 50.0, 700.0])
def test_softplus_to_the_last_digits(z: float, kernel_device: torch.device) -> None:
    # log1p and exp of the standard library are exact to a unit, 2e-16, and so are those of a GPU: four of them.
    x = -z
    expected = max(x, 0.0) + math.log1p(math.exp(-abs(x)))
    target = torch.tensor([z], dtype=torch.float64, device=kernel_device)
    stats = SphericalStats.from_moments(
        target, torch.zeros_like(target), torch.full_like(target, 4.0), 4
    )
    value = kernel_loss(zloss.ZLoss(a=1.0, b=0.0), moved(stats, torch.float64, kernel_device))
    assert value.item() == pytest.approx(expected, rel=1e-15, abs=0)


# ---- when they stand in for autograd ---------------------------------------------------------------------------------


class Doubled(zloss.ZLoss):
    def per_example(self, stats: SphericalStats) -> Tensor:
        return 2 * super().per_example(stats)


class Renamed(zloss.ZLoss):
    """Another name is no other loss."""


@pytest.mark.usefixtures("forced")
def test_a_loss_of_a_users_own_is_honoured(kernel_device: torch.device) -> None:
    stats = random_stats((5,), torch.float64, kernel_device)
    value = zloss.ZLoss(a=1.0, b=2.0)(stats)
    assert type(value.grad_fn).__name__ == "_ReducedLossBackward"
    assert Renamed(a=1.0, b=2.0)(stats) == value
    own = Doubled(a=1.0, b=2.0)(stats)
    assert type(own.grad_fn).__name__ != "_ReducedLossBackward"
    torch.testing.assert_close(own, 2 * value, rtol=ROUNDINGS, atol=0)
    patched = zloss.ZLoss(a=1.0, b=2.0, reduction="sum")
    patched.per_example = lambda stats: stats.target * 0 + 1  # type: ignore[method-assign]
    stats.target.data.nan_to_num_()
    assert patched(stats) == 5


@every_spherical_loss
def test_every_loss_of_the_family_has_a_kernel(case: LossCase) -> None:
    loss = case.make()
    assert isinstance(loss, zloss.SphericalLoss)
    assert has_kernel(loss)


def test_a_hyper_parameter_that_is_trained_has_none() -> None:
    loss = zloss.ZLoss(a=1.0, b=2.0)
    loss.b = nn.Parameter(torch.tensor(2.0))  # type: ignore[assignment]
    assert not has_kernel(loss)


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize(("name", "value"), [("a", 0.0), ("a", -1.0), ("b", math.inf)])
def test_bad_hyper_parameters_are_refused(
    name: str, value: float, kernel_device: torch.device
) -> None:
    loss = zloss.ZLoss(a=1.0, b=2.0)
    setattr(loss, name, value)
    with pytest.raises(ValueError, match=f"{name} must be a finite number"):
        loss(random_stats((5,), torch.float64, kernel_device))


def test_a_kernel_is_only_once_differentiable(kernel_device: torch.device) -> None:
    stats = random_stats((5,), torch.float64, kernel_device)
    value = kernel_loss(zloss.ZLoss(a=1.0, b=2.0), stats)
    (grad,) = torch.autograd.grad(value.square(), stats.mean, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_statistics_are_twice_differentiable_unless_they_say_otherwise() -> None:
    logits, target = torch.randn(4, 9), torch.tensor([0, 3, 8, -100])
    dense = SphericalStats.from_logits(logits, target)
    assert not dense.once_differentiable
    assert not SphericalStats(dense.target, dense.sum, dense.sumsq, 9).once_differentiable
    assert SphericalStats.from_moments(
        *moments(dense), 9, once_differentiable=True
    ).once_differentiable


def test_a_cpu_does_without(device: torch.device) -> None:
    stats = random_stats((5,), torch.float32, device)
    assert suits_kernels(stats, None) == (device.type == "cuda")
    assert suits_kernels(stats, torch.ones(5, device=device)) == (device.type == "cuda")


Spoil = Callable[[SphericalStats], object]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda stats: setattr(stats, "once_differentiable", False),
        lambda stats: setattr(stats, "mean", stats.mean.double()),
        lambda stats: setattr(stats, "scatter", stats.scatter.cpu()),
        lambda stats: setattr(stats, "target", stats.target.half()),
        lambda stats: setattr(stats, "target", stats.target[:0]),
        lambda stats: setattr(stats, "target", stats.target.repeat(10_000)),
    ],
    ids=[
        "twice differentiable",
        "mixed dtypes",
        "mixed devices",
        "half precision",
        "no rows",
        "many rows",
    ],
)
def test_statistics_that_are_left_to_autograd(spoil: Spoil, cuda: torch.device) -> None:
    stats = random_stats((5,), torch.float32, cuda)
    assert suits_kernels(stats, None)
    spoil(stats)
    assert not suits_kernels(stats, None)


@pytest.mark.parametrize(
    "weight",
    [torch.ones(4), torch.ones(5, dtype=torch.long), torch.ones(5, requires_grad=True), [1.0] * 5],
    ids=["wrong shape", "integers", "with a gradient", "list"],
)
def test_weights_that_are_left_to_autograd(weight: Any, cuda: torch.device) -> None:
    weight = weight.to(cuda) if isinstance(weight, Tensor) else weight
    assert not suits_kernels(random_stats((5,), torch.float32, cuda), weight)


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@every_spherical_loss
def test_nothing_waits_for_the_device(case: LossCase, cuda: torch.device) -> None:
    stats, weight = random_stats((40,), torch.float32, cuda), torch.rand(40, device=cuda)
    loss = case.make()
    loss(stats, weight=weight).backward()
    with no_synchronisation():
        loss(stats, weight=weight).backward()


@pytest.mark.parametrize("shape", [(40,), (40, 3)])
@every_spherical_loss
def test_in_a_cuda_graph(case: LossCase, shape: tuple[int, ...], cuda: torch.device) -> None:
    stats, loss = random_stats(shape, torch.float32, cuda), case.make()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.autograd.grad(loss(stats), moments(stats))  # compiles
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = loss(stats)
        grads = torch.autograd.grad(value, moments(stats))
    new = random_stats(shape, torch.float32, cuda)
    with torch.no_grad():
        for old_moment, new_moment in zip(moments(stats), moments(new), strict=True):
            old_moment.copy_(new_moment)
        stats.valid.copy_(new.valid)
    graph.replay()
    assert_close([value.detach(), *grads], by_definition(loss, new, None))


@pytest.mark.filterwarnings(
    "ignore:Warning. Profiler clears events"
)  # torch 2.11 says so of every profile
@every_spherical_loss
def test_one_launch_forward_and_one_backward(
    case: LossCase, cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # poison takes launches
    stats, loss = random_stats((40,), torch.float32, cuda), case.make()
    upstream = torch.ones((), device=cuda)
    torch.autograd.grad(loss(stats), moments(stats), upstream)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        torch.autograd.grad(loss(stats), moments(stats), upstream)
        torch.cuda.synchronize()
    launched = [event.name for event in profile.events() if event.device_type.name == "CUDA"]
    assert sorted(launched) == ["_gradients", "_losses_and_slopes"]
