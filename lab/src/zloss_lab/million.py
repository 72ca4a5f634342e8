"""Train a network with a million classes on this machine, and see what it costs: `python -m zloss_lab.million`.

The command line and the screen of `zloss_lab.comparison`. Every number shown is measured in the run.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zloss_lab.comparison import DemoConfig as DemoConfig
from zloss_lab.comparison import DemoResult as DemoResult
from zloss_lab.comparison import Progress, Quality, TrainingError, Watcher
from zloss_lab.comparison import run_demo as run_demo
from zloss_lab.terminal import print_plainly

if TYPE_CHECKING:  # rich is optional: `main` says how to get it, instead of an ImportError
    from rich.console import Console
    from rich.table import Table

_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; returns the exit code."""
    config = parse_arguments(arguments)
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        print("the demo draws its screen with rich: pip install 'zloss[lab]'", file=sys.stderr)
        return 1
    console = Console()
    try:
        console.print(headline(config))
        with progress_bar(console, config) as watch:
            result = run_demo(config, watch)
        show(console, config, result)
    except KeyboardInterrupt:
        console.print("\nInterrupted: nothing was saved, nothing needs tidying up.")
        return _INTERRUPTED
    except TrainingError as error:
        print(f"{error}\nTry a smaller --lr.", file=sys.stderr)
        return 1
    return 0


def parse_arguments(arguments: Sequence[str] | None) -> DemoConfig:
    """A configuration from the command line. A mistake ends the process with code 2 and a message."""
    parser = argparse.ArgumentParser(
        prog="python -m zloss_lab.million",
        description="Train a network with a huge number of classes on this machine.",
    )
    parser.add_argument(
        "--classes", type=int, default=DemoConfig.classes, help="number of classes (%(default)s)"
    )
    parser.add_argument(
        "--hidden",
        type=int,
        default=DemoConfig.hidden,
        help="inputs of the output layer (%(default)s)",
    )
    parser.add_argument(
        "--batch", type=int, default=DemoConfig.batch, help="examples a step (%(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=DemoConfig.steps, help="training steps (%(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=DemoConfig.seed,
        help="of task, weights and examples (%(default)s)",
    )
    parser.add_argument(
        "--lr",
        type=float,
        default=DemoConfig.lr,
        help="learning rate of the output layer (%(default)s)",
    )
    try:
        config = DemoConfig(**vars(parser.parse_args(arguments)))
    except ValueError as error:
        parser.error(f"--{error}")  # the message starts with the name of the option
    memory = physical_bytes()
    if memory is not None and config.factored_bytes > memory:
        needed, there = gigabytes(config.factored_bytes), gigabytes(memory)
        parser.error(
            f"--classes {config.classes} needs {needed} of memory at least, this machine has {there}"
        )
    return config


def physical_bytes() -> int | None:
    """The memory of this machine; None on systems that do not say."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def progress_bar(console: "Console", config: DemoConfig) -> Iterator[Watcher]:
    """A bar with the time left, the loss, the learning rate and the condition of the factors; lines in a file."""
    if not console.is_terminal:
        yield line_printer(console, config)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Bar(
        SpinnerColumn(), TextColumn("{task.description}"), *columns, console=console, expand=True
    ) as bar:
        task = bar.add_task("", total=config.steps, figures="")

        def watch(progress: Progress) -> None:
            bar.update(
                task,
                description=progress.stage,
                completed=progress.step,
                figures=figures_of(progress),
            )

        yield watch
        watch(Progress(stage="done", step=config.steps))


def line_printer(console: "Console", config: DemoConfig) -> Watcher:
    """Lines where there is no screen for a bar: every stage, and ten moments or so of training."""
    due = 0

    def watch(progress: Progress) -> None:
        nonlocal due
        if progress.stage == "training" and progress.step < due:
            return
        due = progress.step + config.steps // 10
        line = f"{progress.stage}  {progress.step}/{config.steps}  {figures_of(progress)}"
        print_plainly(console, line.rstrip())

    return watch


def figures_of(progress: Progress) -> str:
    """What there is to see of a training."""
    if progress.stage != "training":
        return ""
    return f"loss {progress.loss:5.2f}  lr {progress.lr:.3g}  condition {progress.condition:.2f}"


def show(console: "Console", config: DemoConfig, result: DemoResult) -> None:
    """Print what the run measured."""
    for table in (quality_table(result), time_table(config, result), memory_table(config, result)):
        console.print(table)
    console.print(
        f"{config.steps:,} steps of {config.batch} examples in {result.training_s:.0f} s; "
        f"condition of the factors {result.condition:.2f} after {result.refactors} refactors. "
        f"{result.unseen:.1%} of the held-out targets never occurred in training."
    )


def headline(config: DemoConfig) -> str:
    """What is about to happen."""
    return (
        f"[bold]{config.classes:,} classes[/bold], Z-loss on a factored output layer of width {config.hidden}, "
        f"batches of {config.batch}, on the CPU"
    )


def quality_table(result: DemoResult) -> "Table":
    """Errors and MRR before and after training, and those of a guess by frequency."""
    table = new_table(
        "Held-out examples", *(f"top-{k} error" for k in result.after.top_k_error), "MRR"
    )
    rows: dict[str, Quality] = {
        "most frequent classes": result.most_frequent,
        "before training": result.before,
        "after training": result.after,
    }
    for name, quality in rows.items():
        errors = (f"{error:.1%}" for error in quality.top_k_error.values())
        table.add_row(name, *errors, f"{quality.mean_reciprocal_rank:.3f}")
    return table


def time_table(config: DemoConfig, result: DemoResult) -> "Table":
    """The time of a step, factored and dense."""
    table = new_table("One training step, whole network", "median", "ratio")
    table.add_row("factored Z-loss", f"{result.step_ms:,.2f} ms", "1")
    if result.dense is None:
        table.add_row("dense softmax", f"not run: needs {gigabytes(config.dense_bytes)}", "")
    else:
        ratio = result.dense.step_ms / result.step_ms
        table.add_row("dense softmax", f"{result.dense.step_ms:,.2f} ms", f"{ratio:,.0f}")
    return table


def memory_table(config: DemoConfig, result: DemoResult) -> "Table":
    """What the two output layers hold, and what the process needed."""
    names = (
        "weights",
        "their gradient",
        f"{config.batch} x {config.classes:,} logits",
        "peak of the process so far",
    )
    factored = (gigabytes(result.weight_bytes), "none", "none", gigabytes(result.peak_bytes))
    dense = ("not run",) * len(names)
    if cost := result.dense:
        counts = (cost.weight_bytes, cost.gradient_bytes, cost.logit_bytes, cost.peak_bytes)
        dense = tuple(map(gigabytes, counts))
    table = new_table("Memory", "factored Z-loss", "dense softmax")
    for row in zip(names, factored, dense, strict=True):
        table.add_row(*row)
    return table


def new_table(*header: str) -> "Table":
    """A table of names and numbers."""
    from rich.table import Table

    table = Table(header[0])
    for name in header[1:]:
        table.add_column(name, justify="right")
    return table


def gigabytes(count: int | None) -> str:
    """A number of bytes to read."""
    return "not measured" if count is None else f"{count / 1e9:,.2f} GB"


if __name__ == "__main__":
    sys.exit(main())
