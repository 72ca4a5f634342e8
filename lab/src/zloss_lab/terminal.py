"""What the command lines share: two consoles, lists of numbers, and how they end on a user's mistake or Ctrl-C."""

import io
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

INTERRUPTED = 130  # 128 + SIGINT, as shells have it

_NO_MEMORY = (
    "there is not enough memory for this: take a smaller batch (training.batch_size), narrower layers (network.hidden, "
    "network.embedding) or fewer words (zloss data prepare --max-words)"
)

# A word or a folder with colons in its name is no emoji.
console, errors = Console(emoji=False), Console(stderr=True, emoji=False)


Number = TypeVar("Number", int, float)


def positive_numbers(option: str, text: str, kind: type[Number]) -> list[Number]:
    """What an option says that takes numbers separated by commas.

    >>> positive_numbers("batch", "200,1_000", int)
    [200, 1000]
    """
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(math.isfinite(number) and number > 0 for number in numbers):
        wanted = "whole numbers from 1 on" if kind is int else "numbers above 0"
        raise ValueError(f"--{option} must be {wanted}, separated by commas, got {text!r}")
    return numbers


def rows_table(rows: list[dict[str, Any]]) -> Table:
    """Rows that have the same keys."""
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    return table


def print_plainly(screen: Console, line: str) -> None:
    """As it is: there may be brackets in the name of a file or in what a library says, and lines are to be copied."""
    screen.print(line, markup=False, highlight=False, soft_wrap=True)


def run_commands(app: Callable[[], object]) -> None:
    """Run a command line; a user's mistake is a message, not a traceback, and so is a warning."""
    _show_what_can_be_shown()
    warnings.showwarning = _show_warning
    try:
        app()
    except KeyboardInterrupt:
        errors.print("\ninterrupted")
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        # Typer makes an exit of Ctrl-C, without a word. Commands that say themselves how to go on exit of their own.
        if isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt):
            errors.print("\ninterrupted")
        raise
    except (ValueError, OSError) as error:
        _end_with(_message(error))
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        _end_with(_NO_MEMORY)


def _show_warning(message: Warning | str, *_place: object, **_more: object) -> None:
    """In a line, without the place in the code."""
    errors.print("[yellow]warning:[/yellow]", end=" ")
    print_plainly(errors, str(message))


def _end_with(message: str) -> NoReturn:
    errors.print("[red]error:[/red]", end=" ")
    print_plainly(errors, message)
    sys.exit(1)


def _show_what_can_be_shown() -> None:
    """A terminal that knows no ± gets a question mark, not the end of a command that has done its work."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _is_out_of_memory(error: Exception) -> bool:
    """A CPU's allocator has no error of its own, but for its words."""
    return isinstance(
        error, MemoryError | torch.OutOfMemoryError
    ) or "can't allocate memory" in str(error)


def _message(error: Exception) -> str:
    """What the system says of a file comes with its name first, and without a number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
