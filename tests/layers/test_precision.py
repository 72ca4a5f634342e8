"""The arithmetic of the layer is its own, whatever the user has set for the rest of the network."""

import subprocess
import sys

import pytest
import torch

from zloss.layers.precision import check_dtypes, default_product_dtype, default_state_dtype

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


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="this torch has only the older switch")
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
    probe = subprocess.run([sys.executable, "-W", "ignore", "-c", PROBE.format(setting=setting)], capture_output=True)
    assert probe.returncode == 0, probe.stderr.decode()


def test_dtypes_by_device() -> None:
    cpu = torch.device("cpu")
    assert default_state_dtype(cpu) == torch.float64
    assert default_state_dtype(torch.device("mps")) == torch.float32
    assert default_product_dtype(cpu, torch.float32) == torch.float32
    assert default_product_dtype(cpu, torch.float64) == torch.float64


def test_what_is_coarser_than_the_weights_is_refused() -> None:
    check_dtypes(torch.float32, torch.float64, torch.float32)
    with pytest.raises(ValueError, match=r"product_dtype torch\.float32 is coarser than dtype torch\.float64"):
        check_dtypes(torch.float64, torch.float64, torch.float32)
