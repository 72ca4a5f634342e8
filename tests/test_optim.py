"""FactoredSGD and RowSGD as torch optimizers: groups, schedules, states and copies."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.layers.twins import make_twins
from tests.twin_networks import LOSS


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
    "FactoredSGD has lr or relative_lr, weight_decay, row_lr and row_eps, got {}: momentum and adaptive rates "
    "need .*GramLinear"
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
    """Dense SGD follows the same schedule. The entries of the schedule in the groups can be saved and loaded."""
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
