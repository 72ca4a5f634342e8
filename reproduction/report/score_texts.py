"""Scores as texts of tables and sentences."""

from reproduction.scores import is_error
from zloss_lab.seed_intervals import Difference, Estimate

# Typed by name, because they look like other characters in a text editor.
MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


def score_label(score: str) -> str:
    """Return the heading of a column of this score.

    >>> score_label("top_5_error"), score_label("mrr")
    ('top-5', 'MRR')
    """
    return score.removesuffix("_error").replace("_", "-") if is_error(score) else "MRR"


def score_text(value: float, score: str) -> str:
    """Return a score as text: errors in percent, without the sign.

    >>> score_text(0.7213, "top_1_error"), score_text(0.3, "mrr")
    ('72.13', '0.3000')
    """
    return f"{100 * value:.2f}" if is_error(score) else f"{value:.4f}"


def estimate_text(value: Estimate, score: str) -> str:
    """Return a mean with half the width of its interval, where there is one.

    >>> estimate_text(Estimate(0.7213, 0.004, 3), "top_1_error")
    '72.13 ± 0.40'
    """
    mean = score_text(value.mean, score)
    return mean if value.half_width is None else f"{mean} ± {score_text(value.half_width, score)}"


def difference_text(value: Difference, score: str) -> str:
    """Return a difference with its sign: points of error, or differences of the mean reciprocal rank."""
    sign = MINUS if value.mean < 0 else "+"
    size = f"{sign}{score_text(abs(value.mean), score)}"
    return size if value.half_width is None else f"{size} ± {score_text(value.half_width, score)}"
