"""Fixtures for the tests of kernels."""

from typing import Any

import pytest
import torch
from torch import Tensor


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill new memory with NaN, so that a test sees every element that a kernel does not write."""
    empty = torch.empty

    def full_of_nan(*args: Any, **kwargs: Any) -> Tensor:
        tensor = empty(*args, **kwargs)
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", full_of_nan)
