"""Rebuild the tables of the documents from the records: `python -m benchmarks.tables`, or `--check` to compare only.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. Each name is a key of `TABLES`.
"""

import argparse
import re
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from benchmarks.measurements import Measurements
from benchmarks.speed_tables import gram, heads, profile, speed
from benchmarks.speed_targets import targets
from benchmarks.training_tables import accuracy, epochs, learning
from reproduction.report.evidence import Evidence
from reproduction.report.excerpts import EXCERPTS, excerpt_markdown

ROOT = Path(__file__).parent.parent
TIMINGS, RESULTS = ROOT / "benchmarks" / "records", ROOT / "reproduction" / "records"
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_MEASURED = Measurements(TIMINGS)


def _excerpt(name: str) -> str:
    return excerpt_markdown(name, evidence())


@cache
def evidence() -> Evidence:
    """Return the committed results and timings."""
    return Evidence.read(RESULTS, TIMINGS)


TABLES: dict[str, Callable[[], str]] = {
    **{
        table.__name__: partial(table, _MEASURED)
        for table in (speed, heads, gram, accuracy, targets, profile, epochs, learning)
    },
    **{name: partial(_excerpt, name) for name in EXCERPTS},
}
_PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rebuilt(text: str) -> str:
    """Return a document with every table in it made anew."""
    return _PLACE.sub(lambda place: f"{place[1]}{TABLES[place[2]]()}\n{place[3]}", text)


def stale_documents() -> dict[Path, str]:
    """Return the documents that differ from the records, each with its new text."""
    new = {document: rebuilt(document.read_text()) for document in DOCUMENTS}
    return {document: text for document, text in new.items() if text != document.read_text()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    stale = stale_documents()
    if parser.parse_args().check:
        for document in stale:
            print(f"{document.name} is not what the records say: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for document, text in stale.items():
        document.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
