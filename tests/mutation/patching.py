"""Put a mutant into the modules of this process, which has imported them already.

A function keeps its identity and gets the code of the mutant. So everything that holds the function runs the mutant:
classes, decorators, and other modules that have imported it.
"""

import ast
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from tests.mutation.mutants import Mutant, MutatedModule


class LiveModule:
    """A module of this process, and the functions that were made from its code."""

    def __init__(self, mutated: MutatedModule) -> None:
        self.mutated = mutated
        self.module = _module_of(mutated.path)
        self._functions: dict[tuple[str, int], list[FunctionType]] = {}
        for one in gc.get_objects():
            if type(one) is FunctionType and one.__code__.co_filename == self.module.__file__:
                key = one.__code__.co_qualname, one.__code__.co_firstlineno
                self._functions.setdefault(key, []).append(one)

    def put(self, mutant: Mutant) -> None:
        """Run the mutant instead of the original from now on; there is no way back but a new process."""
        tree = self.mutated.tree
        if not mutant.function:
            with mutant.applied():
                # The statement of the constant alone, in the names of the module.
                place = next(node for node in tree.body if node.lineno <= mutant.line <= _end(node))
                exec(self._compile(ast.Module([place], [])), self.module.__dict__)
            return
        with mutant.applied():
            changed = self._compile(tree)
            defaults = dict(self._defaults(tree, mutant.function))
        for code in _codes(changed):
            for function in self._functions.get((code.co_qualname, code.co_firstlineno), ()):
                if code.co_qualname == mutant.function:
                    function.__code__ = code
                    function.__defaults__, function.__kwdefaults__ = defaults[code.co_firstlineno]

    def has(self, mutant: Mutant) -> bool:
        """Return whether the function of a mutant exists in this process."""
        names = {name for name, _ in self._functions}
        return not mutant.function or mutant.function in names

    def _compile(self, tree: ast.Module) -> CodeType:
        return compile(tree, str(self.module.__file__), "exec", dont_inherit=True)

    def _defaults(
        self, tree: ast.Module, name: str
    ) -> Iterator[tuple[int, tuple[tuple[object, ...] | None, dict[str, object] | None]]]:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == name.rpartition(".")[2]:
                values = tuple(self._value(one) for one in node.args.defaults)
                pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                named = {key.arg: self._value(one) for key, one in pairs if one is not None}
                line = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                yield line, (values or None, named or None)

    def _value(self, node: ast.expr) -> object:
        code = compile(ast.Expression(node), str(self.module.__file__), "eval")
        return eval(code, self.module.__dict__)


def _module_of(path: Path) -> ModuleType:
    found = [
        module
        for module in list(sys.modules.values())
        if getattr(module, "__file__", None) and Path(str(module.__file__)) == path
    ]
    assert found, f"the tests have not imported {path}"
    return found[0]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno
