"""FactoredSGD with relative rates: the first step, invariances, schedules, states, groups and refusals."""

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss
from zloss.capture import _options_of

H, C = 8, 60
SCALE_FREE = {
    "default": zloss.ZLoss(),
    "sharp": zloss.ZLoss(a=2.0, b=3),
    "sum": zloss.ZLoss(reduction="sum"),
}
SEES_SCALE = [zloss.SquaredError(), zloss.TaylorSoftmax(), zloss.SphericalSoftmax(eps=0.1)]


def layer_of(width: int = H, classes: int = C, **options: Any) -> zloss.FactoredLinear:
    return zloss.FactoredLinear(width, classes, dtype=torch.float64, **options)


def a_batch(rows: int = 9, *, k: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (rows,) if k is None else (rows, k)
    h = torch.randn(rows, H, generator=generator, dtype=torch.float64)
    return h, torch.randint(C, shape, generator=generator)


def train(
    layer: zloss.FactoredLinear,
    optimizer: torch.optim.Optimizer,
    *,
    seeds: range = range(6),
    loss: nn.Module = SCALE_FREE["default"],
    factor: float = 1.0,
) -> None:
    for seed in seeds:
        h, target = a_batch(seed=seed)
        loss(layer(factor * h, target)).backward()
        optimizer.step()


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("loss", SCALE_FREE.values(), ids=SCALE_FREE)
@pytest.mark.parametrize("seed", range(4))
def test_the_first_step_changes_w_by_that_part_of_its_norm(seed: int, loss: nn.Module) -> None:
    draw = random.Random(seed)
    layer, rate = layer_of(bias=draw.random() < 0.5), 10 ** draw.uniform(-3, 1)
    optimizer, before = zloss.FactoredSGD(layer, relative_lr=rate), layer.materialised()
    h, target = a_batch(draw.choice([1, 5, 40]), k=draw.choice([None, 1, 3]), seed=seed)
    loss(layer(h, target)).backward()
    optimizer.step()
    change = layer.materialised() - before
    assert float(change.norm() / before.norm()) == pytest.approx(rate, rel=1e-9)


@pytest.mark.parametrize("options", [{}, {"relative_lr": 0.3, "weight_decay": 1e-3}])
def test_all_steps_are_those_of_the_absolute_rate(options: dict[str, float]) -> None:
    layer = layer_of()
    twin, optimizer = copy.deepcopy(layer), zloss.FactoredSGD(layer, **options)
    train(layer, optimizer)
    unit = optimizer.units[0]
    assert unit is not None
    lr = unit * options.get("relative_lr", 1.0)
    train(twin, zloss.FactoredSGD(twin, lr, weight_decay=options.get("weight_decay", 0.0)))
    assert torch.equal(layer.weight(), twin.weight())


def test_training_does_not_depend_on_the_scales_of_weights_and_activations() -> None:
    layer = layer_of()
    large = zloss.FactoredLinear.from_linear(layer.to_linear())
    with torch.no_grad():
        large.V.mul_(100)
    train(layer, zloss.FactoredSGD(layer))
    train(large, zloss.FactoredSGD(large), factor=1e-3)
    assert relative_error(large.weight(), 100 * layer.weight()) < 1e-9


def test_training_does_not_depend_on_the_reduction() -> None:
    layer = layer_of()
    twin = copy.deepcopy(layer)
    train(layer, zloss.FactoredSGD(layer))
    train(twin, zloss.FactoredSGD(twin), loss=SCALE_FREE["sum"])
    assert relative_error(twin.weight(), layer.weight()) < 1e-9


def test_accumulated_batches_have_the_unit_of_one_batch() -> None:
    layer = layer_of()
    twin = copy.deepcopy(layer)
    optimizer, other = zloss.FactoredSGD(layer), zloss.FactoredSGD(twin)
    h, target = a_batch()
    SCALE_FREE["sum"](layer(h, target)).backward()
    for part in (slice(0, 4), slice(4, 9)):
        SCALE_FREE["sum"](twin(h[part], target[part])).backward()
    optimizer.step()
    other.step()
    assert other.units == pytest.approx(optimizer.units, rel=1e-12)


def test_a_grad_scaler_does_not_change_the_unit() -> None:
    layer = layer_of()
    twin = copy.deepcopy(layer)
    optimizer, other = zloss.FactoredSGD(layer), zloss.FactoredSGD(twin)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    train(layer, optimizer, seeds=range(1))
    scaler.scale(SCALE_FREE["default"](twin(*a_batch()))).backward()
    scaler.step(other)
    assert other.units == pytest.approx(optimizer.units, rel=1e-12)


def test_schedulers_change_the_relative_rate() -> None:
    layer = layer_of()
    twin, optimizer = copy.deepcopy(layer), zloss.FactoredSGD(layer, relative_lr=2.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=2.0, total_steps=6, cycle_momentum=False
    )
    rates = []
    for seed in range(5):
        rates.append(optimizer.param_groups[0]["lr"])
        train(layer, optimizer, seeds=range(seed, seed + 1))
        schedule.step()
    assert optimizer.units[0] is not None
    assert len(set(rates)) == 5
    absolute = zloss.FactoredSGD(twin, 1.0)
    for seed, rate in enumerate(rates):
        absolute.param_groups[0]["lr"] = rate * optimizer.units[0]
        train(twin, absolute, seeds=range(seed, seed + 1))
    assert torch.equal(layer.weight(), twin.weight())


def test_a_resumed_training_goes_on_with_its_unit() -> None:
    layer = layer_of()
    optimizer = zloss.FactoredSGD(layer, relative_lr=0.5)
    train(layer, optimizer, seeds=range(3))
    saved = copy.deepcopy((layer.state_dict(), optimizer.state_dict()))
    resumed = layer_of()
    resumed.load_state_dict(saved[0])
    other = zloss.FactoredSGD(resumed)
    other.load_state_dict(saved[1])
    assert other.units == optimizer.units
    for one, its in ((layer, optimizer), (resumed, other), copy.deepcopy((resumed, other))):
        train(one, its, seeds=range(3, 5))
        assert torch.equal(one.weight(), layer.weight())


def test_the_state_of_torchs_sgd_has_an_absolute_rate() -> None:
    layer = layer_of()
    optimizer = zloss.FactoredSGD(layer)
    optimizer.load_state_dict(
        torch.optim.SGD(nn.Linear(2, 2, bias=False).parameters(), lr=0.7).state_dict()
    )
    twin = copy.deepcopy(layer)
    train(layer, optimizer)
    train(twin, zloss.FactoredSGD(twin, 0.7))
    assert torch.equal(layer.weight(), twin.weight())


@pytest.mark.parametrize(
    ("unit", "flag", "message"),
    [
        (-1.0, True, "lr_unit in state_dict must be a number > 0, got -1.0"),
        (float("nan"), True, "lr_unit in state_dict must be"),
        ("5", True, "lr_unit in state_dict must be"),
        (5.0, "yes", "is_relative of a group in state_dict must be True or False"),
    ],
)
def test_a_damaged_state_is_refused(unit: Any, flag: Any, message: str) -> None:
    optimizer = zloss.FactoredSGD(layer_of())
    state = copy.deepcopy(optimizer.state_dict())
    state["state"] = {0: {"lr_unit": unit}}
    state["param_groups"][0]["is_relative"] = flag
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(state)
    assert optimizer.units == [None]


def test_each_layer_has_its_unit_and_each_group_its_kind_of_rate() -> None:
    layers = [layer_of(H, classes) for classes in (C, 300, 80, 90)]
    groups: list[dict[str, Any]] = [{"layers": layers[:2]}, {"layers": layers[2], "lr": 0.1}]
    optimizer = zloss.FactoredSGD(groups, relative_lr=0.2)
    optimizer.add_param_group({"layers": layers[3], "relative_lr": 3.0})
    h, target = a_batch()
    before = [layer.weight() for layer in layers]
    for layer in layers:
        zloss.ZLoss()(layer(h, target)).backward()
    norm = layers[2].grad_norm()
    optimizer.step()
    changes = [(layer.weight() - old).norm() for layer, old in zip(layers, before, strict=True)]
    parts = [float(change / old.norm()) for change, old in zip(changes, before, strict=True)]
    assert [parts[0], parts[1], parts[3]] == pytest.approx([0.2, 0.2, 3.0], rel=1e-9)
    assert float(changes[2]) == pytest.approx(0.1 * float(norm), rel=1e-9)
    assert optimizer.units[2] is None
    assert len(set(optimizer.units)) == 4


def test_a_captured_step_sees_another_unit() -> None:
    layer = layer_of()
    optimizer = zloss.FactoredSGD(layer)
    train(layer, optimizer, seeds=range(1))
    before = list(_options_of([optimizer]))
    optimizer.state[layer.V]["lr_unit"] *= 2
    assert list(_options_of([optimizer])) != before


# ---- steps without a unit --------------------------------------------------------------------------------------------


def test_a_zero_gradient_changes_nothing_and_leaves_the_unit_open() -> None:
    layer = layer_of()
    before, optimizer = layer.weight(), zloss.FactoredSGD(layer, weight_decay=0.1)
    h, target = a_batch()
    zloss.ZLoss()(layer(h, torch.full_like(target, -100))).backward()
    optimizer.step()
    assert torch.equal(layer.weight(), before)
    assert optimizer.units == [None]
    train(layer, optimizer, seeds=range(1))
    assert optimizer.units != [None]


@pytest.mark.parametrize("loss", SEES_SCALE, ids=lambda loss: type(loss).__name__)
def test_a_loss_that_sees_the_scale_is_refused_before_anything_changes(loss: nn.Module) -> None:
    layers = [layer_of(), layer_of()]
    optimizer, before = zloss.FactoredSGD(layers), [layer.weight() for layer in layers]
    h, target = a_batch()
    zloss.ZLoss()(layers[0](h, target)).backward()
    loss(layers[1](h, target)).backward()
    with pytest.raises(ValueError, match="does not change when all activations are multiplied"):
        optimizer.step()
    for layer, weight in zip(layers, before, strict=True):
        assert torch.equal(layer.weight(), weight)
        assert layer.recorded_gradient() is not None


def test_an_infinite_gradient_is_refused_and_leaves_the_unit_open() -> None:
    layer = layer_of()
    optimizer = zloss.FactoredSGD(layer)
    (zloss.ZLoss()(layer(*a_batch())) * float("inf")).backward()
    with pytest.raises(zloss.RefusedStepError, match="NaN or an infinity"):
        optimizer.step()
    assert optimizer.units == [None]


def test_a_refused_step_names_a_relative_rate() -> None:
    layer = layer_of()
    optimizer = zloss.FactoredSGD(layer)
    train(layer, optimizer, seeds=range(1))
    (zloss.ZLoss()(layer(*a_batch())) * 1e307).backward()
    optimizer.param_groups[0]["lr"] = 1e300
    with pytest.raises(zloss.RefusedStepError) as refused:
        optimizer.step()
    assert "is relative_lr = " in refused.value.__notes__[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 1.0, "relative_lr": 1.0}, "give lr or relative_lr, not both, got 1.0 and 1.0"),
        ({"relative_lr": -1.0}, "relative_lr must be a finite number >= 0, got -1.0"),
        ({"relative_lr": float("inf")}, "relative_lr must be a finite number >= 0, got inf"),
        (
            {"is_relative": True},
            "has lr or relative_lr, weight_decay, row_lr and row_eps, got is_relative",
        ),
    ],
)
def test_bad_rates(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        zloss.FactoredSGD(layer_of(), **options)
    optimizer = zloss.FactoredSGD(layer_of())
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"layers": layer_of(), **options})
    assert len(optimizer.param_groups) == 1
