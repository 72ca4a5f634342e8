"""The arithmetic of exact updates: which dtype it runs in, and shelter from settings that would coarsen it."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

# CUDA compute capabilities whose float64 matrix products run about as fast as float32 ones: P100, V100, A100, H100 and
# H200, B200. Consumer cards run them at 1/32 or 1/64 of that speed.
_FAST_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}


def default_state_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Float64 for the small H x H state wherever that is cheap, else the dtype of the weights."""
    if device.type in ("cpu", "meta"):
        return torch.float64
    if device.type == "cuda" and torch.cuda.get_device_capability(device) in _FAST_FLOAT64:
        return torch.float64
    return dtype


def check_dtypes(dtype: torch.dtype, state_dtype: torch.dtype | None) -> None:
    """Refuse weights and state that cannot hold small updates, and state that is coarser than the weights."""
    for name, value in (("dtype", dtype), ("state_dtype", state_dtype)):
        if value not in (torch.float32, torch.float64, None):
            raise ValueError(
                f"{name} must be torch.float32 or torch.float64, got {value}; "
                "for half precision, run the layers below under autocast"
            )
    if state_dtype is not None and torch.promote_types(dtype, state_dtype) != state_dtype:
        raise ValueError(f"state_dtype {state_dtype} is coarser than dtype {dtype}")


@contextmanager
def exact_products(device_type: str) -> Iterator[None]:
    """Matrix products in the dtype of their operands: no autocast, no TF32, no bfloat16 short cuts.

    A user may well want those for the rest of the network; an update that is to be exact cannot use them.
    """
    precision = torch.get_float32_matmul_precision()
    if precision != "highest":
        torch.set_float32_matmul_precision("highest")
    no_autocast = nullcontext() if device_type == "meta" else torch.autocast(device_type, enabled=False)
    try:
        with no_autocast:
            yield
    finally:
        if precision != "highest":
            torch.set_float32_matmul_precision(precision)
