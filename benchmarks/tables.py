"""Rebuild the tables of the documents from the records: `python -m benchmarks.tables`, or `--check` to compare only.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; each name is a function below. A quotient is of
two times of one run, the latest that has both.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from reproduction.report.documents import MARKDOWN_TABLES, markdown
from reproduction.report.speed_checks import PLACES
from reproduction.report.timings import (
    DEVICES,
    FILES,
    Device,
    Run,
    Timings,
    by_turns,
    fastest,
    ratio,
)
from zloss_lab.bench.layer_suite import ONE_BILLION_WORD
from zloss_lab.records import Record, read_records

ROOT = Path(__file__).parent.parent
RECORDS = Path(__file__).parent / "records"
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FIL8 = 213_271  # classes


def speed() -> str:
    """Ratios on the CPU, where absolute times mean little; times on the GPU."""
    lines = [
        "| one step of the output layer, B = 200, H = 512 | CPU | GPU |",
        "|---|---|---|",
    ]
    for name in ("dense softmax", *_GPU_SOFTMAXES, "hierarchical softmax", "sampled softmax"):
        of_cpu = "" if name in _GPU_SOFTMAXES else _ratio("cpu", name)
        lines.append(
            f"| {name}, 793,471 classes / factored Z-loss | {of_cpu} | {_ratio('cuda', name)} |"
        )
    growth = " | ".join(_growth(device) for device in DEVICES)
    lines.append(f"| factored Z-loss, many classes / few | {growth} |")
    factored = fastest(_latest("output", "cuda"), _FACTORED, **_LARGEST)
    lines.append(f"| factored Z-loss, 793,471 classes | | {_milliseconds(factored)} |")
    return "\n".join([*lines, "", _source("output")])


_FACTORED = ("factored",)
_LARGEST = {"batch": 200, "classes": ONE_BILLION_WORD, "targets": "uniform"}
_GPU_SOFTMAXES = ("dense softmax, TF32", "dense softmax, TF32, compiled")


def _ratio(device: Device, name: str) -> str:
    """All ratios of the table are of the latest run."""
    own, pace = (
        fastest(_latest("output", device), names, **_LARGEST) for names in ((name,), _FACTORED)
    )
    return _shown(ratio(own, pace, device))


def _growth(device: Device) -> str:
    """Of the time of the factored step, over the widest range of classes that one run has."""
    growth = Timings.read(RECORDS).growth("z_loss", device)
    return (
        "not run"
        if growth is None
        else f"{growth.factor:.3g} with {growth.many:,} / {growth.few:,}"
    )


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
        where = {"name": name, "batch": 200, "targets": targets, "launch": launch}
        of_gpu = [_first([*gpu, *growth], where | {"classes": size}) for size in sizes]
        cells = [_marked(_milliseconds, record, gpu) for record in of_gpu]
        if launch == "eager":
            of_cpu = [_first(cpu, where | {"classes": size}) for size in sizes]
            ratios = [_marked(_turns, record, cpu) for record in of_cpu]
            memory = [_marked(_gigabytes, of_cpu[-1], cpu), _marked(_gigabytes, of_gpu[-1], gpu)]
            cells = [*ratios, *cells, *memory]
        else:
            cells = ["", "", "", *cells, "", ""]
        law = ", words by frequency" if targets == "zipf" else ""
        lines.append(
            f"| {name}{law}{', CUDA graph' if launch == 'graph' else ''} | {' | '.join(cells)} |"
        )
    others = (
        "With * of another run: compare such times with each other; "
        "a ratio is to the factored step of its own run."
    )
    return "\n".join([*lines, "", others, "", _source("output")])


def _rows_of(records: list[Record]) -> list[tuple[str, str, str]]:
    """Name, targets and launch of each line of the table of heads, in the order of the records, one head together."""
    shown = [
        r
        for r in records
        if r["name"] != "refactor" and (r["launch"] == "eager" or r["time_ms"] is not None)
    ]
    heads = list(dict.fromkeys((record["name"], record["targets"]) for record in shown))
    rows = dict.fromkeys((record["name"], record["targets"], record["launch"]) for record in shown)
    return sorted(rows, key=lambda row: heads.index(row[:2]))


def gram() -> str:
    """The Gram layer beside a dense one, as the batch grows."""
    lines = ["| Z-loss, C = 100,000, H = 512: time of dense / Gram | CPU | GPU |", "|---|---|---|"]
    for batch in (200, 1000, 4000):
        where = {"batch": batch, "classes": 100_000, "launch": "eager"}
        above, below = ({"names": (name,)} | where for name in ("dense Z-loss", "Gram Z-loss"))
        quotients = [_quotient("gram", device, above, below) for device in DEVICES]
        lines.append(
            f"| B = {batch:,} | {' | '.join(_shown(quotient, '.2f') for quotient in quotients)} |"
        )
    return "\n".join([*lines, "", _source("gram")])


def targets() -> str:
    """What the work on speed set out to reach, beside what is measured; every head as it runs fastest."""
    lines = ["| | target | measured |", "|---|---|---|"]
    for what, target, value, unit in (
        *_layer_targets(),
        *_model_targets(),
        *_refactor_targets(),
        *_cpu_targets(),
    ):
        lines.append(
            f"| {what} | {target} | {'not measured' if value is None else f'{value:.3g}{unit}'} |"
        )
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
    bounds = {200: ("0.10", 70, 60, 9, 5), 1000: ("0.20", 130, 45, 12, 4)}
    for batch, (own, dense, cut, hierarchical, sampled) in bounds.items():
        where = _LARGEST | {"batch": batch}
        factored = {"names": _FACTORED} | where
        yield f"factored Z-loss, B = {batch:,}", f"<= {own} ms", _time("output", factored), " ms"
        for what, names, bound in (
            ("dense softmax (best of TF32, bf16, compiled)", _DENSE, dense),
            ("cut cross-entropy (the faster of both modes)", _CUT, cut),
            ("hierarchical softmax", ("hierarchical softmax",), hierarchical),
            ("sampled softmax, 8192 samples", ("sampled softmax",), sampled),
        ):
            quotient = _quotient("output", "cuda", {"names": names} | where, factored)
            yield f"{what} / factored, B = {batch:,}", f">= {bound}", quotient, ""
        many, few = (factored | {"hidden": 512, "classes": 10**power} for power in (7, 4))
        growth = _quotient("scaling", "cuda", many, few)
        yield f"factored, C = 10,000,000 / C = 10,000, B = {batch:,}", "<= 1.1", growth, ""


def _model_targets() -> Iterator[Target]:
    """Of whole networks, of evaluation and of the refactor, on the GPU."""
    net1 = {"names": ("net1, factored",), "batch": 200}
    dense = net1 | {"names": tuple(f"net1, {name}" for name in _DENSE)}
    step_ms = _time("model", net1)
    yield "net1, factored Z-loss, B = 200", "<= 0.30 ms", step_ms, " ms"
    epoch_min = None if step_ms is None else 150e6 / 200 * step_ms / 60_000
    yield (
        "an epoch of One Billion Word with it, the paper's 150 million n-grams",
        "< 4 min",
        epoch_min,
        " min",
    )
    yield (
        "net1, dense softmax / factored Z-loss",
        ">= 25",
        _quotient("model", "cuda", dense, net1),
        "",
    )
    yield (
        "net2, factored Z-loss, B = 1,000",
        "",
        _time("model", {"names": ("net2, factored",), "batch": 1000}),
        " ms",
    )
    rank_ms = _time(
        "eval", {"names": ("factored, rank",), "batch": 82_000, "classes": ONE_BILLION_WORD}
    )
    yield (
        "ranks of 82,000 examples over 793,471 classes",
        "<= 1.5 s",
        None if rank_ms is None else rank_ms / 1000,
        " s",
    )
    refactor_ms = _time("eval", {"names": ("factored, refactor",), "classes": ONE_BILLION_WORD})
    yield "a refactor of 793,471 classes", "<= 40 ms", refactor_ms, " ms"


def _refactor_targets() -> Iterator[Target]:
    """Of whole training runs on fil8."""
    for device in reversed(DEVICES):
        records = [
            record for record in _records("language_model", device) if record["classes"] == FIL8
        ]
        share = next(
            (100 * record["refactor_share"] for record in records if "refactor_share" in record),
            None,
        )
        yield (
            f"share of refactors in a run with {FIL8:,} classes, {PLACES[device]}",
            "< 5 %",
            share,
            " %",
        )


def _cpu_targets() -> Iterator[Target]:
    for what, suite, name, bound in (
        ("output layer, dense softmax / factored, CPU", "output", "dense softmax", "200"),
        ("net1, dense softmax / factored, CPU", "model", "net1, dense softmax", "10.5"),
    ):
        steps = (
            fastest(run, (name,), batch=200, classes=ONE_BILLION_WORD)
            for run in _runs(suite, "cpu")
        )
        yield what, f">= {bound}", next((by_turns(step) for step in steps if step), None), ""


Step = dict[str, Any]  # which one: "names" of heads, and other fields of its records


def _time(suite: str, step: Step) -> float | None:
    """On the GPU, in milliseconds, from the latest run that has it."""
    return next(
        (
            float(found["time_ms"])
            for run in _runs(suite, "cuda")
            if (found := fastest(run, **step))
        ),
        None,
    )


def _quotient(suite: str, device: Device, above: Step, below: Step) -> float | None:
    """Of their times, both from the latest run that has both."""
    for run in _runs(suite, device):
        one, other = (fastest(run, **step) for step in (above, below))
        if one and other:
            return float(one["time_ms"] / other["time_ms"])
    return None


def profile() -> str:
    """What the time of a captured step goes to, and what the arithmetic of its products alone would take."""
    records = [_Profile(record) for record in _records("profile", "cuda")]
    header = " | ".join(f"B = {one.record['batch']:,}" for one in records)
    lines = [f"| microseconds, H = 512, C = 793,471 | {header} |", "|---|" + "---|" * len(records)]
    rows: dict[str, Callable[[_Profile], float]] = {
        "until the loss is known": lambda one: one.until("_losses_and_slopes"),
        "until the layer below has its gradient": lambda one: (
            one.until("_gradient") - one.until("_losses_and_slopes")
        ),
        "the system, its series, and products beside them": lambda one: (
            one.until("_apply") - one.of("_apply") - one.until("_gradient")
        ),
        "change of all factors and rows": lambda one: one.of("_apply"),
        "**the whole graph**": lambda one: 1000 * one.record["time_ms"],
        "its products alone, at the speed of large ones": lambda one: (
            1000 * one.record["arithmetic_ms"]
        ),
    }
    lines += [
        f"| {what} | {' | '.join(f'{value(one):.0f}' for one in records)} |"
        for what, value in rows.items()
    ]
    return "\n".join([*lines, "", _source("profile")])


class _Profile:
    """The record of a profile, with times counted from the first launch of the graph."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._launches = {launch["name"]: launch for launch in record["launches"]}

    def of(self, name: str) -> float:
        return float(self._launches[name]["time_us"])

    def until(self, name: str) -> float:
        return (
            float(self._launches[name]["start_us"])
            + self.of(name)
            - float(self._launches["_gather"]["start_us"])
        )


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
        cells = (
            own["corpus"],
            f"{own['classes']:,}",
            _layers(own["network"]),
            own["device"],
            ratio,
            epoch,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _source("language_model")])


