"""The commands that docs/lab.md gives for the paper are commands that there are."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from reproduction.experiments.commands import paper

TEXT = (Path(__file__).parents[3] / "docs" / "lab.md").read_text(encoding="utf-8")
SECTION = TEXT.partition("## Reproducing the paper\n")[2].partition("\n## ")[0]
COMMANDS = [line.strip() for line in SECTION.splitlines() if line.startswith("    zloss paper ")]


def test_every_figure_and_table_is_there() -> None:
    names = {shlex.split(line, comments=True)[2] for line in COMMANDS}
    assert names == {"search", "figure2", "figure3", "figure4", "figure5", "table1", "table2"}


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_take_these_options(line: str) -> None:
    _, _, name, *options = shlex.split(line, comments=True)
    group: Any = typer.main.get_command(paper)
    group.commands[name].make_context(name, options)  # which fails on what it does not know
