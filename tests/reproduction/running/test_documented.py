"""The commands for the paper in docs/lab.md and in help texts exist and take the options that are written there."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from reproduction.running.commands import run

TEXT = (Path(__file__).parents[3] / "docs" / "lab.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("## Reproducing the paper\n")[2].partition("\n## ")[0]
START = "python -m reproduction run "
GROUP: Any = typer.main.get_command(run)


def commands(text: str) -> list[str]:
    """Return the commands that stand on lines of their own, without `python -m reproduction run`."""
    return [
        line.strip().removeprefix(START)
        for line in text.splitlines()
        if line.startswith(f"    {START}")
    ]


IN_DOCUMENTATION = commands(SECTION)
IN_HELP = [line for command in GROUP.commands.values() for line in commands(command.help)]


def test_every_figure_and_table_is_there() -> None:
    names = {shlex.split(line, comments=True)[0] for line in IN_DOCUMENTATION}
    assert names == {"search", "figure2", "figure3", "figure4", "figure5", "table1", "table2"}


def test_every_long_command_has_an_example() -> None:
    names = {shlex.split(line, comments=True)[0] for line in IN_HELP}
    assert names == {"search", "figure2", "figure3", "figure4", "figure5", "table2"}


@pytest.mark.parametrize("line", [*IN_DOCUMENTATION, *IN_HELP])
def test_commands_take_these_options(line: str) -> None:
    name, *options = shlex.split(line, comments=True)
    GROUP.commands[name].make_context(name, options)  # which fails on unknown options
