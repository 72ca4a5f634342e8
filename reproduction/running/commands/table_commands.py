"""The commands `python -m reproduction run table1` and `table2`."""

from pathlib import Path
from typing import Annotated

import typer

from reproduction.running.collecting import Collector
from reproduction.running.commands.making import make_records
from reproduction.running.commands.options import RECORDS, Records
from reproduction.running.commands.table2_options import LengthOptions, RunOptions, TextOptions
from reproduction.running.large_texts.at_once import collect_at_once
from reproduction.running.large_texts.one_by_one import collect_one_by_one
from reproduction.running.large_texts.text import LargeText
from reproduction.timed_parts import PARTS, Device, bench_command
from zloss_lab.command_options import with_options
from zloss_lab.terminal import console
from zloss_lab.training import device_of


def table1(
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    records: Annotated[Path, typer.Option(help="folder for the timings")] = Path(
        "benchmarks/records"
    ),
) -> None:
    """Print the commands that time the steps of table 1. Leave the machine alone while they run."""
    kind: Device = "cuda" if device_of(device).type == "cuda" else "cpu"
    for part in PARTS:
        print(f"{bench_command(part, kind)} --output {records / part}.{kind}.jsonl")


@with_options
def table2(
    trained: TextOptions,
    length: LengthOptions,
    seeds: Annotated[int, typer.Option(min=1, help="number of trainings of every model")] = 3,
    first_seed: Annotated[
        int,
        typer.Option(
            min=0, help="first seed, which the others follow; to divide seeds among commands"
        ),
    ] = 0,
    *,
    running: RunOptions,
    records: Records = RECORDS,
) -> None:
    """Train models with many classes on a large text: for a fixed time, for some epochs or until they converge.

    \b
        python -m reproduction run table2 --corpus data/fil8 --budget 120 --rates 0.6,1,1.7
        python -m reproduction run table2 --corpus data/fil8 --epochs 2
        python -m reproduction run table2 --corpus data/fil8 --converged --models z_loss_net1
        python -m reproduction run table2 --corpus data/fil8 --epochs 1 --at-once 6
    """
    budget = length.checked_budget(is_shared=running.is_shared)
    rates, changes = length.rates_to_try(), trained.changes()
    models = trained.listed_models()

    def collect(collector: Collector) -> list[str]:
        text = LargeText(
            folder=trained.corpus,
            budget=budget,
            collector=collector,
            runs=running.large_text_runs(),
            rates=rates,
            changes=changes,
            limit=trained.limit,
        )
        if running.at_once == 1:
            return collect_one_by_one(text, models)
        return collect_at_once(text, models, running.at_once, console)

    make_records(collect, records, range(first_seed, first_seed + seeds))
