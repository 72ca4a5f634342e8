"""Arguments of optimizers and of clipping that would train or clip something else: one ValueError, and no change."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss

WIDTH, CLASSES, ROWS = 4, 12, 6


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, WIDTH), torch.randint(CLASSES, (ROWS,))


def test_a_state_dict_of_something_else_changes_nothing() -> None:
    layer = zloss.FactoredLinear(WIDTH, CLASSES)
    optimizer = zloss.FactoredSGD(layer, 0.5)
    state = optimizer.state_dict()
    bad: list[tuple[Any, str]] = [
        ({}, "state_dict must be what state_dict"),
        ([1], "state_dict must be what state_dict"),
        ({"param_groups": [1], "state": {}}, "state_dict must be what state_dict"),
        ({**state, "param_groups": []}, r"has groups of \[\] parameters"),
    ]
    for option, value, message in (
        ("lr", float("nan"), "lr must be a finite number"),
        ("lr", "fast", "lr must be a finite number"),
        ("weight_decay", -1.0, "weight_decay must be a finite number"),
        ("momentum", 0.9, "got momentum"),
        (
            "params",
            [0, 1],
            r"has groups of \[2\] parameters, and this optimizer has groups of \[1\]",
        ),
    ):
        spoiled = copy.deepcopy(state)
        spoiled["param_groups"][0][option] = value
        bad.append((spoiled, message))
    without = copy.deepcopy(state)
    del without["param_groups"][0]["lr"]
    bad.append((without, "a group without lr"))
    for spoiled, message in bad:
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(spoiled)
        assert optimizer.state_dict() == state


def test_a_parameter_is_trained_once() -> None:
    layer, linear = zloss.FactoredLinear(WIDTH, CLASSES), nn.Linear(2, 3)
    groups: list[dict[str, Any]] = [{"params": linear.parameters()}, {"params": [linear.bias]}]
    with pytest.raises(ValueError, match="a parameter is here twice"):
        zloss.FactoredSGD([layer, layer], 1.0)
    with pytest.raises(ValueError, match="a parameter is here twice"):
        zloss.RowSGD(groups, 1.0)


def test_the_rows_of_a_layer_without_the_layer_are_not_clipped_in_silence() -> None:
    layer = zloss.FactoredLinear(WIDTH, CLASSES)
    other = copy.deepcopy(layer)
    trunk = nn.Linear(3, WIDTH)
    zloss.SquaredError()(layer(trunk(torch.randn(ROWS, 3)), batch()[1])).backward()
    lists: list[Any] = [
        layer.V,
        [layer.V],
        [layer.gradient_mark],
        [*trunk.parameters(), *layer.parameters()],
        [*trunk.parameters(), other, layer.V],
        (parameter for parameter in layer.parameters()),
    ]
    grad = trunk.weight.grad
    assert grad is not None
    before, norm = grad.clone(), layer.grad_norm()
    for given in lists:
        with pytest.raises(ValueError, match="give the module itself"):
            zloss.clip_grad_norm_(given, 1e-3)
    assert torch.equal(grad, before)
    assert torch.equal(layer.grad_norm(), norm)
    assert zloss.clip_grad_norm_([other.V, trunk], 1e9) > 0, "a copy has no gradient"
    assert zloss.clip_grad_norm_([trunk, layer], float("inf")) > norm
    moved = copy.deepcopy(layer).double()  # another V than at first
    zloss.SquaredError()(moved(*(part.to(part.dtype) for part in batch()))).backward()
    with pytest.raises(ValueError, match="give the module itself"):
        zloss.clip_grad_norm_(moved.V, 1.0)
