"""Shared parts of command lines: consoles, lists of numbers and names, and the end after a mistake or Ctrl-C."""

import io
import math
import re
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import torch
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from zloss.names import check_name

INTERRUPTED = 130  # 128 + SIGINT, as in shells

_NO_MEMORY = (
    "there is not enough memory for this: take a smaller batch (training.batch_size), narrower layers (network.hidden, "
    "network.embedding) or fewer words (zloss data prepare --max-words)"
)

# Characters that a terminal obeys instead of showing them: control characters, and marks of the direction of text.
# Ends of lines and tabs stay.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""Return a text with an escape sequence, as in Python, in place of each character that a terminal would obey.

    Words of a corpus, names of files and messages that hold them come from other people.

    >>> print(visible("a \x1b[31mred\x1b[0m word"))
    a \x1b[31mred\x1b[0m word
    """
    return _OBEYED.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def utf_8(text: str) -> str:
    """Return a text with a question mark in place of each part that is not UTF-8, as names of files may have."""
    return text.encode(errors="replace").decode()


class PlainConsole(Console):
    """A console that shows every character of a text, and obeys none. Styles and progress bars of rich stay.

    Args:
        options: of `rich.console.Console`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(emoji=False, **options)  # else a word such as `:cat:` would be an emoji

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments of anything that rich can show; text is made visible."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


console, errors = PlainConsole(), PlainConsole(stderr=True)


Number = TypeVar("Number", int, float)


def positive_numbers(option: str, text: str, kind: type[Number]) -> list[Number]:
    """Return the numbers of an option that takes numbers separated by commas.

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


def listed_names(kind: str, text: str | None, known: Collection[str]) -> list[str]:
    """Return the names of an option that takes names separated by commas, each once. An unknown one is refused.

    The text "all" stands for all known names, and so does no text.

    >>> listed_names("head", "dense, factored,dense", ["dense", "factored", "gram"])
    ['dense', 'factored']
    """
    if text is None or text == "all":
        return list(known)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        check_name(kind, name, known)
    return list(dict.fromkeys(names))


def rows_table(rows: list[dict[str, Any]]) -> Table:
    """Return a table of rows that all have the same keys."""
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(escape(visible(str(value))) for value in row.values()))
    return table


def print_plainly(screen: Console, line: str) -> None:
    """Print a line without markup, colors or line breaks.

    File names and messages of libraries may contain brackets, and users copy commands from such lines.
    """
    screen.print(line, markup=False, highlight=False, soft_wrap=True)


def run_commands(app: Callable[[], object]) -> None:
    """Run a command line. A mistake of the user and a warning are shown as a message, without a traceback."""
    _replace_unknown_characters()
    warnings.showwarning = _show_warning
    try:
        with _quiet_event_writer():
            app()
    except KeyboardInterrupt:
        errors.print("\ninterrupted")
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        # Typer turns Ctrl-C into a silent exit. Commands that print their own advice after Ctrl-C call `sys.exit`.
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
    """Print a warning on one line, without its place in the code."""
    errors.print("[yellow]warning:[/yellow]", end=" ")
    print_plainly(errors, str(message))


@contextmanager
def _quiet_event_writer() -> Iterator[None]:
    """Print no traceback for the thread that writes events: TensorBoard raises its error in the main thread again."""
    before = threading.excepthook

    def report(ended: threading.ExceptHookArgs) -> None:
        if not type(ended.thread).__module__.startswith("tensorboard."):
            before(ended)

    threading.excepthook = report
    try:
        yield
    finally:
        threading.excepthook = before


def _end_with(message: str) -> NoReturn:
    errors.print("[red]error:[/red]", end=" ")
    print_plainly(errors, message)
    sys.exit(1)


def _replace_unknown_characters() -> None:
    """Let terminals that cannot show a character such as ± show a question mark.

    Otherwise a command would fail after it has done its work.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether memory is used up. Torch has no error type for that on a CPU, only a message."""
    return isinstance(
        error, MemoryError | torch.OutOfMemoryError
    ) or "can't allocate memory" in str(error)


def _message(error: Exception) -> str:
    """Return the text of an error. For an error about a file it is the name of the file and the reason."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
