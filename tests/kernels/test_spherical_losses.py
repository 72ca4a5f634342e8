"""The kernels of the spherical losses against their definitions in float64.

On a machine without a GPU the kernels run in Triton's interpreter.
"""

import math
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.gpu import no_synchronisation
from tests.kernels.spherical_problems import (
    CLASSES,
    DTYPES,
    REDUCTIONS,
    ROUNDINGS,
    SHAPES,
    assert_close,
    by_definition,
    by_kernel,
    moments,
    random_stats,
)
from tests.losses.registry import LossCase, every_spherical_loss
from zloss import SphericalStats, kernels
from zloss.losses.spherical import kernel_loss

if not kernels.available():
    pytest.skip("triton is not installed", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.fixture
def module() -> ModuleType:
    return kernels.load("spherical_losses")


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


@pytest.mark.parametrize("class_dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(13,), (7, 3)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@every_spherical_loss
def test_weights_of_classes(
    case: LossCase,
    reduction: str,
    shape: tuple[int, ...],
    class_dtype: torch.dtype,
    kernel_device: torch.device,
) -> None:
    stats = random_stats(shape, torch.float32, kernel_device)
    weight = torch.randn(shape[0], device=kernel_device)
    class_weight = torch.rand(CLASSES, device=kernel_device, dtype=class_dtype)
    loss = case.make(reduction=reduction, class_weight=class_weight)
    for row_weight in (None, weight):
        assert_close(by_kernel(loss, stats, row_weight), by_definition(loss, stats, row_weight))


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
    )  # a program takes several rounds, and the last one is not full
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
    )  # the weights of ignored rows have no effect
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
)  # torch 2.11 warns for every profile
@every_spherical_loss
def test_one_launch_forward_and_one_backward(
    case: LossCase, cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # filling memory with NaN takes launches
    stats, loss = random_stats((40,), torch.float32, cuda), case.make()
    upstream = torch.ones((), device=cuda)
    torch.autograd.grad(loss(stats), moments(stats), upstream)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        torch.autograd.grad(loss(stats), moments(stats), upstream)
        torch.cuda.synchronize()
    launched = [event.name for event in profile.events() if event.device_type.name == "CUDA"]
    assert sorted(launched) == ["_gradients", "_losses_and_slopes"]
