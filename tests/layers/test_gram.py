"""The Gram layer is the dense layer: the same statistics, the same gradients, the same training under any optimizer."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import zloss
from tests.layers.twins import SPHERICAL_LOSSES, relative_error
from tests.memory import LargestTensor

HIDDEN, CLASSES, IGNORED = 7, 61, -100
LOSSES = [loss for loss, _ in SPHERICAL_LOSSES]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
Layer = zloss.DenseLinear


def twins(
    device: torch.device | str = "cpu", **options: Any
) -> tuple[zloss.GramLinear, zloss.DenseLinear]:
    options = {"bias": False, "dtype": torch.float64, **options}
    linear = nn.Linear(HIDDEN, CLASSES, device=device, **options)
    return zloss.GramLinear.from_linear(linear), zloss.DenseLinear.from_linear(linear)


def results(loss: nn.Module, layer: Layer, h: Tensor, target: Tensor) -> Iterator[Tensor]:
    """The loss, and its gradients in h, weight and bias."""
    h = h.detach().clone().requires_grad_()
    value: Tensor = loss(layer(h, target))
    layer.zero_grad()
    value.backward()
    yield value.detach()
    for tensor in (h, *layer.parameters()):
        assert tensor.grad is not None
        yield tensor.grad


def assert_equal_layers(
    loss: nn.Module, gram: Layer, dense: Layer, h: Tensor, target: Tensor
) -> None:
    pairs = zip(results(loss, gram, h, target), results(loss, dense, h, target), strict=True)
    for ours, expected in pairs:
        # float64, and sums of some dozen terms of size 1. A gradient may be zero up to rounding.
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-13)


def hidden(
    rows: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64
) -> Tensor:
    return torch.randn(rows, HIDDEN, dtype=dtype, device=device)


TARGETS: dict[str, Callable[[int], Tensor]] = {
    "one each": lambda rows: torch.randint(CLASSES, (rows,)),
    "all the same": lambda rows: torch.full((rows,), 5),
    "some ignored": lambda rows: torch.where(
        torch.arange(rows) % 3 == 0, IGNORED, torch.arange(rows) % CLASSES
    ),
    "several": lambda rows: torch.randint(4, (rows, 3)),  # some of them twice in a row
    "ragged": lambda rows: torch.where(torch.arange(rows * 3).view(rows, 3) % 4 == 0, IGNORED, 7),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, HIDDEN, 40])
@pytest.mark.parametrize("name", TARGETS)
@every_loss
def test_loss_and_gradients_are_those_of_the_dense_layer(
    loss: nn.Module, name: str, rows: int, bias: bool, device: torch.device
) -> None:
    gram, dense = twins(device, bias=bias)
    assert_equal_layers(loss, gram, dense, hidden(rows, device), TARGETS[name](rows).to(device))


@pytest.mark.parametrize("statistic", ["target", "mean", "scatter"])
def test_each_statistic_and_its_gradients(statistic: str, device: torch.device) -> None:
    gram, dense = twins(device, bias=True)
    h, target = hidden(5, device), torch.tensor([0, 3, 3, 60, IGNORED], device=device)
    upstream = torch.linspace(-1, 2, 5, dtype=torch.float64, device=device)

    def weighted(stats: zloss.SphericalStats) -> Tensor:
        total: Tensor = (getattr(stats, statistic) * upstream).sum()
        return total

    ours_of_all = results(weighted, gram, h, target)  # type: ignore[arg-type]
    expected_of_all = results(weighted, dense, h, target)  # type: ignore[arg-type]
    for ours, expected in zip(ours_of_all, expected_of_all, strict=True):
        assert relative_error(ours, expected) < 1e-12


@every_loss
def test_nothing_to_learn_from(loss: nn.Module, device: torch.device) -> None:
    """No row, or none that counts."""
    gram, _ = twins(device, bias=True)
    for target in (
        torch.zeros(0, dtype=torch.long),
        torch.full((4,), IGNORED),
        torch.full((4, 2), IGNORED),
    ):
        for result in results(loss, gram, hidden(len(target), device), target.to(device)):
            assert result.count_nonzero() == 0


@every_loss
def test_classes_that_are_all_alike(loss: nn.Module, device: torch.device) -> None:
    """Activations without spread: finite, and the dense layer's."""
    gram, dense = twins(device)
    with torch.no_grad():
        for layer in (gram, dense):
            layer.linear.weight[:] = torch.linspace(
                -1, 1, HIDDEN, dtype=torch.float64, device=device
            )
    assert_equal_layers(loss, gram, dense, hidden(5, device), torch.arange(5, device=device))


