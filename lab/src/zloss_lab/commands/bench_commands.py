"""The commands `zloss bench output`, `model`, `scaling`, `eval`, `data`, `profile` and `show`."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from zloss_lab.bench.cases import Case
from zloss_lab.bench.data_suite import data_cases
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
from zloss_lab.bench.race import Journal, Race, RaceWatcher
from zloss_lab.bench.result_tables import launches_table, read_all, tables
from zloss_lab.bench.schema import BenchRecord
from zloss_lab.bench.time_plot import plot_times
from zloss_lab.command_options import AsJson, with_options
from zloss_lab.commands.bench_options import (
    Batches,
    ClassCount,
    ClassCounts,
    Heads,
    HiddenSize,
    HiddenSizes,
    PlaceOptions,
    RaceOptions,
    StepOptions,
    head_entries,
    target_law,
    trunk_precision,
)
from zloss_lab.durable import require_writable
from zloss_lab.experiments import preset_names
from zloss_lab.records import write_records
from zloss_lab.terminal import (
    console,
    errors,
    listed_names,
    positive_numbers,
    print_plainly,
    visible,
)

bench = typer.Typer(
    help="Measure training steps, evaluation and data. Run nothing else on the machine meanwhile.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@bench.command()
@with_options
def output(
    heads: Heads = "all",
    batch: Batches = "200",
    hidden: HiddenSize = 512,
    classes: ClassCounts = OUTPUT_CLASSES,
    targets: Annotated[
        str | None,
        typer.Option(
            help="law of targets, uniform or zipf",
            show_default="uniform; both for heads that are faster with frequent classes",
        ),
    ] = None,
    *,
    options: StepOptions,
) -> None:
    """Measure one training step of the output layer: forward, backward and update, for each head."""
    cases = output_cases(
        head_entries(heads),
        batches=positive_numbers("batch", batch, int),
        hidden=hidden,
        classes=positive_numbers("classes", classes, int),
        law=target_law(targets),
        launch=options.only_launch,
        device=options.torch_device,
    )
    _race(cases, options)


@bench.command()
@with_options
def model(
    networks: Annotated[
        str, typer.Option(help=f"presets separated by commas, or all: {', '.join(preset_names())}")
    ] = "net1,net2",
    heads: Heads = MODEL_HEADS,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="number of examples", show_default="1000 for net2, else 200"),
    ] = None,
    classes: ClassCount = ONE_BILLION_WORD,
    precision: Annotated[
        str | None,
        typer.Option(
            help="precision of hidden layers: float32, tf32 or bf16",
            show_default="tf32 on a GPU, float32 on a CPU",
        ),
    ] = None,
    *,
    options: StepOptions,
) -> None:
    """Measure one training step of a whole network of the paper, and the time of an epoch of One Billion Word."""
    cases = model_cases(
        listed_names("network", networks, preset_names()),
        head_entries(heads),
        batch=batch,
        classes=classes,
        trunk_precision=trunk_precision(precision, options.torch_device),
        launch=options.only_launch,
        device=options.torch_device,
    )
    _race(cases, options)


@bench.command()
@with_options
def scaling(
    heads: Heads = "factored",
    batch: Batches = "200,1000",
    hidden: HiddenSizes = "256,512,1024",
    classes: ClassCounts = SCALING_CLASSES,
    *,
    options: StepOptions,
) -> None:
    """Measure the step of the output layer over a wide range of classes, batches and hidden units."""
    cases = scaling_cases(
        head_entries(heads),
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
        int | None,
        typer.Option(
            min=1, help="number of examples", show_default="82,000 on a GPU, 512 on a CPU"
        ),
    ] = None,
    hidden: HiddenSize = 512,
    classes: Annotated[int, typer.Option(min=11, help="number of classes")] = ONE_BILLION_WORD,
    *,
    options: RaceOptions,
) -> None:
    """Measure the ranking of targets among all classes, the search for the best classes, and one refactor."""
    examples = examples or (82_000 if options.torch_device.type == "cuda" else 512)
    cases = eval_cases(head_entries(heads), examples=examples, hidden=hidden, classes=classes)
    _race(cases, options)


@bench.command()
@with_options
def data(
    words: Annotated[
        int, typer.Option(min=1000, help="number of words in the made-up text")
    ] = 2_000_000,
    batch: Annotated[int, typer.Option(min=1, help="number of examples")] = 200,
    classes: ClassCount = ONE_BILLION_WORD,
    *,
    options: RaceOptions,
) -> None:
    """Measure the preparation of a text in words per second, and batches of n-grams per second."""
    _race(data_cases(words=words, batch=batch, classes=classes), options)


@bench.command()
@with_options
def profile(
    batch: Batches = "200,1000",
    hidden: HiddenSize = 512,
    classes: ClassCount = ONE_BILLION_WORD,
    *,
    options: PlaceOptions,
) -> None:
    """Show the time of each launch in a captured step of the factored layer. This needs a GPU."""
    device = options.torch_device
    if device.type != "cuda":
        raise ValueError("a profile needs a GPU: on a CPU a step has no launches")
    file = options.output or Path("bench.profile.cuda.jsonl")
    _require_writable(file)
    records = []
    for size in positive_numbers("batch", batch, int):
        records.append(profiled_case(batch=size, hidden=hidden, classes=classes, device=device))
        console.print(launches_table(records[-1]))
    write_records(file, records)
    print_plainly(errors, f"{len(records)} records in {file}")


@bench.command()
def show(
    files: Annotated[list[Path], typer.Argument(help="files of records")],
    picture: Annotated[
        Path | None, typer.Option("--plot", help="PNG to draw: time against the number of classes")
    ] = None,
    as_json: AsJson = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="print the tables as Markdown")
    ] = False,
) -> None:
    """Show records as tables, and draw them as a plot."""
    records = read_all(files)
    if as_json:
        print(json.dumps([record.to_record() for record in records]))
    elif as_markdown:
        print(visible("\n\n".join(table.to_markdown() for table in tables(records))))
    else:
        _print_tables(records)
    if picture is not None:
        plot_times(records, picture)
        print_plainly(errors, f"wrote {picture}")


# ---- shared by the commands ------------------------------------------------------------------------------------------


def _race(cases: Sequence[Case], options: RaceOptions) -> None:
    """Measure the cases, write their records and show them. Exit with code 1 if a case was refused or failed."""
    conditions = options.conditions
    cases = list(dict.fromkeys(cases))  # a size that is given twice is measured once
    if not cases:
        raise ValueError("nothing to measure: no head can be launched in this way")
    file = options.output or Path(f"bench.{cases[0].suite}.{conditions.device.type}.jsonl")
    _require_writable(file)
    journal = Journal(file, conditions.device)
    try:
        with _bar() as watch:
            Race(cases, conditions, journal, watch).run()
    finally:  # also after Ctrl-C
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
    """Raise an error if the file cannot be written, before anything is measured."""
    if file.is_dir():
        raise ValueError(f"{file} is a folder: name a file for the records by --output")
    require_writable(file.parent)


def _print_tables(records: Sequence[BenchRecord]) -> None:
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
