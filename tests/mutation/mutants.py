"""Mutants: small errors that are put into a module one at a time, to see whether the tests notice each.

A mutant changes one place of the syntax tree. That may be an operator, a number, a condition, a statement, the order of
two arguments, a call such as `clamp_min` or a conversion of dtypes. Some places have no mutants, by rule:

- annotations, docstrings, decorators and formatted strings;
- `assert`, and what `raise` and `warnings.warn` are called with: the texts of errors. Their removal is a mutant;
- the arguments `device` and `strict`: they change nothing on one CPU with a right caller;
- the order of the arguments of `min` and of other functions that are symmetric.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutation.rules import replacements

UNCHANGED_ARGUMENTS = {"device", "strict"}

Place = tuple[ast.AST, str, int | None]  # parent, field, index in a list


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One error, and the place of the tree that it changes.

    Args:
        function: the outermost function, such as `Storage.add_`; "" for a constant of the module.
        change: what stood there and what stands there now, with a number if the function has it more than once.
    """

    function: str
    line: int
    change: str
    place: Place = field(repr=False, compare=False)
    replacement: ast.AST = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name in the record and in the list of survivors."""
        return f"{self.function}: {self.change}"

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have the error in the tree."""
        original = _at(self.place)
        _put(self.place, self.replacement)
        try:
            yield
        finally:
            _put(self.place, original)


@dataclass(frozen=True)
class MutatedModule:
    """A module with its mutants."""

    path: Path
    tree: ast.Module
    mutants: tuple[Mutant, ...]

    @classmethod
    def read(cls, path: Path, scope: Sequence[str] | None = None) -> "MutatedModule":
        """Return the mutants of the functions, classes and constants of a scope, or of the whole module for None."""
        tree = ast.parse(path.read_text("utf-8"))
        return cls(path, tree, tuple(find_mutants(tree, scope)))


def find_mutants(tree: ast.Module, scope: Sequence[str] | None = None) -> Iterator[Mutant]:
    """Yield all mutants of a module in the order of its lines."""
    seen = Counter[tuple[str, str]]()
    for function, node in _units(tree):
        if scope is not None and not _is_in(function or _constant(node), scope):
            continue
        for place, replacement, change in _changes(node):
            seen[function, change] += 1
            times = seen[function, change]
            yield Mutant(
                function=function,
                line=getattr(_at(place), "lineno", getattr(node, "lineno", 0)),
                change=change if times == 1 else f"{change} #{times}",
                place=place,
                replacement=ast.fix_missing_locations(ast.copy_location(replacement, _at(place))),
            )


def _units(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield functions and methods by name, and constants of the module with an empty name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            methods = (one for one in node.body if isinstance(one, ast.FunctionDef))
            yield from ((f"{node.name}.{one.name}", one) for one in methods)
        elif isinstance(node, ast.Assign):
            yield "", node


def _constant(node: ast.stmt) -> str:
    assert isinstance(node, ast.Assign)
    return ast.unparse(node.targets[0])


def _is_in(name: str, scope: Sequence[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in scope)


def _at(place: Place) -> ast.AST:
    parent, name, index = place
    value = getattr(parent, name)
    node: ast.AST = value if index is None else value[index]
    return node


def _put(place: Place, node: ast.AST) -> None:
    parent, name, index = place
    if index is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[index] = node


def _changes(unit: ast.stmt) -> Iterator[tuple[Place, ast.AST, str]]:
    for place in _places(unit):
        node = _at(place)
        for replacement in replacements(node):
            if ast.unparse(replacement) == ast.unparse(node):  # two equal arguments, for instance
                continue
            before, after = _short(node, replacement)
            yield place, replacement, f"{before} -> {after}"


def _short(node: ast.AST, replacement: ast.AST) -> tuple[str, str]:
    """Return both as text; a statement that is left out is its first line."""
    before, after = (ast.unparse(one).partition("\n")[0] for one in (node, replacement))
    return before, "nothing" if after == "if False:" else after


def _places(node: ast.AST) -> Iterator[Place]:
    """Yield the places below a node that may change, outermost first."""
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "slots", "ctx", "op", "ops"}:
            continue
        children = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if not isinstance(child, ast.AST) or _is_docstring(node, name, index):
                continue
            place = (node, name, index)
            if isinstance(child, ast.stmt | ast.expr):
                yield place
            if not _is_left_out(child):
                yield from _places(child)


def _is_docstring(node: ast.AST, name: str, index: int | None) -> bool:
    documented = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
    return documented and (name, index) == ("body", 0) and ast.get_docstring(node) is not None  # type: ignore[arg-type]


def _is_left_out(node: ast.AST) -> bool:
    """Return whether the inside of a node has no mutants."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
        return True
    if isinstance(node, ast.keyword):
        return node.arg in UNCHANGED_ARGUMENTS
    return isinstance(node, ast.Call) and ast.unparse(node.func) in {"warnings.warn", "cast"}
