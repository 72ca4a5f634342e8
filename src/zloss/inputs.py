"""Checks of arguments: hidden batches, tensors, numbers, flags, names, sizes, devices and dtypes.

Every check raises one `ValueError` that names the argument, what was expected and what was passed. The checks look at
Python types, shapes and dtypes alone. So none of them waits for a device, unless a number is itself a tensor there.
"""

import math
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

# The dtypes that torch computes in: with 8-bit floats it stores alone.
FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
# Not uint64, whose largest numbers become negative ones on the way to int64.
INTEGERS = frozenset(
    {torch.int64, torch.int32, torch.int16, torch.int8} | {torch.uint8, torch.uint16, torch.uint32}
)
REALS = FLOATS | INTEGERS
_MOST_WEIGHTS = 2**59  # more numbers than any address can tell apart
_LONGEST = 60  # characters of a value in a message


class NotFiniteError(ValueError):
    """Numbers have a NaN or an infinity, which the layers below or earlier steps have made."""


# ---- tensors ---------------------------------------------------------------------------------------------------------


def fault_of_tensor(value: Any, dtypes: Collection[torch.dtype]) -> str | None:
    """Return the reason why calculations cannot use this value as a tensor of such a dtype, or None if they can.

    >>> fault_of_tensor([1.0], FLOATS), fault_of_tensor(torch.ones(2), FLOATS)
    ('list', None)
    """
    if not isinstance(value, Tensor):
        return type(value).__name__
    if value.is_nested:
        return "a nested tensor: give torch.nested.to_padded_tensor(...) and ignore what is padded"
    if value.dtype not in dtypes:
        return f"dtype {value.dtype}"
    if value.layout is not torch.strided:
        return f"a tensor of layout {value.layout}: give its to_dense()"
    if value.is_meta:
        return "a tensor on the device meta, which has no values"
    # Torch 2.13 has no named dimensions any more.
    if not torch.compiler.is_compiling() and any(getattr(value, "names", ())):
        return "a tensor with named dimensions: give its rename(None)"
    return None


def check_tensor(
    name: str,
    value: Any,
    dtypes: Collection[torch.dtype],
    *,
    like: Tensor | None = None,
    dims: tuple[int, ...] | None = None,
) -> None:
    """Refuse a value that is not a plain tensor of such a dtype, of this shape or number of dimensions."""
    fault = fault_of_tensor(value, dtypes)
    if not fault and (
        (dims is not None and value.dim() not in dims)
        or (like is not None and (value.shape != like.shape or value.device != like.device))
    ):
        fault = f"{value.dtype} {tuple(value.shape)} on {value.device}"
    if fault:
        shape = "" if like is None else f" of shape {tuple(like.shape)} on {like.device}"
        count = "" if dims is None else f" with {' or '.join(map(str, dims))} dimensions"
        raise ValueError(f"{name} must be a tensor of {_kinds(dtypes)}{shape}{count}, got {fault}")


def _kinds(dtypes: Collection[torch.dtype]) -> str:
    if dtypes == FLOATS:
        return "floating-point numbers"
    if dtypes == INTEGERS:
        return "integers"
    return "real numbers" if dtypes == REALS else " or ".join(sorted(map(str, dtypes)))


def check_hidden(h: Tensor, in_features: int, weight: Tensor) -> None:
    """Refuse a hidden batch of the wrong kind, shape, device or dtype for a layer with this weight."""
    if isinstance(h, Tensor) and h.device != weight.device:
        raise ValueError(f"h is on {h.device} but the layer is on {weight.device}")
    if fault := fault_of_tensor(h, FLOATS):
        raise ValueError(
            f"h must be a floating-point tensor of shape (B, {in_features}), got {fault}"
        )
    if h.dim() != 2 or h.shape[1] != in_features:
        hint = (
            "; flatten leading dimensions first, and those of the target with them"
            if h.dim() > 2
            else ""
        )
        raise ValueError(f"h must have shape (B, {in_features}), got {tuple(h.shape)}{hint}")
    if torch.promote_types(h.dtype, weight.dtype) != weight.dtype:
        raise ValueError(
            f"h has dtype {h.dtype} but the layer holds {weight.dtype}: convert one of them"
        )


