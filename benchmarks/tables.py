"""Rebuild the tables of the documents from the records: `python benchmarks/tables.py`, or `--check` to compare only.

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
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "heads.md")
ONE_BILLION_WORD = 793_471


def speed() -> str:
    """Ratios on the CPU, where absolute times mean little; times on the GPU."""
    lines = [
        "| one step of the output layer, B = 200, H = 512 | CPU | GPU |",
        "|---|---|---|",
    ]
    cpu, gpu = (_records("output_layer", device) for device in ("cpu", "cuda"))
    for name in ("dense softmax", "dense softmax, TF32", "hierarchical softmax", "sampled softmax"):
        ratios = [_ratio(records, _line(records, name)) for records in (cpu, gpu)]
        lines.append(f"| {name}, 793,471 classes / factored Z-loss | {' | '.join(ratios)} |")
    growth = [_time(records, "factored") / _time(records, "factored", 10_000) for records in (cpu, gpu)]
    lines.append(f"| factored Z-loss, 793,471 classes / 10,000 classes | {growth[0]:.2f} | {growth[1]:.2f} |")
    lines.append(f"| factored Z-loss, 793,471 classes | | {_time(gpu, 'factored'):.2f} ms |")
    return "\n".join([*lines, "", _source("output_layer")])


def heads() -> str:
    """Every head at every size: ratios to the factored step on the CPU, times on the GPU, memory on both."""
    sizes = (10_000, 100_000, ONE_BILLION_WORD)
    header = [f"{place}, C = {size:,}" for place in ("CPU", "GPU") for size in sizes]
    lines = [
        f"| one step, B = 200, H = 512 | {' | '.join(header)} | memory, CPU | memory, GPU |",
        "|---|" + "---|" * (len(header) + 2),
    ]
    cpu, gpu = (_records("output_layer", device) for device in ("cpu", "cuda"))
    for name, targets, launch in _rows_of(gpu):
        of_gpu = [_line(gpu, name, size, targets, launch=launch) for size in sizes]
        cells = [*map(_milliseconds, of_gpu)]
        if launch == "eager":
            of_cpu = [_line(cpu, name, size, targets) for size in sizes]
            ratios = [_ratio(cpu, record) for record in of_cpu]
            cells = [*ratios, *cells, _gigabytes(of_cpu[-1]), _gigabytes(of_gpu[-1])]
        else:
            cells = ["", "", "", *cells, "", ""]
        law = ", words by frequency" if targets == "zipf" else ""
        lines.append(f"| {name}{law}{', CUDA graph' if launch == 'graph' else ''} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _source("output_layer")])


def _rows_of(records: list[Record]) -> list[tuple[str, str, str]]:
    """Name, targets and launch of each line of the table of heads, in the order of the records."""
    shown = [r for r in records if r["name"] != "refactor" and (r["launch"] == "eager" or r["time_ms"] is not None)]
    return list(dict.fromkeys((record["name"], record["targets"], record["launch"]) for record in shown))


def gram() -> str:
    """The Gram layer beside a dense one, as the batch grows."""
    lines = ["| Z-loss, C = 100,000, H = 512: time of dense / Gram | CPU | GPU |", "|---|---|---|"]
    cpu, gpu = (_records("output_layer", device) for device in ("cpu", "cuda"))
    for batch in (200, 1000, 4000):
        ratios = [
            _line(records, "dense Z-loss", 100_000, batch=batch)["time_ms"]
            / _line(records, "Gram Z-loss", 100_000, batch=batch)["time_ms"]
            for records in (cpu, gpu)
        ]
        lines.append(f"| B = {batch:,} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    return "\n".join([*lines, "", _source("output_layer")])


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


def _records(suite: str, device: str) -> list[Record]:
    return read_records(RECORDS / f"{suite}.{device}.jsonl")


def _line(
    records: list[Record],
    name: str,
    classes: int = ONE_BILLION_WORD,
    targets: str = "uniform",
    *,
    batch: int = 200,
    launch: str = "eager",
) -> Record:
    place = (name, classes, targets, batch, launch)
    keys = ("name", "classes", "targets", "batch", "launch")
    return next(record for record in records if tuple(record[key] for key in keys) == place)


def _time(records: list[Record], name: str, classes: int = ONE_BILLION_WORD) -> float:
    return float(_line(records, name, classes)["time_ms"])


def _ratio(records: list[Record], record: Record) -> str:
    """To the factored step: measured by turns on a CPU, beside it in the same run on a GPU."""
    if record["time_ms"] is None:
        return "not run"
    beside = record["time_ms"] / _time(records, "factored", record["classes"])
    return f"{record.get('ratio_to_factored', beside):.3g}"


def _milliseconds(record: Record) -> str:
    return "not run" if record["time_ms"] is None else f"{record['time_ms']:.2f} ms"


def _gigabytes(record: Record) -> str:
    return "" if record["peak_bytes"] is None else f"{record['peak_bytes'] / 1e9:.2f} GB"


def _source(name: str) -> str:
    notes = []
    for path in sorted(RECORDS.glob(f"{name}.*.jsonl")):
        record = read_records(path)[0]
        notes.append(f"{record['device']}, torch {record['versions']['torch']}, seed {record['seed']}")
    return f"Measured on {'; '.join(notes)}. Records: `benchmarks/records`."


TABLES: dict[str, Callable[[], str]] = {"speed": speed, "heads": heads, "gram": gram, "accuracy": accuracy}
_PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rebuilt(text: str) -> str:
    """`text` with every table in it made anew."""
    return _PLACE.sub(lambda place: f"{place[1]}{TABLES[place[2]]()}\n{place[3]}", text)


def stale_documents() -> dict[Path, str]:
    """The documents that are not what the records say, each with what it should be."""
    texts = {document: document.read_text() for document in DOCUMENTS}
    return {document: rebuilt(text) for document, text in texts.items() if rebuilt(text) != text}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether the tables are up to date")
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
