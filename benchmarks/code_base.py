"""The code base as data: modules with their imports, classes and functions, read without importing them."""

import ast
import io
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from pathlib import Path

# The tree of a module is that of the first prefix that fits. In older revisions, the lab and the reproduction lie
# inside of the library.
TREE_OF_PREFIX = {
    "zloss.lab.reproduction": "reproduction",
    "zloss.lab.paper": "reproduction",
    "reproduction": "reproduction",
    "zloss.lab": "lab",
    "zloss_lab": "lab",
    "zloss": "library",
}
TREES = ("library", "lab", "reproduction")
ROOTS = ("src/", "lab/src/")  # folders that are not a part of module names
FOLDERS = ("src", "lab", "reproduction")


@dataclass(frozen=True)
class Function:
    """A function or a method, and its place in a file."""

    name: str
    first_line: int
    last_line: int

    @property
    def lines(self) -> int:
        return self.last_line - self.first_line + 1


@dataclass(frozen=True)
class Module:
    """A module of the code base, by its full name."""

    name: str
    path: str
    source: str

    @cached_property
    def syntax(self) -> ast.Module:
        return ast.parse(self.source)

    @property
    def lines(self) -> int:
        return len(self.source.splitlines())

    @property
    def statements(self) -> int:
        """The number of statements, without docstrings."""
        nodes = [node for node in ast.walk(self.syntax) if isinstance(node, ast.stmt)]
        return sum(
            not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            for node in nodes
        )

    @property
    def tree(self) -> str:
        """The tree that the module belongs to, or "" for a module outside of the three trees."""
        fitting = (tree for prefix, tree in TREE_OF_PREFIX.items() if is_in(self.name, prefix))
        return next(fitting, "")

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and methods, with those inside of others."""
        return [
            Function(node.name, node.lineno, node.end_lineno or node.lineno)
            for node in ast.walk(self.syntax)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]

    @cached_property
    def classes(self) -> list[str]:
        return [node.name for node in ast.walk(self.syntax) if isinstance(node, ast.ClassDef)]


@dataclass(frozen=True)
class CodeBase:
    """Modules by name, and the graph of their imports."""

    modules: Mapping[str, Module]

    @classmethod
    def from_sources(cls, sources: Mapping[str, str]) -> "CodeBase":
        """Return the code base of these sources, given by their paths below the root."""
        modules = [Module(module_name(path), path, text) for path, text in sources.items()]
        return cls({module.name: module for module in modules})

    @classmethod
    def at_working_tree(cls, root: Path, folders: tuple[str, ...] = FOLDERS) -> "CodeBase":
        files = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
        return cls.from_sources(
            {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in files}
        )

    @classmethod
    def at_revision(cls, root: Path, revision: str) -> "CodeBase":
        """Return the code base of a commit. `ValueError` if git does not know it."""
        archive = subprocess.run(
            ["git", "archive", revision], cwd=root, capture_output=True, check=False
        )
        if archive.returncode:
            raise ValueError(
                f"name a commit of this repository: cannot read {revision}, {archive.stderr.decode().strip()}"
            )
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            return cls.from_sources(
                {
                    member.name: content.read().decode()
                    for member in files
                    if member.name.endswith(".py") and member.name.split("/")[0] in FOLDERS
                    if (content := files.extractfile(member)) is not None
                }
            )

    def of_tree(self, tree: str) -> "CodeBase":
        """Return the modules of one tree."""
        return CodeBase({name: m for name, m in self.modules.items() if m.tree == tree})

    def imports(self, module: Module) -> set[str]:
        """Return the modules of this code base that a module imports."""
        return self.modules.keys() & set(imported_names(module.syntax, self.modules))

    @cached_property
    def from_the_bottom_up(self) -> list[str]:
        """The names of all modules, each after the modules that it imports. `graphlib.CycleError` for a cycle."""
        graph = {name: self.imports(module) for name, module in self.modules.items()}
        return list(TopologicalSorter(graph).static_order())

    @cached_property
    def import_depth(self) -> int:
        """The number of modules in the longest chain of imports."""
        depths: dict[str, int] = {}
        for name in self.from_the_bottom_up:
            below = self.imports(self.modules[name])
            depths[name] = 1 + max((depths[imported] for imported in below), default=0)
        return max(depths.values(), default=0)


def module_name(path: str) -> str:
    """Return the name of the module in a file below the root.

    >>> module_name("lab/src/zloss_lab/bench/__init__.py"), module_name("benchmarks/long_run.py")
    ('zloss_lab.bench', 'benchmarks.long_run')
    """
    for root in ROOTS:
        path = path.removeprefix(root)
    parts = path.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_in(module: str, package: str) -> bool:
    """Return whether a module is this package or lies inside of it."""
    return module == package or module.startswith(f"{package}.")


def imported_names(code: ast.AST, modules: Mapping[str, object]) -> Iterator[str]:
    """Yield the modules that code imports; `from zloss.layers import dense` imports `zloss.layers.dense`.

    Relative imports are left out. `modules` has the names of submodules, to distinguish them from other names.
    """
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in modules else str(node.module)
