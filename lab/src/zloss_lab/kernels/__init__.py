"""Triton kernels of the lab. As in the library, each module is loaded on first use."""

from types import ModuleType

from zloss import kernels
from zloss.kernels import available as available


def load(name: str) -> ModuleType:
    """Return the module `zloss_lab.kernels.<name>`."""
    return kernels.load(name, package=__name__)
