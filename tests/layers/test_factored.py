"""The factored layer as a module: recording, freezing, moving, saving, copying, converting."""

import copy
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import zloss
from tests.layers.twins import make_twins, relative_error

HIDDEN, CLASSES = 6, 50


def make_layer(device: torch.device, **options: object) -> zloss.FactoredLinear:
    options = {"dtype": torch.float64, "synchronous": True} | options
    return zloss.FactoredLinear(HIDDEN, CLASSES, device=device, **options)  # type: ignore[arg-type]


def batch(layer: zloss.FactoredLinear, rows: int = 4) -> tuple[Tensor, Tensor]:
    h = torch.randn(rows, HIDDEN, dtype=layer.V.dtype, device=layer.V.device, requires_grad=True)
    return h, torch.randint(CLASSES, (rows,), device=layer.V.device)


def loss_of(layer: zloss.FactoredLinear, rows: int = 4) -> Tensor:
    value: Tensor = zloss.ZLoss(a=0.2, b=8.0)(layer(*batch(layer, rows)))
    return value


def train(layer: zloss.FactoredLinear, steps: int = 5, lr: float = 20.0) -> None:
    for _ in range(steps):
        loss_of(layer).backward()
        layer.step_(lr)


# ---- recording -------------------------------------------------------------------------------------------------------


def test_backward_trains_where_h_needs_no_gradient(device: torch.device) -> None:
    layer = make_layer(device)
    before = layer.weight()
    h, target = batch(layer)
    zloss.ZLoss(a=0.2, b=8.0)(layer(h.detach(), target)).backward()
    layer.step_(20.0)
    assert not torch.equal(layer.weight(), before)


def test_nothing_is_recorded_without_backward_or_without_grad(device: torch.device) -> None:
    layer = make_layer(device)
    loss_of(layer)
    with torch.no_grad():
        assert not loss_of(layer).requires_grad
    with torch.inference_mode():
        loss_of(layer)
    assert layer.recorded_gradient() is None
    assert layer.grad_norm() == 0
    before = layer.weight()
    layer.step_(20.0, weight_decay=0.5)
    assert torch.equal(layer.weight(), before), (
        "without a gradient there is no step, as for torch's SGD"
    )


def test_autograd_grad_leaves_the_layer_alone(device: torch.device) -> None:
    layer = make_layer(device)
    h, target = batch(layer)
    loss = zloss.ZLoss(a=0.2, b=8.0)(layer(h, target))
    (grad,) = torch.autograd.grad(loss, h, retain_graph=True)
    assert layer.recorded_gradient() is None
    loss.backward()
    assert layer.recorded_gradient() is not None
    assert torch.equal(grad, h.grad)  # type: ignore[arg-type]


def test_frozen_layer_passes_gradients_but_records_none(device: torch.device) -> None:
    layer = make_layer(device).requires_grad_(False)
    h, target = batch(layer)
    zloss.ZLoss(a=0.2, b=8.0)(layer(h, target)).backward()
    assert h.grad is not None
    assert h.grad.any()
    assert layer.recorded_gradient() is None


def test_a_step_uses_up_the_gradient(device: torch.device) -> None:
    layer = make_layer(device)
    loss_of(layer).backward()
    layer.step_(20.0)
    once = layer.weight()
    layer.step_(20.0)
    assert torch.equal(layer.weight(), once)


ZERO_GRADS: dict[str, Callable[[zloss.FactoredLinear], None]] = {
    "of the layer": lambda layer: layer.zero_grad(),
    "of a model around it": lambda layer: nn.Sequential(layer).zero_grad(),
    "of its optimizer": lambda layer: zloss.FactoredSGD(layer, 1.0).zero_grad(),
    "of another optimizer": lambda layer: torch.optim.Adam(layer.parameters()).zero_grad(),
    "of a model, in place": lambda layer: nn.Sequential(layer).zero_grad(set_to_none=False),
    "of another optimizer, in place": lambda layer: torch.optim.Adam(layer.parameters()).zero_grad(
        set_to_none=False
    ),
}


def test_a_mark_serves_until_somebody_writes_to_it(device: torch.device) -> None:
    layer = make_layer(device)
    marks = []
    for set_to_none in (True, True, False, True):
        loss_of(layer).backward()
        marks.append(layer.gradient_mark.grad)
        nn.Sequential(layer).zero_grad(set_to_none=set_to_none)
    assert marks[0] is marks[1] is marks[2], "no launch for a new one"
    assert marks[3] is not marks[2]
    assert marks[3] is not None
    assert marks[3].all()


