"""Moves of a layer to another data type or device."""

from collections.abc import Callable

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

import zloss
from tests.layers.seeded_layers import seeded_layer, train_seeded
from tests.layers.small_layers import CLASSES, HIDDEN, make_layer, train
from tests.layers.twins import relative_error


def test_converting_there_and_back_keeps_the_state_sharp(device: torch.device) -> None:
    layer = zloss.FactoredLinear(
        HIDDEN, CLASSES, device=device, state_dtype=torch.float64, synchronous=True
    )
    train(layer)
    U = layer.U.clone()
    layer.to(torch.float64)
    assert layer.V.dtype == torch.float64
    layer.to(torch.float32)
    assert layer.V.dtype == torch.float32
    assert torch.equal(layer.U, U), "a round trip through float32 would have rounded it"


def made_double(layer: zloss.FactoredLinear) -> zloss.FactoredLinear:
    return layer.double()


def loaded_as_double(layer: zloss.FactoredLinear) -> zloss.FactoredLinear:
    finer = zloss.FactoredLinear(
        layer.in_features, layer.num_classes, device=layer.V.device, dtype=torch.float64
    )
    finer.load_state_dict(layer.state_dict())
    return finer


@pytest.mark.parametrize("doubled", [made_double, loaded_as_double])
def test_a_layer_made_double_is_as_one_that_was(
    doubled: Callable[[zloss.FactoredLinear], zloss.FactoredLinear], device: torch.device
) -> None:
    """Training must not go on with factors that describe W in single precision only."""
    layer = doubled(train_seeded(seeded_layer(device)))
    twin = zloss.FactoredLinear.from_linear(layer.to_linear())
    for each in (layer, twin):
        train_seeded(each)
    assert relative_error(layer.weight(), twin.weight()) < 1e-13


def test_half_precision_weights_are_refused_and_nothing_changes(device: torch.device) -> None:
    layer = make_layer(device)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    with pytest.raises(ValueError, match=r"float32 or torch\.float64, got torch\.float16"):
        layer.half()
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


def test_moving_between_devices(cuda: torch.device) -> None:
    layer = make_layer(torch.device("cpu"))
    train(layer)
    weight = layer.weight()
    layer.to(cuda)
    assert {tensor.device for tensor in layer.state_dict().values()} == {cuda}
    assert relative_error(layer.weight().cpu(), weight) < 1e-14
    train(layer)
    layer.cpu()
    train(layer)


def test_built_on_the_meta_device(device: torch.device) -> None:
    with torch.device("meta"):
        layer = zloss.FactoredLinear(HIDDEN, CLASSES, dtype=torch.float64)
    source = make_layer(device)
    train(source)
    layer = layer.to_empty(device=device)
    layer.load_state_dict(source.state_dict())
    assert torch.equal(layer.weight(), source.weight())


@pytest.mark.filterwarnings(
    "ignore:This process"
)  # has threads, says Python 3.12: none of them runs here
def test_shared_memory_has_the_whole_matrix() -> None:
    """A step in another process changes V, so the factors have to change with it."""
    layer = make_layer(torch.device("cpu"), dtype=torch.float32)
    train(layer)
    before = layer.weight()
    nn.Sequential(layer).share_memory()
    process = mp.get_context("fork").Process(target=train, args=(layer,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert layer.matrix.is_consistent()
    assert not torch.equal(layer.weight(), before)
    assert layer.double().matrix.is_consistent()
