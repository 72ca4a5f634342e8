"""The makers of mutants, and the record: what survives has a reason, and the reasons fit the code as it is."""

import ast
import importlib
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.mutation_table import MutationScore, read_scores
from tests.mutation.mutants import MutatedModule, find_mutants
from tests.mutation.patching import LiveModule
from tests.mutation.records import explanations
from tests.mutation.scope import LEAST_KILLED, ROOT, TARGETS, Target


def changes(source: str) -> set[str]:
    return {mutant.change for mutant in find_mutants(ast.parse(source))}


@pytest.mark.parametrize("score", read_scores(), ids=lambda score: score.file)
def test_enough_mutants_were_killed(score: MutationScore) -> None:
    assert score.killed >= LEAST_KILLED


def test_the_record_has_modules_of_the_scope() -> None:
    known = [target.file for target in TARGETS]
    recorded = [score.file for score in read_scores()]
    assert recorded == [file for file in known if file in recorded]
    assert recorded


@pytest.mark.parametrize("score", read_scores(), ids=lambda score: score.file)
def test_every_survivor_has_a_reason(score: MutationScore) -> None:
    explained = [
        one for entry in explanations() if entry.file == score.file for one in entry.mutants
    ]
    assert set(score.survivors) - set(explained) == set()
    assert [one for one, times in Counter(explained).items() if times > 1] == []


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.file)
def test_every_reason_is_that_of_a_mutant(target: Target) -> None:
    """Code that has changed needs other reasons, and a new run."""
    present = {mutant.name for mutant in MutatedModule.read(target.path, target.scope).mutants}
    listed = [one for entry in explanations() if entry.file == target.file for one in entry.mutants]
    assert set(listed) - present == set()
    assert all(len(entry.reason.split()) > 3 for entry in explanations())


def test_the_scopes_name_what_exists() -> None:
    for target in TARGETS:
        for name in target.scope or ():
            assert MutatedModule.read(target.path, [name]).mutants, f"{target.file} has no {name}"
        assert all((ROOT / test).exists() for test in target.tests)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a + b", {"a + b -> a - b"}),
        ("x = a @ b", {"a @ b -> b @ a"}),
        ("x = a <= b", {"a <= b -> a < b", "a <= b -> a > b"}),
        ("x = a.T", {"a.T -> a"}),
        ("x = a[:, None]", {"a[:, None] -> a"}),
        ("x = not a", {"not a -> a"}),
        ("x = -a", {"-a -> a"}),
        ("x = 2.5", {"2.5 -> 5.0"}),
        ("x = 0.0", {"0.0 -> 1.0"}),
        ("x = True", {"True -> False"}),
        ("x = a and b", {"a and b -> a or b"}),
        ("x = a.clamp_min(y)", {"a.clamp_min(y) -> a"}),
        ("x = f(a, b)", {"f(a, b) -> f(b, a)"}),
        ("x = f(a, dtype=b)", {"f(a, dtype=b) -> f(a)"}),
        ("x = a if c else b", {"a if c else b -> a if not c else b"}),
        ("def f():\n    x.y = a", {"x.y = a -> nothing"}),
        ("def f():\n    x += a", {"x += a -> x -= a", "x += a -> nothing"}),
        ("def f():\n    return a", {"return a -> return None"}),
        ("def f():\n    raise a", {"raise a -> nothing"}),
        ("def f():\n    g()", {"g() -> nothing"}),
        ("def f(a=True):\n    pass", {"True -> False"}),
        ("class A:\n    def f(self):\n        return a", {"return a -> return None"}),
        (
            "x = a * 1 + b * 1",
            {"1 -> 2", "1 -> 2 #2"}
            | {"a * 1 + b * 1 -> a * 1 - b * 1"}
            | {"a * 1 -> a / 1", "b * 1 -> b / 1"},
        ),
    ],
)
def test_mutants_are_made(source: str, expected: set[str]) -> None:
    assert changes(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "def f(a: 'int' = x) -> 'int':\n    '''Say 1 + 1.'''",
        "@f(1)\ndef g():\n    pass",
        "def f():\n    assert a < 1, 'no'",
        "x = f'{1}'",
        "x = f(device=1)",
        "x = torch.equal(a, b)",
        "import a",
        "x = f(a)",
    ],
)
def test_no_mutants_are_made_by_rule(source: str) -> None:
    assert changes(source) == set()


def test_the_inside_of_an_error_is_left_alone() -> None:
    source = (
        "def f():\n    raise A(f'{b + 1}', 1)\ndef g():\n    warnings.warn('text', stacklevel=2)"
    )
    assert changes(source) == {
        "raise A(f'{b + 1}', 1) -> nothing",
        "warnings.warn('text', stacklevel=2) -> nothing",
    }


def test_a_scope_leaves_out_the_rest() -> None:
    source = "A = 1\nB = 1\ndef f():\n    return 1\nclass C:\n    def g(self):\n        return 1"
    found = find_mutants(ast.parse(source), ["A", "C"])
    assert {(mutant.function, mutant.line) for mutant in found} == {("", 1), ("C.g", 7)}


SOURCE = """
FACTOR = 3

def default(*, by=2):
    return by

def outer(x):
    def inner():
        return x * FACTOR
    return inner()

class Thing:
    @property
    def size(self):
        return 5 + 1
"""


def test_a_mutant_is_put_into_functions_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "module_with_mutants.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("module_with_mutants")
    outer, default, thing = module.outer, module.default, module.Thing()
    live = LiveModule(MutatedModule.read(file))
    by_change = {mutant.change: mutant for mutant in live.mutated.mutants}
    assert (outer(2), default(), thing.size) == (6, 2, 6)
    live.put(by_change["3 -> 4"])
    assert outer(2) == 8
    live.put(by_change["x * FACTOR -> x / FACTOR"])
    assert outer(2) == 0.5
    live.put(by_change["2 -> 3"])
    assert default() == 3
    live.put(by_change["5 + 1 -> 5 - 1"])
    assert thing.size == 4
    assert all(live.has(mutant) for mutant in live.mutated.mutants)