def check_same_device(h: Tensor, target: Any, name: str = "h") -> None:
    """Refuse targets on another device."""
    if isinstance(target, Tensor) and target.device != h.device:
        raise ValueError(
            f"{name} and target must be on one device, got {h.device} and {target.device}"
        )


def check_linear(linear: nn.Linear) -> None:
    """Refuse anything but an `nn.Linear`, whose weights a layer can take."""
    if not isinstance(linear, nn.Linear):
        raise ValueError(f"linear must be an nn.Linear, got {shown(linear)}")


def with_bias_column(h: Tensor, width: int) -> Tensor:
    """Return `h`, with a column of ones where the layer has one more column than `h`: its bias."""
    return h if h.shape[1] == width else torch.cat([h, h.new_ones(len(h), 1)], 1)


def in_dtype_of(weight: Tensor, h: Tensor) -> Tensor:
    """Return `h` in the dtype of the weight, unless autocast converts both of them.

    Autocast does not convert float64.
    """
    converts_both = torch.is_autocast_enabled(h.device.type) and weight.dtype != torch.float64
    return h if converts_both else h.to(weight.dtype)


def checked_classes(name: str, classes: Tensor, num_classes: int) -> Tensor:
    """Return class numbers as int64, or refuse a tensor that does not hold such numbers.

    Values are checked on a CPU alone: a GPU would have to wait. Torch takes uint8 as an index for a mask.
    """
    check_tensor(name, classes, INTEGERS)
    if classes.device.type == "cpu" and classes.numel():
        low, high = (int(end) for end in classes.aminmax())
        if low < 0 or high >= num_classes:
            bad = low if low < 0 else high
            raise ValueError(f"{name} must hold numbers from 0 to {num_classes - 1}, got {bad}")
    return classes.long()


# ---- numbers ---------------------------------------------------------------------------------------------------------


def check_number(
    name: str, value: Any, *, least: float | None = None, above: float | None = None
) -> None:
    """Refuse a value that is not a finite real number within its bounds.

    Numbers of NumPy and tensors of one number are fine.

    >>> check_number("lr", "fast", least=0)
    Traceback (most recent call last):
        ...
    ValueError: lr must be a finite number >= 0, got 'fast'
    """
    number = value if type(value) is float else as_float(value)  # mostly, and in every step
    is_within = (least is None or number >= least) and (above is None or number > above)
    if not (math.isfinite(number) and is_within):
        bound = f" >= {least}" if least is not None else "" if above is None else f" > {above}"
        raise ValueError(f"{name} must be a finite number{bound}, got {shown(value)}")


def as_float(value: Any) -> float:
    """Return a real number as a float, and NaN for everything else."""
    if isinstance(value, Tensor):
        is_one = value.numel() == 1 and fault_of_tensor(value, REALS) is None
        return float(value.detach()) if is_one else math.nan
    # A fraction is a real number too, and torch cannot compute with it. NumPy's numbers have a dtype.
    is_foreign = isinstance(value, Real) and hasattr(value, "dtype")
    if isinstance(value, bool) or not (isinstance(value, int | float) or is_foreign):
        return math.nan
    if isinstance(value, int) and abs(value) >= 2**63:  # torch takes no such number
        return math.inf
    return float(value)


def check_factor(name: str, factor: Tensor | float, *, above: float | None = None) -> None:
    """Refuse a value that cannot scale a gradient. The value of a tensor is not read: a GPU would have to wait."""
    if not isinstance(factor, Tensor):
        check_number(name, factor, above=above)
    elif factor.numel() != 1 or fault_of_tensor(factor, REALS):
        raise ValueError(f"{name} must be one real number, got {shown(factor)}")


