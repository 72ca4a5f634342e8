"""The one reader of JSON texts: whatever stands in a file, the caller gets a value or a `ValueError` of one line.

`json.loads` takes NaN and 1e999, keeps the last of two equal keys in silence, and ends with a `RecursionError` in a
text that is nested too deep. Records, states, configs and metrics are read here instead.
"""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 1 << 26  # of one text; the longest that the lab writes is a thousand times shorter
MOST_LEVELS = 64  # of objects and lists inside of each other; the lab writes five
TOO_DEEP = f"it is nested deeper than {MOST_LEVELS} levels"
_SHOWN = 40  # characters of a wrong value in a message


def parse_json(text: bytes | str) -> Any:
    """Return the value of a JSON text, or raise a `ValueError` with the reason why it has none.

    >>> parse_json('{"step": 3, "loss": null}')
    {'step': 3, 'loss': None}
    >>> parse_json('{"step": 3, "step": 4}')
    Traceback (most recent call last):
        ...
    ValueError: the key 'step' is there twice
    >>> parse_json('{"loss": NaN}')
    Traceback (most recent call last):
        ...
    ValueError: NaN is no JSON: numbers are finite, and null stands for a missing one
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"it has {len(text):,} bytes, and at most {MOST_BYTES:,} are read")
    if isinstance(text, bytes):
        text = _decoded(text)
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_without_twins,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from error
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    if text.count("[") + text.count("{") > MOST_LEVELS:  # most texts have fewer
        require_flat(value)
    return value


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file consists of. `ValueError` has the reason, and `OSError` the system's words."""
    if path.exists() and not path.is_file():
        raise ValueError("it is not an ordinary file")
    with path.open("rb") as file:
        text = file.read(MOST_BYTES + 1)
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"it must be one JSON object, got {shortened(value)}")
    return value


def require_flat(value: Any) -> None:
    """Refuse tables and lists inside of each other beyond `MOST_LEVELS`: code that walks through them is recursive."""
    level, layer = 0, [value]
    while layer := [one for one in layer if isinstance(one, dict | list)]:
        level += 1
        if level > MOST_LEVELS:
            raise ValueError(TOO_DEEP)
        layer = [
            inner for one in layer for inner in (one.values() if isinstance(one, dict) else one)
        ]


def shortened(value: Any) -> str:
    """Return a value as Python writes it, cut off where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"no UTF-8: byte {error.start} is 0x{data[error.start]:02x}, {error.reason}"
        ) from error


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON: numbers are finite, and null stands for a missing one")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:_SHOWN]} is too large")
    return value


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"the key {shortened(counts.most_common(1)[0][0])} is there twice")
    return table
