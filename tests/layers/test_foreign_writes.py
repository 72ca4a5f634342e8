"""Foreign writes to V and its factors are taken over or refused, wherever they can be seen."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.layers.twins import relative_error

H, C = 16, 300
LOSS = zloss.ZLoss(a=0.2, b=8.0)
REFUSED = r"no longer make one weight matrix: average weight\(\) instead"


def make_layer(device: torch.device, **options: Any) -> zloss.FactoredLinear:
    torch.manual_seed(0)
    return zloss.FactoredLinear(H, C, device=device, **options)


def batch(layer: zloss.FactoredLinear, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    h, target = torch.randn(8, H, generator=generator), torch.randint(C, (8,), generator=generator)
    return h.to(layer.V), target.to(layer.V.device)


def train(layer: zloss.FactoredLinear, steps: int = 20, lr: float = 5.0) -> zloss.FactoredLinear:
    for step in range(steps):
        LOSS(layer(*batch(layer, step))).backward()
        layer.step_(lr)
    return layer


def assert_knows_itself(layer: zloss.FactoredLinear, weight: Tensor) -> None:
    """Its statistics are those of this weight, and so is its own."""
    h, target = batch(layer)
    logits = h.double() @ weight.double().T
    stats = layer(h, target)
    assert relative_error(layer.weight(), weight) < 1e-6
    assert (
        relative_error(stats.scatter, (logits - logits.mean(1, keepdim=True)).square().sum(1))
        < 1e-5
    )


# ---- initialisers ----------------------------------------------------------------------------------------------------


def test_an_initialiser_may_write_through_data(device: torch.device) -> None:
    """As those of old do, which leaves no trace: so a new layer is looked at once."""
    layer = make_layer(device)
    for parameter in layer.parameters():
        parameter.data.normal_(0.5, 0.02)
    weight = layer.V.detach().clone()
    assert_knows_itself(layer, weight)


@pytest.mark.parametrize("fill", [0.0, 0.3])
def test_weights_that_are_all_the_same_are_weights(fill: float, device: torch.device) -> None:
    layer = make_layer(device)
    nn.init.constant_(layer.V, fill)
    layer.weight()
    copy.deepcopy(layer).weight()


def saved_and_loaded(layer: zloss.FactoredLinear) -> zloss.FactoredLinear:
    other = zloss.FactoredLinear(H, C, device=layer.V.device)
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
    """Into copies, checkpoints and other places, which know nothing of the write."""
    layer = make_layer(device)
    if used_before:
        layer.weight()
        nn.init.normal_(layer.V, 0.5, 0.02)
    else:
        layer.V.data.normal_(0.5, 0.02)
    weight = layer.V.detach().clone()
    assert_knows_itself(leave(layer), weight)


@pytest.mark.parametrize("move", [torch.float64, torch.float32])
def test_what_makes_no_matrix_makes_none_elsewhere(move: torch.dtype, device: torch.device) -> None:
    layer = train(make_layer(device))
    nn.init.normal_(layer.V)
    layer.state_dict()
    layer.to(move)
    with pytest.raises(ValueError, match=REFUSED):
        layer.weight()


def test_a_refactor_does_not_hide_a_write(device: torch.device) -> None:
    layer = train(make_layer(device))
    nn.init.normal_(layer.V)
    with pytest.raises(ValueError, match=REFUSED):
        layer.refactor()


def test_a_gradient_that_is_lost_by_a_write_is_pointed_out(device: torch.device) -> None:
    layer = make_layer(device)
    LOSS(layer(*batch(layer))).backward()
    nn.init.normal_(layer.V)
    weight = layer.V.detach().clone()
    with pytest.warns(UserWarning, match="step first"):
        layer.refactor()
    layer.step_(1.0)
    assert_knows_itself(layer, weight)


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
    """Though torch has counted as many writes to it as to the one before."""
    layer = make_layer(device)
    layer(*batch(layer))
    weight = torch.randn_like(layer.V, requires_grad=False).detach() + 1
    write(layer, weight.clone())
    assert_knows_itself(layer, weight)
    train(layer)
    write(layer, weight.clone())
    with pytest.raises(ValueError, match=REFUSED):
        layer(*batch(layer))


# ---- averages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("through_data", [False, True])
def test_an_average_in_a_copy_is_refused(
    through_data: bool, used_before: bool, device: torch.device
) -> None:
    """The usual average of parameters, which leaves the factors of the copy as they were: those of a new layer."""
    layer = make_layer(device)
    average = copy.deepcopy(layer)
    if used_before:
        average.weight()
    for _ in range(5):
        train(layer, 2)
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), layer.parameters(), strict=True):
                (mean.data if through_data else mean).lerp_(parameter, 0.3)
    if through_data and used_before:
        pytest.skip("nothing is to be seen of it: the README says so")
    for _ in range(2):
        with pytest.raises(ValueError, match=REFUSED):
            average.topk(batch(layer)[0], 3)
    average.adopt_rows()
    average.topk(batch(layer)[0], 3)


def test_a_copy_goes_its_own_way(device: torch.device) -> None:
    """Once it has weights of its own, an initialiser is one again."""
    twin = copy.deepcopy(train(make_layer(device)))
    twin.reset_parameters()
    nn.init.normal_(twin.V)
    assert_knows_itself(twin, twin.V.detach().clone())


def test_an_average_of_checkpoints_does_not_load(device: torch.device) -> None:
    layer = train(make_layer(device))
    early = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    late = train(layer, 200).state_dict()
    other = make_layer(device)
    before = other.weight()
    with pytest.raises(
        RuntimeError, match="as when factors are averaged, so none of them was loaded"
    ):
        other.load_state_dict({name: (early[name] + late[name]) / 2 for name in early})
    assert torch.equal(other.weight(), before)
    other.load_state_dict(late)
    assert torch.equal(other.weight(), layer.weight())


# ---- the look itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [False, True])
def test_training_leaves_one_matrix(bias: bool, dtype: torch.dtype, device: torch.device) -> None:
    layer = train(make_layer(device, bias=bias, dtype=dtype), 300, lr=20.0)
    assert layer.matrix.is_consistent()


def test_the_look_has_its_own_precision(device: torch.device) -> None:
    """On a GPU, products in TF32 are off by as much as it asks for."""
    layer = train(make_layer(device), 100)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        copy.deepcopy(layer).weight()
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", ["V", "U", "omega", "wbar", "gram"])
def test_every_part_is_looked_at(name: str, device: torch.device) -> None:
    """A change of a hundredth, of what is there or of the spread of W, is seen wherever it is."""
    layer = train(make_layer(device), 100)
    spread = layer.weight().std().item()
    getattr(layer, name).data.mul_(1.01).add_(0.01 * spread if name in ("omega", "wbar") else 0)
    assert not layer.matrix.is_consistent()


# ---- moves -----------------------------------------------------------------------------------------------------------


def test_a_gradient_that_is_lost_by_a_move_is_pointed_out(device: torch.device) -> None:
    layer = make_layer(device)
    LOSS(layer(*batch(layer))).backward()
    with pytest.warns(UserWarning, match="step first"):
        layer.double()


def test_a_gradient_that_was_dropped_is_not_lost_by_a_move(
    device: torch.device, recwarn: pytest.WarningsRecorder
) -> None:
    layer = make_layer(device)
    LOSS(layer(*batch(layer))).backward()
    nn.Sequential(layer).zero_grad()
    layer.double()
    assert not recwarn


def made_double(layer: zloss.FactoredLinear) -> zloss.FactoredLinear:
    return layer.double()


def loaded_as_double(layer: zloss.FactoredLinear) -> zloss.FactoredLinear:
    finer = zloss.FactoredLinear(H, C, device=layer.V.device, dtype=torch.float64)
    finer.load_state_dict(layer.state_dict())
    return finer


@pytest.mark.parametrize("doubled", [made_double, loaded_as_double])
def test_a_layer_made_double_is_as_one_that_was(
    doubled: Callable[[zloss.FactoredLinear], zloss.FactoredLinear], device: torch.device
) -> None:
    """It must not go on with what is known of W to single precision."""
    layer = doubled(train(make_layer(device)))
    twin = zloss.FactoredLinear.from_linear(layer.to_linear())
    for each in (layer, twin):
        train(each)
    assert relative_error(layer.weight(), twin.weight()) < 1e-13


# ---- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "clip",
    [
        lambda parameters: nn.utils.clip_grad_value_(parameters, 1e-3),
        lambda parameters: nn.utils.clip_grad_norm_(parameters, 1e6),
        lambda parameters: nn.utils.clip_grad_norm_(parameters, 1e-30),
    ],
)
def test_clipping_that_does_not_reach_the_layer_is_pointed_out(
    clip: Callable[[Any], object], device: torch.device
) -> None:
    layer = make_layer(device)
    LOSS(layer(*batch(layer))).backward()
    norm = layer.grad_norm()
    clip(layer.parameters())
    with pytest.warns(UserWarning, match="use zloss.clip_grad_norm_"):
        assert torch.equal(layer.grad_norm(), norm)


def test_many_passes_before_a_step_are_an_accumulation(
    device: torch.device, recwarn: pytest.WarningsRecorder
) -> None:
    """Of a layer that has stepped before."""
    layer = train(make_layer(device), 1)
    for _ in range(150):
        LOSS(layer(*batch(layer))).backward()
    layer.step_(1e-3)
    assert not recwarn
