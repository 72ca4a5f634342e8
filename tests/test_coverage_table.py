"""The record of coverage: packages, parts that need a GPU, and functions that no test runs."""

import ast
from pathlib import Path
from typing import Any

import pytest

from benchmarks import coverage_table
from benchmarks.coverage_table import (
    GPU_ONLY,
    SOURCES,
    coverages,
    module_of,
    never_run,
    recorded_table,
)
from zloss_lab.records import write_records

ROOT = Path(__file__).parents[1]


def summary(lines: int, run: int, branches: int, branches_run: int) -> dict[str, Any]:
    counts = {"num_statements": lines, "covered_lines": run}
    return {"summary": counts | {"num_branches": branches, "covered_branches": branches_run}}


REPORT = {
    "files": {
        "src/zloss/capture.py": {
            **summary(100, 60, 20, 10),
            "functions": {"start": summary(30, 0, 8, 0), "idle": summary(5, 0, 0, 0)},
        },
        "src/zloss/metrics.py": {**summary(50, 50, 4, 4), "functions": {"": summary(9, 9, 0, 0)}},
        "lab/src/zloss_lab/tuning/study.py": {**summary(10, 9, 0, 0), "functions": {}},
    }
}
PLACE = {"device": "a CPU", "commit": "abc1234", "versions": {"python": "3.11", "torch": "2.13"}}


def test_what_needs_a_gpu_is_counted_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage_table, "GPU_ONLY", {"zloss.capture": ("start",)})
    found = coverages(REPORT, PLACE)
    counted = {one.key: (one.lines, one.lines_run, one.branches, one.branches_run) for one in found}
    assert counted == {
        ("zloss", False): (120, 110, 16, 14),
        ("zloss", True): (30, 0, 8, 0),
        ("zloss_lab.tuning", False): (10, 9, 0, 0),
    }
    assert list(never_run(REPORT)) == ["zloss.capture.idle"]
    assert recorded_table(tmp_path / "coverage.jsonl").startswith("Not measured yet")
    write_records(tmp_path / "coverage.jsonl", found)
    lines = recorded_table(tmp_path / "coverage.jsonl").splitlines()
    assert "| zloss | 120 | 91.7 % | 16 | 87.5 % |" in lines
    assert "| all | 130 | 91.5 % | 16 | 87.5 % |" in lines
    assert "| zloss | `capture.start` | 30 |" in lines


def functions_of(tree: ast.AST, prefix: str = "") -> set[str]:
    names = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names |= {prefix + node.name} | functions_of(node, f"{prefix}{node.name}.")
        else:
            names |= functions_of(node, prefix)
    return names


def test_the_functions_that_need_a_gpu_are_there() -> None:
    files = {
        module_of(path.relative_to(ROOT).as_posix()): path
        for source in SOURCES
        for path in (ROOT / source).rglob("*.py")
    }
    for module, names in GPU_ONLY.items():
        assert set(names) <= functions_of(ast.parse(files[module].read_text(encoding="utf-8")))
