"""The commands `zloss bench output`, `model`, `scaling`, `eval`, `data`, `profile` and `show`."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from zloss.names import check_name
from zloss_lab.bench.cases import Case
from zloss_lab.bench.data_suite import data_cases
from zloss_lab.bench.entries import ENTRIES, HeadEntry, chosen
from zloss_lab.bench.eval_suite import EVAL_HEADS, eval_cases
from zloss_lab.bench.model_suite import MODEL_HEADS, model_cases
from zloss_lab.bench.output_suite import (
    ONE_BILLION_WORD,
    OUTPUT_CLASSES,
    SCALING_CLASSES,
    output_cases,
    scaling_cases,
)
from zloss_lab.bench.profiling import profiled_case
from zloss_lab.bench.provenance import provenance
from zloss_lab.bench.race import Conditions, Journal, Race, RaceWatcher
from zloss_lab.bench.random_inputs import Law
from zloss_lab.bench.result_tables import launches_table, plot, read_all, tables
from zloss_lab.bench.steps import Launch
from zloss_lab.command_options import AsJson, with_options
from zloss_lab.durable import require_writable
from zloss_lab.experiments import preset_names
from zloss_lab.networks import TrunkPrecision
from zloss_lab.records import Record, write_records
from zloss_lab.terminal import console, errors, positive_numbers, print_plainly
from zloss_lab.training import device_of

bench = typer.Typer(
    help="Measure steps of heads and networks, evaluation and data. Leave the machine alone meanwhile.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Heads = Annotated[str, typer.Option(help=f"of {', '.join(ENTRIES)}; separated by commas, or all")]
NumberList = Annotated[str, typer.Option(help="separated by commas")]


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Where is measured, and where the records go."""

    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto"
    output: Annotated[
        Path | None,
        typer.Option(help="file to replace by the records; else bench.SUITE.DEVICE.jsonl here"),
    ] = None

    @property
    def torch_device(self) -> torch.device:
        """The device itself."""
        check_name("device", self.device, ("auto", "cpu", "cuda"))
        return device_of(self.device)


@dataclass(frozen=True, kw_only=True)
class RaceOptions(PlaceOptions):
    """The conditions that all cases of a race share."""

    repeats: Annotated[
        int | None, typer.Option(min=1, help="turns of each; else 20 on a GPU and 7 to 30 on a CPU")
    ] = None
    memory: Annotated[bool, typer.Option(help="measure memory on a CPU, in a process for each")] = (
        True
    )

    @property
    def conditions(self) -> Conditions:
        """The conditions as a race takes them."""
        device, repeats = self.torch_device, self.repeats
        return Conditions(device=device, repeats=repeats, measures_memory=self.memory)


@dataclass(frozen=True, kw_only=True)
class StepOptions(RaceOptions):
    """The conditions of a race of training steps."""

    launch: Annotated[str | None, typer.Option(help="only eager, or only graph (CUDA graphs)")] = (
        None
    )

    @property
    def only_launch(self) -> Launch | None:
        """The launch that was asked for, or None for all."""
        if self.launch is not None:
            check_name("launch", self.launch, get_args(Launch))
        if self.launch == "graph" and self.torch_device.type != "cuda":
            raise ValueError("--launch graph needs a GPU: CUDA graphs run there only")
        return self.launch  # type: ignore[return-value]


@bench.command()
@with_options
def output(
    heads: Heads = "all",
    batch: NumberList = "200",
    hidden: Annotated[int, typer.Option(min=1)] = 512,
    classes: NumberList = OUTPUT_CLASSES,
    targets: Annotated[str | None, typer.Option(help="only uniform, or only zipf")] = None,
    *,
    options: StepOptions,
) -> None:
    """One training step of the output layer: forward, backward and update, for each head."""
    cases = output_cases(
        _entries(heads),
        batches=positive_numbers("batch", batch, int),
        hidden=hidden,
        classes=positive_numbers("classes", classes, int),
        law=_law(targets),
        launch=options.only_launch,
        device=options.torch_device,
    )
    _race(cases, options)


