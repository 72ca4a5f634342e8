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
PAPER_SCORES = (*ERRORS, MRR)


def is_error(score: str) -> bool:
    """Return whether lower is better. The mean reciprocal rank is the only score of which higher is better."""
    return score != MRR
