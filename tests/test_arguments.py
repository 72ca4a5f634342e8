"""Arguments of the wrong kind: one ValueError in our words, for everything that shares a check."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zloss
from zloss.inputs import FLOATS, as_float, check_device, check_number, check_tensor, shown

WIDTH, CLASSES, ROWS = 4, 12, 6


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, WIDTH), torch.randint(CLASSES, (ROWS,))


LAYERS: dict[str, Callable[..., Any]] = {
    "factored": zloss.FactoredLinear,
    "dense": zloss.DenseLinear,
    "gram": zloss.GramLinear,
    **{
        f"{name} head": lambda *sizes, name=name: zloss.HeadConfig(head=name).build(*sizes)
        for name in ("factored", "gram", "dense", "hierarchical", "adaptive", "sampled")
    },
}
BAD_HIDDEN: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "8 bits": (lambda h: h.to(torch.float8_e4m3fn), "got dtype torch.float8_e4m3fn"),
    "sparse": (lambda h: h.to_sparse(), r"layout torch.sparse_coo: give its to_dense\(\)"),
    "compressed": (lambda h: h.to_sparse_csr(), "layout torch.sparse_csr"),
    "nested": (lambda h: torch.nested.nested_tensor([h, h[:2]]), "got a nested tensor"),
    "jagged": (
        lambda h: torch.nested.nested_tensor([h, h[:2]], layout=torch.jagged),
        "got a nested tensor",
    ),
    "quantised": (
        lambda h: torch.quantize_per_tensor(h, 0.1, 0, torch.qint8),
        "got dtype torch.qint8",
    ),
    "an array": (lambda h: h.numpy(), "got ndarray"),
}


@pytest.mark.filterwarnings(
    "ignore"
)  # of torch, which will not have some of these tensors any more
@pytest.mark.parametrize("bad", BAD_HIDDEN)
@pytest.mark.parametrize("name", LAYERS)
def test_tensors_that_nothing_can_compute_with(name: str, bad: str) -> None:
    layer = LAYERS[name](WIDTH, CLASSES)
    spoil, message = BAD_HIDDEN[bad]
    h, target = batch()
    for use in (
        lambda h: layer(h, target),
        lambda h: layer.topk(h, 2),
        lambda h: layer.rank(h, target),
        layer.scores,
    ):
        with pytest.raises(ValueError, match=f"h must be .*{message}"):
            use(spoil(h))
    rename: Any = getattr(h, "rename", None)  # torch 2.13 has no named dimensions any more
    if rename is not None:
        with pytest.raises(ValueError, match="named dimensions"):
            layer(rename("B", "H"), target)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_without_memory_says_so(name: str) -> None:
    layer = LAYERS[name](WIDTH, CLASSES).to("meta")
    h, target = batch()
    with pytest.raises(ValueError, match="the device meta, which has no values"):
        layer(h.to("meta"), target.to("meta"))
    with pytest.raises(ValueError, match="h is on cpu but the layer is on meta"):
        layer(h, target)


@pytest.mark.parametrize("name", LAYERS)
def test_half_precision_is_converted_everywhere(name: str) -> None:
    layer = LAYERS[name](WIDTH, CLASSES)
    h, target = batch()
    torch.manual_seed(1)
    half = layer.scores(h.half()).all()
    assert torch.equal(half, layer.scores(h.half().float()).all())
    layer(h.half(), target)


@pytest.mark.parametrize("value", [None, -1.5, True, "pad", torch.tensor(3), 10**30])
def test_ignore_index_is_a_whole_number(value: Any) -> None:
    makers: list[Callable[..., Any]] = [
        *(lambda make=make, **options: make(WIDTH, CLASSES, **options) for make in LAYERS.values()),
    ][:3]
    makers += [
        lambda **options: zloss.SampledSoftmax(WIDTH, CLASSES, **options),
        lambda **options: zloss.HierarchicalSoftmax(WIDTH, CLASSES, **options),
        lambda **options: zloss.AdaptiveSoftmax(WIDTH, CLASSES, **options),
        zloss.SquaredError,
        zloss.SoftmaxCrossEntropy,
        zloss.HeadConfig,
        lambda **options: zloss.SphericalStats.from_logits(
            torch.randn(2, 3), torch.tensor([0, 1]), **options
        ),
    ]
    for make in makers:
        with pytest.raises(ValueError, match="ignore_index must be a whole number, got"):
            make(ignore_index=value)
        make(ignore_index=np.int64(-1))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool, torch.float8_e4m3fn])
def test_row_weights_are_real(dtype: torch.dtype) -> None:
    logits, target = torch.randn(ROWS, CLASSES), torch.randint(CLASSES, (ROWS,))
    weight = torch.ones(ROWS).to(dtype)
    losses: list[Any] = [
        zloss.SquaredError(),
        zloss.TaylorSoftmax(),
        zloss.SoftmaxCrossEntropy(),
        zloss.SigmoidCrossEntropy(),
        zloss.ZNormalized(zloss.SoftmaxCrossEntropy(), a=2.0),
    ]
    for loss in losses:
        with pytest.raises(
            ValueError, match=f"weight must be a tensor of real .*got dtype {dtype}"
        ):
            loss(logits, target, weight=weight)
        assert loss(logits, target, weight=torch.ones(ROWS).long()).isfinite()


def test_fractions_of_things() -> None:
    classes = torch.tensor([0, 1])
    for sampler in (
        zloss.UniformSampler(5),
        zloss.LogUniformSampler(5),
        zloss.UnigramSampler(torch.ones(5)),
    ):
        with pytest.raises(ValueError, match=r"num_samples must be a whole number.* got 2\.5"):
            sampler.draw(2.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="classes must be a tensor of integers"):
            sampler.log_prob(classes + 0.5)
        with pytest.raises(ValueError, match="classes must hold numbers from 0 to 4, got 5"):
            sampler.log_prob(classes + 4)
    with pytest.raises(ValueError, match=r"num_classes must be a whole number.* got 5\.5"):
        zloss.UniformSampler(5.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"num_classes must be a whole number.* got 3\.5"):
        zloss.SphericalStats(*(torch.ones(2),) * 3, 3.5)  # type: ignore[arg-type]
    layer = zloss.FactoredLinear(WIDTH, CLASSES)
    with pytest.raises(ValueError, match=r"k must be between 1 .*, got 2\.5"):
        layer.topk(batch()[0], 2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"block_size must be at least 1 class, got 2\.5"):
        layer.topk(batch()[0], 2, block_size=2.5)  # type: ignore[arg-type]


def test_classes_of_8_bits_are_no_mask() -> None:
    """Torch takes a uint8 index for a mask of bools."""
    wide = torch.tensor([1, 0, 1, 4])
    for sampler in (
        zloss.UnigramSampler(torch.arange(5)),
        zloss.LogUniformSampler(5, counts=torch.arange(5)),
    ):
        assert torch.equal(sampler.log_prob(wide.to(torch.uint8)), sampler.log_prob(wide))


@pytest.mark.parametrize("bad", ["0.1", 1j, None, float("nan"), True, [0.1], -1, 10**30])
def test_rates_are_numbers(bad: Any) -> None:
    layer = zloss.FactoredLinear(WIDTH, CLASSES)
    head = zloss.HierarchicalSoftmax(WIDTH, CLASSES)
    uses: list[Callable[[], object]] = [
        lambda: zloss.RowSGD(head.parameters(), bad),
        lambda: zloss.RowAdam(head.parameters(), bad),
        lambda: head.sgd(bad),
        lambda: layer.step_(bad),
        lambda: zloss.FactoredSGD([{"layers": [layer], "lr": bad}], 1.0),
        lambda: zloss.FactoredSGD([{"layers": [layer], "relative_lr": bad}], 1.0),
    ]
    if bad is not None:  # which stands for the default
        uses += [
            lambda: zloss.FactoredSGD(layer, bad),
            lambda: zloss.FactoredSGD(layer, relative_lr=bad),
        ]
    for use in uses:
        with pytest.raises(ValueError, match="lr must be a finite number >= 0, got"):
            use()


def test_options_are_checked_before_the_first_batch() -> None:
    bad: list[tuple[Callable[[], object], str]] = [
        (lambda: zloss.HierarchicalSoftmax(4, 9, implementation="cuda"), "implementation must be"),
        (
            lambda: zloss.HierarchicalSoftmax(4, 9, bias="no"),  # type: ignore[arg-type]
            "bias must be True or False, got 'no'",
        ),
        (lambda: zloss.FactoredLinear(4, 9, synchronous=1), "synchronous must be True or False"),  # type: ignore[arg-type]
        (lambda: zloss.DenseLinear(4, 9, device="tpu"), "device must be a device that is there"),
        (lambda: zloss.DenseOutput(4, 9, dtype=torch.int32), "dtype must be one of"),
        (lambda: zloss.DenseOutput(4, 9, loss="softmax"), "loss must be a module"),  # type: ignore[arg-type]
        (lambda: zloss.FactoredLinear(2**40, 2**40), "more than any memory holds"),
        (lambda: zloss.FactoredLinear.from_linear("linear"), "linear must be an nn.Linear"),  # type: ignore[arg-type]
        (lambda: zloss.CapturedStep(None), "step must be a function"),  # type: ignore[arg-type]
        (lambda: zloss.SampledSoftmax(4, 9, generator=3), "generator must be a torch.Generator"),  # type: ignore[arg-type]
    ]
    for make, message in bad:
        with pytest.raises(ValueError, match=message):
            make()


def test_numbers() -> None:
    for fine in (
        1,
        0.5,
        np.float32(2),
        np.int64(3),
        torch.tensor(1.5),
        torch.ones(1, dtype=torch.int8),
    ):
        check_number("x", fine, above=0)
        assert as_float(fine) == float(fine)
    with pytest.raises(ValueError, match=r"x must be a finite number > 0, got 0"):
        check_number("x", 0, above=0)


def test_a_value_in_a_message_is_short_and_harmless() -> None:
    assert shown("\x1b[31mred\u202e") == r"'\x1b[31mred\u202e'"
    assert len(shown("x" * 10**6)) < 100
    assert "\n" not in shown(nn.Linear(2, 3))
    assert shown(torch.zeros(3, 2)) == "a torch.float32 tensor of shape (3, 2)"


def test_a_device_has_to_be_there() -> None:
    check_device("device", None)
    check_device("device", "cuda", must_exist=False)
    with pytest.raises(ValueError, match="device must be a device that is there"):
        check_device("device", "cuda:99")
    with pytest.raises(ValueError, match="device must be a device that is there"):
        check_device("device", True)


def test_tensors() -> None:
    with pytest.raises(
        ValueError, match=r"x must be .* of shape \(2,\) on cpu, got torch.float32 \(3,\)"
    ):
        check_tensor("x", torch.ones(3), FLOATS, like=torch.ones(2))