@bench.command()
@with_options
def model(
    networks: Annotated[
        str, typer.Option(help=f"of {', '.join(preset_names())}; separated by commas")
    ] = "net1,net2",
    heads: Heads = MODEL_HEADS,
    batch: Annotated[int | None, typer.Option(min=1, help="else that of the paper")] = None,
    classes: Annotated[int, typer.Option(min=2)] = ONE_BILLION_WORD,
    precision: Annotated[
        str | None, typer.Option(help="of hidden layers; else tf32 on a GPU, float32 on a CPU")
    ] = None,
    *,
    options: StepOptions,
) -> None:
    """One training step of a whole network of the paper, and what that makes of an epoch of One Billion Word."""
    names = _names(networks, tuple(preset_names()))
    for name in names:
        check_name("network", name, preset_names())
    cases = model_cases(
        names,
        _entries(heads),
        batch=batch,
        classes=classes,
        trunk_precision=_trunk_precision(precision, options.torch_device),
        launch=options.only_launch,
        device=options.torch_device,
    )
    _race(cases, options)


@bench.command()
@with_options
def scaling(
    heads: Heads = "factored",
    batch: NumberList = "200,1000",
    hidden: NumberList = "256,512,1024",
    classes: NumberList = SCALING_CLASSES,
    *,
    options: StepOptions,
) -> None:
    """The step of the output layer over a wide range of classes, batches and widths."""
    cases = scaling_cases(
        _entries(heads),
        batches=positive_numbers("batch", batch, int),
        hidden=positive_numbers("hidden", hidden, int),
        classes=positive_numbers("classes", classes, int),
        launch=options.only_launch,
        device=options.torch_device,
    )
    _race(cases, options)


@bench.command("eval")
@with_options
def evaluation(
    heads: Heads = EVAL_HEADS,
    examples: Annotated[
        int | None, typer.Option(min=1, help="else 82,000 on a GPU and 512 on a CPU")
    ] = None,
    hidden: Annotated[int, typer.Option(min=1)] = 512,
    classes: Annotated[int, typer.Option(min=11)] = ONE_BILLION_WORD,
    *,
    options: RaceOptions,
) -> None:
    """Ranks and best classes of many examples over all classes, and one refactor."""
    examples = examples or (82_000 if options.torch_device.type == "cuda" else 512)
    cases = eval_cases(_entries(heads), examples=examples, hidden=hidden, classes=classes)
    _race(cases, options)


@bench.command("data")
@with_options
def preparation(
    words: Annotated[int, typer.Option(min=1000, help="of the text that is made up")] = 2_000_000,
    batch: Annotated[int, typer.Option(min=1)] = 200,
    classes: Annotated[int, typer.Option(min=2)] = ONE_BILLION_WORD,
    *,
    options: RaceOptions,
) -> None:
    """Words a second when a text is prepared, and batches of n-grams a second."""
    _race(data_cases(words=words, batch=batch, classes=classes), options)


@bench.command("profile")
@with_options
def launches(
    batch: NumberList = "200,1000",
    hidden: Annotated[int, typer.Option(min=1)] = 512,
    classes: Annotated[int, typer.Option(min=2)] = ONE_BILLION_WORD,
    *,
    options: PlaceOptions,
) -> None:
    """The launches of a captured step of the factored layer, one by one: what the time goes to. Needs a GPU."""
    device = options.torch_device
    if device.type != "cuda":
        raise ValueError("a profile needs a GPU: on a CPU a step has no launches")
    file = options.output or Path("bench.profile.cuda.jsonl")
    _require_writable(file)
    where, records = provenance(device), []
    for size in positive_numbers("batch", batch, int):
        records.append(
            profiled_case(batch=size, hidden=hidden, classes=classes, device=device) | where
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
    as_json: AsJson = False,
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


def _race(cases: Sequence[Case], options: RaceOptions) -> None:
    """Measure, keep the records and show them; code 1 where something was refused or failed."""
    conditions = options.conditions
    cases = list(dict.fromkeys(cases))  # a number that is given twice is measured once
    if not cases:
        raise ValueError("nothing to measure: no head can be launched like this")
    file = options.output or Path(f"bench.{cases[0].suite}.{conditions.device.type}.jsonl")
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
def _bar() -> Iterator[RaceWatcher]:
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


def _entries(heads: str) -> list[HeadEntry]:
    return chosen(_names(heads, tuple(ENTRIES)))


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
