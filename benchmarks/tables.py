"""Rebuild the tables of the documents from the records: `python benchmarks/tables.py`, or `--check` to compare only.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; each name is a function below.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from zloss.lab.paper.documents import MARKDOWN_TABLES, markdown
from zloss.lab.records import Record, read_records

ROOT = Path(__file__).parent.parent
RECORDS = Path(__file__).parent / "records"
DOCUMENTS = (ROOT / "README.md", *(ROOT / "docs" / name for name in ("heads.md", "lab.md", "results.md", "speed.md")))
DEVICES = ("cpu", "cuda")
ONE_BILLION_WORD = 793_471


def speed() -> str:
    """Ratios on the CPU, where absolute times mean little; times on the GPU."""
    lines = [
        "| one step of the output layer, B = 200, H = 512 | CPU | GPU |",
        "|---|---|---|",
    ]
    cpu, gpu = (_latest("output", device) for device in DEVICES)  # ratios are of one run
    for name in ("dense softmax", *_GPU_SOFTMAXES, "hierarchical softmax", "sampled softmax"):
        of_cpu = "" if name in _GPU_SOFTMAXES else _ratio(cpu, _launched(cpu, name))
        lines.append(f"| {name}, 793,471 classes / factored Z-loss | {of_cpu} | {_ratio(gpu, _launched(gpu, name))} |")
    growth = " | ".join(_growth(device) for device in DEVICES)
    lines.append(f"| factored Z-loss, many classes / 10,000 classes | {growth} |")
    lines.append(f"| factored Z-loss, 793,471 classes | | {_time(gpu, 'factored'):.2f} ms |")
    return "\n".join([*lines, "", _source("output")])


_GPU_SOFTMAXES = ("dense softmax, TF32", "dense softmax, TF32, compiled")


def _growth(device: str) -> str:
    """Of the time of the factored step, from 10,000 classes to the most that one run has measured."""
    records = _latest("scaling", device) or _latest("output", device)
    same = {"batch": 200, "hidden": 512}
    most = max((record["classes"] for record in records if _agrees(record, {"name": "factored"} | same)), default=0)
    growth = _quotient(*(_fastest(records, ("factored",), classes=classes, **same) for classes in (most, 10_000)))
    return "not run" if growth is None else f"{growth:.3g} with {most:,}"


def heads() -> str:
    """Every head at every size: ratios to the factored step on the CPU, times on the GPU, memory on both."""
    sizes = (10_000, 100_000, ONE_BILLION_WORD)
    header = [f"{place}, C = {size:,}" for place in ("CPU", "GPU") for size in sizes]
    lines = [
        f"| one step, B = 200, H = 512 | {' | '.join(header)} | memory, CPU | memory, GPU |",
        "|---|" + "---|" * (len(header) + 2),
    ]
    cpu, gpu = (_records("output", device) for device in DEVICES)
    growth = [record for record in _records("scaling", "cuda") if record["hidden"] == 512]
    for name, targets, launch in _rows_of(gpu):
        of_gpu = [_line([*gpu, *growth], name, size, targets, launch=launch) for size in sizes]
        cells = [*map(_milliseconds, of_gpu)]
        if launch == "eager":
            of_cpu = [_line(cpu, name, size, targets) for size in sizes]
            ratios = [_ratio(cpu, record) for record in of_cpu]
            cells = [*ratios, *cells, _gigabytes(of_cpu[-1]), _gigabytes(of_gpu[-1])]
        else:
            cells = ["", "", "", *cells, "", ""]
        law = ", words by frequency" if targets == "zipf" else ""
        lines.append(f"| {name}{law}{', CUDA graph' if launch == 'graph' else ''} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _source("output")])


def _rows_of(records: list[Record]) -> list[tuple[str, str, str]]:
    """Name, targets and launch of each line of the table of heads, in the order of the records."""
    shown = [r for r in records if r["name"] != "refactor" and (r["launch"] == "eager" or r["time_ms"] is not None)]
    return list(dict.fromkeys((record["name"], record["targets"], record["launch"]) for record in shown))


def gram() -> str:
    """The Gram layer beside a dense one, as the batch grows."""
    lines = ["| Z-loss, C = 100,000, H = 512: time of dense / Gram | CPU | GPU |", "|---|---|---|"]
    cpu, gpu = (_records("gram", device) for device in DEVICES)
    for batch in (200, 1000, 4000):
        times = [
            [_line(records, name, 100_000, batch=batch)["time_ms"] for name in ("dense Z-loss", "Gram Z-loss")]
            for records in (cpu, gpu)
        ]
        lines.append(f"| B = {batch:,} | {' | '.join(f'{dense / gram:.2f}' for dense, gram in times)} |")
    return "\n".join([*lines, "", _source("gram")])


def targets() -> str:
    """What the work on speed set out to reach, beside what is measured; every head as it runs fastest."""
    lines = ["| | target | measured |", "|---|---|---|"]
    for what, target, value, unit in (*_layer_targets(), *_model_targets(), *_refactor_targets(), *_cpu_targets()):
        lines.append(f"| {what} | {target} | {'not measured' if value is None else f'{value:.3g}{unit}'} |")
    return "\n".join([*lines, "", _source("output")])


Target = tuple[str, str, float | None, str]  # what, target, measured, unit
_DENSE = (
    "dense softmax, TF32",
    "dense softmax, bf16",
    "dense softmax, TF32, compiled",
    "dense softmax, bf16, compiled",
)
_CUT = ("dense softmax, CCE, bf16", "dense softmax, CCE exact, bf16")


def _layer_targets() -> Iterator[Target]:
    """Of the output layer on the GPU, H = 512, C = 793,471."""
    records, scaling = _records("output", "cuda"), _records("scaling", "cuda")
    bounds = {200: ("0.10", 70, 60, 9, 5), 1000: ("0.20", 130, 45, 12, 4)}
    for batch, (own, dense, cut, hierarchical, sampled) in bounds.items():
        where = {"batch": batch, "classes": ONE_BILLION_WORD, "targets": "uniform"}
        factored = _fastest(records, ("factored",), **where)
        yield f"factored Z-loss, B = {batch:,}", f"<= {own} ms", factored, " ms"
        for what, names, bound in (
            ("dense softmax (best of TF32, bf16, compiled)", _DENSE, dense),
            ("cut cross-entropy (the faster of both modes)", _CUT, cut),
            ("hierarchical softmax", ("hierarchical softmax",), hierarchical),
            ("sampled softmax, 8192 samples", ("sampled softmax",), sampled),
        ):
            ratio = _quotient(_fastest(records, names, **where), factored)
            yield f"{what} / factored, B = {batch:,}", f">= {bound}", ratio, ""
        ends = [_fastest(scaling, ("factored",), batch=batch, hidden=512, classes=10**power) for power in (7, 4)]
        yield f"factored, C = 10,000,000 / C = 10,000, B = {batch:,}", "<= 1.1", _quotient(*ends), ""


def _model_targets() -> Iterator[Target]:
    """Of whole networks, of evaluation and of the refactor, on the GPU."""
    records, evaluation = _records("model", "cuda"), _records("eval", "cuda")
    net1 = _fastest(records, ("net1, factored",), batch=200)
    dense = _fastest(records, tuple(f"net1, {name}" for name in _DENSE), batch=200)
    yield "net1, factored Z-loss, B = 200", "<= 0.30 ms", net1, " ms"
    epoch_min = None if net1 is None else 150e6 / 200 * net1 / 60_000
    yield "an epoch of One Billion Word with it, the paper's 150 million n-grams", "< 4 min", epoch_min, " min"
    yield "net1, dense softmax / factored Z-loss", ">= 25", _quotient(dense, net1), ""
    yield "net2, factored Z-loss, B = 1,000", "", _fastest(records, ("net2, factored",), batch=1000), " ms"
    rank = _fastest(evaluation, ("factored, rank",), batch=82_000, classes=ONE_BILLION_WORD)
    yield "ranks of 82,000 examples over 793,471 classes", "<= 1.5 s", None if rank is None else rank / 1000, " s"
    refactor = _fastest(evaluation, ("factored, refactor",), classes=ONE_BILLION_WORD)
    yield "a refactor of 793,471 classes", "<= 40 ms", refactor, " ms"


def _refactor_targets() -> Iterator[Target]:
    """Of whole training runs on fil8."""
    for device, place in (("cuda", "GPU"), ("cpu", "CPU")):
        shares = [
            record["refactor_share"] for record in _records("language_model", device) if "refactor_share" in record
        ]
        yield f"share of refactors in a run with 213,271 classes, {place}", "< 5 %", *_percent(shares)


def _percent(shares: list[float]) -> tuple[float | None, str]:
    return (100 * shares[0], " %") if shares else (None, "")


def _cpu_targets() -> Iterator[Target]:
    for what, suite, name, bound in (
        ("output layer, dense softmax / factored, CPU", "output", "dense softmax", "200"),
        ("net1, dense softmax / factored, CPU", "model", "net1, dense softmax", "10.5"),
    ):
        where = {"name": name, "batch": 200, "classes": ONE_BILLION_WORD}
        found = [
            record.get("ratio_to_factored") for record in _records(suite, "cpu") if where.items() <= record.items()
        ]
        yield what, f">= {bound}", found[0] if found else None, ""


def _fastest(records: list[Record], names: tuple[str, ...], **where: Any) -> float | None:
    """The least time of these heads, however they are launched."""
    found = [record for record in records if record["name"] in names and _agrees(record, where)]
    return min((record["time_ms"] for record in found if record["time_ms"] is not None), default=None)


def _agrees(record: Record, where: dict[str, Any]) -> bool:
    return all(record.get(key) == value for key, value in where.items())


def _quotient(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below


def profile() -> str:
    """What the time of a captured step goes to, and what the arithmetic of its products alone would take."""
    records = [_Profile(record) for record in _records("profile", "cuda")]
    header = " | ".join(f"B = {one.record['batch']:,}" for one in records)
    lines = [f"| microseconds, H = 512, C = 793,471 | {header} |", "|---|" + "---|" * len(records)]
    rows: dict[str, Callable[[_Profile], float]] = {
        "until the loss is known": lambda one: one.until("_losses_and_slopes"),
        "until the layer below has its gradient": lambda one: one.until("_gradient") - one.until("_losses_and_slopes"),
        "the system, its series, and products beside them": lambda one: (
            one.until("_apply") - one.of("_apply") - one.until("_gradient")
        ),
        "change of all factors and rows": lambda one: one.of("_apply"),
        "**the whole graph**": lambda one: 1000 * one.record["time_ms"],
        "its products alone, at the speed of large ones": lambda one: 1000 * one.record["arithmetic_ms"],
    }
    lines += [f"| {what} | {' | '.join(f'{value(one):.0f}' for one in records)} |" for what, value in rows.items()]
    return "\n".join([*lines, "", _source("profile")])


class _Profile:
    """The record of a profile, with times counted from the first launch of the graph."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._launches = {launch["name"]: launch for launch in record["launches"]}

    def of(self, name: str) -> float:
        return float(self._launches[name]["time_us"])

    def until(self, name: str) -> float:
        return float(self._launches[name]["start_us"]) + self.of(name) - float(self._launches["_gather"]["start_us"])