def learning() -> str:
    """Test scores of the runs, beside always predicting the most frequent words."""
    depths = (1, 5, 10, 20, 50, 100)
    header = " | ".join(f"top-{k}" for k in depths)
    lines = [
        f"| error on the test split, % | {header} | MRR |",
        "|---|" + "---|" * (len(depths) + 1),
    ]
    tests: dict[str, Record] = {}
    for record in _language_models():
        for who, scores in record.get("test", {}).items():
            name = (
                f"{record['epochs']:.2g} epochs of {_layers(record['network'])}"
                if who == "this run"
                else who
            )
            tests.setdefault(
                f"{record['corpus']}, {name}", scores
            )  # the most frequent words are the same for all
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


# A head that became faster on its own; then the first benchmark of all, for what has not been measured since, some of
# it under another name.
_OTHERS = {"output": ("adaptive", "output_layer"), "gram": ("output_layer",)}
_RENAMED = {
    "dense softmax, CCE": "dense softmax, CCE, bf16",
    "dense softmax, CCE exact": "dense softmax, CCE exact, bf16",
}


def _paths(suite: str, device: str) -> list[Path]:
    """The records of a suite, the latest first."""
    names = (*FILES.get(suite, (suite,)), *_OTHERS.get(suite, ()))
    paths = (RECORDS / f"{name}.{device}.jsonl" for name in names)
    return [path for path in paths if path.exists()]


