"""FactoredSGD and RowSGD under a `torch.amp.GradScaler`: the steps of dense SGD under the same scaler."""

import copy

import pytest
import torch
from torch import nn

import zloss
from tests.layers.twins import relative_error
from tests.twin_networks import LOSS, batch, twin_networks


def test_a_copy_takes_steps_of_its_own_scaler(device: torch.device) -> None:
    layer = zloss.FactoredLinear(4, 9, device=device)
    twin, optimizer = copy.deepcopy((layer, zloss.FactoredSGD(layer, 1.0)))
    scaler, before = torch.amp.GradScaler(device.type), layer.weight()
    scaler.scale(
        LOSS(twin(torch.randn(2, 4, device=device), torch.tensor([1, 2], device=device)))
    ).backward()
    scaler.step(optimizer)
    assert not torch.equal(twin.weight(), before)


class ScaledTwins:
    """A factored head and a dense one on the same trunk, under one GradScaler."""

    def __init__(
        self, scaler: torch.amp.GradScaler, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.scaler, self.device = scaler, device
        self.trunk = nn.Sequential(nn.Linear(5, 8), nn.Tanh()).to(device)
        linear = nn.Linear(8, 60, bias=False, device=device, dtype=dtype)
        self.factored = zloss.FactoredLinear.from_linear(linear)
        self.dense = zloss.DenseLinear.from_linear(linear)
        self.factored_sgd = zloss.FactoredSGD(self.factored, 2.0, weight_decay=0.01)
        self.trunk_sgd = torch.optim.SGD(self.trunk.parameters(), 0.1)
        self.dense_sgd = torch.optim.SGD(self.dense.parameters(), 2.0, weight_decay=0.01)

    def backward(self, precision: torch.dtype, *, times: float = 1.0) -> None:
        x, target = (
            torch.randn(9, 5, device=self.device),
            torch.randint(60, (9,), device=self.device),
        )
        with torch.autocast(self.device.type, precision, enabled=precision != torch.float32):
            h = self.trunk(x)
            loss = times * LOSS(self.factored(h, target))
        self.scaler.scale(loss).backward()
        weight = self.dense.linear.weight
        self.scaler.scale(times * LOSS(self.dense(h.detach().to(weight.dtype), target))).backward()

    def step(self) -> tuple[bool, bool]:
        """The steps of all, and whether they moved the factored and the dense weights."""
        before = self.factored.weight(), self.dense.weight()
        for optimizer in (self.trunk_sgd, self.factored_sgd, self.dense_sgd):
            self.scaler.step(optimizer)
        self.scaler.update()
        after = self.factored.weight(), self.dense.weight()
        assert self.factored.recorded_gradient() is None
        for optimizer in (
            self.trunk_sgd,
            self.dense_sgd,
        ):  # the factored layer has used up its own gradient
            optimizer.zero_grad()
        return not torch.equal(after[0], before[0]), not torch.equal(after[1], before[1])

    def error(self) -> float:
        return relative_error(self.factored.weight(), self.dense.weight())


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_grad_scaler(precision: torch.dtype, accumulate: int, device: torch.device) -> None:
    """Every step equals the step of dense SGD under the same scaler, for any scale. Both skip the same steps."""
    scaler = torch.amp.GradScaler(
        device.type, init_scale=1000.0, growth_factor=3.0, growth_interval=2
    )
    twins = ScaledTwins(scaler, device, torch.float64)
    for step in range(20):
        is_spoilt = step % 6 == 4
        scale = scaler.get_scale()
        for _ in range(accumulate):
            twins.backward(precision, times=float("inf") if is_spoilt else 1.0)
        assert twins.step() == (not is_spoilt, not is_spoilt)
        # Two rounding errors of the scale, which is not a power of two: torch has its inverse in float32.
        assert twins.error() < 1e-6
        assert not is_spoilt or scaler.get_scale() < scale


def test_grad_scaler_that_starts_too_high(device: torch.device) -> None:
    """The scaled loss overflows float32. No step is taken until gradients of the trunk have lowered the scale."""
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**127, backoff_factor=2.0**-30)
    twins = ScaledTwins(scaler, device, torch.float32)
    moved = []
    for _ in range(6):
        twins.backward(torch.float32, times=100.0)
        moved.append(twins.step())
        assert twins.error() < 1e-5  # some steps in float32
    assert moved == [(False, False)] + [(True, True)] * 5


