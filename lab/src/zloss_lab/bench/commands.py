"""The command line of the benchmark: `zloss bench output`, `model`, `scaling`, `eval`, `data`, `profile` and `show`.

Nothing is computed here: commands read their arguments, let a race run and show its records.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, get_args

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from zloss.names import check_name
from zloss_lab.bench.cases import Case
from zloss_lab.bench.data_suite import data_cases
from zloss_lab.bench.entries import ENTRIES, chosen
from zloss_lab.bench.inputs import Law
from zloss_lab.bench.layer_suite import (
    ONE_BILLION_WORD,
    OUTPUT_CLASSES,
    SCALING_CLASSES,
    output_cases,
    scaling_cases,
)
from zloss_lab.bench.model_suite import MODEL_HEADS, model_cases
from zloss_lab.bench.profiling import profiled_case
from zloss_lab.bench.provenance import provenance
from zloss_lab.bench.race import Conditions, Journal, Race, Watcher
from zloss_lab.bench.ranking_suite import EVAL_HEADS, ranking_cases
from zloss_lab.bench.report import launches_table, plot, read_all, tables
from zloss_lab.bench.steps import Launch
from zloss_lab.durable import require_writable
from zloss_lab.networks import PRESETS
from zloss_lab.networks import Precision as TrunkPrecision
from zloss_lab.records import Record, write_records
from zloss_lab.terminal import console, errors, positive_numbers, print_plainly, run_commands
from zloss_lab.training import device_of

bench = typer.Typer(
    help="Measure steps of heads and networks, evaluation and data. Leave the machine alone meanwhile.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]
Heads = Annotated[str, typer.Option(help=f"of {', '.join(ENTRIES)}; separated by commas, or all")]
Numbers = Annotated[str, typer.Option(help="separated by commas")]
Repeats = Annotated[
    int | None, typer.Option(min=1, help="turns of each; else 20 on a GPU and 7 to 30 on a CPU")
]
Memory = Annotated[bool, typer.Option(help="measure memory on a CPU, in a process for each")]
LaunchOption = Annotated[
    str | None, typer.Option("--launch", help="only eager, or only graph (CUDA graphs)")
]
Output = Annotated[
    Path | None,
    typer.Option(help="file to replace by the records; else bench.SUITE.DEVICE.jsonl here"),
]


@bench.command()
def output(
    device: Device = "auto",
    heads: Heads = "all",
    batch: Numbers = "200",
    hidden: Annotated[int, typer.Option(min=1)] = 512,
    classes: Numbers = OUTPUT_CLASSES,
    targets: Annotated[str | None, typer.Option(help="only uniform, or only zipf")] = None,
    launch: LaunchOption = None,
    repeats: Repeats = None,
    memory: Memory = True,
    output: Output = None,
) -> None:
    """One training step of the output layer: forward, backward and update, for each head."""
    conditions = Conditions(device=_device(device), repeats=repeats, measures_memory=memory)
    cases = output_cases(
        chosen(_names(heads, tuple(ENTRIES))),
        batches=positive_numbers("batch", batch, int),
        hidden=hidden,
        classes=positive_numbers("classes", classes, int),
        law=_law(targets),
        launch=_launch(launch, conditions.device),
        device=conditions.device,
    )
    run(cases, conditions, output)


@bench.command()
def model(
    device: Device = "auto",
    networks: Annotated[
        str, typer.Option(help=f"of {', '.join(PRESETS)}; separated by commas")
    ] = "net1,net2",
    heads: Heads = MODEL_HEADS,
    batch: Annotated[int | None, typer.Option(min=1, help="else that of the paper")] = None,
    classes: Annotated[int, typer.Option(min=2)] = ONE_BILLION_WORD,
    precision: Annotated[
        str | None, typer.Option(help="of hidden layers; else tf32 on a GPU, float32 on a CPU")
    ] = None,
    launch: LaunchOption = None,
    repeats: Repeats = None,
    memory: Memory = True,
    output: Output = None,
) -> None:
    """One training step of a whole network of the paper, and what that makes of an epoch of One Billion Word."""
    conditions = Conditions(device=_device(device), repeats=repeats, measures_memory=memory)
    names = _names(networks, tuple(PRESETS))
    for name in names:
        check_name("network", name, PRESETS)
    cases = model_cases(
        names,
        chosen(_names(heads, tuple(ENTRIES))),
        batch=batch,
        classes=classes,
        trunk_precision=_trunk_precision(precision, conditions.device),
        launch=_launch(launch, conditions.device),
        device=conditions.device,
    )
    run(cases, conditions, output)


@bench.command()
def scaling(
    device: Device = "auto",
    heads: Heads = "factored",
    batch: Numbers = "200,1000",
    hidden: Numbers = "256,512,1024",
    classes: Numbers = SCALING_CLASSES,
    launch: LaunchOption = None,
    repeats: Repeats = None,
    memory: Memory = True,
    output: Output = None,
) -> None:
    """The step of the output layer over a wide range of classes, batches and widths."""
    conditions = Conditions(device=_device(device), repeats=repeats, measures_memory=memory)
    cases = scaling_cases(
        chosen(_names(heads, tuple(ENTRIES))),
        batches=positive_numbers("batch", batch, int),
        hidden=positive_numbers("hidden", hidden, int),
        classes=positive_numbers("classes", classes, int),
        launch=_launch(launch, conditions.device),
        device=conditions.device,
    )
    run(cases, conditions, output)


@bench.command("eval")
def evaluation(
    device: Device = "auto",
    heads: Heads = EVAL_HEADS,
    examples: Annotated[
        int | None, typer.Option(min=1, help="else 82,000 on a GPU and 512 on a CPU")
    ] = None,
    hidden: Annotated[int, typer.Option(min=1)] = 512,
    classes: Annotated[int, typer.Option(min=11)] = ONE_BILLION_WORD,
    repeats: Repeats = None,
    memory: Memory = True,
    output: Output = None,
) -> None:
    """Ranks and best classes of many examples over all classes, and one refactor."""
    conditions = Conditions(device=_device(device), repeats=repeats, measures_memory=memory)
    examples = examples or (82_000 if conditions.device.type == "cuda" else 512)
    entries = chosen(_names(heads, tuple(ENTRIES)))
    run(
        ranking_cases(entries, examples=examples, hidden=hidden, classes=classes),
        conditions,
        output,
    )


@bench.command("data")
def preparation(
    device: Device = "auto",
    words: Annotated[int, typer.Option(min=1000, help="of the text that is made up")] = 2_000_000,
    batch: Annotated[int, typer.Option(min=1)] = 200,
    classes: Annotated[int, typer.Option(min=2)] = ONE_BILLION_WORD,
    repeats: Repeats = None,
    memory: Memory = True,
    output: Output = None,
) -> None:
    """Words a second when a text is prepared, and batches of n-grams a second."""
    conditions = Conditions(device=_device(device), repeats=repeats, measures_memory=memory)
    run(data_cases(words=words, batch=batch, classes=classes), conditions, output)


@bench.command("profile")
def launches(
    device: Device = "auto",
    batch: Numbers = "200,1000",
    hidden: Annotated[int, typer.Option(min=1)] = 512,
    classes: Annotated[int, typer.Option(min=2)] = ONE_BILLION_WORD,
    output: Output = None,
) -> None:
    """The launches of a captured step of the factored layer, one by one: what the time goes to. Needs a GPU."""
    place = _device(device)
    if place.type != "cuda":
        raise ValueError("a profile needs a GPU: on a CPU a step has no launches")
    file = output or Path("bench.profile.cuda.jsonl")
    _require_writable(file)
    where, records = provenance(place), []
    for size in positive_numbers("batch", batch, int):
        records.append(
            profiled_case(batch=size, hidden=hidden, classes=classes, device=place) | where
        )
        console.print(launches_table(records[-1]))
    write_records(file, records)
    print_plainly(errors, f"{len(records)} records in {file}")


@bench.command()
def show(
    files: Annotated[list[Path], typer.Argument(help="records of benchmarks")],
    picture: Annotated[
        Path | None, typer.Option("--plot", help="a PNG: time against classes")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON for scripts")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="print tables for a document")
    ] = False,
) -> None:
    """Records as a table, and as a plot."""
    records = read_all(files)
    if as_json:
        print(json.dumps(records))
    elif as_markdown:
        print("\n\n".join(table.to_markdown() for table in tables(records)))
    else:
        _print_tables(records)
    if picture is not None:
        plot(records, picture)
        print_plainly(errors, f"wrote {picture}")


# ---- what they share -------------------------------------------------------------------------------------------------


def run(cases: Sequence[Case], conditions: Conditions, file: Path | None) -> None:
    """Measure, keep the records and show them; code 1 where something was refused or failed."""
    cases = list(dict.fromkeys(cases))  # a number that is given twice is measured once
    if not cases:
        raise ValueError("nothing to measure: no head can be launched like this")
    file = file or Path(f"bench.{cases[0].suite}.{conditions.device.type}.jsonl")
    _require_writable(file)
    journal = Journal(file, conditions.device)
    try:
        with _bar() as watch:
            Race(cases, conditions, journal, watch).run()
    finally:  # after Ctrl-C too
        if journal.records:
            _print_tables(journal.records)
        if journal.written:
            print_plainly(errors, f"{journal.written} of {len(cases)} records in {journal.path}")
    for fault in journal.faults:
        errors.print("[red]not measured:[/red]", end=" ")
        print_plainly(errors, fault)
    if journal.faults:
        raise typer.Exit(1)


def _require_writable(file: Path) -> None:
    """Fail now, not when all is measured."""
    if file.is_dir():
        raise ValueError(f"{file} is a folder: name a file for the records by --output")
    require_writable(file.parent)


def _print_tables(records: Sequence[Record]) -> None:
    for table in tables(records):
        console.print(table.to_rich())
        for line in table.left_out:
            print_plainly(console, f"not run: {line}")


@contextmanager
def _bar() -> Iterator[Watcher]:
    columns = (
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )


def _device(name: str) -> torch.device:
    check_name("device", name, ("auto", "cpu", "cuda"))
    return device_of(name)


def _names(text: str, everything: tuple[str, ...]) -> tuple[str, ...]:
    return everything if text == "all" else tuple(name.strip() for name in text.split(","))


def _law(text: str | None) -> Law | None:
    if text is not None:
        check_name("law of targets", text, get_args(Law))
    return text  # type: ignore[return-value]


def _trunk_precision(text: str | None, device: torch.device) -> TrunkPrecision:
    text = text or ("tf32" if device.type == "cuda" else "float32")
    check_name("precision", text, get_args(TrunkPrecision))
    return text  # type: ignore[return-value]


def _launch(text: str | None, device: torch.device) -> Launch | None:
    if text is not None:
        check_name("launch", text, get_args(Launch))
    if text == "graph" and device.type != "cuda":
        raise ValueError("--launch graph needs a GPU: CUDA graphs run there only")
    return text  # type: ignore[return-value]


def main() -> None:
    """Run this command line on its own."""
    run_commands(bench)
