"""The table of speed: the targets that were set before the work, beside what is measured."""

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.markdown_cells import markdown_table
from benchmarks.measurements import Measurements
from benchmarks.speed_tables import FACTORED_KEYS, LARGEST
from reproduction.report.timings import fastest
from reproduction.timed_parts import DEVICES, PLACES
from zloss_lab.bench.model_suite import EPOCH_NGRAMS
from zloss_lab.bench.output_suite import ONE_BILLION_WORD

_FIL8_CLASSES = 213_271
_DENSE = ("dense-tf32", "dense-bf16", "dense-compiled", "dense-bf16-compiled")
_CUT = ("cce", "cce-exact")


class Target(NamedTuple):
    """A row of the table."""

    label: str
    bound: str
    measured: float | None
    unit: str = ""

    def cells(self) -> list[str]:
        """Return the row of the table."""
        is_measured = self.measured is not None
        value = f"{self.measured:.3g}{self.unit}" if is_measured else "not measured"
        return [self.label, self.bound, value]


def targets(measured: Measurements) -> str:
    """Return the table of targets. Every head is taken as it runs fastest."""
    rows = (
        *_layer_targets(measured),
        *_model_targets(measured),
        *_evaluation_targets(measured),
        *_refactor_targets(measured),
        *_cpu_targets(measured),
    )
    table = markdown_table(["", "target", "measured"], [row.cells() for row in rows])
    return f"{table}\n\n{measured.source('output')}"


def _layer_targets(measured: Measurements) -> Iterator[Target]:
    """Yield the targets of the output layer on the GPU, H = 512, C = 793,471."""
    bounds = {200: ("0.10", 70, 60, 9, 5), 1000: ("0.20", 130, 45, 12, 4)}
    for batch, (own, dense, cut, hierarchical, sampled) in bounds.items():
        where = LARGEST | {"batch": batch}
        factored = {"entries": FACTORED_KEYS} | where
        time_ms = measured.time_ms("output", factored)
        yield Target(f"factored Z-loss, B = {batch:,}", f"<= {own} ms", time_ms, " ms")
        for label, entries, bound in (
            ("dense softmax (best of TF32, bf16, compiled)", _DENSE, dense),
            ("cut cross-entropy (the faster of both modes)", _CUT, cut),
            ("hierarchical softmax", ("hierarchical",), hierarchical),
            ("sampled softmax, 8,192 samples", ("sampled",), sampled),
        ):
            quotient = measured.quotient("output", "cuda", {"entries": entries} | where, factored)
            yield Target(f"{label} / factored, B = {batch:,}", f">= {bound}", quotient)
        many, few = (factored | {"hidden": 512, "classes": 10**power} for power in (7, 4))
        growth = measured.quotient("scaling", "cuda", many, few)
        yield Target(f"factored, C = 10,000,000 / C = 10,000, B = {batch:,}", "<= 1.1", growth)


def _model_targets(measured: Measurements) -> Iterator[Target]:
    """Yield the targets of whole networks on the GPU."""
    net1 = {"entries": FACTORED_KEYS, "network": "net1", "batch": 200}
    net2 = {"entries": FACTORED_KEYS, "network": "net2", "batch": 1000}
    dense = net1 | {"entries": _DENSE}
    step_ms = measured.time_ms("model", net1)
    epoch_min = None if step_ms is None else EPOCH_NGRAMS / 200 * step_ms / 60_000
    yield Target("net1, factored Z-loss, B = 200", "<= 0.30 ms", step_ms, " ms")
    label = "an epoch of One Billion Word with it, the paper's 150 million n-grams"
    yield Target(label, "< 4 min", epoch_min, " min")
    ratio = measured.quotient("model", "cuda", dense, net1)
    yield Target("net1, dense softmax / factored Z-loss", ">= 25", ratio)
    time_ms = measured.time_ms("model", net2)
    yield Target("net2, factored Z-loss, B = 1,000", "", time_ms, " ms")


def _evaluation_targets(measured: Measurements) -> Iterator[Target]:
    """Yield the targets of ranks and of a refactor on the GPU."""
    factored = {"entries": FACTORED_KEYS, "classes": ONE_BILLION_WORD}
    ranks, refactor = factored | {"task": "rank", "batch": 82_000}, factored | {"task": "refactor"}
    rank_ms = measured.time_ms("eval", ranks)
    rank_s = None if rank_ms is None else rank_ms / 1000
    yield Target("ranks of 82,000 examples over 793,471 classes", "<= 1.5 s", rank_s, " s")
    refactor_ms = measured.time_ms("eval", refactor)
    yield Target("a refactor of 793,471 classes", "<= 40 ms", refactor_ms, " ms")


def _refactor_targets(measured: Measurements) -> Iterator[Target]:
    """Yield the share of refactors in whole training runs on fil8."""
    for device in reversed(DEVICES):
        shares = (
            100 * learning.refactor_share
            for record in measured.language_models(device)
            if record.classes == _FIL8_CLASSES
            and (learning := record.learning) is not None
            and learning.refactor_share is not None
        )
        label = f"share of refactors in a run with {_FIL8_CLASSES:,} classes, {PLACES[device]}"
        yield Target(label, "< 5 %", next(shares, None), " %")


def _cpu_targets(measured: Measurements) -> Iterator[Target]:
    """Yield the ratios of dense softmax on the CPU, from the latest runs that have it."""
    where = {"batch": 200, "classes": ONE_BILLION_WORD}
    for label, suite, network, bound in (
        ("output layer, dense softmax / factored, CPU", "output", {}, "200"),
        ("net1, dense softmax / factored, CPU", "model", {"network": "net1"}, "10.5"),
    ):
        runs = measured.runs(suite, "cpu")
        steps = (fastest(run, ("dense",), **where, **network) for run in runs)
        ratio = next((step.ratio_to_factored for step in steps if step), None)
        yield Target(label, f">= {bound}", ratio)
