"""Foreign writes to V and the other factors: the layer takes them over or refuses them, wherever it can see them."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.layers.seeded_layers import (
    REFUSED,
    assert_knows_itself,
    seeded_batch,
    seeded_layer,
    train_seeded,
)
from tests.layers.small_layers import HIDDEN, LOSS, batch, loss_of, make_layer, train
from tests.layers.twins import relative_error


def test_what_an_initialiser_writes_is_the_weight(device: torch.device) -> None:
    """The statistics and the steps use the new rows."""
    layer = make_layer(device)
    nn.init.normal_(layer.V, std=0.02)
    twin = zloss.FactoredLinear.from_linear(layer.to_linear(), synchronous=True)
    h, target = batch(layer)
    for each in (layer, twin):
        LOSS(each(h, target)).backward()
        each.step_(20.0)
    assert relative_error(layer.weight(), twin.weight()) < 1e-12
    assert relative_error(layer.gram, twin.gram) < 1e-12


def test_an_initialiser_may_write_through_data(device: torch.device) -> None:
    """Old initialisers do so. This leaves no trace, so a new layer is checked once."""
    layer = seeded_layer(device)
    for parameter in layer.parameters():
        parameter.data.normal_(0.5, 0.02)
    weight = layer.V.detach().clone()
    assert_knows_itself(layer, weight)


@pytest.mark.parametrize("fill", [0.0, 0.3])
def test_weights_that_are_all_the_same_are_weights(fill: float, device: torch.device) -> None:
    layer = seeded_layer(device)
    nn.init.constant_(layer.V, fill)
    layer.weight()
    copy.deepcopy(layer).weight()


def saved_and_loaded(layer: zloss.FactoredLinear) -> zloss.FactoredLinear:
    other = zloss.FactoredLinear(layer.in_features, layer.num_classes, device=layer.V.device)
    other.load_state_dict(layer.state_dict())
    return other


LEAVES: list[Callable[[zloss.FactoredLinear], zloss.FactoredLinear]] = [
    copy.deepcopy,
    lambda layer: pickle.loads(pickle.dumps(layer)),
    saved_and_loaded,
    lambda layer: layer.double(),
    lambda layer: layer.to(layer.V.device),
]


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("used_before", [False, True])
def test_what_was_written_goes_along(
    used_before: bool,
    leave: Callable[[zloss.FactoredLinear], zloss.FactoredLinear],
    device: torch.device,
) -> None:
    """Copies, checkpoints and moved layers hold the written weights, though they did not see the write."""
    layer = seeded_layer(device)
    if used_before:
        layer.weight()
        nn.init.normal_(layer.V, 0.5, 0.02)
    else:
        layer.V.data.normal_(0.5, 0.02)
    weight = layer.V.detach().clone()
    assert_knows_itself(leave(layer), weight)


def replaced(layer: zloss.FactoredLinear, weight: Tensor) -> None:
    layer.V = nn.Parameter(weight)


def pointed_elsewhere(layer: zloss.FactoredLinear, weight: Tensor) -> None:
    layer.V.data = weight


def written_as_a_vector(layer: zloss.FactoredLinear, weight: Tensor) -> None:
    vector = torch.cat([weight.flatten(), layer.gradient_mark.detach()])
    nn.utils.vector_to_parameters(vector, layer.parameters())


@pytest.mark.parametrize("write", [replaced, pointed_elsewhere, written_as_a_vector])
def test_another_v_is_seen(
    write: Callable[[zloss.FactoredLinear, Tensor], None], device: torch.device
) -> None:
    """torch has counted equally many writes to the new V and to the old one."""
    layer = seeded_layer(device)
    layer(*seeded_batch(layer))
    weight = torch.randn_like(layer.V, requires_grad=False).detach() + 1
    write(layer, weight.clone())
    assert_knows_itself(layer, weight)
    train_seeded(layer)
    write(layer, weight.clone())
    with pytest.raises(ValueError, match=REFUSED):
        layer(*seeded_batch(layer))


@pytest.mark.parametrize(
    "use", [loss_of, zloss.FactoredLinear.weight, lambda layer: layer.topk(batch(layer)[0], 3)]
)
@pytest.mark.parametrize("name", ["V", "U", "gram"])
def test_writes_that_leave_no_matrix_are_refused(
    name: str, use: Callable[..., object], device: torch.device
) -> None:
    layer = make_layer(device)
    train(layer, 1)
    with torch.no_grad():
        getattr(layer, name).mul_(2)
    with pytest.raises(ValueError, match="no longer make one weight matrix"):
        use(layer)
    layer.adopt_rows()
    use(layer)


@pytest.mark.parametrize("move", [torch.float64, torch.float32])
def test_what_makes_no_matrix_makes_none_elsewhere(move: torch.dtype, device: torch.device) -> None:
    layer = train_seeded(seeded_layer(device))
    nn.init.normal_(layer.V)
    layer.state_dict()
    layer.to(move)
    with pytest.raises(ValueError, match=REFUSED):
        layer.weight()


def test_a_refactor_does_not_hide_a_write(device: torch.device) -> None:
    layer = train_seeded(seeded_layer(device))
    nn.init.normal_(layer.V)
    with pytest.raises(ValueError, match=REFUSED):
        layer.refactor()


def test_a_write_between_backward_and_step_is_refused(device: torch.device) -> None:
    layer = make_layer(device)
    loss_of(layer).backward()
    with torch.no_grad():
        layer.V.mul_(0.9)
    with pytest.raises(ValueError, match="step first"):
        layer.step_(20.0)


def test_some_rows_of_a_trained_layer_may_be_written(device: torch.device) -> None:
    layer = make_layer(device)
    train(layer, 3)
    row, expected = torch.ones(HIDDEN, dtype=torch.float64, device=device), layer.weight()
    copied = copy.deepcopy(layer)
    layer.refactor()
    with torch.no_grad():
        layer.V[7] = copied.V[7] = expected[7] = row
    with pytest.raises(
        ValueError, match=r"to write some rows of a trained layer, refactor\(\) first"
    ):
        copied.weight()
    assert relative_error(layer.weight(), expected) < 1e-12  # a product of 6 terms, in float64


@pytest.mark.parametrize("looks_each_time", [False, True])
def test_all_of_it_may_be_overwritten_together(looks_each_time: bool, device: torch.device) -> None:
    """A broadcast of the whole state writes like this."""
    layer, other = make_layer(device), make_layer(device)
    train(other)
    layer.weight()
    mine = layer.state_dict()
    with torch.no_grad():
        for name, theirs in other.state_dict().items():
            (layer.state_dict() if looks_each_time else mine)[name].copy_(theirs)
    assert torch.equal(layer.weight(), other.weight())
    h, target = batch(layer)
    assert torch.equal(layer(h, target).scatter, other(h, target).scatter)
