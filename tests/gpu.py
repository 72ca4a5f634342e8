"""Tools for tests on a GPU, and for tests that pretend to have one."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from zloss.layers.supervisor import Supervisor


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Fail if the host waits for the device."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def device_that_does_not_wait(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> torch.device:
    """Return a device, and let a CPU work as a GPU does, with kernels in Triton's interpreter."""
    if device.type == "cpu":
        if torch.cuda.is_available():
            pytest.skip("a GPU is here: Triton runs its kernels for real, and not on a CPU")
        monkeypatch.setattr(Supervisor, "waits_for", lambda *_: False)
        monkeypatch.setattr(Supervisor, "send", lambda *_: None)
    return device


def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a `CapturedStep` on a CPU work as on a GPU, up to the capture. Only `tolist` waits there."""
    mode: int | str = 0

    def set_mode(new: int | str) -> None:
        nonlocal mode
        mode = new

    def tolist(tensor: Tensor) -> list[Any]:
        if mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        numbers: list[Any] = tensor.numpy().tolist()
        return numbers

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode)
    monkeypatch.setattr("zloss.streams.waiting_is_an_error", lambda: mode == "error")
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    monkeypatch.setattr(Tensor, "tolist", tolist)
    monkeypatch.setattr("zloss.capture._device_of", lambda *_: torch.device("cuda"))
    monkeypatch.setattr("zloss.capture._on_side_stream", lambda step, inputs: step(*inputs))
