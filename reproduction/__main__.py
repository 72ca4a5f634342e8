"""The command line `python -m reproduction`: `run` makes records, and `report` shows them."""

import typer

from reproduction.report.command import report
from reproduction.running.commands import run
from zloss_lab.terminal import run_commands

app = typer.Typer(
    help="The experiments of the Z-loss paper, and a report on them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(run, name="run")
app.command()(report)


def main() -> None:
    """Run the command line."""
    run_commands(app)


if __name__ == "__main__":
    main()