def accuracy() -> str:
    """How far float32 layers are from dense float64 SGD after the long run."""
    lines = [
        "| float32 weights after 20,000 steps against dense float64 SGD | error of W | error of the loss | refactors |",
        "|---|---|---|---|",
    ]
    for device in DEVICES:
        for record in _records("long_run", device):
            name = f"{record['head']}, {'GPU' if device == 'cuda' else 'CPU'}"
            errors = f"{record['weight_error']:.1e} | {record['largest_loss_error']:.1e}"
            lines.append(f"| {name} | {errors} | {record.get('refactors', '')} |")
    return "\n".join([*lines, "", _source("long_run")])


def epochs() -> str:
    """What an epoch takes, and how much longer it would with a dense softmax."""
    lines = [
        "| corpus | classes | network | on | dense softmax / factored Z-loss | an epoch with the factored Z-loss |",
        "|---|---|---|---|---|---|",
    ]
    speeds = [record for record in _language_models() if record["what"] == "speed"]
    for own, dense in zip(speeds[::2], speeds[1::2], strict=True):
        ratio, epoch = f"{dense['ratio_to_factored']:.3g}", f"{own['epoch_s']:.0f} s"
        cells = (own["corpus"], f"{own['classes']:,}", _layers(own["network"]), own["device"], ratio, epoch)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _source("language_model")])


