"""Averages of factors are not the factors of an average, so the layer refuses them."""

import copy

import pytest
import torch

import zloss
from tests.layers.seeded_layers import REFUSED, seeded_batch, seeded_layer, train_seeded
from tests.layers.small_layers import make_layer, train


def test_an_average_of_factors_is_refused(device: torch.device) -> None:
    """torch averages V, and copies U and the other factors."""
    layer = make_layer(device)
    average = torch.optim.swa_utils.AveragedModel(
        layer, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    for _ in range(3):
        train(layer)
        average.update_parameters(layer)
    averaged = average.module
    assert isinstance(averaged, zloss.FactoredLinear)
    with pytest.raises(ValueError, match="as when weights are averaged"):
        averaged.weight()


@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("through_data", [False, True])
def test_an_average_in_a_copy_is_refused(
    through_data: bool, used_before: bool, device: torch.device
) -> None:
    """The usual average of parameters leaves the other factors of the copy as they were in a new layer."""
    layer = seeded_layer(device)
    average = copy.deepcopy(layer)
    if used_before:
        average.weight()
    for _ in range(5):
        train_seeded(layer, 2)
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), layer.parameters(), strict=True):
                (mean.data if through_data else mean).lerp_(parameter, 0.3)
    if through_data and used_before:
        pytest.skip("nothing is to be seen of it: the README says so")
    for _ in range(2):
        with pytest.raises(ValueError, match=REFUSED):
            average.topk(seeded_batch(layer)[0], 3)
    average.adopt_rows()
    average.topk(seeded_batch(layer)[0], 3)


def test_an_average_of_checkpoints_does_not_load(device: torch.device) -> None:
    layer = train_seeded(seeded_layer(device))
    early = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    late = train_seeded(layer, 200).state_dict()
    other = seeded_layer(device)
    before = other.weight()
    with pytest.raises(
        RuntimeError, match="as when factors are averaged, so none of them was loaded"
    ):
        other.load_state_dict({name: (early[name] + late[name]) / 2 for name in early})
    assert torch.equal(other.weight(), before)
    other.load_state_dict(late)
    assert torch.equal(other.weight(), layer.weight())
