"""The commands for the paper in docs/lab.md exist and take the options that are written there."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from reproduction.running.commands import run

TEXT = (Path(__file__).parents[3] / "docs" / "lab.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("## Reproducing the paper\n")[2].partition("\n## ")[0]
START = "    python -m reproduction run "
COMMANDS = [line.strip() for line in SECTION.splitlines() if line.startswith(START)]


def test_every_figure_and_table_is_there() -> None:
    names = {shlex.split(line, comments=True)[4] for line in COMMANDS}
    assert names == {"search", "figure2", "figure3", "figure4", "figure5", "table1", "table2"}


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_take_these_options(line: str) -> None:
    _, _, _, _, name, *options = shlex.split(line, comments=True)
    group: Any = typer.main.get_command(run)
    group.commands[name].make_context(name, options)  # which fails on what it does not know