def learning() -> str:
    """Test scores of the runs, beside always predicting the most frequent words."""
    depths = (1, 5, 10, 20, 50, 100)
    header = " | ".join(f"top-{k}" for k in depths)
    lines = [f"| error on the test split, % | {header} | MRR |", "|---|" + "---|" * (len(depths) + 1)]
    tests: dict[str, Record] = {}
    for record in _language_models():
        for who, scores in record.get("test", {}).items():
            name = f"{record['epochs']:.2g} epochs of {_layers(record['network'])}" if who == "this run" else who
            tests.setdefault(f"{record['corpus']}, {name}", scores)  # the most frequent words are the same for all
    for name, scores in tests.items():
        cells = [f"{100 * scores[f'top_{k}_error']:.1f}" for k in depths]
        lines.append(f"| {name} | {' | '.join(cells)} | {scores['mrr']:.3f} |")
    return "\n".join([*lines, "", _source("language_model")])


def _language_models() -> list[Record]:
    return [record for device in DEVICES for record in _records("language_model", device)]


def _layers(network: Record) -> str:
    """Of a network below its head, as the paper writes them."""
    widths = ", ".join(str(width) for width in network["hidden"])
    return f"[{network['context']} * {network['embedding']}, {widths}]"


# What has not been measured since stands in the records of earlier runs, some of it under another name: `speed` has the
# heads that matter most, at the largest size; `output_layer` is the first benchmark.
_EARLIER = {"output": ("speed", "output_layer"), "gram": ("output_layer",)}
_RENAMED = {
    "dense softmax, CCE": "dense softmax, CCE, bf16",
    "dense softmax, CCE exact": "dense softmax, CCE exact, bf16",
}