@pytest.mark.parametrize("zero_grad", ZERO_GRADS.values(), ids=ZERO_GRADS.keys())
def test_zero_grad_from_anywhere_drops_the_record(
    zero_grad: Callable[[zloss.FactoredLinear], None], device: torch.device
) -> None:
    layer = make_layer(device)
    twin = copy.deepcopy(layer)
    loss_of(layer).backward()
    zero_grad(layer)
    assert layer.recorded_gradient() is None
    assert layer.grad_norm() == 0
    h, target = batch(layer)
    for each in (layer, twin):
        zloss.ZLoss(a=0.2, b=8.0)(each(h, target)).backward()
        each.step_(20.0)
    assert torch.equal(layer.weight(), twin.weight()), "only the later gradient counts"


def test_clipping_by_torch_does_not_drop_the_record(device: torch.device) -> None:
    layer, other = make_layer(device), nn.Linear(2, 2, device=device)
    loss_of(layer).backward()
    other(torch.ones(1, 2, device=device)).sum().backward()
    expected = torch.nn.utils.get_total_norm(
        [p.grad for p in other.parameters() if p.grad is not None]
    )
    norm = torch.nn.utils.clip_grad_norm_([*other.parameters(), *layer.parameters()], 1e-3)
    assert torch.equal(norm.to(expected), expected), "the mark adds nothing to it"
    with pytest.warns(UserWarning, match=r"use zloss\.clip_grad_norm_ or scale_grad_"):
        assert layer.recorded_gradient() is not None
    layer.zero_grad()
    loss_of(layer).backward()
    torch.nn.utils.clip_grad_norm_(
        layer.parameters(), 1.0
    )  # which multiplies all of them by 1, not knowing of this
    with pytest.warns(UserWarning, match=r"use zloss\.clip_grad_norm_ or scale_grad_"):
        assert layer.recorded_gradient() is not None


def test_zero_grad_of_another_optimizer_before_the_step_is_pointed_out(
    device: torch.device,
) -> None:
    layer = make_layer(device)
    loss_of(layer).backward()
    torch.optim.SGD(layer.parameters(), 0.1).zero_grad()
    with pytest.warns(UserWarning, match="take all steps first"):
        layer.step_(20.0)


def test_refactor_between_forward_and_backward_is_noticed(device: torch.device) -> None:
    layer = make_layer(device)
    train(layer)
    loss = loss_of(layer)
    layer.refactor()
    with pytest.raises(RuntimeError, match="was refactored"):
        loss.backward()


def test_step_between_forward_and_backward_is_noticed(device: torch.device) -> None:
    layer = make_layer(device)
    stale, fresh = loss_of(layer), loss_of(layer)
    fresh.backward()
    layer.step_(1.0)
    with pytest.raises(RuntimeError, match=r"took a step.* between this forward pass"):
        stale.backward()
    assert layer.recorded_gradient() is None


