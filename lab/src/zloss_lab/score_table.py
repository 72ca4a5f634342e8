"""Scores as text: in the terminal, in reports, and as headings of columns. One rule decides on the digits.

A score with a confidence interval has as many decimals as its half-width needs to show two digits: 81.7% ± 4.2%, and
72.13% ± 0.40%. So an interval is never printed as zero. A score without an interval has a fixed number of decimals.
"""

import math

from rich.table import Table

from zloss_lab.evaluation import Evaluation, named_scores

_DIGITS_OF_WIDTH = 2


def evaluation_table(results: dict[str, Evaluation]) -> Table:
    """Return a table with a column for each model, and half-widths of 95 % intervals for scores of a sample."""
    columns = {name: formatted(result) for name, result in results.items()}
    table = Table("")
    for name in columns:
        table.add_column(name, justify="right")
    for score in dict.fromkeys(score for cells in columns.values() for score in cells):
        table.add_row(score, *(cells.get(score, "") for cells in columns.values()))
    return table


def formatted(result: Evaluation) -> dict[str, str]:
    """Return the scores of an evaluation as text by name; a score of a sample has the half-width of its interval."""
    widths = named_scores(result.half_widths) if result.half_widths else {}
    return {
        name.replace("_", " "): score_text(name, score, widths.get(name))
        for name, score in named_scores(result).items()
    }


def in_a_line(result: Evaluation) -> str:
    """Return the most important scores on one line.

    >>> import torch
    >>> in_a_line(Evaluation.of_ranks(torch.tensor([1, 2, 4, 40])))
    'errors top 1 75.00%, top 10 25.00%  mrr 0.4437'
    """
    texts = {name: score_text(name, score) for name, score in named_scores(result).items()}
    errors = ", ".join(f"top {k} {texts[f'top_{k}_error']}" for k in (1, 10))
    others = (f"  {name} {texts[name]}" for name in ("mrr", "perplexity") if name in texts)
    return f"errors {errors}{''.join(others)}"


def score_text(name: str, value: float, half_width: float | None = None) -> str:
    """Return a score as text, with half the width of its interval if it has one. Errors are in percent.

    >>> score_text("top_1_error", 0.7213), score_text("mrr", 0.3), score_text("mean_rank", 1234.5)
    ('72.13%', '0.3000', '1,234.5')
    >>> score_text("top_1_error", 1.0, 0.037), score_text("mrr", 0.285, 0.0404)
    ('100.0% ± 3.7%', '0.285 ± 0.040')
    """
    is_error = name.endswith("error")
    scale, unit = (100, "%") if is_error else (1, "")
    decimals = 2 if is_error else 4 if name == "mrr" else 1
    if half_width is None or not math.isfinite(value):  # an infinite score has no interval
        return f"{scale * value:,.{decimals}f}{unit}"
    if not math.isfinite(half_width):
        return f"{scale * value:,.{decimals}f}{unit} ± unknown"
    if half_width > 0:
        place = math.floor(math.log10(scale * half_width))
        decimals = max(0, _DIGITS_OF_WIDTH - 1 - place)
    return f"{scale * value:,.{decimals}f}{unit} ± {scale * half_width:,.{decimals}f}{unit}"


def heading(name: str) -> str:
    """Return the heading of a column in two narrow lines.

    >>> heading("top_10_error")
    'top 10\\nerror'
    """
    return "\n".join(name.rsplit("_", 1)).replace("_", " ")
