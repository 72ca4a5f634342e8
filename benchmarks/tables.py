"""Rebuild the tables and the picture of the documents from the records: `python -m benchmarks.tables`.

`--check` only compares them. A table stands between `<!-- table: NAME -->` and `<!-- end -->`. Each name is a key of
`TABLES`.
"""

import argparse
import re
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from benchmarks import (
    campaign_table,
    coverage_table,
    head_tables,
    mutation_table,
    rates,
    size_table,
    versions,
)
from benchmarks.baseline_tables import baselines_items, baselines_tags, mean_ranks, ngrams
from benchmarks.measurements import Measurements
from benchmarks.picture import draw_picture
from benchmarks.speed_tables import gram, heads, profile, speed
from benchmarks.speed_targets import targets
from benchmarks.training_tables import accuracy, epochs, learning
from reproduction.report.evidence import Evidence
from reproduction.report.excerpts import EXCERPTS, excerpt_markdown

ROOT = Path(__file__).parent.parent
TIMINGS, RESULTS = ROOT / "benchmarks" / "records", ROOT / "reproduction" / "records"
PICTURE = ROOT / "docs" / "_static" / "cost-and-quality.svg"
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
    **{table.__name__: table for table in (baselines_items, baselines_tags, mean_ranks, ngrams)},
    "campaign": campaign_table.recorded_table,
    "coverage": coverage_table.recorded_table,
    **{
        table.__name__: table
        for table in (
            head_tables.head_defaults,
            head_tables.head_optimizers,
            head_tables.head_changes,
            head_tables.head_samples,
        )
    },
    "mutation": mutation_table.recorded_table,
    "rates": rates.recorded_table,
    "size": size_table.recorded_table,
    "versions": versions.recorded_table,
}
_PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rebuilt(text: str) -> str:
    """Return a document with new tables."""
    return _PLACE.sub(lambda place: f"{place[1]}{TABLES[place[2]]()}\n{place[3]}", text)


def stale_files() -> dict[Path, str]:
    """Return the documents that differ from the records, and the picture if it does, each with its new text."""
    before = {path: _text(path) for path in (*DOCUMENTS, PICTURE)}
    after = {document: rebuilt(before[document]) for document in DOCUMENTS}
    after[PICTURE] = draw_picture(evidence(), TIMINGS)
    return {path: text for path, text in after.items() if text != before[path]}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    is_check = parser.parse_args().check
    stale = stale_files()
    for path, text in stale.items():
        if is_check:
            print(f"{path.name} is not what the records say: run `make docs`", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