@pytest.mark.parametrize("rows", [4, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_refactor_between_backward_and_step_changes_nothing(
    dtype: torch.dtype, rows: int, device: torch.device
) -> None:
    layer = make_layer(device, dtype=dtype)
    train(layer)
    twin = copy.deepcopy(layer)
    loss_of(layer, rows).backward()
    record = layer.recorded_gradient()
    assert record is not None
    twin.record(record)
    layer.refactor()
    layer.step_(20.0)
    twin.step_(20.0)
    # Some roundings of V and, in float32, of products.
    assert relative_error(layer.weight(), twin.weight()) < 20 * torch.finfo(dtype).eps


def test_from_linear_stays_where_the_weights_are(device: torch.device) -> None:
    linear = nn.Linear(3, 7, device=device)
    assert zloss.FactoredLinear.from_linear(linear).V.device == device
    assert zloss.FactoredLinear.from_linear(linear, device=None).V.device == device


def test_from_linear_takes_device_and_options(device: torch.device) -> None:
    layer = zloss.FactoredLinear.from_linear(
        nn.Linear(3, 7, bias=False), device=device, dtype=torch.float64, ignore_index=-1
    )
    assert layer.V.device == device
    assert layer.V.dtype == torch.float64
    assert layer.ignore_index == -1
    centred = layer.weight() - layer.weight().mean(0)
    assert relative_error(layer.gram, centred.T @ centred) < 1e-14


def test_forgotten_optimizer_is_pointed_out(device: torch.device) -> None:
    layer = make_layer(device)
    loss_of(layer).backward()
    gradient = layer.recorded_gradient()
    assert gradient is not None
    for _ in range(98):
        layer.record(gradient)
    with pytest.warns(UserWarning, match="without a step"):
        layer.record(gradient)


def test_an_optimizer_that_passes_over_the_layer_is_pointed_out(device: torch.device) -> None:
    """Which drops the gradient every time, as it does those that it has used."""
    layer = make_layer(device)
    optimizer = torch.optim.Adam(layer.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss_of(layer).backward()
        optimizer.step()

    for _ in range(99):
        step()
    with pytest.warns(UserWarning, match="give this layer to a FactoredSGD"):
        step()


# ---- writes of others ------------------------------------------------------------------------------------------------


def test_what_an_initialiser_writes_is_the_weight(device: torch.device) -> None:
    """Statistics and steps are those of the new rows."""
    layer = make_layer(device)
    nn.init.normal_(layer.V, std=0.02)
    twin = zloss.FactoredLinear.from_linear(layer.to_linear(), synchronous=True)
    h, target = batch(layer)
    for each in (layer, twin):
        zloss.ZLoss(a=0.2, b=8.0)(each(h, target)).backward()
        each.step_(20.0)
    assert relative_error(layer.weight(), twin.weight()) < 1e-12
    assert relative_error(layer.gram, twin.gram) < 1e-12


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


def test_a_write_between_backward_and_step_is_refused(device: torch.device) -> None:
    layer = make_layer(device)
    loss_of(layer).backward()
    with torch.no_grad():
        layer.V.mul_(0.9)
    with pytest.raises(ValueError, match="step first"):
        layer.step_(20.0)


@pytest.mark.parametrize("looks_each_time", [False, True])
def test_all_of_it_may_be_overwritten_together(looks_each_time: bool, device: torch.device) -> None:
    """As by a broadcast of everything."""
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


def test_an_average_of_factors_is_refused(device: torch.device) -> None:
    """Which torch makes of V, while it copies U and the rest."""
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


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_knows_its_own_writes(
    copied: Callable[..., zloss.FactoredLinear], device: torch.device
) -> None:
    layer = make_layer(device)
    train(layer)
    twin = copied(layer)
    h, target = batch(layer)
    for each in (layer, twin):
        zloss.ZLoss(a=0.2, b=8.0)(each(h, target)).backward()
        each.step_(20.0)
    assert torch.equal(layer.weight(), twin.weight())


def test_the_batch_may_be_overwritten_before_the_step(device: torch.device) -> None:
    layer = make_layer(device)
    twin = copy.deepcopy(layer)
    h, target = batch(layer)
    for each, given in ((layer, h.detach().clone()), (twin, h.detach().clone())):
        zloss.ZLoss(a=0.2, b=8.0)(each(given, target)).backward()
        if each is layer:
            given.zero_()
        each.step_(20.0)
    assert torch.equal(layer.weight(), twin.weight())


def test_gradient_of_h_by_gradcheck(device: torch.device) -> None:
    layer = make_layer(device, bias=True)
    target = torch.tensor([[1, 2], [3, -100], [4, 4]], device=device)

    def statistics(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stats = layer(h, target)
        return stats.target, stats.sum, stats.sumsq

    h = torch.randn(3, HIDDEN, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(statistics, (h,))


def test_record_does_not_keep_the_network_below_alive(device: torch.device) -> None:
    layer = make_layer(device)
    x = torch.randn(4, HIDDEN, dtype=torch.float64, device=device, requires_grad=True)
    zloss.ZLoss(a=0.2, b=8.0)(layer(x * 2, torch.randint(CLASSES, (4,), device=device))).backward()
    gradient = layer.recorded_gradient()
    assert gradient is not None
    tensors = [value for value in vars(gradient).values() if isinstance(value, Tensor)]
    assert len(tensors) >= 8
    assert not any(tensor.requires_grad for tensor in tensors)


# ---- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_half_precision_activations(low: torch.dtype, device: torch.device) -> None:
    layer = make_layer(device, dtype=torch.float32)
    h = torch.randn(4, HIDDEN, device=device, dtype=low, requires_grad=True)
    target = torch.randint(CLASSES, (4,), device=device)
    stats = layer(h, target)
    assert stats.mean.dtype == torch.float32
    expected = zloss.SphericalStats.from_logits(layer.logits(h), target)
    assert relative_error(stats.scatter, expected.scatter) < 1e-5  # float32 sums of 50 terms
    zloss.ZLoss(a=0.2, b=8.0)(stats).backward()
    assert h.grad is not None
    assert h.grad.dtype == low
    assert h.grad.any()


def test_autocast_and_reduced_precision_do_not_reach_the_layer(device: torch.device) -> None:
    """Under autocast and TF32 the layer computes what it computes without them, bit for bit."""
    layer = make_layer(device, dtype=torch.float32, state_dtype=torch.float32)
    h, target = batch(layer, rows=8)

    def one_step(layer: zloss.FactoredLinear) -> tuple[Tensor, Tensor, Tensor]:
        stats = layer(h.detach(), target)
        zloss.ZLoss(a=0.2, b=8.0)(stats).backward()
        layer.step_(20.0)
        return stats.scatter.detach(), layer.weight(), layer.logits(h.detach())

    expected = one_step(copy.deepcopy(layer))
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast(device.type, dtype=torch.bfloat16):
            values = one_step(layer)
        assert torch.get_float32_matmul_precision() == "medium", "the user's setting is given back"
    finally:
        torch.set_float32_matmul_precision(precision)
    for value, reference in zip(values, expected, strict=True):
        assert torch.equal(value, reference)


def test_network_under_autocast_trains(device: torch.device) -> None:
    trunk = nn.Linear(5, HIDDEN, device=device)
    layer = make_layer(device, dtype=torch.float32)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        h = trunk(torch.randn(7, 5, device=device))
        assert h.dtype == torch.bfloat16
        loss = zloss.ZLoss(a=0.2, b=8.0)(layer(h, torch.randint(CLASSES, (7,), device=device)))
    loss.backward()
    assert trunk.weight.grad is not None
    assert trunk.weight.grad.dtype == torch.float32
    assert trunk.weight.grad.any()


def test_state_dtype_follows_the_device_and_the_weights(device: torch.device) -> None:
    layer = zloss.FactoredLinear(HIDDEN, CLASSES, device=device)
    assert layer.V.dtype == torch.float32
    train_free = layer.U.dtype
    if device.type == "cpu":
        assert train_free == torch.float64
    assert (
        zloss.FactoredLinear(4, 9, device=device, state_dtype=torch.float32).gram.dtype
        == torch.float32
    )


# ---- moving, saving, copying -----------------------------------------------------------------------------------------


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


def test_half_precision_weights_are_refused_and_nothing_changes(device: torch.device) -> None:
    layer = make_layer(device)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    with pytest.raises(ValueError, match=r"float32 or torch\.float64, got torch\.float16"):
        layer.half()
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


def test_state_dict_is_plain_and_complete(device: torch.device, tmp_path: Path) -> None:
    layer = make_layer(device, bias=True)
    train(layer)
    state = layer.state_dict()
    assert set(state) == {"V", "U", "U_inv", "omega", "wbar", "gram"}
    save_file(state, tmp_path / "layer.safetensors")
    restored = make_layer(device, bias=True)
    restored.load_state_dict(load_file(tmp_path / "layer.safetensors", device=str(device)))
    torch.manual_seed(1)
    train(layer)
    torch.manual_seed(1)
    train(restored)
    assert torch.equal(restored.weight(), layer.weight()), "training goes on bit for bit"


def test_state_dict_tensors_stay_consistent_while_training(device: torch.device) -> None:
    layer = make_layer(device)
    state = layer.state_dict()
    train(layer)
    weight = state["V"] @ state["U"] + state["omega"]
    assert relative_error(weight, layer.weight()) < 1e-14


def test_wrong_shapes_do_not_load(device: torch.device) -> None:
    layer = make_layer(device)
    train(layer)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"(?s)none of them was loaded.*size mismatch for V"):
        layer.load_state_dict(zloss.FactoredLinear(HIDDEN, CLASSES + 1).state_dict())
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


def test_a_part_of_the_factors_does_not_load(device: torch.device) -> None:
    """W = V U + 1 omega^T: with the V of another layer alone it would be the weights of neither."""
    layer = make_layer(device)
    train(layer)
    before = layer.weight()
    with pytest.raises(RuntimeError, match="none of them was loaded"):
        layer.load_state_dict({"V": torch.zeros_like(layer.V)}, strict=False)
    assert layer.load_state_dict({}, strict=False).missing_keys == [
        "V",
        "U",
        "U_inv",
        "omega",
        "wbar",
        "gram",
    ]
    assert torch.equal(layer.weight(), before)


@pytest.mark.parametrize("assign", [True, False])
def test_a_checkpoint_in_half_precision_makes_one_matrix(
    assign: bool, device: torch.device
) -> None:
    """Rounded one by one, its factors do not fit each other: they are made anew from the matrix that they come to."""
    layer, other = make_layer(device, dtype=torch.float32), make_layer(device, dtype=torch.float32)
    train(layer)
    other.load_state_dict(
        {name: tensor.half() for name, tensor in layer.state_dict().items()}, assign=assign
    )
    assert other.V.dtype == torch.float32
    # Half precision has eps = 1e-3, and a product of two factors rounds twice.
    assert relative_error(other.weight(), layer.weight()) < 5e-3
    centred = other.weight().double() - other.weight().double().mean(0)
    assert relative_error(other.gram, centred.T @ centred) < 1e-6
    train(other)


def test_loading_drops_the_recorded_gradient(device: torch.device) -> None:
    layer, other = make_layer(device), make_layer(device)
    loss_of(layer).backward()
    layer.load_state_dict(other.state_dict())
    layer.step_(20.0)
    assert torch.equal(layer.weight(), other.weight())


def test_a_copy_is_independent_and_has_no_gradient(device: torch.device) -> None:
    """As with torch's own layers, whose gradients deepcopy leaves behind."""
    layer = make_layer(device)
    loss_of(layer).backward()
    twin = copy.deepcopy(layer)
    before = twin.weight()
    layer.step_(20.0)
    assert torch.equal(twin.weight(), before)
    assert twin.recorded_gradient() is None
    twin.step_(20.0)
    assert torch.equal(twin.weight(), before)
    train(twin)


def test_built_on_the_meta_device(device: torch.device) -> None:
    with torch.device("meta"):
        layer = zloss.FactoredLinear(HIDDEN, CLASSES, dtype=torch.float64)
    source = make_layer(device)
    train(source)
    layer = layer.to_empty(device=device)
    layer.load_state_dict(source.state_dict())
    assert torch.equal(layer.weight(), source.weight())


# ---- nn.Linear -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_round_trip_is_exact(bias: bool, dtype: torch.dtype, device: torch.device) -> None:
    linear = nn.Linear(HIDDEN, CLASSES, bias=bias, dtype=dtype, device=device)
    back = zloss.FactoredLinear.from_linear(linear).to_linear()
    assert torch.equal(back.weight, linear.weight)
    assert back.weight.dtype == dtype
    assert back.weight.requires_grad
    assert (back.bias is None) == (not bias)
    if bias:
        assert torch.equal(back.bias, linear.bias)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
def test_the_checkpoint_of_a_linear_loads(
    bias: bool, dtype: torch.dtype, assign: bool, device: torch.device
) -> None:
    """Of a model that had one where this layer is now."""
    linear = nn.Linear(HIDDEN, CLASSES, bias=bias, dtype=dtype, device=device)
    checkpoint = nn.Sequential(nn.Linear(3, HIDDEN, device=device), linear).state_dict()
    layer = make_layer(device, bias=bias)
    train(layer)
    model = nn.Sequential(nn.Linear(3, HIDDEN, device=device), layer)
    assert model.load_state_dict(checkpoint, assign=assign) == ([], [])
    assert torch.equal(layer.weight(), linear.weight.double())
    loaded_bias = layer.bias()
    assert (loaded_bias is None) == (not bias)
    assert loaded_bias is None or torch.equal(loaded_bias, linear.bias.double())
    expected = zloss.FactoredLinear.from_linear(linear.double())
    for each in (layer, expected):
        torch.manual_seed(1)
        train(each)
    assert relative_error(layer.weight(), expected.weight()) < 1e-13


def test_the_checkpoint_of_a_linear_loads_where_there_is_no_memory_yet() -> None:
    linear = nn.Linear(HIDDEN, CLASSES, bias=False)
    layer = zloss.FactoredLinear(HIDDEN, CLASSES, device="meta")
    layer.load_state_dict(linear.state_dict(), assign=True)
    assert torch.equal(layer.weight(), linear.weight)
    train(layer)


@pytest.mark.parametrize(
    ("linear", "told"),
    [
        (
            nn.Linear(HIDDEN, CLASSES + 1, bias=False),
            rf"shape \({CLASSES + 1}, {HIDDEN}\) instead of \({CLASSES}, {HIDDEN}\)",
        ),
        (nn.Linear(HIDDEN, CLASSES), "it has a bias: build this layer with bias=True"),
    ],
)
def test_the_checkpoint_of_another_linear_does_not_load(
    linear: nn.Linear, told: str, device: torch.device
) -> None:
    layer = make_layer(device)
    train(layer)
    before = layer.weight()
    with pytest.raises(RuntimeError, match=told) as refused:
        layer.load_state_dict(linear.state_dict())
    assert "key" not in str(refused.value), "one reason is enough"
    assert torch.equal(layer.weight(), before)


@pytest.mark.parametrize("bias", [False, True])
def test_trained_layer_exports_what_it_computes(bias: bool, device: torch.device) -> None:
    layer = make_layer(device, bias=bias)
    train(layer)
    h, target = batch(layer)
    logits = layer.to_linear()(h)
    assert relative_error(layer.logits(h), logits) < 1e-13
    stats, expected = layer(h, target), zloss.SphericalStats.from_logits(logits, target)
    for name in ("target", "sum", "sumsq", "variance", "z"):
        assert relative_error(getattr(stats, name), getattr(expected, name)) < 1e-12, name


def test_initial_weights_are_distributed_as_those_of_linear(device: torch.device) -> None:
    layer = zloss.FactoredLinear(64, 2000, device=device)
    bound = 64**-0.5
    assert layer.V.abs().max() <= bound
    # Standard deviation of 128,000 uniform numbers: 1 % is more than four standard errors.
    assert layer.V.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)


# What the factored form brings: its factors, the recorded gradient, steps, refactors, verdicts and captures.
OF_THE_FACTORED_FORM = {
    *("adopt_rows", "factors", "materialised", "matrix", "product_dtype", "reset_parameters"),
    *("grad_norm", "record", "recorded_gradient", "scale_grad_", "is_grad_unscaled"),
    *("unscale_grad_", "step_", "refactor", "refactors", "condition", "max_condition", "drift"),
    *("raise_faults", "synchronous", "waits_for_device", "uses_kernels", "begin_capture"),
    *("end_capture", "settle_foreign_writes"),
}


def test_dense_layer_has_the_same_interface() -> None:
    def public(layer: type) -> set[str]:
        return {name for name in dir(layer) if not name.startswith("_")}

    own = public(zloss.FactoredLinear) - set(dir(nn.Module))
    assert own - public(zloss.DenseLinear) == OF_THE_FACTORED_FORM


def test_moving_it_to_where_it_is_keeps_the_gradient(device: torch.device) -> None:
    layer = make_layer(device)
    loss_of(layer).backward()
    norm = layer.grad_norm()
    assert norm > 0
    layer.to(device).to(layer.V.dtype)
    assert torch.equal(layer.grad_norm(), norm)
    with pytest.warns(UserWarning, match="step first"):
        layer.to(torch.float32)
    assert layer.grad_norm() == 0


def test_zeros_written_to_the_data_of_gradients_drop_it() -> None:
    layer = make_layer(torch.device("cpu"))
    loss_of(layer).backward()
    for parameter in layer.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()
    assert layer.grad_norm() == 0


@pytest.mark.parametrize("ignored", [0, -1])
def test_a_loss_that_ignores_another_target_is_refused(ignored: int, device: torch.device) -> None:
    layer, gram = (
        make_layer(device),
        zloss.GramLinear(HIDDEN, CLASSES, device=device, dtype=torch.float64),
    )
    loss = zloss.ZLoss(a=0.2, b=8.0, ignore_index=ignored)
    for each in (layer, gram):
        with pytest.raises(ValueError, match=f"say it to the layer, ignore_index={ignored}"):
            loss(each(*batch(layer)))
    told = make_layer(device, ignore_index=ignored)
    assert torch.isfinite(loss(told(*batch(told))))
    assert torch.isfinite(zloss.ZLoss(a=0.2, b=8.0)(told(*batch(told)))), (
        "where the loss was told nothing"
    )


def test_repr_tells_the_essentials(device: torch.device) -> None:
    text = repr(make_layer(device))
    assert f"in_features={HIDDEN}, num_classes={CLASSES}" in text
    assert "state_dtype=torch.float64" in text


def test_training_with_another_optimizer_over_all_parameters(device: torch.device) -> None:
    """`model.parameters()` may go to any optimizer: it passes over V, which only FactoredSGD moves."""
    twins = make_twins(HIDDEN, CLASSES, device=device, synchronous=True)
    layer = twins.factored
    before = layer.weight()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adam = torch.optim.Adam(layer.parameters(), lr=0.1, weight_decay=0.1)
        loss_of(layer).backward()
        adam.step()
    assert torch.equal(layer.weight(), before)
