"""Shared fixtures: every test of a layer runs on the CPU, and on a GPU where there is one."""

import pytest
import torch

_NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=_NO_GPU)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    return torch.device("cuda")
