"""Scores as text for the terminal: a table of evaluations, a line of scores, and headings of columns."""

import math

from rich.table import Table

from zloss_lab.evaluation import Evaluation, named_scores

_IN_A_LINE = ("top 1 error", "top 10 error", "mrr", "perplexity")


def evaluation_table(results: dict[str, Evaluation]) -> Table:
    """Return a table with a column for each model, and half-widths of 95 % intervals for scores of a sample."""
    columns = {name: formatted(result) for name, result in results.items()}
    table = Table("")
    for name in columns:
        table.add_column(name, justify="right")
    for score in dict.fromkeys(score for cells in columns.values() for score in cells):
        table.add_row(score, *(cells.get(score, "") for cells in columns.values()))
    return table


def formatted(result: Evaluation, *, with_widths: bool = True) -> dict[str, str]:
    """Return the scores of an evaluation as text by name; a score of a sample has the half-width of its interval."""
    widths = named_scores(result.half_widths) if with_widths and result.half_widths else {}
    cells = {}
    for name, score in named_scores(result).items():
        style = ".1%" if name.endswith("error") else ".3f" if name == "mrr" else ",.1f"
        has_width = name in widths and math.isfinite(score)  # an infinite score has no interval
        width = f" ± {widths[name]:{style}}" if has_width else ""
        cells[name.replace("_", " ")] = f"{score:{style}}{width}"
    return cells


def in_a_line(result: Evaluation) -> str:
    """Return the most important scores on one line."""
    scores = formatted(result, with_widths=False)
    return "  ".join(f"{name} {scores[name]}" for name in _IN_A_LINE if name in scores)


def heading(name: str) -> str:
    """Return the heading of a column in two narrow lines.

    >>> heading("top_10_error")
    'top 10\\nerror'
    """
    return "\n".join(name.rsplit("_", 1)).replace("_", " ")
