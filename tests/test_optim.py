"""FactoredSGD as a torch optimizer, and clipping over ordinary parameters and factored layers together."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.layers.twins import make_twins, relative_error

LOSS = zloss.ZLoss(a=0.2, b=8.0)


class Network(nn.Module):
    def __init__(self, output: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 8, dtype=torch.float64, device=device), nn.Tanh())
        self.output = output

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = LOSS(self.output(self.trunk(x), target))
        return loss


def twin_networks(device: torch.device) -> tuple[Network, Network]:
    twins = make_twins(8, 60, device=device, synchronous=True)
    factored, dense = Network(twins.factored, device), Network(twins.dense, device)
    dense.trunk.load_state_dict(factored.trunk.state_dict())
    return factored, dense


def batch(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.randn(9, 5, dtype=torch.float64, device=device), torch.randint(
        60, (9,), device=device
    )


@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_clipping_a_whole_network(max_norm: float, accumulate: int, device: torch.device) -> None:
    """One norm over trunk and output layer: training stays that of the dense twin under torch's own clipping."""
    factored, dense = twin_networks(device)
    trunk_sgd = torch.optim.SGD(factored.trunk.parameters(), 0.5)
    output_sgd = zloss.FactoredSGD(factored.output, 0.5)  # type: ignore[arg-type]
    dense_sgd = torch.optim.SGD(dense.parameters(), 0.5)
    for _ in range(20):
        for _ in range(accumulate):
            x, target = batch(device)
            factored(x, target).backward()
            dense(x, target).backward()
        norm = zloss.clip_grad_norm_(factored, max_norm)
        expected = nn.utils.clip_grad_norm_(dense.parameters(), max_norm)
        assert norm.item() == pytest.approx(expected.item(), rel=1e-10)
        for optimizer in (trunk_sgd, output_sgd, dense_sgd):
            optimizer.step()
            optimizer.zero_grad()
        assert relative_error(factored.output.weight(), dense.output.weight()) < 1e-10  # type: ignore[operator]
        assert relative_error(factored.trunk[0].weight, dense.trunk[0].weight) < 1e-10  # type: ignore[arg-type]


def test_clipping_takes_parameters_and_layers_in_any_mix(device: torch.device) -> None:
    factored, _ = twin_networks(device)
    factored(*batch(device)).backward()
    whole = zloss.clip_grad_norm_(factored, 1e9)
    mixed = zloss.clip_grad_norm_([*factored.trunk.parameters(), factored.output], 1e9)
    twice = zloss.clip_grad_norm_([factored, factored.output, *factored.parameters()], 1e9)
    assert whole == mixed == twice
    assert zloss.clip_grad_norm_([], 1.0) == 0


@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
def test_clipping_sparse_gradients(max_norm: float, device: torch.device) -> None:
    """Rows that occur several times count as their sum, in the norm and in the step."""
    options: dict[str, Any] = {"dtype": torch.float64, "device": device}
    sparse = nn.Embedding(20, 4, sparse=True, **options)
    dense, linear = copy.deepcopy(sparse), nn.Linear(4, 3, **options)
    dense.sparse = False
    twin = copy.deepcopy(linear)
    index = torch.tensor([3, 3, 3, 7, 0, 7], device=device)
    for embedding, layer in ((sparse, linear), (dense, twin)):
        layer(embedding(index)).square().sum().backward()
    norm = zloss.clip_grad_norm_([sparse, *linear.parameters()], max_norm)
    expected = nn.utils.clip_grad_norm_([*dense.parameters(), *twin.parameters()], max_norm)
    assert norm.item() == pytest.approx(expected.item(), rel=1e-12)
    assert sparse.weight.grad is not None
    assert dense.weight.grad is not None
    assert sparse.weight.grad.is_sparse
    assert relative_error(sparse.weight.grad.to_dense(), dense.weight.grad) < 1e-12
    assert (norm > max_norm) == (max_norm < 1), "one of the two is clipped"
    for optimizer in (
        torch.optim.SGD(sparse.parameters(), 0.1),
        torch.optim.SGD(dense.parameters(), 0.1),
    ):
        optimizer.step()
    assert relative_error(sparse.weight.detach(), dense.weight.detach()) < 1e-12


def test_a_sparse_gradient_without_entries_has_no_norm(device: torch.device) -> None:
    sparse = nn.Embedding(20, 4, sparse=True, device=device)
    sparse(torch.zeros(0, dtype=torch.long, device=device)).sum().backward()
    assert zloss.clip_grad_norm_(sparse, 1.0) == 0


