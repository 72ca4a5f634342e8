"""Tables of what a step costs: the short one, every head at every size, the Gram layer, the profile of a step."""

from collections.abc import Callable

from benchmarks.markdown_cells import (
    NOT_RUN,
    gigabytes,
    markdown_table,
    milliseconds,
    number,
    ratio_by_turns,
)
from benchmarks.measurements import Measurements, Step, first
from reproduction.report.timings import Timings, fastest, ratio_to_z_loss
from reproduction.timed_parts import DEVICES, Device
from zloss_lab.bench.entries import ENTRIES, head_title
from zloss_lab.bench.output_suite import ONE_BILLION_WORD
from zloss_lab.bench.random_inputs import Law
from zloss_lab.bench.schema import LayerRecord, ProfileRecord
from zloss_lab.bench.steps import Launch

LARGEST = {"batch": 200, "classes": ONE_BILLION_WORD, "targets": "uniform"}
FACTORED_KEYS = ("factored",)
_GPU_SOFTMAXES = ("dense-tf32", "dense-compiled")
_SAMPLED = ("sampled-512", "sampled-1024", "sampled")
_SIZES = (10_000, 100_000, ONE_BILLION_WORD)
_OF_ANOTHER_RUN = (
    "With * of another run: compare such times with each other; "
    "a ratio is to the factored step of its own run."
)


def speed(measured: Measurements) -> str:
    """Return the short table: ratios on the CPU, where times of other machines mean little, and on the GPU."""
    rows = []
    for entry in ("dense", *_GPU_SOFTMAXES, "hierarchical", *_SAMPLED):
        on_cpu = "" if entry in _GPU_SOFTMAXES else _ratio(measured, "cpu", entry)
        rows.append([head_title(entry), on_cpu, _ratio(measured, "cuda", entry)])
    growth = [_growth(measured, device) for device in DEVICES]
    rows.append(["factored Z-loss, many classes / few", *growth])
    what = "one step, 793,471 classes / factored Z-loss"
    table = markdown_table([what, "CPU", "GPU"], rows)
    factored = fastest(measured.latest("output", "cuda"), FACTORED_KEYS, **LARGEST)
    last = f"| factored Z-loss | | {milliseconds(factored)} |"
    star = "\n\n* of another run, beside other work." if "*" in table else ""
    return f"{table}\n{last}{star}\n\n{measured.source('output')}"


def _ratio(measured: Measurements, device: Device, entry: str) -> str:
    """Return the ratio of a head to the factored one, both of the latest run that has both; a star if it is older."""
    for number_of_run, run in enumerate(measured.layer_runs("output", device)):
        own, pace = (fastest(run, entries, **LARGEST) for entries in ((entry,), FACTORED_KEYS))
        if own and pace:
            star = "*" if number_of_run else ""
            return f"{number(ratio_to_z_loss(own, pace, device))}{star}"
    return NOT_RUN


def _growth(measured: Measurements, device: Device) -> str:
    """Return the growth of the factored step over the widest range of classes that one run has."""
    growth = Timings.read(measured.folder).growth("z_loss", device)
    if growth is None:
        return NOT_RUN
    return f"{growth.factor:.3g} with {growth.many:,} / {growth.few:,}"


def heads(measured: Measurements) -> str:
    """Return the table of every head at every size: ratios on the CPU, times on the GPU, memory on both."""
    places = [f"{place}, C = {size:,}" for place in ("CPU", "GPU") for size in _SIZES]
    columns = ["one step, B = 200, H = 512", *places, "memory, CPU", "memory, GPU"]
    on_cpu, on_gpu = (measured.bench_records(LayerRecord, "output", device) for device in DEVICES)
    rows = []
    for entry, targets, launch in _rows([*on_gpu, *on_cpu]):
        where = {"entry": entry, "batch": 200, "targets": targets, "launch": launch}
        law = ", words by frequency" if targets == "zipf" else ""
        graph = ", CUDA graph" if launch == "graph" else ""
        rows.append(
            [f"{head_title(entry)}{law}{graph}", *_cells_of_head(measured, on_cpu, on_gpu, where)]
        )
    table = markdown_table(columns, rows)
    return f"{table}\n\n{_OF_ANOTHER_RUN}\n\n{measured.source('output')}"


