"""The profile of `zloss bench profile`: the start and the duration of each launch in a captured factored step.

Look at it before you make the step faster. It shows which launches wait for each other and which run side by side. It
also compares the step with the time that its matrix products alone would take if they filled the GPU.
"""

import re
import statistics
import time
from collections.abc import Sequence

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import zloss
from zloss_lab.bench.entries import FACTORED
from zloss_lab.bench.output_suite import LayerCase
from zloss_lab.bench.provenance import provenance_with_peers
from zloss_lab.bench.random_inputs import hidden_batches
from zloss_lab.bench.schema import ProfileRecord
from zloss_lab.bench.steps import TrainingStep, launched, layer_step
from zloss_lab.bench.timing import wait_for

_WARM_UP, _REPLAYS, _TRIES = 20, 20, 5
_LARGE = 4096  # rows and columns of a product that fills a GPU
_TEMPLATE = re.compile(r"<.*")
_COPY = "copy of the inputs"
_KINDS = {
    "gemm": "product",
    "Memcpy DtoD": _COPY,
    "splitKreduce": "product, its sum",
    "FillF": "fill",
}

Event = tuple[str, float, float]  # name, start and duration in microseconds


def profiled_case(*, batch: int, hidden: int, classes: int, device: torch.device) -> ProfileRecord:
    """Return the record of the profile of one size."""
    case = LayerCase(entry=FACTORED, batch=batch, hidden=hidden, classes=classes, launch="graph")
    head = FACTORED.build(hidden, classes, device)
    eager = layer_step(FACTORED, head, device, FACTORED.training_lr(classes))
    batches = hidden_batches(
        batch=batch,
        hidden=hidden,
        classes=classes,
        law="uniform",
        device=device,
        steps=_WARM_UP + _REPLAYS,
    )
    eager(*batches[0])  # the first step also looks at the whole matrix, which later steps do not
    with FlopCounterMode(display=False) as counter:
        eager(*batches[0])
    step = launched(eager, "graph")
    for inputs in batches[:_WARM_UP]:
        step(*inputs)
    launches = median_launches(_events(step, batches[_WARM_UP:], device))
    assert isinstance(head, zloss.SphericalOutput)
    assert isinstance(head.layer, zloss.FactoredLinear)
    gflop, tflops = (
        counter.get_total_flops() / 1e9,
        product_tflops(head.layer.product_dtype, device),
    )
    measured = {
        "suite": "profile",
        "time_ms": round(graph_us(launches) / 1000, 5),
        "gflop": round(gflop, 4),
        "product_tflops": round(tflops, 2),
        "arithmetic_ms": round(gflop / tflops, 5),
        "launches": [
            {"name": name, "start_us": round(start, 1), "time_us": round(length, 1)}
            for name, start, length in launches
        ],
    }
    return ProfileRecord.from_record(case.description() | measured | provenance_with_peers(device))


def _events(
    step: TrainingStep, batches: Sequence[tuple[torch.Tensor, torch.Tensor]], device: torch.device
) -> list[Event]:
    """Return all launches of some replays. If there was a refactor among them, they are run again."""
    for _ in range(_TRIES):
        wait_for(device)
        # There is only one cycle. Without `acc_events`, torch 2.11 warns that events of other cycles are dropped.
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            for inputs in batches:
                step(*inputs)
            wait_for(device)
        found = [
            (event.name, event.time_range.start, event.time_range.elapsed_us())
            for event in profiler.events()
            # Copies to the host belong to the report of a layer, not to its step.
            if event.device_type.name == "CUDA" and "DtoH" not in event.name
        ]
        if found and len(found) % len(batches) == 0:
            return sorted(found, key=lambda event: event[1])
    raise ValueError("no series of steps without a refactor could be profiled: try more classes")


def median_launches(events: Sequence[Event], replays: int = _REPLAYS) -> list[Event]:
    """Return the launches of one step, with the medians of their starts and durations over many steps.

    >>> median_launches([("_a", 0.0, 1.0), ("_b", 2.0, 3.0), ("_a", 10.0, 1.0), ("_b", 14.0, 3.0)], replays=2)
    [('_a', 0.0, 1.0), ('_b', 3.0, 3.0)]
    """
    length = len(events) // replays
    steps = [events[number * length : (number + 1) * length] for number in range(replays)]
    return [
        (
            readable(steps[0][place][0]),
            statistics.median(step[place][1] - step[0][1] for step in steps),
            statistics.median(step[place][2] for step in steps),
        )
        for place in range(length)
    ]


def graph_us(launches: Sequence[Event]) -> float:
    """Return the microseconds from the first launch of the graph to the end of its last one.

    The copy of the inputs is left out, because a profiler makes the graph wait after it.

    >>> graph_us([("copy of the inputs", 0.0, 2.0), ("_gather", 90.0, 4.0), ("apply_step", 150.0, 10.0)])
    70.0
    """
    own = [(start, start + length) for name, start, length in launches if name != _COPY]
    return max(end for _, end in own) - min(start for start, _ in own)


def readable(name: str) -> str:
    """Return a readable name of a launch: its kind if it is known, else its name without template arguments.

    >>> readable("sm90_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize32x32x32"), readable("apply_step")
    ('product', 'apply_step')
    """
    for part, kind in _KINDS.items():
        if part in name:
            return kind
    return _TEMPLATE.sub("", name.removeprefix("void "))


def product_tflops(dtype: torch.dtype, device: torch.device) -> float:
    """Return the speed of large products on this device, in 10^12 operations per second."""
    a = torch.randn(_LARGE, _LARGE, dtype=dtype, device=device)
    times = []
    for _ in range(5):
        wait_for(device)
        start = time.perf_counter()
        a @ a
        wait_for(device)
        times.append(time.perf_counter() - start)
    return 2 * _LARGE**3 / statistics.median(times) / 1e12