def _paths(suite: str, device: str) -> list[Path]:
    """The records of a suite, the latest first."""
    paths = (RECORDS / f"{name}.{device}.jsonl" for name in (suite, *_EARLIER.get(suite, ())))
    return [path for path in paths if path.exists()]


def _records(suite: str, device: str) -> list[Record]:
    return [record for path in _paths(suite, device) for record in _read(path)]


def _latest(suite: str, device: str) -> list[Record]:
    return [record for path in _paths(suite, device)[:1] for record in _read(path)]


def _read(path: Path) -> list[Record]:
    records = read_records(path)
    return [record | {"name": _RENAMED.get(record.get("name", ""), record.get("name"))} for record in records]


def _line(
    records: list[Record],
    name: str,
    classes: int = ONE_BILLION_WORD,
    targets: str = "uniform",
    *,
    batch: int = 200,
    launch: str = "eager",
) -> Record:
    """The record of a head at a size; one that says "not run" where there is none."""
    where = {"name": name, "classes": classes, "targets": targets, "batch": batch, "launch": launch}
    nothing: Record = where | {"time_ms": None, "peak_bytes": None}
    return next((record for record in records if _agrees(record, where)), nothing)


def _launched(records: list[Record], name: str, classes: int = ONE_BILLION_WORD) -> Record:
    """As a CUDA graph if the factored step could be one in that run, and this head can."""
    graphs = [_line(records, head, classes, launch="graph") for head in ("factored", name)]
    if all(record["time_ms"] is not None for record in graphs):
        return graphs[1]
    return _line(records, name, classes)


def _time(records: list[Record], name: str, classes: int = ONE_BILLION_WORD) -> float:
    return float(_launched(records, name, classes)["time_ms"])


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


def _source(suite: str) -> str:
    notes = []
    for path in (path for device in DEVICES for path in _paths(suite, device)[:1]):
        record = read_records(path)[0]
        notes.append(f"{record['device']}, torch {record['versions']['torch']}, seed {record['seed']}")
    return f"Measured on {'; '.join(notes)}. Records: `benchmarks/records`."


TABLES: dict[str, Callable[[], str]] = {
    "speed": speed,
    "heads": heads,
    "gram": gram,
    "accuracy": accuracy,
    "targets": targets,
    "profile": profile,
    "epochs": epochs,
    "learning": learning,
    **{name: partial(markdown, name, Path(__file__).parent) for name in MARKDOWN_TABLES},
}
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
