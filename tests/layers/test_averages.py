"""Averages of factors are not the factors of an average, so the layer refuses them."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import zloss
from tests.layers.seeded_layers import REFUSED, seeded_batch, seeded_layer, train_seeded
from tests.layers.small_layers import make_layer, train

AVERAGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "ema": {"multi_avg_fn": torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)},
    "own": {"avg_fn": lambda averaged, new, _: (averaged + new) / 2},
    "with buffers": {"use_buffers": True},
}


@pytest.mark.parametrize("kind", AVERAGES)
def test_an_averaged_model_refuses_its_first_update(kind: str, device: torch.device) -> None:
    """torch averages V, and copies U and the other factors or averages them too."""
    model = nn.Sequential(nn.Linear(3, 6, device=device), make_layer(device))
    average = torch.optim.swa_utils.AveragedModel(model, **AVERAGES[kind])
    with pytest.raises(ValueError, match=r"Average the layers below, as in .* output.weight\(\)"):
        average.update_parameters(model)


@pytest.mark.filterwarnings("error")
def test_an_averaged_model_takes_the_layers_below_and_a_frozen_output(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(3, 6, device=device), make_layer(device))
    below = torch.optim.swa_utils.AveragedModel(model[0])
    below.update_parameters(model[0])
    model.requires_grad_(False)
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(3):
        average.update_parameters(model)
    frozen = average.module.get_submodule("1")
    assert isinstance(frozen, zloss.FactoredLinear)
    assert torch.allclose(frozen.weight(), model.get_submodule("1").weight(), rtol=1e-12)  # type: ignore[operator]


def test_an_average_of_factors_by_hand_is_refused_when_it_is_used(device: torch.device) -> None:
    """An EMA over `state_dict()` does not see the mark. Misfits are found at the first use."""
    layer = make_layer(device)
    average = copy.deepcopy(layer)
    for _ in range(3):
        train(layer)
        for mean, new in zip(
            average.state_dict().values(), layer.state_dict().values(), strict=True
        ):
            mean.lerp_(new, 0.5)
    with pytest.raises(ValueError, match="as when weights are averaged"):
        average.weight()


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
