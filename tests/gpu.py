"""Tools for tests on a GPU, and for tests that pretend to have one."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor


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
