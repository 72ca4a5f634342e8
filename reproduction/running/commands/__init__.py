"""The commands `python -m reproduction run search`, `figure2` to `figure5`, `table1` and `table2`.

Nothing is computed here. A command reads its options, lets a collector work and says which records it has made.

    search_command.py   the searches
    figure_commands.py  figures 2 to 5
    table_commands.py   tables 1 and 2
    table2_options.py   the options of table 2
    options.py          the options that several commands share
    making.py           the course of a command: a bar, messages, failed trainings, Ctrl-C
"""

import typer

from reproduction.running.commands.figure_commands import figure2, figure3, figure4, figure5
from reproduction.running.commands.search_command import search
from reproduction.running.commands.table_commands import table1, table2

run = typer.Typer(
    help="Run the experiments of the paper and keep their records, for `python -m reproduction report`. Existing "
    "records are not made again.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (search, figure2, figure3, figure4, figure5, table1, table2):
    run.command()(command)
