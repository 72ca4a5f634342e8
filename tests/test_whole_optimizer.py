"""`zloss.Optimizer` as an optimizer of torch: what it holds, groups, states, schedules, copies, mistakes."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.layers.twins import relative_error
from tests.twin_networks import LOSS, batch, twin_networks
from tests.whole_models import Model, same, train, weights

CPU = torch.device("cpu")


def test_every_parameter_has_the_optimizer_that_it_needs() -> None:
    model = Model()
    optimizer = zloss.Optimizer(model, torch.optim.AdamW, lr=1e-2, output_lr=0.5)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len(set(held)), "each once"
    assert set(held) == set(model.parameters())
    assert optimizer.layers == [model.output, model.second.layer]
    assert [len(group["params"]) for group in optimizer.param_groups] == [
        4,
        len(list(model.tree.parameters())),
        4,
    ]
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 0.5, 0.5]
    before = weights(model)
    train(model, optimizer)
    assert not any(torch.equal(a, b) for a, b in zip(weights(model)[:4], before[:4], strict=True))
    assert set(optimizer.state) == set(model.trunk.parameters()), "AdamW saw the trunk alone"
    assert not model.output.gradient_mark.any()
    assert isinstance(optimizer, torch.optim.Optimizer)


def test_the_steps_are_those_of_the_optimizers_inside() -> None:
    model = Model()
    twin = copy.deepcopy(model)
    whole = zloss.Optimizer(model, torch.optim.Adam, lr=1e-2, output_lr=0.5)
    single = [
        torch.optim.Adam(twin.trunk.parameters(), lr=1e-2),
        zloss.FactoredSGD([{"layers": [twin.output, twin.second.layer]}], 0.5),
        twin.tree.sgd(0.5),
    ]
    for _ in range(3):
        data = torch.randint(30, (6,)), torch.randint(20, (6,))
        for each in (model, twin):
            each(*data).backward()
        whole.step()
        whole.zero_grad()
        for optimizer in single:
            optimizer.step()
            optimizer.zero_grad()
        assert same(weights(model), weights(twin))


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "state dict", "torch.save"])
def test_a_copy_goes_on_in_the_same_way(way: str, tmp_path: Any) -> None:
    model = Model()
    optimizer = zloss.Optimizer(model, torch.optim.AdamW, lr=1e-2, output_lr=0.5)
    train(model, optimizer, 3)
    optimizer.param_groups[-1]["lr"] = 0.25
    if way in ("deepcopy", "pickle"):
        pair = (model, optimizer)
        twin, other = copy.deepcopy(pair) if way == "deepcopy" else pickle.loads(pickle.dumps(pair))
    else:
        twin, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
        other = zloss.Optimizer(twin, torch.optim.AdamW, output_lr=1.0)
        if way == "torch.save":
            torch.save(state, tmp_path / "state.pt")
            state = torch.load(tmp_path / "state.pt", weights_only=True)
        other.load_state_dict(state)
    assert [group["lr"] for group in other.param_groups] == [1e-2, 0.5, 0.25]
    assert other.layers == [twin.output, twin.second.layer]
    for each, its in ((model, optimizer), (twin, other)):
        torch.manual_seed(3)
        train(each, its, 3)
        its.param_groups[0]["lr"] = 1e-3  # its optimizers have these very groups
        train(each, its, 2)
    assert same(weights(model), weights(twin))
    assert twin.output.grad_norm() == 0


def test_loading_replaces_all_that_was_there() -> None:
    """Momentum of steps after the checkpoint is gone, and hooks are called as torch calls them."""
    model = Model()
    optimizer = zloss.Optimizer(model, torch.optim.SGD, lr=0.1, momentum=0.9, output_lr=0.5)
    fresh = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer)
    assert optimizer.state
    seen: list[Any] = []
    optimizer.register_load_state_dict_pre_hook(lambda _, state: seen.append(set(state)))
    optimizer.register_load_state_dict_pre_hook(
        lambda _, state: {**state, "param_groups": [g | {"lr": 0.3} for g in state["param_groups"]]}
    )
    optimizer.register_load_state_dict_post_hook(lambda one: seen.append(len(one.state)))
    optimizer.load_state_dict(fresh)
    assert seen == [{"state", "param_groups"}, 0]
    assert not optimizer.state
    assert [group["lr"] for group in optimizer.param_groups] == [0.3] * 3
    train(model, optimizer)
    assert set(optimizer.state) == set(model.trunk.parameters())


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(
        o, [0.3, 3.0], total_steps=9, cycle_momentum=False
    ),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
    "warm-up": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: (step + 1) / 5),
    "in sequence": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, total_iters=3),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.8),
        ],
        [3],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_drive_trunk_and_output(name: str) -> None:
    factored, dense = twin_networks(CPU)
    trunk, output = ({"params": part.parameters()} for part in (dense.trunk, dense.output))
    groups: list[dict[str, Any]] = [trunk, output | {"lr": 2.0}]
    optimizers: list[torch.optim.Optimizer] = [
        zloss.Optimizer(factored, torch.optim.SGD, lr=0.2, output_lr=2.0),
        torch.optim.SGD(groups, lr=0.2),
    ]
    schedules = [SCHEDULES[name](optimizer) for optimizer in optimizers]
    for _ in range(7):
        data = batch(CPU)
        for network, optimizer, schedule in zip(
            (factored, dense), optimizers, schedules, strict=True
        ):
            network(*data).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        assert schedules[0].get_last_lr() == schedules[1].get_last_lr()
        # Seven steps in float64.
        assert relative_error(factored.output.weight(), dense.output.weight()) < 1e-10  # type: ignore[operator]


def test_groups_that_come_later() -> None:
    model, more = Model(), zloss.FactoredLinear(4, 10)
    optimizer = zloss.Optimizer(model, torch.optim.SGD, lr=0.1, output_lr=0.5)
    added = nn.Linear(2, 2)
    optimizer.add_param_group({"params": added.parameters(), "lr": 0.7})
    optimizer.add_param_group({"layers": [more], "lr": 0.9})
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.5, 0.5, 0.7, 0.9]
    assert optimizer.layers == [model.output, model.second.layer, more]
    assert optimizer.param_groups[3]["params"] == list(added.parameters())
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.param_groups[3]["lr"] = 0.2
    before = added.weight.detach().clone(), more.weight()
    added(torch.ones(1, 2)).sum().backward()
    LOSS(more(torch.randn(2, 4), torch.tensor([1, 2]))).backward()
    optimizer.step()
    torch.testing.assert_close(added.weight.detach(), before[0] - 0.2)
    assert not torch.equal(more.weight(), before[1])


def test_models_without_a_trunk_or_without_an_output() -> None:
    layer = zloss.FactoredLinear(4, 9)
    alone = zloss.Optimizer(layer, output_lr=1.0)
    heads: list[nn.Module] = [layer, zloss.HierarchicalSoftmax(4, 9)]
    for without_trunk in (alone, zloss.Optimizer(heads, output_lr=1.0)):
        with pytest.raises(ValueError, match=r"the model had no parameters of a trunk yet"):
            without_trunk.add_param_group({"params": nn.Linear(2, 2).parameters()})
    before = layer.weight()
    LOSS(layer(torch.randn(2, 4), torch.tensor([1, 2]))).backward()
    alone.step()
    assert not torch.equal(layer.weight(), before)
    head = zloss.HeadConfig(head="dense").build(4, 9)
    trunk = zloss.Optimizer(head, torch.optim.SGD, lr=0.5)
    assert trunk.layers == []
    with pytest.raises(ValueError, match=r"the model had no factored layers yet"):
        trunk.add_param_group({"layers": layer})


def test_modules_in_a_list() -> None:
    trunk, output = nn.Linear(4, 4), zloss.FactoredLinear(4, 9)
    optimizer = zloss.Optimizer([trunk, output], torch.optim.SGD, lr=0.5, output_lr=1.0)
    assert optimizer.layers == [output]
    assert optimizer.param_groups[0]["params"] == list(trunk.parameters())


def test_a_function_divides_the_trunk() -> None:
    def trunk(parameters: list[Tensor]) -> torch.optim.Optimizer:
        matrices = [p for p in parameters if p.dim() > 1]
        others = [p for p in parameters if p.dim() <= 1]
        groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": 0.1}]
        return torch.optim.AdamW([*groups, {"params": others}])

    model = Model()
    optimizer = zloss.Optimizer(model, trunk, output_lr=1.0)
    assert [len(group["params"]) for group in optimizer.param_groups[:2]] == [1, 3]
    train(model, optimizer)
    with pytest.raises(ValueError, match=r"left out trunk.0.bias, trunk.1.weight, trunk.1.bias"):
        zloss.Optimizer(model, lambda p: torch.optim.SGD(p[:1]), output_lr=1.0)
    model.trunk.requires_grad_(False)
    zloss.Optimizer(model, lambda p: torch.optim.SGD(p[:1]), output_lr=1.0)


def test_parameters_that_were_replaced_are_noticed() -> None:
    model = Model()
    optimizer = zloss.Optimizer(model, torch.optim.SGD, lr=0.1, output_lr=0.5)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    model(torch.randint(30, (6,)), torch.randint(20, (6,))).backward()
    with pytest.raises(
        ValueError, match=r"load_state_dict\(..., assign=True\): make the optimizer"
    ):
        optimizer.step()


def test_closures_run_with_gradients() -> None:
    model = Model()
    optimizer = zloss.Optimizer(model, torch.optim.SGD, lr=0.1, output_lr=0.5)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.arange(6), torch.arange(6))
        loss.backward()
        return float(loss.item())

    losses = [optimizer.step(closure) for _ in range(5)]
    assert losses[-1] < losses[0]
    with pytest.raises(ValueError, match="closure must be"):
        optimizer.step(3)  # type: ignore[call-overload]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_drops_everything(set_to_none: bool) -> None:
    model = Model()
    optimizer = zloss.Optimizer(model, torch.optim.SGD, lr=0.1, output_lr=0.5)
    model(torch.randint(30, (6,)), torch.randint(20, (6,))).backward()
    optimizer.zero_grad(set_to_none=set_to_none)
    assert model.output.recorded_gradient() is None
    before = weights(model)
    optimizer.step()
    assert same(weights(model), before)


def test_a_captured_step_knows_its_layers() -> None:
    from zloss.capture import CaptureContext

    model = Model()
    optimizer = zloss.Optimizer(model, torch.optim.SGD, lr=0.1, output_lr=0.5)
    context = CaptureContext([optimizer])
    seen: list[nn.Module] = []
    context.collect = seen.append  # type: ignore[assignment, method-assign]
    with context:
        pass
    assert seen == optimizer.layers
