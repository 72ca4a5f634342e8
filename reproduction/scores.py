"""The scores of the paper: their keys, and which direction is better."""

from zloss_lab.evaluation import TOP_K

MRR = "mrr"


def top(k: int) -> str:
    """Return the key of a top-k error.

    >>> top(5)
    'top_5_error'
    """
    return f"top_{k}_error"


ERRORS = tuple(map(top, TOP_K))
SCORES = (*ERRORS, MRR)
CURVE_ERRORS = tuple(map(top, (1, 5, 10, 50)))  # the panels of figure 4
FIGURE_SCORES = {2: SCORES, 5: tuple(map(top, (1, 10, 50)))}


def is_error(score: str) -> bool:
    """Tell if lower is better. The mean reciprocal rank is the only score of which higher is better."""
    return score != MRR
