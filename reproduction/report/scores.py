"""The scores of the paper: their names, which direction is better, and how they are written."""

from reproduction.report.intervals import Difference, Estimate
from zloss_lab.evaluation import TOP_K

MRR = "mrr"


def top(k: int) -> str:
    """The name of a top-k error.

    >>> top(5)
    'top_5_error'
    """
    return f"top_{k}_error"


ERRORS = tuple(map(top, TOP_K))
SCORES = (*ERRORS, MRR)

# Typed by name, because they look like other characters in a text editor.
MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


def is_error(score: str) -> bool:
    """Errors are better when they are lower; the mean reciprocal rank when it is higher."""
    return score != MRR


def label(score: str) -> str:
    """As a column is headed.

    >>> label("top_5_error"), label("mrr")
    ('top-5', 'MRR')
    """
    return score.removesuffix("_error").replace("_", "-") if is_error(score) else "MRR"


def shown(value: float, score: str) -> str:
    """Errors in percent, without the sign.

    >>> shown(0.7213, "top_1_error"), shown(0.3, "mrr")
    ('72.13', '0.3000')
    """
    return f"{100 * value:.2f}" if is_error(score) else f"{value:.4f}"


def shown_estimate(value: Estimate, score: str) -> str:
    """With half the width of its interval, where there is one.

    >>> shown_estimate(Estimate(0.7213, 0.004, 3), "top_1_error")
    '72.13 ± 0.40'
    """
    mean = shown(value.mean, score)
    return mean if value.half_width is None else f"{mean} ± {shown(value.half_width, score)}"


def shown_difference(value: Difference, score: str) -> str:
    """With its sign: points of error, or differences of the mean reciprocal rank."""
    sign = MINUS if value.mean < 0 else "+"
    size = f"{sign}{shown(abs(value.mean), score)}"
    return size if value.half_width is None else f"{size} ± {shown(value.half_width, score)}"