def test_the_scale_follows_the_trunk_where_the_head_overflows(device: torch.device) -> None:
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**127)
    factored, _ = twin_networks(device)
    output_sgd = zloss.FactoredSGD(factored.output, 1.0)  # type: ignore[arg-type]
    trunk_sgd = torch.optim.SGD(factored.trunk.parameters(), 1.0)
    scaler.scale(factored(*batch(device)) * 1e300).backward()
    for optimizer in (output_sgd, trunk_sgd):
        scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**126


@pytest.mark.parametrize("is_enabled", [True, False])
def test_grad_scaler_with_clipping(is_enabled: bool, device: torch.device) -> None:
    """The network and its dense twin unscale, clip and step as torch documents it. The scale is a power of two."""
    networks = twin_networks(device)
    factored, dense = networks
    trunk_sgd = torch.optim.SGD(factored.trunk.parameters(), 0.5)
    output_sgd = zloss.FactoredSGD(factored.output, 0.5)  # type: ignore[arg-type]
    dense_sgd = torch.optim.SGD(dense.parameters(), 0.5)
    scalers = [
        torch.amp.GradScaler(device.type, growth_interval=2, enabled=is_enabled) for _ in networks
    ]
    for step in range(20):
        is_spoilt = is_enabled and step % 6 == 4
        data = batch(device)
        for network, scaler in zip(networks, scalers, strict=True):
            scaler.scale(network(*data) * (float("nan") if is_spoilt else 1.0)).backward()
        scalers[0].unscale_(trunk_sgd)
        output_sgd.unscale_(scalers[0])
        scalers[1].unscale_(dense_sgd)
        norm = zloss.clip_grad_norm_(factored, 1e-2)
        expected = nn.utils.clip_grad_norm_(dense.parameters(), 1e-2)
        assert norm.item() == pytest.approx(expected.item(), rel=1e-10, nan_ok=True)
        before = factored.output.weight()  # type: ignore[operator]
        scalers[0].step(trunk_sgd)
        scalers[0].step(output_sgd)
        scalers[1].step(dense_sgd)
        for scaler in scalers:
            scaler.update()
        for optimizer in (trunk_sgd, output_sgd, dense_sgd):
            optimizer.zero_grad()
        assert torch.equal(factored.output.weight(), before) == is_spoilt  # type: ignore[operator]
        assert relative_error(factored.output.weight(), dense.output.weight()) < 1e-10  # type: ignore[operator]
        assert relative_error(factored.trunk[0].weight, dense.trunk[0].weight) < 1e-10  # type: ignore[arg-type]
        assert scalers[0].get_scale() == scalers[1].get_scale()


def test_one_layer_that_overflows_stops_all_of_its_optimizer(device: torch.device) -> None:
    """An overflow stops the whole optimizer of the layer, as with the optimizers of torch, and no other optimizer."""
    layers = [zloss.FactoredLinear(4, 9, device=device) for _ in range(3)]
    optimizers = [zloss.FactoredSGD(layers[:2], 1.0), zloss.FactoredSGD(layers[2], 1.0)]
    scaler, befores = torch.amp.GradScaler(device.type), [layer.weight() for layer in layers]
    for layer, times in zip(layers, (1.0, float("nan"), 1.0), strict=True):
        loss = LOSS(layer(torch.randn(2, 4, device=device), torch.tensor([1, 2], device=device)))
        scaler.scale(loss * times).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    moved = [
        not torch.equal(layer.weight(), before)
        for layer, before in zip(layers, befores, strict=True)
    ]
    assert moved == [False, False, True]
    assert all(layer.recorded_gradient() is None for layer in layers)