def test_gradcheck() -> None:
    gram, _ = twins(bias=True)
    h = hidden(4).requires_grad_()
    target = torch.tensor([[0, 3], [3, IGNORED], [60, 60], [IGNORED, IGNORED]])
    names, values = zip(*gram.named_parameters(), strict=True)

    def statistics(h: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        stats = torch.func.functional_call(
            gram, dict(zip(names, parameters, strict=True)), (h, target)
        )
        return stats.target, stats.mean, stats.scatter

    assert torch.autograd.gradcheck(statistics, (h, *values))


# ---- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 10.0, 1000.0])
@pytest.mark.parametrize("rows", [5, 200])
@every_loss
def test_a_large_mean_costs_no_more_digits_than_in_the_dense_layer(
    loss: nn.Module, rows: int, shift: float, device: torch.device
) -> None:
    """An error budget: in float32, no worse than twice what the dense layer does in float32, and 10 eps.

    With W + 1000 activations are about 4000 with a spread of 2. Float32 rounds them by 2e-4, and so the distance from
    the mean by 1e-4 of its size. Second moments without centring would be 2e7 and rounded by 1: all would be lost.
    """
    linear = nn.Linear(16, 400, bias=False, device=device)
    with torch.no_grad():
        linear.weight += shift
    h, target = torch.randn(rows, 16, device=device), torch.randint(400, (rows,), device=device)
    ours = results(loss, zloss.GramLinear.from_linear(linear), h, target)
    theirs = results(loss, zloss.DenseLinear.from_linear(linear), h, target)
    exact = results(loss, zloss.DenseLinear.from_linear(linear.double()), h.double(), target)
    for value, other, expected in zip(ours, theirs, exact, strict=True):
        error = relative_error(value, expected)
        assert error <= 2 * relative_error(other, expected) + 1.2e-6
        assert error < 1e-3


def test_statistics_are_in_the_dtype_of_the_layer(device: torch.device) -> None:
    gram, _ = twins(device, dtype=torch.float32)
    h = hidden(5, device, torch.float32).requires_grad_()
    stats = gram(h, torch.arange(5, device=device))
    assert {stats.target.dtype, stats.mean.dtype, stats.scatter.dtype} == {torch.float32}
    LOSSES[0](stats).backward()
    assert h.grad is not None
    assert gram.linear.weight.grad is not None
    assert h.grad.dtype == gram.linear.weight.grad.dtype == torch.float32


# ---- training --------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    "momentum": lambda parameters: torch.optim.SGD(
        parameters, lr=0.05, momentum=0.9, nesterov=True
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@every_loss
def test_training_stays_that_of_the_dense_layer(
    loss: nn.Module, name: str, device: torch.device
) -> None:
    """Fifty steps, compared after each. Rounding of 1e-16 a step may grow, but not by a factor of a million."""
    gram, dense = twins(device, bias=True)
    start = gram.weight()
    optimizers = [OPTIMIZERS[name](layer.parameters()) for layer in (gram, dense)]
    for _ in range(50):
        h, target = hidden(20, device), torch.randint(CLASSES, (20,), device=device)
        for layer, optimizer in zip((gram, dense), optimizers, strict=True):
            optimizer.zero_grad()
            loss(layer(h, target)).backward()
            optimizer.step()
        for ours, expected in zip(gram.parameters(), dense.parameters(), strict=True):
            assert relative_error(ours.detach(), expected.detach()) < 1e-9
    assert relative_error(start, gram.weight()) > 0.1, "they have gone somewhere"


def test_either_side_may_be_frozen(device: torch.device) -> None:
    gram, dense = twins(device, bias=True)
    h, target = hidden(5, device), torch.arange(5, device=device)
    expected = dict(
        zip(("loss", "h", "weight", "bias"), results(LOSSES[0], dense, h, target), strict=True)
    )

    def assert_gradients(*names: str) -> None:
        tensors = {"h": h, "weight": gram.linear.weight, "bias": gram.linear.bias}
        for name, tensor in tensors.items():
            tensor.grad = None
            tensor.requires_grad_(name in names)
        LOSSES[0](gram(h, target)).backward()
        found = {name: tensor.grad for name, tensor in tensors.items() if tensor.grad is not None}
        assert sorted(found) == sorted(names)
        assert all(relative_error(grad, expected[name]) < 1e-12 for name, grad in found.items())

    assert_gradients("weight", "bias")
    assert_gradients("weight")
    assert_gradients("bias")
    assert_gradients("h")
    with torch.no_grad():
        assert not LOSSES[0](gram(h, target)).requires_grad


# ---- cost ------------------------------------------------------------------------------------------------------------


def flops_of_a_step(rows: int, classes: int) -> int:
    layer = zloss.GramLinear(HIDDEN, classes)
    h, target = torch.randn(rows, HIDDEN, requires_grad=True), torch.zeros(rows, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        LOSSES[0](layer(h, target)).backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("rows", [10, 300])
def test_the_work_on_the_classes_does_not_grow_with_the_batch(rows: int) -> None:
    """4 C H^2, as the module says: W^T W forward, W K1 backward."""
    assert flops_of_a_step(rows, 3000) - flops_of_a_step(rows, 1000) == 4 * 2000 * HIDDEN**2


def test_no_logits_are_held() -> None:
    rows, classes = 500, 4000
    layer = zloss.GramLinear(HIDDEN, classes)
    with LargestTensor(layer) as watch:
        LOSSES[0](layer(torch.randn(rows, HIDDEN), torch.zeros(rows, dtype=torch.long))).backward()
    assert classes * HIDDEN <= watch.numel < rows * classes / 10
    with LargestTensor(layer) as watch:
        LOSSES[0](
            zloss.DenseLinear.forward(
                layer, torch.randn(rows, HIDDEN), torch.zeros(rows, dtype=torch.long)
            )
        )
    assert watch.numel == rows * classes, "the watch sees them"


# ---- as a module -----------------------------------------------------------------------------------------------------


def test_weights_go_to_and_fro(device: torch.device) -> None:
    gram, dense = twins(device, bias=True)
    assert torch.equal(gram.weight(), dense.weight())
    other = zloss.GramLinear(HIDDEN, CLASSES, bias=True, dtype=torch.float64, device=device)
    other.load_state_dict(dense.state_dict())
    assert torch.equal(other.to_linear().weight, dense.linear.weight)
    assert isinstance(
        zloss.GramLinear.from_linear(other.to_linear(), ignore_index=-1), zloss.GramLinear
    )
    h, target = hidden(9, device), torch.randint(CLASSES, (9,), device=device)
    assert torch.equal(other.rank(h, target), dense.rank(h, target))
    assert torch.equal(other.topk(h, 5)[1], dense.topk(h, 5)[1])
    assert torch.equal(other.logits(h), dense.logits(h))


def test_an_h_that_lacks_a_column_is_not_taken_for_one_without_its_bias() -> None:
    gram, _ = twins()
    with pytest.raises(
        ValueError, match=rf"h must have shape \(B, {HIDDEN}\), got \(2, {HIDDEN - 1}\)"
    ):
        gram(hidden(2)[:, 1:], torch.tensor([0, 1]))


def test_a_target_that_is_no_class() -> None:
    gram, _ = twins()
    with pytest.raises(ValueError, match="target 61 is out of range: expected 0 <= target < 61"):
        gram(hidden(2), torch.tensor([0, CLASSES]))
    with pytest.raises(ValueError, match=r"target must have shape \(2,\) or \(2, K\)"):
        gram(hidden(2), torch.tensor([0]))