def _rows(records: list[LayerRecord]) -> list[tuple[str, Law, Launch]]:
    """Return head, targets and launch of each row, in the order of `ENTRIES`; heads that are former ones come last."""
    shown = [
        record
        for record in records
        if record.entry != "refactor"  # in the first benchmark only
        and (record.launch == "eager" or record.time_ms is not None)
    ]
    order = list(dict.fromkeys((record.entry, record.targets) for record in shown))
    rows = dict.fromkeys((record.entry, record.targets, record.launch) for record in shown)
    places = {key: place for place, key in enumerate(ENTRIES)}
    return sorted(rows, key=lambda row: (places.get(row[0], len(places)), order.index(row[:2])))


def _cells_of_head(
    measured: Measurements, on_cpu: list[LayerRecord], on_gpu: list[LayerRecord], where: Step
) -> list[str]:
    """Return ratios on the CPU, times on the GPU and memory; a graph has times only."""
    scaling = measured.bench_records(LayerRecord, "scaling", "cuda")
    growth = [record for record in scaling if record.hidden == 512]
    gpu = [first([*on_gpu, *growth], where | {"classes": size}) for size in _SIZES]
    times = [_marked(milliseconds, record, on_gpu) for record in gpu]
    if where["launch"] == "graph":
        return ["", "", "", *times, "", ""]
    cpu = [first(on_cpu, where | {"classes": size}) for size in _SIZES]
    ratios = [_marked(ratio_by_turns, record, on_cpu) for record in cpu]
    memory = [_marked(gigabytes, cpu[-1], on_cpu), _marked(gigabytes, gpu[-1], on_gpu)]
    return [*ratios, *times, *memory]


def _marked(
    cell: Callable[[LayerRecord | None], str],
    record: LayerRecord | None,
    records: list[LayerRecord],
) -> str:
    """Return the cell, with a star where it was not measured together with the first of all records."""
    text = cell(record)
    if record is None or record.time_ms is None or record.commit == records[0].commit:
        return text
    return f"{text}*" if text else ""


def gram(measured: Measurements) -> str:
    """Return the table of the Gram layer beside a dense one, as the batch grows."""
    rows = []
    for batch in (200, 1000, 4000):
        where = {"batch": batch, "classes": 100_000, "launch": "eager"}
        above, below = ({"entries": (entry,)} | where for entry in ("dense-z", "gram-z"))
        quotients = [measured.quotient("gram", device, above, below) for device in DEVICES]
        rows.append([f"B = {batch:,}", *(number(quotient, ".2f") for quotient in quotients)])
    columns = ["Z-loss, C = 100,000, H = 512: time of dense / Gram", "CPU", "GPU"]
    return f"{markdown_table(columns, rows)}\n\n{measured.source('gram')}"


def profile(measured: Measurements) -> str:
    """Return the parts of a captured step, and the time that the arithmetic of its products alone would take."""
    profiles = [
        _Profile(record) for record in measured.bench_records(ProfileRecord, "profile", "cuda")
    ]
    parts: dict[str, Callable[[_Profile], float]] = {
        "until the loss is known": lambda one: one.until("_losses_and_slopes"),
        "until the layer below has its gradient": lambda one: (
            one.until("_gradient") - one.until("_losses_and_slopes")
        ),
        "the system, its series, and products beside them": lambda one: (
            one.until(one.last) - one.of(one.last) - one.until("_gradient")
        ),
        "change of all factors and rows": lambda one: one.of(one.last),
        "**the whole graph**": lambda one: 1000 * one.record.time_ms,
        "its products alone, at the speed of large ones": lambda one: (
            1000 * one.record.arithmetic_ms
        ),
    }
    batches = [f"B = {one.record.batch:,}" for one in profiles]
    rows = [[part, *(f"{value(one):.0f}" for one in profiles)] for part, value in parts.items()]
    table = markdown_table(["microseconds, H = 512, C = 793,471", *batches], rows)
    return f"{table}\n\n{measured.source('profile')}"


class _Profile:
    """The record of a profile. Times are in microseconds from the first launch of the graph."""

    def __init__(self, record: ProfileRecord) -> None:
        self.record = record
        self._launches = {launch.name: launch for launch in record.launches}

    @property
    def last(self) -> str:
        """The launch that changes the factors."""
        return self.record.launches[-1].name

    def of(self, name: str) -> float:
        """Return the time of a launch."""
        return self._launches[name].time_us

    def until(self, name: str) -> float:
        """Return the time at which a launch has ended."""
        start, origin = (self._launches[launch].start_us for launch in (name, "_gather"))
        return start + self.of(name) - origin