def test_clipping_refuses_the_bare_parameters_of_a_factored_layer(device: torch.device) -> None:
    """Whose gradient they do not hold: the norm would be wrong, and the layer not clipped."""
    trunk, output = nn.Linear(4, 6, device=device), zloss.FactoredLinear(6, 50, device=device)
    network = nn.ModuleList([trunk, output])
    assert zloss.clip_grad_norm_(network.parameters(), 1.0) == 0, "nothing is recorded yet"
    h, target = torch.randn(3, 4, device=device), torch.randint(50, (3,), device=device)
    zloss.ZLoss(a=0.2, b=8.0)(output(trunk(h), target)).backward()
    with pytest.raises(
        ValueError, match=r"give the module itself, as in clip_grad_norm_\(model, max_norm\)"
    ):
        zloss.clip_grad_norm_(network.parameters(), 1.0)
    assert zloss.clip_grad_norm_(network, 1.0) > 0
    assert zloss.clip_grad_norm_([*trunk.parameters(), output, *output.parameters()], 1.0) > 0


def test_clipping_refuses_nonsense(device: torch.device) -> None:
    factored, _ = twin_networks(device)
    factored(*batch(device)).backward()
    with pytest.raises(ValueError, match="max_norm must be > 0, got 0"):
        zloss.clip_grad_norm_(factored, 0.0)
    with pytest.raises(ValueError, match="expected parameters and modules, got str"):
        zloss.clip_grad_norm_(["weights"], 1.0)  # type: ignore[list-item]
    grad = factored.trunk[0].weight.grad
    assert isinstance(grad, Tensor)
    grad[0, 0] = float("nan")
    before = grad.clone()
    with pytest.raises(ValueError, match="nothing was clipped"):
        zloss.clip_grad_norm_(factored, 1.0, error_if_nonfinite=True)
    assert torch.equal(grad.nan_to_num(), before.nan_to_num())


def test_groups_with_rates_of_their_own(device: torch.device) -> None:
    first, second = (make_twins(8, 60, device=device, synchronous=True) for _ in range(2))
    optimizer = zloss.FactoredSGD(
        [{"layers": [first.factored], "lr": 3.0}, {"layers": second.factored, "weight_decay": 0.1}],
        lr=1.0,
    )
    dense = torch.optim.SGD(
        [
            {"params": first.dense.parameters(), "lr": 3.0},
            {"params": second.dense.parameters(), "weight_decay": 0.1},
        ],
        lr=1.0,
    )
    h = torch.randn(9, 8, dtype=torch.float64, device=device)
    for twins in (first, second):
        twins.backward(LOSS, h, torch.randint(60, (9,), device=device))
    optimizer.step()
    dense.step()
    assert first.weight_error() < 1e-12
    assert second.weight_error() < 1e-12


