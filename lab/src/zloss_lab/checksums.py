"""Checksums of what the lab writes, so that a flipped bit is noticed when it is read.

A table is sealed by a key `checksum`. The checksum is over the content, not over the text: white space and the order of
keys do not matter. It finds damage, and no forgery, because anybody can compute it.

The hash is BLAKE2b with 128 bits, from Python's standard library. It makes 1 to 1.5 GB/s on any processor. SHA-256 is
faster only on processors with instructions for it, and three times slower on others; CRC-32 has too few bits.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

CHECKSUM = "checksum"
_BYTES = 16


def new_checksum(data: Any = b"") -> "hashlib.blake2b":
    """Return the hash of bytes, or of an array in one piece. More bytes may be added to it."""
    return hashlib.blake2b(data, digest_size=_BYTES)


def checksum_of(data: Any) -> str:
    """Return the checksum of bytes, or of an array in one piece, as text.

    >>> checksum_of(b"")
    'cae66941d9efbd404e4d88758ea67670'
    """
    return new_checksum(data).hexdigest()


def sealed(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with its checksum. The values are valid JSON, and its numbers are finite.

    >>> unsealed(sealed({"step": 3}))
    {'step': 3}
    """
    return {**table, CHECKSUM: content_checksum(table)}


def unsealed(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sealed table without its checksum; `ValueError` for a table that was changed since it was sealed.

    >>> unsealed({**sealed({"step": 3}), "step": 4})
    Traceback (most recent call last):
        ...
    ValueError: it is not what was written (its checksum differs)
    """
    content = {name: value for name, value in table.items() if name != CHECKSUM}
    if CHECKSUM not in table:
        raise ValueError(f"it has no {CHECKSUM}")
    if table[CHECKSUM] != content_checksum(content):
        raise ValueError("it is not what was written (its checksum differs)")
    return content


def content_checksum(value: Any) -> str:
    """Return the checksum of a value that can be written as JSON. It is the same after the value was read again.

    >>> content_checksum({10: 1.0, 9: (2,)}) == content_checksum({"9": [2], "10": 1.0})
    True
    """
    # Keys that are numbers become texts, and then have another order.
    as_read = json.loads(json.dumps(value, allow_nan=False))
    return checksum_of(json.dumps(as_read, sort_keys=True, separators=(",", ":")).encode())
