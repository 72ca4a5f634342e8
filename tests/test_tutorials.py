"""The tutorials, checked: each runs from top to bottom in plain Python, and needs no package that readers may lack.

Each tutorial ends with assertions of its claims. Outputs are not kept in the repository, so nothing else can go stale.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted(
    path for path in ROOT.glob("docs/tutorials/*.md") if "{code-cell}" in path.read_text("utf-8")
)
ALLOWED = {"torch", "zloss", "matplotlib", *sys.stdlib_module_names}
TIME_LIMIT_S = 240  # many times what one slow core needs

_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_CELL_OPTION = re.compile(r"^:[\w-]+:.*$", re.MULTILINE)


def program(text: str) -> str:
    """Return the code of all cells, each on the lines that it has in the tutorial."""
    lines = list[str]()
    for cell in _CELL.finditer(text):
        line_of_cell = text[: cell.start("code")].count("\n")
        lines += [""] * (line_of_cell - len(lines))
        lines += _CELL_OPTION.sub("", cell["code"]).splitlines()
    return "\n".join(lines) + "\n"


def foreign_imports(code: str) -> set[str]:
    """Return the packages that the code cannot do without, except the allowed ones."""
    return set(_imports(ast.parse(code))) - ALLOWED


def _imports(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import():
            yield from (alias.name.partition(".")[0] for alias in node.names)
        case ast.ImportFrom():
            yield (node.module or ".").partition(".")[0]
        case ast.Try() if any(ast.unparse(h.type or node) == "ImportError" for h in node.handlers):
            return  # the code says what to do without the package
    for child in ast.iter_child_nodes(node):
        yield from _imports(child)


def run(code: str, folder: Path, name: str = "tutorial") -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own that cannot open windows."""
    (folder / name).write_text(code, encoding="utf-8")
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "MPLBACKEND": "agg",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    return subprocess.run(
        [sys.executable, name],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )


def test_there_are_at_least_three() -> None:
    assert len(TUTORIALS) >= 3


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs(tutorial: Path, tmp_path: Path) -> None:
    finished = run(program(tutorial.read_text("utf-8")), tmp_path, tutorial.name)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_needs_no_other_package(tutorial: Path) -> None:
    assert foreign_imports(program(tutorial.read_text("utf-8"))) == set()


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_checks_its_claims(tutorial: Path) -> None:
    """The last cell has assertions, so that a tutorial which goes wrong fails the build."""
    last = _CELL.findall(tutorial.read_text("utf-8"))[-1]
    assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(last)))


SAMPLE = """\
# A tutorial

```{code-cell}
x = 1
```

```python
x = 2
```

```{code-cell} ipython3
:tags: [hide-input]

assert x == 1
1 / 0
```
"""


def test_cells_keep_their_lines(tmp_path: Path) -> None:
    finished = run(program(SAMPLE), tmp_path, "sample.md")
    assert finished.returncode == 1
    assert 'File "' in finished.stderr
    assert 'sample.md", line 15' in finished.stderr
    assert "ZeroDivisionError" in finished.stderr


def test_foreign_imports_are_seen() -> None:
    guarded = "try:\n    import safetensors\nexcept ImportError:\n    pass\n"
    assert foreign_imports("import torch.nn, os\nfrom zloss import ZLoss\n" + guarded) == set()
    assert foreign_imports("def f():\n    from numpy.linalg import norm") == {"numpy"}
    assert foreign_imports("try:\n    import pandas\nexcept ValueError:\n    pass\n") == {"pandas"}
