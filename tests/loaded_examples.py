"""Copies of the examples, as a reader makes them."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[1] / "examples"


def copied(name: str, folder: Path) -> ModuleType:
    """Return an example that was copied alone into a folder, as a module."""
    program = folder / f"{name}.py"
    program.write_text((EXAMPLES / f"{name}.py").read_text())
    spec = importlib.util.spec_from_file_location(name, program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # tuples with names look for their module
    spec.loader.exec_module(module)
    return module
