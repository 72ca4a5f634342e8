"""Triton kernels, each beside the PyTorch code that defines it. Nothing else in the package imports triton.

Kernels are loaded on first use, so that `import zloss` needs torch alone.
"""

import importlib
import importlib.util
from functools import cache
from types import ModuleType


@cache
def available() -> bool:
    """Whether triton is installed; it comes with torch for CUDA on Linux."""
    return importlib.util.find_spec("triton") is not None


@cache
def load(name: str, *, package: str = __name__) -> ModuleType:
    """The kernels in the module `<package>.<name>`.

    >>> load("nonesuch")
    Traceback (most recent call last):
    ValueError: no kernels are called 'nonesuch': expected a module of zloss.kernels
    """
    if importlib.util.find_spec(f"{package}.{name}") is None:
        raise ValueError(f"no kernels are called {name!r}: expected a module of {package}")
    if not available():
        raise ImportError(
            f"the kernels {name!r} need triton, which is not installed: `pip install triton` (Linux), or ask for "
            'implementation="torch"'
        )
    return importlib.import_module(f"{package}.{name}")
