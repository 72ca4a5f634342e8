"""Triton kernels. Each module names the PyTorch code that defines them, and no other package of zloss imports Triton.

Kernels are loaded on first use, so `import zloss` needs torch alone.
"""

import importlib
import importlib.util
from functools import cache
from types import ModuleType


@cache
def available() -> bool:
    """Return whether Triton is installed. Torch for CUDA on Linux installs it."""
    return importlib.util.find_spec("triton") is not None


@cache
def load(name: str, *, package: str = __name__) -> ModuleType:
    """Return the module `<package>.<name>`, which contains kernels.

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
