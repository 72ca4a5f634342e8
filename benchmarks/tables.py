"""Rebuild the tables of README.md from the records: `python benchmarks/tables.py`, or `--check` to compare only.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; each name is a function below.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from zloss.lab.records import Record, read_records

ROOT = Path(__file__).parent.parent
RECORDS = Path(__file__).parent / "records"
ONE_BILLION_WORD = 793_471


def speed() -> str:
    """Ratios on the CPU, where absolute times mean little; times on the GPU."""
    lines = [
        "| one step of the output layer, B = 200, H = 512 | CPU | GPU |",
        "|---|---|---|",
    ]
    cpu, gpu = (_times(read_records(RECORDS / f"output_layer.{device}.jsonl")) for device in ("cpu", "cuda"))
    for name, head in SOFTMAXES.items():
        ratios = [_ratio(times, head) for times in (cpu, gpu)]
        lines.append(f"| {name}, 793,471 classes / factored Z-loss | {ratios[0]} | {ratios[1]} |")
    growth = [times["factored", 1_000_000] / times["factored", 10_000] for times in (cpu, gpu)]
    lines.append(f"| factored Z-loss, 1,000,000 classes / 10,000 classes | {growth[0]:.2f} | {growth[1]:.2f} |")
    lines.append(f"| factored Z-loss, 793,471 classes | | {gpu['factored', ONE_BILLION_WORD]:.2f} ms |")
    return "\n".join([*lines, "", _source("output_layer")])


SOFTMAXES = {"dense softmax": "dense", "`F.linear_cross_entropy`": "dense, linear_cross_entropy"}


def accuracy() -> str:
    """How far float32 layers are from dense float64 SGD after the long run."""
    lines = [
        "| float32 weights after 20,000 steps against dense float64 SGD | error of W | error of the loss | refactors |",
        "|---|---|---|---|",
    ]
    for device in ("cpu", "cuda"):
        for record in read_records(RECORDS / f"long_run.{device}.jsonl"):
            name = f"{record['head']}, {'GPU' if device == 'cuda' else 'CPU'}"
            errors = f"{record['weight_error']:.1e} | {record['largest_loss_error']:.1e}"
            lines.append(f"| {name} | {errors} | {record.get('refactors', '')} |")
    return "\n".join([*lines, "", _source("long_run")])


def _times(records: list[Record]) -> dict[tuple[str, int], float]:
    return {(record["head"], record["classes"]): record["time_ms"] for record in records}


def _ratio(times: dict[tuple[str, int], float], head: str) -> str:
    if (head, ONE_BILLION_WORD) not in times:
        return "not in that torch"
    return f"{times[head, ONE_BILLION_WORD] / times['factored', ONE_BILLION_WORD]:.0f}"


def _source(name: str) -> str:
    notes = []
    for path in sorted(RECORDS.glob(f"{name}.*.jsonl")):
        record = read_records(path)[0]
        notes.append(f"{record['device']}, torch {record['versions']['torch']}, seed {record['seed']}")
    return f"Measured on {'; '.join(notes)}. Records: [`benchmarks/records`](benchmarks/records)."


TABLES: dict[str, Callable[[], str]] = {"speed": speed, "accuracy": accuracy}
_PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rebuilt(text: str) -> str:
    """`text` with every table in it made anew."""
    return _PLACE.sub(lambda place: f"{place[1]}{TABLES[place[2]]()}\n{place[3]}", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the tables are up to date")
    arguments = parser.parse_args()
    readme = ROOT / "README.md"
    text = readme.read_text()
    new = rebuilt(text)
    if arguments.check and new != text:
        print("README.md is not what the records say: run `make docs`", file=sys.stderr)
        return 1
    if new != text:
        readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