def test_state_dict_round_trip(device: torch.device) -> None:
    layer = zloss.FactoredLinear(4, 9, device=device)
    optimizer = zloss.FactoredSGD(layer, 1.0, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    LOSS(layer(torch.randn(2, 4, device=device), torch.tensor([1, 2], device=device))).backward()
    optimizer.step()
    scheduler.step()
    state = copy.deepcopy(optimizer.state_dict())
    other = zloss.FactoredSGD(layer, 7.0)
    other.load_state_dict(state)
    assert other.param_groups[0]["lr"] == 0.5
    assert other.param_groups[0]["weight_decay"] == 0.1


def test_a_copy_trains_its_own_layers(device: torch.device) -> None:
    layer = zloss.FactoredLinear(4, 9, device=device)
    twin, optimizer = copy.deepcopy((layer, zloss.FactoredSGD(layer, 1.0)))
    before = layer.weight()
    LOSS(twin(torch.randn(2, 4, device=device), torch.tensor([1, 2], device=device))).backward()
    optimizer.step()
    assert torch.equal(layer.weight(), before)
    assert not torch.equal(twin.weight(), before)


def test_the_layer_may_move_after_the_optimizer_was_made(cuda: torch.device) -> None:
    layer = zloss.FactoredLinear(4, 9)
    optimizer = zloss.FactoredSGD(layer, 1.0)
    layer.to(cuda)
    before = layer.weight()
    LOSS(layer(torch.randn(2, 4, device=cuda), torch.tensor([1, 2], device=cuda))).backward()
    optimizer.step()
    assert not torch.equal(layer.weight(), before)


def test_a_copy_takes_steps_of_its_own_scaler(device: torch.device) -> None:
    layer = zloss.FactoredLinear(4, 9, device=device)
    twin, optimizer = copy.deepcopy((layer, zloss.FactoredSGD(layer, 1.0)))
    scaler, before = torch.amp.GradScaler(device.type), layer.weight()
    scaler.scale(
        LOSS(twin(torch.randn(2, 4, device=device), torch.tensor([1, 2], device=device)))
    ).backward()
    scaler.step(optimizer)
    assert not torch.equal(twin.weight(), before)


def test_closure() -> None:
    layer = zloss.FactoredLinear(4, 9)
    optimizer = zloss.FactoredSGD([layer], 1.0)

    def closure() -> float:
        optimizer.zero_grad()
        loss: Tensor = LOSS(layer(torch.ones(2, 4), torch.tensor([1, 2])))
        loss.backward()
        return loss.item()

    first, second = optimizer.step(closure), optimizer.step(closure)
    assert second < first


MISSING = (
    "FactoredSGD has lr and weight_decay, got {}: momentum and adaptive rates need .*GramLinear"
)


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        ([], {}, "got no layers"),
        (
            [nn.Linear(2, 3)],
            {},
            "FactoredLinear layers, got Linear; give other parameters to an ordinary",
        ),
        (
            [{"params": [torch.zeros(2)]}],
            {},
            r'a group of FactoredSGD is \{"layers": \[...\]\} .*, got params',
        ),
        ([{"layers": []}, nn.Linear(2, 3)], {}, "a group of FactoredSGD is .*, got Linear"),
        (
            [{"layers": [], "momentum": 0.9, "maximize": True}],
            {},
            MISSING.format("momentum, maximize"),
        ),
        ([{"layers": [], "momentum": 0.0}], {}, MISSING.format("momentum")),
        (
            zloss.FactoredLinear(2, 5),
            {"momentum": 0.9, "nesterov": True},
            MISSING.format("momentum, nesterov"),
        ),
        ([{"layers": [], "learning_rate": 1.0}], {}, MISSING.format("learning_rate")),
        ([{"layers": [], "lr": -1.0}], {}, "lr must be a finite number >= 0, got -1.0"),
        (zloss.FactoredLinear(2, 3), {"lr": -1.0}, "lr must be a finite number >= 0, got -1.0"),
        (zloss.FactoredLinear(2, 3), {"lr": float("nan")}, "lr must be a finite number"),
        (
            zloss.FactoredLinear(2, 3),
            {"weight_decay": -0.1},
            "weight_decay must be a finite number >= 0, got -0.1",
        ),
    ],
)
def test_bad_arguments(layers: Any, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        zloss.FactoredSGD(layers, **{"lr": 1.0} | options)


def test_a_group_with_an_unknown_option_is_not_added() -> None:
    optimizer = zloss.FactoredSGD(zloss.FactoredLinear(2, 3), 1.0)
    with pytest.raises(ValueError, match="got nesterov"):
        optimizer.add_param_group({"layers": zloss.FactoredLinear(2, 3), "nesterov": True})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group(
        {"layers": zloss.FactoredLinear(2, 3), "initial_lr": 2.0, "name": "second"}
    )
    assert optimizer.param_groups[1]["initial_lr"] == 2


@pytest.mark.parametrize(
    "options", [{"momentum": 0.9}, {"maximize": True}, {"momentum": 0.9, "nesterov": True}]
)
def test_state_of_sgd_that_plain_sgd_could_not_go_on_with_is_refused(
    options: dict[str, Any],
) -> None:
    parameter = nn.Parameter(torch.zeros(3, 2))
    state = torch.optim.SGD([parameter], 7.0, **options).state_dict()
    optimizers = [
        zloss.FactoredSGD(zloss.FactoredLinear(2, 3), 1.0),
        zloss.RowSGD([parameter], 1.0),
    ]
    for optimizer in optimizers:
        with pytest.raises(
            ValueError, match=f"{type(optimizer).__name__} has lr.*, got {', '.join(options)}: "
        ):
            optimizer.load_state_dict(state)
        assert optimizer.param_groups[0]["lr"] == 1, "it is unchanged"


def test_state_of_other_optimizers() -> None:
    parameter = nn.Parameter(torch.zeros(3, 2))
    factored, rows = (
        zloss.FactoredSGD(zloss.FactoredLinear(2, 3), 1.0),
        zloss.RowSGD([parameter], 1.0),
    )
    for optimizer in (factored, rows):
        optimizer.load_state_dict(torch.optim.SGD([parameter], 7.0).state_dict())
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == 7
        with pytest.raises(ValueError, match="got betas: "):
            optimizer.load_state_dict(torch.optim.Adam([parameter]).state_dict())
    decaying = torch.optim.SGD([parameter], 7.0, weight_decay=0.1).state_dict()
    factored.load_state_dict(decaying)
    with pytest.raises(
        ValueError, match=r"RowSGD has lr, got weight_decay: the optimizers of torch.optim"
    ):
        rows.load_state_dict(decaying)


def test_row_sgd_refuses_unknown_options() -> None:
    parameter = nn.Parameter(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="RowSGD has lr, got weight_decay: "):
        zloss.RowSGD([{"params": [parameter], "weight_decay": 0.1}], 1.0)
    assert (
        zloss.RowSGD([{"params": [parameter], "initial_lr": 2.0}], 1.0).param_groups[0][
            "initial_lr"
        ]
        == 2
    )
    named = zloss.RowSGD(nn.Linear(2, 3).named_parameters(), 1.0)  # type: ignore[arg-type]  # torch takes them
    assert named.param_groups[0]["param_names"] == ["weight", "bias"]


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(
        o, 2.0, total_steps=9, cycle_momentum=False
    ),
    "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(
        o, 0.1, 2.0, step_size_up=3, cycle_momentum=False
    ),
    "swa": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.05, anneal_epochs=3),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name: str) -> None:
    """Dense SGD under the same schedule; what it leaves in the groups can be saved and loaded."""
    twins = make_twins(8, 60, device=torch.device("cpu"))
    schedules = [SCHEDULERS[name](o) for o in (twins.factored_optimizer, twins.dense_optimizer)]
    for _ in range(6):
        twins.backward(LOSS, torch.randn(9, 8, dtype=torch.float64), torch.randint(60, (9,)))
        assert twins.step() < 1e-12
        for schedule in schedules:
            schedule.step()
    state = copy.deepcopy(twins.factored_optimizer.state_dict())
    other = zloss.FactoredSGD(twins.factored, 7.0)
    other.load_state_dict(state)
    assert other.state_dict() == state


