"""Shared parts of command lines: lists of numbers, and ends without a traceback."""

import io
import sys
import threading
import warnings

import pytest
import torch

from zloss_lab import terminal
from zloss_lab.terminal import (
    positive_numbers,
    print_plainly,
    rows_table,
    run_commands,
    visible,
)


@pytest.mark.parametrize("text", ["nan", "0.1,inf", "0", "-1", "", "many"])
def test_numbers_are_finite_and_positive(text: str) -> None:
    with pytest.raises(ValueError, match="--b must be numbers above 0, separated by commas"):
        positive_numbers("b", text, float)


def test_whole_numbers_may_be_large() -> None:
    assert positive_numbers("classes", "793_471", int) == [793_471]


def _fill_a_cpu() -> None:
    torch.empty(2**60, dtype=torch.uint8)


def _fill_a_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")


def _fill_python() -> None:
    raise MemoryError


@pytest.mark.parametrize("command", [_fill_a_cpu, _fill_a_gpu, _fill_python])
def test_no_memory_is_a_line_of_advice(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run_commands(command)  # type: ignore[arg-type]
    assert end.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: there is not enough memory for this: take a smaller batch")
    assert "Traceback" not in error


def test_a_mistake_of_ours_keeps_its_traceback() -> None:
    def broken() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run_commands(broken)


@pytest.mark.filterwarnings("default")
def test_a_warning_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    run_commands(lambda: warnings.warn("the [checkpoint] is old", stacklevel=1))
    assert capsys.readouterr().err == "warning: the [checkpoint] is old\n"


def test_a_terminal_that_knows_little_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    run_commands(lambda: print("80.1 ± 0.3"))
    screen.flush()
    assert screen.buffer.getvalue() == b"80.1 ? 0.3\n"


# A colour, a title, a deletion, a C1 code, an end of line of its own, and text that runs backwards.
OBEYED = ["\x1b[31m", "\x1b]0;title\x07", "\x08\x7f", "\x9b2J", "\r", "\u202e", "\u2028", "\x00"]


def refuse(code: str) -> None:
    raise ValueError(f"no {code}")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("code", OBEYED)
def test_a_terminal_obeys_no_text(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every way of printing shows the code: plain lines, markup, tables, warnings and errors."""
    for screen in (terminal.console, terminal.errors):
        screen.print(f"a {code} word", markup=False)
        print_plainly(screen, f"a {code} word")
        screen.print(rows_table([{"word": f"a {code} word"}]))
        screen.print(f"[bold]a {code} word[/bold]")
    run_commands(lambda: warnings.warn(f"a {code} word", stacklevel=1))
    with pytest.raises(SystemExit):
        run_commands(lambda: refuse(code))
    shown = "".join(capsys.readouterr())
    assert not {character for character in code if not character.isprintable()} & set(shown)
    assert visible(code) in shown  # where rich does not remove it


def test_what_rich_draws_in_color_stays() -> None:
    screen = terminal.PlainConsole(file=io.StringIO(), force_terminal=True, color_system="standard")
    screen.print("[red]error:[/red] \x1b[32mgreen", highlight=False)
    assert screen.file.getvalue() == "\x1b[31merror:\x1b[0m \\x1b[32mgreen\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["naïve", "日本語", "می‌خواهم", "tab\tand\nline", "é"])
def test_words_of_any_script_are_shown_as_they_are(text: str) -> None:
    assert visible(text) == text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("writer", ["tensorboard.summary.writer.event_file_writer", __name__])
def test_only_the_thread_of_tensorboard_fails_quietly(
    writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorBoard raises the error again in the main thread, where it is a line."""
    seen: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda ended: seen.append(ended.exc_type.__name__))

    class Writer(threading.Thread):
        def run(self) -> None:
            raise OSError(28, "No space left on device")

    def write() -> None:
        thread = Writer()
        thread.start()
        thread.join()

    Writer.__module__ = writer
    run_commands(write)
    assert seen == ([] if writer.startswith("tensorboard") else ["OSError"])
