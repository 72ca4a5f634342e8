"""A made-up line for each figure and table."""

from collections.abc import Callable

from tests.reproduction.report import made_up
from tests.reproduction.report.made_up import Line

FIRST: dict[str, Callable[[], Line]] = {
    "figure2": lambda: next(made_up.tuned(2)),
    "figure3": lambda: next(made_up.sweep()),
    "figure4": lambda: next(made_up.curves()),
    "figure5": lambda: next(made_up.tuned(5)),
    "table2": lambda: next(line for line in made_up.models() if line["model"] == made_up.NET1),
}
