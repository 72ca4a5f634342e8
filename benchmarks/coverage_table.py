"""The share of lines and branches that `make test` runs: `python -m benchmarks.coverage_table` after `make coverage`.

Parts that only a GPU runs are named in `GPU_ONLY` and listed apart. Where there is no GPU, nobody can run them. The
bodies of Triton kernels are not among them, because the interpreter of Triton runs them.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.markdown_cells import markdown_table
from zloss_lab.documents.markdown import wrapped
from zloss_lab.records import Recordable, RecordKey, provenance, read_records_as, write_records

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).parent / "records" / "coverage.cpu.jsonl"
REPORT = ROOT / "build" / "coverage" / "report.json"
SOURCES = ("src/", "lab/src/")
# Functions by module. The interpreter of Triton has no graphs and no streams.
GPU_ONLY: dict[str, tuple[str, ...]] = {
    "zloss.capture": (
        "_Graph.__init__",
        "_Graph.is_outdated",
        "_Graph.replay",
        "_own_workspaces",
        "_garbage_kept",
        "_on_side_stream",
    ),
    "zloss.layers.device_reports": ("DeviceReports.push", "DeviceReports.latest", "_pinned_like"),
    "zloss.layers.triton_backend": (
        "BegunGradient.after_refactor",
        "TritonBackend.__init__",
        "TritonBackend.forward",
        "TritonBackend.backward",
        "TritonBackend.step_",
        "TritonBackend.invalidate",
        "TritonBackend.begin_capture",
        "TritonBackend.end_capture",
    ),
}


@dataclass(frozen=True, kw_only=True)
class PackageCoverage(Recordable):
    """The lines and branches of a package, and how many of them the tests run."""

    package: str
    needs_gpu: bool  # these are the functions that only a GPU runs
    functions: tuple[str, ...]  # named if they need a GPU
    lines: int
    lines_run: int
    branches: int
    branches_run: int
    provenance: dict[str, Any]

    @property
    def key(self) -> RecordKey:
        return (self.package, self.needs_gpu)


@dataclass
class Count:
    """Lines and branches of any number of functions."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    def add(self, summary: Mapping[str, int], sign: int = 1) -> None:
        """Add the summary of a file or a function, or take it away."""
        self.lines += sign * summary["num_statements"]
        self.lines_run += sign * summary["covered_lines"]
        self.branches += sign * summary["num_branches"]
        self.branches_run += sign * summary["covered_branches"]


def module_of(path: str) -> str:
    """Return the name of the module in a file.

    >>> module_of("src/zloss/heads/__init__.py"), module_of("lab/src/zloss_lab/runs.py")
    ('zloss.heads', 'zloss_lab.runs')
    """
    for source in sorted(SOURCES, key=len, reverse=True):
        path = path.removeprefix(source)
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def package_of(path: str) -> str:
    """Return the name of the package that holds a file.

    >>> package_of("src/zloss/heads/__init__.py"), package_of("lab/src/zloss_lab/runs.py")
    ('zloss.heads', 'zloss_lab')
    """
    return module_of(str(Path(path).parent / "__init__.py"))


def coverages(report: Mapping[str, Any], place: dict[str, Any]) -> list[PackageCoverage]:
    """Return the coverage of each package from the JSON report of coverage.py."""
    counts: dict[tuple[str, bool], Count] = {}
    named: dict[str, list[str]] = {}
    for path, file in report["files"].items():
        package, module = package_of(path), module_of(path)
        counts.setdefault((package, False), Count()).add(file["summary"])
        for name in GPU_ONLY.get(module, ()):
            summary = file["functions"][name]["summary"]
            counts[package, False].add(summary, sign=-1)
            counts.setdefault((package, True), Count()).add(summary)
            named.setdefault(package, []).append(f"{module.removeprefix(package + '.')}.{name}")
    return [
        PackageCoverage(
            package=package,
            needs_gpu=needs_gpu,
            functions=tuple(named[package]) if needs_gpu else (),
            **vars(count),
            provenance=place,
        )
        for (package, needs_gpu), count in sorted(counts.items())
        if count.lines
    ]


def never_run(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the functions that no test runs and that need no GPU."""
    for path, file in report["files"].items():
        module = module_of(path)
        for name, function in file["functions"].items():
            summary = function["summary"]
            is_known = name in GPU_ONLY.get(module, ())
            if name and summary["num_statements"] and not summary["covered_lines"] and not is_known:
                yield f"{module}.{name}"


def recorded_table(path: Path = RECORD) -> str:
    """Return the tables of the record, for the documentation."""
    if not path.exists():
        return "Not measured yet: `make coverage` writes the record."
    found = read_records_as(PackageCoverage, path)
    ordinary = [one for one in found if not one.needs_gpu]
    rows = [_row(one.package, [one]) for one in ordinary]
    total = _row("all", ordinary)
    apart = [
        [one.package, ", ".join(f"`{name}`" for name in one.functions), f"{one.lines:,}"]
        for one in found
        if one.needs_gpu
    ]
    columns = ("package", "lines", "of them run", "branches", "of them run")
    place = found[0].provenance
    source = (
        f"Measured with Python {place['versions']['python']} and torch {place['versions']['torch']} on "
        f"{place['device']}, commit {place['commit']}. Parts that only a GPU runs are not counted above:"
    )
    return "\n\n".join(
        [
            markdown_table(columns, [*rows, total]),
            wrapped(source),
            markdown_table(("package", "functions that only a GPU runs", "lines"), apart),
        ]
    )


def _row(title: str, found: Iterable[PackageCoverage]) -> list[str]:
    all_of = list(found)
    lines, branches = sum(one.lines for one in all_of), sum(one.branches for one in all_of)
    return [
        title,
        f"{lines:,}",
        _share(sum(one.lines_run for one in all_of), lines),
        f"{branches:,}",
        _share(sum(one.branches_run for one in all_of), branches),
    ]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def main() -> int:
    """Combine the data of all processes, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--report", type=Path, default=REPORT, help="a JSON report, if it is there")
    options = parser.parse_args()
    if not options.report.exists():
        for arguments in (["combine", "--quiet"], ["json", "--quiet", "-o", str(options.report)]):
            subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT, check=True)
    report = json.loads(options.report.read_text())
    write_records(RECORD, coverages(report, provenance(torch.device("cpu"))))
    for name in sorted(never_run(report)):
        print(f"never run: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
