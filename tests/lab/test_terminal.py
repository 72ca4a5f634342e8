"""Shared parts of command lines: lists of numbers, and ends without a traceback."""

import io
import sys
import warnings

import pytest
import torch

from zloss_lab.terminal import positive_numbers, run_commands


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
