"""The parts of a network and the devices that table 1 has times of: their keys, and the commands that time them."""

from collections.abc import Mapping
from typing import Literal

Device = Literal["cpu", "cuda"]
Part = Literal["model", "output"]  # the whole of net1, or its output layer alone
DEVICES: tuple[Device, ...] = ("cpu", "cuda")
PARTS: tuple[Part, ...] = ("model", "output")
PLACES: Mapping[Device, str] = {"cpu": "CPU", "cuda": "GPU"}  # the titles of the devices

_BENCHES = {"model": "model --networks net1", "output": "output", "scaling": "scaling"}


def bench_command(suite: str, device: Device) -> str:
    """Return the command that makes the timings of a suite on a device.

    >>> bench_command("scaling", "cuda")
    'zloss bench scaling --device cuda'
    """
    return f"zloss bench {_BENCHES[suite]} --device {device}"
