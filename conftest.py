"""Shared fixtures. Every test of a layer runs on the CPU, and on a GPU where there is one."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

import zloss

pytest_plugins = ["tests.installed_wheels"]  # environments that several tests share

# Without a GPU kernels run in Triton's interpreter. Triton asks once, when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The matrices of most tests are small: a second thread would only wait for the first.
torch.set_num_threads(1)

# Fresh examples at every desk, the same ones in every automatic run: a change is judged by its own doing.
settings.register_profile("automatic", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("automatic")

_NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=_NO_GPU)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param, 0) if request.param == "cuda" else torch.device("cpu")


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    return torch.device("cuda", 0)


@pytest.fixture
def kernel_device() -> torch.device:
    """Where Triton runs for real, or else in its interpreter."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests, and the commands that they start, away from the cache folder of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZLOSS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def reproducible(doctest_namespace: dict[str, Any]) -> None:
    """Seed every test, and give docstring examples the names that they use without importing them."""
    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, nn=torch.nn, zloss=zloss)
