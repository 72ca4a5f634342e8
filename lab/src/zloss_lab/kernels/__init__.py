"""Triton kernels that only the lab uses. Like the library's, each is loaded on first use."""

from types import ModuleType

from zloss import kernels
from zloss.kernels import available as available


def load(name: str) -> ModuleType:
    """The kernels in `zloss_lab.kernels.<name>`."""
    return kernels.load(name, package=__name__)