def is_whole(value: Any) -> bool:
    """Return whether this is a whole number of Python or NumPy that torch can take: no bool, not 1e6, not 10**30."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return -(2**63) <= int(value) < 2**63


def check_whole(name: str, value: Any, *, least: int | None = None) -> None:
    """Refuse a value that is not a whole number, or is below the least one."""
    if not is_whole(value) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise ValueError(f"{name} must be a whole number{bound}, got {shown(value)}")


def check_count(name: str, value: Any) -> None:
    """Refuse a value that cannot be a number of things in memory."""
    if not is_whole(value) or not 1 <= value < _MOST_WEIGHTS:
        raise ValueError(
            f"{name} must be a whole number of at least 1 that fits into memory, got {shown(value)}"
        )


def check_sizes(in_features: int, num_classes: int) -> None:
    """Refuse sizes that no layer can have."""
    # Whole numbers of numpy are fine, but not 1e6.
    are_whole = is_whole(in_features) and is_whole(num_classes)
    if not are_whole or in_features < 1 or num_classes < 2:
        raise ValueError(
            f"expected whole numbers in_features >= 1 and num_classes >= 2, got {shown(in_features)} and "
            f"{shown(num_classes)}"
        )
    if int(in_features) * int(num_classes) >= _MOST_WEIGHTS:
        raise ValueError(
            f"in_features {shown(in_features)} times num_classes {shown(num_classes)} is more than any memory holds"
        )


def check_rates(lr: float, weight_decay: float) -> None:
    """Refuse a learning rate or a weight decay that is not a number, negative, infinite or NaN."""
    check_number("lr", lr, least=0)
    check_number("weight_decay", weight_decay, least=0)


# ---- flags, names, devices and dtypes --------------------------------------------------------------------------------


def check_flag(name: str, value: Any) -> None:
    """Refuse a value that is neither True nor False: "no" would count as True."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {shown(value)}")


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Refuse a name that is not in the list."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {shown(value)}")


def check_callable(name: str, value: Any, *, or_none: bool = False) -> None:
    """Refuse a value that cannot be called."""
    if not callable(value) and not (or_none and value is None):
        raise ValueError(f"{name} must be a function{' or None' * or_none}, got {shown(value)}")


def check_mapping(name: str, value: Any) -> None:
    """Refuse a value that is not a mapping from names to values."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name} must be a mapping from names to values, got {shown(value)}")


def check_place(
    device: torch.device | str | None, dtype: torch.dtype | None, dtypes: Collection[torch.dtype]
) -> None:
    """Refuse a device that torch does not know or cannot reach, and a dtype that weights cannot have."""
    if dtype is not None and (not isinstance(dtype, torch.dtype) or dtype not in dtypes):
        expected = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(f"dtype must be one of {expected} or None, got {shown(dtype)}")
    check_device("device", device)


def check_device(name: str, device: Any, *, must_exist: bool = True) -> None:
    """Refuse a device that torch does not know or, if it must exist, cannot reach."""
    if device is None and must_exist:
        return  # torch's default device
    try:
        if device is None or isinstance(device, bool):  # True would be the second GPU
            raise TypeError("it is not a device")
        if must_exist:
            torch.empty(0, device=device)
        else:
            torch.device(device)
    except (RuntimeError, TypeError, ValueError, AssertionError, OverflowError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(
            f'{name} must be a device that is there, such as "cpu" or "cuda", got {shown(device)} ({reason})'
        ) from error


def shown(value: Any) -> str:
    """Return a value for a message: short, in one line, and without characters that a terminal would obey.

    >>> shown(torch.ones(3, 2)), shown("x" * 99)[-9:]
    ('a torch.float32 tensor of shape (3, 2)', 'xxxxxx...')
    """
    if isinstance(value, Tensor) and value.is_nested:
        return "a nested tensor"
    if isinstance(value, Tensor) and (value.numel() != 1 or value.is_meta):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    text = ascii(value) if isinstance(value, str | bytes) else " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
