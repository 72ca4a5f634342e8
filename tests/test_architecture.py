"""The shape of the code: a module may import some others and some outsiders, and is short unless it gives a reason."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError
from pathlib import Path

import pytest

from benchmarks.code_base import FOLDERS, CodeBase, Module, imported_names, is_in

ROOT = Path(__file__).parents[1]

# From the bottom up: a module imports modules of its own layer and of the layers below it.
LAYERS = {
    "foundations": (
        "zloss.inputs",
        "zloss.limits",
        "zloss.names",
        "zloss.precision",
        "zloss.stats",
        "zloss.streams",
        "zloss.targets",
    ),
    "kernels": ("zloss.kernels",),
    "losses and layers": ("zloss.losses", "zloss.layers"),
    "training": ("zloss.capture", "zloss.metrics", "zloss.optim", "zloss.parallel"),
    "heads": ("zloss.heads",),
    "library": ("zloss",),
    "lab": ("zloss_lab",),
    "results": (
        "reproduction.budgets",
        "reproduction.large_text_models",
        "reproduction.paper_figures",
        "reproduction.results",
        "reproduction.scores",
        "reproduction.timed_parts",
    ),
    "running and report": ("reproduction.running", "reproduction.report"),
    "reproduction": ("reproduction", "reproduction.__main__"),
}
HEIGHT = {
    package: height for height, packages in enumerate(LAYERS.values()) for package in packages
}
HAS_ENTRIES = ("zloss", "reproduction")  # each of their modules and packages is in LAYERS
STRANGERS = (
    {"zloss.losses", "zloss.layers"},  # they share SphericalStats
    {"reproduction.running", "reproduction.report"},  # they share the schema of the results
)
MAY_USE_TRITON = ("zloss.kernels", "zloss_lab.kernels")
OWN = ("zloss", "zloss_lab", "reproduction")
SAYS_NOTHING = {"utils", "common", "misc", "helpers"}

MOST_LINES_OF_A_FILE = 300
MOST_LINES_OF_A_FUNCTION = 50
REASON = "# Long because "

CODE_BASE = CodeBase.at_working_tree(ROOT)
EVERYTHING = CodeBase.at_working_tree(ROOT, (*FOLDERS, "benchmarks", "examples", "tests"))


def top_level(module: str) -> str:
    return module.partition(".")[0]


def package_of(module: str) -> str | None:
    """Return the entry of LAYERS that a module belongs to, or None for a module that needs an entry of its own."""
    fitting = [package for package in HEIGHT if is_in(module, package)]
    package = max(fitting, key=len, default=None)
    return None if package in HAS_ENTRIES and package != module else package


def direction_faults(module: str, tree: ast.AST) -> Iterator[str]:
    """Yield imports of our own modules that do not point down."""
    package = package_of(module)
    for imported in imported_names(tree, CODE_BASE.modules):
        if top_level(imported) not in OWN:
            continue
        below = package_of(imported)
        if imported not in CODE_BASE.modules or package is None or below is None:
            yield f"{module} imports {imported}, which is no module of ours"
        elif HEIGHT[below] > HEIGHT[package]:
            yield f"{module} imports {imported}, which is above it in LAYERS"
        elif {package, below} in STRANGERS:
            yield f"{module} imports {imported}: {package} and {below} must not know each other"


def form_faults(module: str, tree: ast.AST) -> Iterator[str]:
    """Yield relative imports, and imports of our own modules that hide inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield f"{module} has a relative import in line {node.lineno}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for imported in imported_names(node, CODE_BASE.modules):
                if top_level(imported) in OWN:
                    yield f"{module} imports {imported} inside a function, line {node.lineno}"


def outsider_faults(module: str, tree: ast.AST) -> Iterator[str]:
    """Yield imports of packages that the distribution of a module does not depend on."""
    allowed = sys.stdlib_module_names | {"torch", *OWN}
    if top_level(module) != "zloss":
        allowed |= packages_of_the_lab()
    if any(is_in(module, package) for package in MAY_USE_TRITON):
        allowed |= {"triton"}
    for imported in imported_names(tree, CODE_BASE.modules):
        if top_level(imported) not in allowed:
            yield f"{module} imports {imported}, which its distribution does not depend on"


def packages_of_the_lab() -> set[str]:
    """Return what the lab depends on; these packages have the names of their distributions."""
    project = tomllib.loads((ROOT / "lab/pyproject.toml").read_text("utf-8"))["project"]
    extras = (name for extra in project["optional-dependencies"].values() for name in extra)
    return {name.partition(">=")[0] for name in (*project["dependencies"], *extras)}


def import_faults(module: str, source: str) -> list[str]:
    tree = ast.parse(source)
    return [
        fault
        for check in (direction_faults, form_faults, outsider_faults)
        for fault in check(module, tree)
    ]


def length_faults(module: Module) -> Iterator[str]:
    """Yield what is too long and gives no reason: above its first definition for a file, inside for a function."""
    lines = module.source.splitlines()
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    starts = (node.lineno for node in module.syntax.body if isinstance(node, definitions))
    head = lines[: next(starts, len(lines))]
    if len(lines) > MOST_LINES_OF_A_FILE and not any(line.startswith(REASON) for line in head):
        yield f"{module.path} has {len(lines)} lines"
    for function in module.functions:
        body = lines[function.first_line - 1 : function.last_line]
        has_reason = any(line.strip().startswith(REASON) for line in body)
        if function.lines > MOST_LINES_OF_A_FUNCTION and not has_reason:
            yield f"{module.path}:{function.first_line} {function.name} has {function.lines} lines"


