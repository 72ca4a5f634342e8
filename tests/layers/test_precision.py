"""The arithmetic of the layer is its own, whatever the user has set for the rest of the network."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import zloss
from zloss import precision
from zloss.precision import check_dtypes, default_product_dtype, finest_dtype

PROBE = """
import torch, zloss
{setting}
def told():
    return torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision

def one_step():
    torch.manual_seed(0)
    layer = zloss.FactoredLinear(64, 500, state_dtype=torch.float32)
    zloss.ZLoss(a=0.1, b=5.0)(layer(torch.randn(40, 64), torch.arange(40))).backward()
    layer.step_(10.0)
    return layer.weight()

before, weight = told(), one_step()
assert told() == before, (told(), before)
torch.backends.fp32_precision = torch.backends.cuda.matmul.fp32_precision = "ieee"
torch.backends.mkldnn.matmul.fp32_precision = "ieee"
assert torch.equal(one_step(), weight)
"""


@pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"), reason="this torch has only the older switch"
)
@pytest.mark.parametrize(
    "setting",
    [
        "torch.set_float32_matmul_precision('medium')",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
        "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
        "torch.backends.fp32_precision = 'tf32'",
    ],
)
def test_any_way_to_ask_for_coarse_products(setting: str) -> None:
    """In a process of its own: torch does not let one process go back from the newer switches to the older."""
    probe = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE.format(setting=setting)], capture_output=True
    )
    assert probe.returncode == 0, probe.stderr.decode()


def test_dtypes_by_device() -> None:
    cpu = torch.device("cpu")
    assert finest_dtype(cpu) == torch.float64
    assert finest_dtype(torch.device("mps")) == torch.float32
    assert default_product_dtype(cpu, torch.float32) == torch.float32
    assert default_product_dtype(cpu, torch.float64) == torch.float64


def test_what_is_coarser_than_the_weights_is_refused() -> None:
    check_dtypes(torch.float32, torch.float64, torch.float32)
    with pytest.raises(
        ValueError, match=r"product_dtype torch\.float32 is coarser than dtype torch\.float64"
    ):
        check_dtypes(torch.float64, torch.float64, torch.float32)


class WithoutFloat64(TorchDispatchMode):
    """Has the CPU refuse float64, as the GPUs of Apple do."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten.randn.generator:  # what is drawn on the host and then moved
            for tensor in tree_leaves(result):
                refuse_float64(tensor)
        return result


def refuse_float64(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.float64:
        raise TypeError("this device has no float64")
    return value


def train(layer: zloss.FactoredLinear) -> None:
    loss_of, optimizer = (
        zloss.ZLoss(a=0.3, b=5.0),
        zloss.FactoredSGD(layer, lr=3.0, weight_decay=1e-3),
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        h, target = (
            torch.randn(8, 16, generator=generator),
            torch.randint(500, (8,), generator=generator),
        )
        loss_of(layer(h, target)).backward()
        zloss.clip_grad_norm_(layer, 1.0)
        optimizer.step()


def test_a_device_without_float64_trains_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is float32 there, so that a step rounds the state and not only its change: to some 1e-7 of W each."""
    torch.manual_seed(0)
    layer, moved = zloss.FactoredLinear(16, 500), zloss.FactoredLinear(16, 500)
    moved.load_state_dict(layer.state_dict())
    start = layer.weight()
    train(layer)
    monkeypatch.setattr(precision, "_WITHOUT_FLOAT64", {"cpu"})
    moved._apply(refuse_float64)  # what `.to` such a device does
    assert moved.gram.dtype == torch.float32
    with WithoutFloat64():  # type: ignore[no-untyped-call]
        train(moved)
        moved.refactor()
        weight = moved.weight()
    assert (weight - layer.weight()).norm() < 1e-5 * (layer.weight() - start).norm()


def test_ranks_on_a_device_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, h = zloss.FactoredLinear(16, 500), torch.randn(4, 16)
    expected = layer.rank(h, torch.arange(4))
    monkeypatch.setattr(precision, "_WITHOUT_FLOAT64", {"cpu"})
    layer._apply(refuse_float64)
    with WithoutFloat64():  # type: ignore[no-untyped-call]
        assert torch.equal(layer.rank(h, torch.arange(4)), expected)
        assert layer.topk(h, k=5)[1].shape == (4, 5)
