"""Learning rates for kernels, as two float32 numbers each.

Triton takes a number from the host as float32. Two of them make 48 bits, which kernels add up in float64.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
from ctypes import c_float
from typing import NamedTuple

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


class Rates(NamedTuple):
    """The learning rate and `1 - lr * weight_decay`, in two parts each."""

    lr_high: float
    lr_low: float
    keep_high: float
    keep_low: float

    @classmethod
    def of(cls, lr: float, weight_decay: float) -> "Rates":
        """Return the parts of the two numbers."""
        return cls(*in_two(lr), *in_two(1 - lr * weight_decay))


def in_two(number: float) -> tuple[float, float]:
    """Return two float32 numbers whose sum is `number` to 48 bits."""
    high = c_float(number).value
    return high, number - high


@triton.jit
def whole(high, low):
    """Return the float64 number with these two parts."""
    return tl.cast(high, tl.float64) + low
