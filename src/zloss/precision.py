"""The arithmetic of exact updates: its dtypes, and contexts that keep coarser settings of torch away from it.

A factored layer uses three dtypes:

- The **weights** V are float32 or float64, as the user asks.
- The small H x H **state** is float64, because a step may change it by only one part in C. Float32 would round such
  changes away, at every step in the same direction.
- **Products** may be float32 where that is faster. They compute the *change* of the state, and the state adds the
  changes up. So their rounding errors are relative to the change.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from zloss.inputs import shown

# CUDA compute capabilities whose float64 matrix products run about as fast as float32 ones: P100, V100, A100, H100 and
# H200, B200. Consumer cards run them at 1/32 or 1/64 of that speed.
_FAST_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
# Capabilities whose TF32 products are many times as fast as float32 ones: A100, H100 and H200, B200.
_FAST_TF32 = {(8, 0), (9, 0), (10, 0)}
_WITHOUT_FLOAT64 = {"mps"}
_BEYOND_TF32 = 2**13 - 1  # bits of a float32 that TF32 does not have


def finest_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 for a device without float64."""
    return torch.float32 if device.type in _WITHOUT_FLOAT64 else torch.float64


def default_product_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Return float64 if its products cost no more on this device, else the dtype of the weights."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) in _FAST_FLOAT64:
        return torch.float64
    return dtype


def check_dtypes(
    dtype: torch.dtype, state_dtype: torch.dtype | None, product_dtype: torch.dtype | None
) -> None:
    """Refuse dtypes that cannot hold small updates, and a state or products that are coarser than the weights."""
    for name, value in (
        ("dtype", dtype),
        ("state_dtype", state_dtype),
        ("product_dtype", product_dtype),
    ):
        is_fit = isinstance(value, torch.dtype) and value in (torch.float32, torch.float64)
        if value is not None and not is_fit:
            raise ValueError(
                f"{name} must be torch.float32 or torch.float64, got {shown(value)}; "
                "for half precision, run the layers below under autocast, or convert them alone"
            )
        if value is not None and torch.promote_types(dtype, value) != value:
            raise ValueError(f"{name} {value} is coarser than dtype {dtype}")


def splits_pay(tensor: Tensor) -> bool:
    """Return True if a float32 product with this tensor is faster as three TF32 products: see `tf32_parts`."""
    is_float32_on_gpu = tensor.is_cuda and tensor.dtype == torch.float32
    return is_float32_on_gpu and torch.cuda.get_device_capability(tensor.device) in _FAST_TF32


def tf32_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Split float32 numbers as `x = high + low`.

    TF32 holds `high` exactly, and `low` to 11 bits, which is 2^-21 of x. So `a @ b` in float32 equals
    `a_high @ b_high + a_high @ b_low + a_low @ b_high`, with all three products in TF32.
    """
    high = (x.view(torch.int32) & ~_BEYOND_TF32).view(torch.float32)
    return high, x - high


@contextmanager
def tf32_products(wanted: bool = True) -> Iterator[None]:
    """Run matrix products on a GPU in TF32, if `wanted`."""
    switches: Any = torch.backends
    has_new_switch = hasattr(
        switches, "fp32_precision"
    )  # torch 2.9; it must not be mixed with the old one
    name, tf32 = ("fp32_precision", "tf32") if has_new_switch else ("allow_tf32", True)
    matmul = switches.cuda.matmul
    before = getattr(matmul, name)
    if before == tf32 or not wanted:
        yield
        return
    setattr(matmul, name, tf32)
    try:
        yield
    finally:
        # "none" follows torch.backends.fp32_precision, which is where an equal value came from.
        is_inherited = has_new_switch and before == switches.fp32_precision
        setattr(matmul, name, "none" if is_inherited else before)


@contextmanager
def exact_products(device_type: str) -> Iterator[None]:
    """Run matrix products in the dtype of their operands: no autocast, no TF32, no bfloat16 short cuts.

    A user may well want these for the rest of the network. An exact update cannot use them.
    """
    no_autocast = (
        nullcontext() if device_type == "meta" else torch.autocast(device_type, enabled=False)
    )
    with _full_float32(), no_autocast:
        yield


def _full_float32() -> AbstractContextManager[None]:
    return (
        _full_float32_by_backend()
        if hasattr(torch.backends, "fp32_precision")
        else _full_float32_legacy()
    )


@contextmanager
def _full_float32_by_backend() -> Iterator[None]:
    # Each backend by itself: torch's older global switch refuses to work once a user has set a backend's own.
    switches: Any = torch.backends
    backends = [switches.cuda.matmul, switches.mkldnn.matmul]
    coarse = [
        (backend, backend.fp32_precision)
        for backend in backends
        if backend.fp32_precision in ("tf32", "bf16")
    ]
    for backend, _ in coarse:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for backend, precision in coarse:
            # "none" follows torch.backends.fp32_precision, which is where an equal value came from.
            backend.fp32_precision = "none" if precision == switches.fp32_precision else precision


@contextmanager
def _full_float32_legacy() -> Iterator[None]:
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