@pytest.mark.parametrize(("name", "value"), [("lr", float("nan")), ("weight_decay", -0.1)])
def test_a_rate_that_a_schedule_spoils_is_refused(name: str, value: float) -> None:
    layer = zloss.FactoredLinear(4, 9)
    optimizer = zloss.FactoredSGD(layer, 1.0)
    LOSS(layer(torch.ones(2, 4), torch.tensor([1, 2]))).backward()
    optimizer.param_groups[0][name] = value
    before = layer.weight()
    with pytest.raises(ValueError, match=f"{name} must be a finite number"):
        optimizer.step()
    assert torch.equal(layer.weight(), before)


def test_no_group_steps_where_one_cannot() -> None:
    layers = [zloss.FactoredLinear(4, 9) for _ in range(2)]
    optimizer = zloss.FactoredSGD([{"layers": layer} for layer in layers], lr=1.0)
    for layer in layers:
        LOSS(layer(torch.randn(2, 4), torch.tensor([1, 2]))).backward()
    optimizer.param_groups[1]["lr"] = float("nan")
    before = layers[0].weight()
    with pytest.raises(ValueError, match="lr must be a finite number"):
        optimizer.step()
    assert torch.equal(layers[0].weight(), before)


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
        for optimizer in (self.trunk_sgd, self.dense_sgd):  # the factored layer has used its own up
            optimizer.zero_grad()
        return not torch.equal(after[0], before[0]), not torch.equal(after[1], before[1])

    def error(self) -> float:
        return relative_error(self.factored.weight(), self.dense.weight())


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_grad_scaler(precision: torch.dtype, accumulate: int, device: torch.device) -> None:
    """Every step is that of dense SGD under the same scaler, whatever the scale, and skipped where that is."""
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
        # Two rounding errors of the scale, which is no power of two: torch has its inverse in float32.
        assert twins.error() < 1e-6
        assert not is_spoilt or scaler.get_scale() < scale


def test_grad_scaler_that_starts_too_high(device: torch.device) -> None:
    """The scaled loss overflows float32: no step until the scale has come down, by the gradients of the trunk alone."""
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**127, backoff_factor=2.0**-30)
    twins = ScaledTwins(scaler, device, torch.float32)
    moved = []
    for _ in range(6):
        twins.backward(torch.float32, times=100.0)
        moved.append(twins.step())
        assert twins.error() < 1e-5  # float32, some steps
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
    """The whole network and its dense twin, each as torch has it: unscale, clip, step; the scale is a power of two."""
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
    """As with torch's, and no other optimizer."""
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
    """A layer with a scaled gradient recorded; a change of its weights is that gradient, but for the learning rate."""
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
    """Not by unscaling again, nor by the step after it; and a gradient that comes later is divided once too."""
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
    """The scale that torch has left with the optimizer is applied neither to the same gradient again nor to another."""
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
        )  # float32, three steps
