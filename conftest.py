"""Names that docstring examples use without importing them."""

from typing import Any

import pytest
import torch

import zloss


@pytest.fixture(autouse=True)
def doctest_names(doctest_namespace: dict[str, Any]) -> None:
    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, nn=torch.nn, zloss=zloss)
