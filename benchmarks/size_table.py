"""Show the size of the code at a revision and in the working tree: `python -m benchmarks.size_table REVISION`.

With `--record` the sizes are written to `records/size.jsonl`, from which `make docs` makes a table.
"""

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.code_base import TREES, CodeBase
from benchmarks.markdown_cells import markdown_table
from zloss_lab.records import Recordable, RecordKey, read_records_as, write_records

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).parent / "records" / "size.jsonl"
ALL = "all"
WORKING_TREE = "working tree"
NAMES_OF_PYTHON = {"__init__", "__main__"}


@dataclass(frozen=True, kw_only=True)
class Size(Recordable):
    """The size of one tree of the code base at a revision."""

    revision: str
    tree: str  # one of TREES, or ALL
    files: int
    lines: int
    statements: int  # unlike the number of lines, it does not depend on their width
    functions: int
    classes: int
    longest_file: int  # in lines
    longest_function: int  # in lines
    import_depth: int  # modules in the longest chain of imports inside of the tree
    class_names_used_twice: int
    module_names_used_twice: int  # counts the last parts of names

    @property
    def key(self) -> RecordKey:
        return (self.revision, self.tree)


COLUMNS = {
    "files": "files",
    "lines": "lines",
    "statements": "statements",
    "functions": "functions",
    "classes": "classes",
    "longest_file": "longest file, lines",
    "longest_function": "longest function, lines",
    "import_depth": "longest chain of imports",
    "class_names_used_twice": "class names used twice",
    "module_names_used_twice": "module names used twice",
}


def size_of(code_base: CodeBase, revision: str, tree: str) -> Size:
    """Return the size of a code base, which is one tree or all of them."""
    modules = code_base.modules.values()
    functions = [function for module in modules for function in module.functions]
    classes = [name for module in modules for name in module.classes]
    last_names = (module.name.rpartition(".")[2] for module in modules)
    return Size(
        revision=revision,
        tree=tree,
        files=len(modules),
        lines=sum(module.lines for module in modules),
        statements=sum(module.statements for module in modules),
        functions=len(functions),
        classes=len(classes),
        longest_file=max((module.lines for module in modules), default=0),
        longest_function=max((function.lines for function in functions), default=0),
        import_depth=code_base.import_depth,
        class_names_used_twice=used_twice(classes),
        module_names_used_twice=used_twice(
            name for name in last_names if name not in NAMES_OF_PYTHON
        ),
    )


def used_twice(names: Iterable[str]) -> int:
    """Return how many names occur more than once.

    >>> used_twice(["a", "b", "a", "a", "c", "c"])
    2
    """
    return sum(count > 1 for count in Counter(names).values())


def sizes(code_base: CodeBase, revision: str) -> list[Size]:
    """Return the size of each tree, and the size of all trees together."""
    trees = [size_of(code_base.of_tree(tree), revision, tree) for tree in TREES]
    return [*trees, size_of(code_base, revision, ALL)]


def table(rows: list[Size]) -> str:
    """Return a Markdown table with a column for each tree. A cell has the sizes of all revisions, in their order."""
    revisions = list(dict.fromkeys(size.revision for size in rows))
    found = {(size.revision, size.tree): size for size in rows}
    trees = (*TREES, ALL)
    lines = [
        [
            label,
            *(
                " → ".join(f"{getattr(found[revision, tree], field):,}" for revision in revisions)
                for tree in trees
            ),
        ]
        for field, label in COLUMNS.items()
    ]
    return markdown_table((" → ".join(revisions), *trees), lines)


def recorded_table() -> str:
    """Return the table of the record, for the documentation."""
    return (
        table(read_records_as(Size, RECORD)) + "\n\nMeasured by `python -m benchmarks.size_table`."
    )


def commit_of_working_tree() -> str:
    """Return the short name of the checked-out commit. `ValueError` if files differ from it."""
    status = subprocess.run(
        ["git", "status", "--porcelain", "--", "src", "lab", "reproduction"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    if status.stdout:
        raise ValueError("commit the changes first: a record names the commit that was measured")
    head = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return head.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("revision", nargs="?", default="HEAD", help="the commit to compare with")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.relative_to(ROOT)}")
    options = parser.parse_args()
    try:
        before = sizes(CodeBase.at_revision(ROOT, options.revision), options.revision)
        now = commit_of_working_tree() if options.record else WORKING_TREE
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    after = sizes(CodeBase.at_working_tree(ROOT), now)
    print(table([*before, *after]))
    if options.record:
        write_records(RECORD, [*before, *after])
    return 0


if __name__ == "__main__":
    sys.exit(main())
