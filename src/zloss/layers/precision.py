"""The arithmetic of exact updates: which dtypes it runs in, and shelter from settings that would coarsen it.

Three dtypes meet in a factored layer. The **weights** V are float32 or float64, as asked. The small H x H **state** is
float64, because a step changes it by as little as one part in C: in float32 such changes would be rounded away, step
after step in the same direction. **Products** may still run in float32, where that is faster: they compute the *change*
of the state, which the state then adds up, so their rounding is relative to the change.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

# CUDA compute capabilities whose float64 matrix products run about as fast as float32 ones: P100, V100, A100, H100 and
# H200, B200. Consumer cards run them at 1/32 or 1/64 of that speed.
_FAST_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}


def default_state_dtype(device: torch.device) -> torch.dtype:
    """Float64 wherever the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def default_product_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Float64 where its products cost no more, else the dtype of the weights."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) in _FAST_FLOAT64:
        return torch.float64
    return dtype


def check_dtypes(dtype: torch.dtype, state_dtype: torch.dtype | None, product_dtype: torch.dtype | None) -> None:
    """Refuse what cannot hold small updates, and state or products that are coarser than the weights."""
    for name, value in (("dtype", dtype), ("state_dtype", state_dtype), ("product_dtype", product_dtype)):
        if value not in (torch.float32, torch.float64, None):
            raise ValueError(
                f"{name} must be torch.float32 or torch.float64, got {value}; "
                "for half precision, run the layers below under autocast"
            )
        if value is not None and torch.promote_types(dtype, value) != value:
            raise ValueError(f"{name} {value} is coarser than dtype {dtype}")


@contextmanager
def exact_products(device_type: str) -> Iterator[None]:
    """Matrix products in the dtype of their operands: no autocast, no TF32, no bfloat16 short cuts.

    A user may well want those for the rest of the network; an update that is to be exact cannot use them.
    """
    no_autocast = nullcontext() if device_type == "meta" else torch.autocast(device_type, enabled=False)
    with _full_float32(), no_autocast:
        yield


def _full_float32() -> AbstractContextManager[None]:
    return _full_float32_by_backend() if hasattr(torch.backends, "fp32_precision") else _full_float32_legacy()


@contextmanager
def _full_float32_by_backend() -> Iterator[None]:
    # Each backend by itself: torch's older global switch refuses to work once a user has set a backend's own.
    switches: Any = torch.backends
    backends = [switches.cuda.matmul, switches.mkldnn.matmul]
    coarse = [(backend, backend.fp32_precision) for backend in backends if backend.fp32_precision in ("tf32", "bf16")]
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