def test_every_module_has_a_layer() -> None:
    without = [module for module in CODE_BASE.modules if package_of(module) is None]
    assert without == [], "add each to LAYERS in this file"
    unused = [
        package for package in HEIGHT if not any(is_in(name, package) for name in CODE_BASE.modules)
    ]
    assert unused == [], "take these out of LAYERS in this file"


@pytest.mark.parametrize("module", CODE_BASE.modules)
def test_imports_point_down(module: str) -> None:
    assert import_faults(module, CODE_BASE.modules[module].source) == []


def test_the_imports_have_no_cycle() -> None:
    order = CODE_BASE.from_the_bottom_up
    assert sorted(order) == sorted(CODE_BASE.modules)


def test_a_cycle_is_seen() -> None:
    cyclic = CodeBase.from_sources(
        {
            "src/zloss/stats.py": "from zloss.layers import dense",
            "src/zloss/layers/dense.py": "import zloss.layers.gram",
            "src/zloss/layers/gram.py": "from zloss import stats",
        }
    )
    with pytest.raises(CycleError, match="cycle"):
        print(cyclic.from_the_bottom_up)


@pytest.mark.parametrize("module", EVERYTHING.modules)
def test_module_names_say_something(module: str) -> None:
    assert SAYS_NOTHING.isdisjoint(module.split("."))


@pytest.mark.parametrize("tree", [*FOLDERS, "benchmarks", "examples", "tests"])
def test_what_is_long_says_why(tree: str) -> None:
    modules = [m for m in EVERYTHING.modules.values() if m.path.startswith(f"{tree}/")]
    assert modules
    assert [fault for module in modules for fault in length_faults(module)] == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("x = 1\n" * 301, "a.py has 301 lines"),
        ("def f():\n    # Long because of its table\n" + "    x = 1\n" * 300, "has 302 lines"),
        ("def f():\n" + "    x = 1\n" * 50, "a.py:1 f has 51 lines"),
        ("# Long because\ndef f():\n" + "    x = 1\n" * 50, "a.py:2 f has 51 lines"),
        ("class A:\n    async def f(self):\n" + "        x = 1\n" * 50, "a.py:2 f has 51 lines"),
    ],
)
def test_what_is_long_is_seen(source: str, fault: str) -> None:
    assert [fault in message for message in length_faults(Module("a", "a.py", source))] == [True]


@pytest.mark.parametrize(
    "source",
    [
        "x = 1\n" * 300,
        '"""A table."""\n\n# Long because a table has many lines.\nimport re\n' + "x = 1\n" * 300,
        "def f():\n    # Long because the steps share everything.\n" + "    x = 1\n" * 60,
        "def f():\n" + "    x = 1\n" * 49,
    ],
)
def test_what_is_short_or_says_why_is_accepted(source: str) -> None:
    assert list(length_faults(Module("a", "a.py", source))) == []


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("zloss.stats", "from zloss.losses import ZLoss", "is above it"),
        ("zloss.stats", "import zloss", "is above it"),
        (
            "zloss.kernels.tiles",
            "from zloss.layers import factored",
            "zloss.layers.factored, which",
        ),
        (
            "zloss.layers.factored",
            "from zloss.losses.reduction import reduce_loss",
            "know each other",
        ),
        ("zloss.losses.loss", "from zloss.layers import DenseLinear", "know each other"),
        ("zloss.optim", "from zloss_lab.demo import run_demo", "is above it"),
        ("zloss_lab.demo", "import reproduction.report", "is above it"),
        ("reproduction.budgets", "from reproduction.running import ledger", "is above it"),
        (
            "reproduction.running.ledger",
            "from reproduction.report.evidence import Evidence",
            "know each other",
        ),
        ("zloss.optim", "import zloss.nowhere", "no module of ours"),
        ("zloss_lab.demo", "from zloss_lab.nowhere import x", "no module of ours"),
        (
            "zloss.optim",
            "def f():\n    from zloss.stats import SphericalStats",
            "inside a function",
        ),
        (
            "zloss_lab.demo",
            "f = lambda: __import__\ndef g():\n    import zloss_lab.runs",
            "inside a",
        ),
        ("zloss.optim", "from .stats import SphericalStats", "relative import"),
        ("zloss.metrics", "import numpy.linalg", "does not depend on"),
        ("zloss.metrics", "if True:\n    from rich import print", "does not depend on"),
        ("zloss.heads.blocks", "import triton", "does not depend on"),
        ("zloss_lab.demo", "import triton", "does not depend on"),
        ("reproduction.report", "import pandas", "does not depend on"),
    ],
)
def test_the_import_checker_sees(module: str, source: str, fault: str) -> None:
    assert [fault in message for message in import_faults(module, source)] == [True]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "zloss.layers.dense",
            "import math\nimport torch\nfrom torch import nn\nfrom zloss.stats import SphericalStats",
        ),
        ("zloss.kernels.tiles", "import triton.language as tl\nfrom zloss import streams"),
        ("zloss_lab.demo", "import rich\nfrom zloss import ZLoss"),
        ("zloss_lab.kernels", "import triton"),
        ("reproduction.report", "import numpy\nimport zloss_lab.records\nimport zloss"),
    ],
)
def test_the_import_checker_accepts_what_is_right(module: str, source: str) -> None:
    assert import_faults(module, source) == []
