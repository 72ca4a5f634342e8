"""Models, optimizers of the trunk, groups and states that `zloss.Optimizer` refuses."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import zloss
from tests.whole_models import Model, same, weights


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (lambda m: {"params": m.output.parameters()}, r'add the layer itself, \{"layers"'),
        (lambda m: {"params": m.output.V}, r'add the layer itself, \{"layers"'),
        (lambda m: {"params": m.trunk.parameters()}, "a parameter is here twice"),
        (lambda m: {"params": m.tree.parameters()}, "a parameter is here twice"),
        (lambda m: {"layers": m.output}, "a parameter is here twice"),
        (lambda m: {"layers": m.trunk[0]}, "FactoredSGD trains FactoredLinear layers, got Linear"),
        (lambda m: [m.output], "param_group must be a mapping"),
    ],
)
def test_groups_that_are_refused(group: Callable[[Model], Any], message: str) -> None:
    model = Model()
    optimizer = zloss.Optimizer(model, torch.optim.SGD, lr=0.1, output_lr=0.5)
    state = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group(group(model))
    assert optimizer.state_dict() == state


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (lambda m: [m.parameters()], {}, "model must be a module or several, got"),
        (lambda m: [[]], {}, "model must be a module or several, got"),
        (lambda m: [m], {"output_relative_lr": 1.0}, "give lr or relative_lr, not both"),
        (
            lambda m: [m.tree],
            {"output_row_lr": 0.1},
            "no FactoredLinear layer: leave out output_row_lr",
        ),
        (lambda m: [m], {"output_lr": -1.0}, "lr must be a finite number >= 0, got -1.0"),
        (lambda m: [m.output], {"output_weight_decay": -1.0}, "weight_decay must be a finite"),
        (lambda m: [m], {"output_weight_decay": 0.1}, "gradients of HierarchicalSoftmax are row"),
        (lambda m: [m.trunk], {}, "no head with row-sparse gradients: leave out output_lr"),
        (lambda m: [m, 3], {}, "trunk must be .*, got 3"),
        (lambda m: [m, len], {}, "trunk must make an optimizer of torch, but made 4"),
        (lambda m: [m, torch.optim.LBFGS], {}, "LBFGS takes several looks"),
        (
            lambda m: [m, lambda _: torch.optim.SGD(m.parameters())],
            {},
            "parameters that it is given, but .* others are in it",
        ),
    ],
)
def test_bad_arguments(
    arguments: Callable[[Model], list[Any]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        zloss.Optimizer(*arguments(Model()), **{"output_lr": 1.0} | options)


def test_a_state_of_another_model_is_refused() -> None:
    model = Model()
    optimizer = zloss.Optimizer(model, torch.optim.SGD, lr=0.1, output_lr=0.5)
    state = copy.deepcopy(optimizer.state_dict())
    for other in (torch.optim.SGD(model.parameters(), 0.1), model.tree.sgd(0.1)):
        with pytest.raises(ValueError, match=r"state_dict has groups of \["):
            optimizer.load_state_dict(other.state_dict())
    for number in (1, 2):  # the groups of the outputs
        spoilt = copy.deepcopy(state)
        spoilt["param_groups"][number]["lr"] = float("nan")
        with pytest.raises(ValueError, match="lr must be a finite number"):
            optimizer.load_state_dict(spoilt)
        assert optimizer.state_dict() == state
    for inner, group in zip(optimizer._optimizers, optimizer.param_groups, strict=True):
        assert inner.param_groups == [group]
        assert inner.param_groups[0] is group


def test_a_refused_output_leaves_the_trunk_where_it_was() -> None:
    model = Model()
    optimizer = zloss.Optimizer(model, torch.optim.SGD, lr=0.1, output_lr=0.5)
    model(torch.randint(30, (6,)), torch.randint(20, (6,))).backward()
    before = weights(model)
    optimizer.param_groups[-1]["lr"] = float("nan")
    with pytest.raises(ValueError, match="lr must be a finite number"):
        optimizer.step()
    assert same(weights(model), before)