def scaled_step(
    device: torch.device,
) -> tuple[torch.amp.GradScaler, zloss.FactoredLinear, zloss.FactoredSGD]:
    """Return a layer with a recorded scaled gradient. Up to the learning rate, its step changes the weights by it."""
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10)
    layer = zloss.FactoredLinear(4, 9, device=device, dtype=torch.float64, synchronous=True)
    scaler.scale(
        LOSS(layer(torch.ones(2, 4, device=device), torch.tensor([1, 2], device=device)))
    ).backward()
    return scaler, layer, zloss.FactoredSGD(layer, 0.5)


def test_unscaling_by_the_scaler_alone_is_refused(device: torch.device) -> None:
    scaler, layer, optimizer = scaled_step(device)
    before = layer.weight()
    scaler.unscale_(optimizer)
    with pytest.raises(ValueError, match=r"call optimizer.unscale_\(scaler\) in its place"):
        scaler.step(optimizer)
    assert torch.equal(layer.weight(), before)
    optimizer.unscale_(scaler)
    norm = layer.grad_norm().item()
    scaler.step(optimizer)
    assert (layer.weight() - before).norm().item() == pytest.approx(0.5 * norm, rel=1e-10)


def test_nothing_is_divided_twice(device: torch.device) -> None:
    """Neither a second unscaling nor the step divides it again. A later gradient is divided once as well."""
    scaler, layer, optimizer = scaled_step(device)
    norm = layer.grad_norm().item()
    for _ in range(2):
        optimizer.unscale_(scaler)
    assert layer.grad_norm().item() == pytest.approx(norm / 2**10, rel=1e-10)
    layer.zero_grad()
    scaler.scale(
        LOSS(layer(torch.ones(2, 4, device=device), torch.tensor([1, 2], device=device)))
    ).backward()
    before = layer.weight()
    scaler.step(optimizer)
    assert (layer.weight() - before).norm().item() == pytest.approx(0.5 * norm / 2**10, rel=1e-10)


@pytest.mark.parametrize("is_new", [False, True])
def test_after_a_step_that_was_refused_under_a_scaler(is_new: bool, device: torch.device) -> None:
    """Torch leaves its scale with the optimizer. It is not applied to the same gradient again or to another one."""
    scaler, layer, optimizer = scaled_step(device)
    before, norm = layer.weight(), layer.grad_norm().item() / 2**10
    optimizer.param_groups[0]["lr"] = float("nan")
    with pytest.raises(ValueError, match="lr must be a finite number"):
        scaler.step(optimizer)
    optimizer.param_groups[0]["lr"] = 0.5
    if is_new:
        optimizer.zero_grad()
        scaler.scale(
            LOSS(layer(torch.ones(2, 4, device=device), torch.tensor([1, 2], device=device)))
        ).backward()
    scaler.step(optimizer)
    assert (layer.weight() - before).norm().item() == pytest.approx(0.5 * norm, rel=1e-10)
    assert not hasattr(optimizer, "grad_scale")


def test_a_layer_without_a_gradient_is_passed_over_under_a_scaler(device: torch.device) -> None:
    scaler, layer, optimizer = scaled_step(device)
    other = zloss.FactoredLinear(4, 9, device=device)
    optimizer.add_param_group({"layers": other})
    before = layer.weight(), other.weight()
    scaler.step(optimizer)
    assert not torch.equal(layer.weight(), before[0])
    assert torch.equal(other.weight(), before[1])


def test_row_sparse_gradients_under_a_grad_scaler(device: torch.device) -> None:
    rows = nn.Embedding(20, 4, sparse=True, device=device)
    dense = copy.deepcopy(rows)
    dense.sparse = False
    optimizers = [zloss.RowSGD(rows.parameters(), 0.1), torch.optim.SGD(dense.parameters(), 0.1)]
    scaler = torch.amp.GradScaler(device.type)
    for times in (1.0, float("inf"), 1.0):
        for embedding, optimizer in zip((rows, dense), optimizers, strict=True):
            embedded = embedding(torch.tensor([3, 3, 7], device=device))
            scaler.scale(times * embedded.square().sum()).backward()
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        assert (
            relative_error(rows.weight.detach(), dense.weight.detach()) < 1e-6
        )  # three steps in float32