def _runs(suite: str, device: str) -> Iterator[Run]:
    """The latest first."""
    return map(_read, _paths(suite, device))


def _records(suite: str, device: str) -> list[Record]:
    """Of all runs: for tables that say of which one a number is."""
    return [record for run in _runs(suite, device) for record in run]


def _latest(suite: str, device: str) -> Run:
    return next(_runs(suite, device), [])


def _read(path: Path) -> Run:
    records = read_records(path)
    return [
        record | {"name": _RENAMED.get(record.get("name", ""), record.get("name"))}
        for record in records
    ]


def _first(records: Iterable[Record], where: Record) -> Record:
    """The latest record of a head at a size; one that was not run where there is none."""
    found = (record for record in records if where.items() <= record.items())
    return next(found, where | {"time_ms": None, "peak_bytes": None})


def _shown(value: float | None, digits: str = ".3g") -> str:
    return "not run" if value is None else f"{value:{digits}}"


def _marked(cell: Callable[[Record], str], record: Record, records: list[Record]) -> str:
    """With a star where it was not measured together with the first of all records."""
    is_of_another = record["time_ms"] is not None and record["commit"] != records[0]["commit"]
    return f"{cell(record)}*" if is_of_another else cell(record)


def _turns(record: Record) -> str:
    return _shown(by_turns(record))


def _milliseconds(record: Record | None) -> str:
    return (
        "not run" if record is None or record["time_ms"] is None else f"{record['time_ms']:.2f} ms"
    )


def _gigabytes(record: Record) -> str:
    return "" if record["peak_bytes"] is None else f"{record['peak_bytes'] / 1e9:.2f} GB"


def _source(suite: str) -> str:
    notes = []
    for path in (path for device in DEVICES for path in _paths(suite, device)[:1]):
        record = read_records(path)[0]
        notes.append(
            f"{record['device']}, torch {record['versions']['torch']}, seed {record['seed']}"
        )
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
    parser.add_argument(
        "--check", action="store_true", help="only say whether the tables are up to date"
    )
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
