"""The cutoffs of an adaptive softmax: default values, and checks of the values that a user gives."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from zloss.inputs import check_number, is_whole, shown
from zloss.optim.groups import listed

# Every cluster costs some launches, and narrow vectors cannot distinguish many classes.
_MAX_CLUSTERS, _MIN_GROWTH, _MIN_WIDTH = 3, 4, 8


def default_cutoffs(in_features: int, num_classes: int, div_value: float) -> list[int]:
    """Return cutoffs for classes whose frequencies fall like the frequencies of words.

    With in_features=512 and Zipf's law a step needs less than 1/15 of the multiplications of a full softmax at 10,000
    classes, and less than 1/100 at a million. A shorter shortlist would save more, but frequent classes would suffer.

    >>> default_cutoffs(512, 10_000, 4.0), default_cutoffs(512, 1_000_000, 4.0), default_cutoffs(8, 10, 4.0)
    ([400, 2000], [4000, 25198, 158740], [2])
    """
    shortlist = max(1, min(num_classes // 4, round(4 * math.sqrt(num_classes))))
    growth, clusters = num_classes / shortlist, 1
    while (
        clusters < _MAX_CLUSTERS
        and growth ** (1 / (clusters + 1)) >= _MIN_GROWTH
        and _width(in_features, div_value, clusters + 1) >= _MIN_WIDTH
    ):
        clusters += 1
    return [round(shortlist * growth ** (i / clusters)) for i in range(clusters)]


def _width(in_features: int, div_value: float, cluster: int) -> int:
    return int(in_features // div_value**cluster)


def checked_div_value(div_value: float) -> float:
    """Return the div_value, or refuse one that is not a finite number >= 1."""
    check_number("div_value", div_value, least=1)
    return div_value


def checked_cutoffs(cutoffs: Sequence[int], num_classes: int) -> list[int]:
    """Return the cutoffs as a list of int, or refuse cutoffs that do not cut the classes into non-empty stretches."""
    given = cutoffs
    cutoffs = listed(given) if isinstance(given, Iterable) else []
    integers = all(is_whole(cutoff) for cutoff in cutoffs)
    if (
        not cutoffs
        or not integers
        or any(low >= high for low, high in pairwise([0, *cutoffs, num_classes]))
    ):
        raise ValueError(
            "cutoffs must be one or more integers in increasing order, each between 1 and num_classes - 1 = "
            f"{num_classes - 1}, got {shown(given)}"
        )
    return [int(cutoff) for cutoff in cutoffs]


def check_widths(in_features: int, div_value: float, clusters: int) -> None:
    """Refuse clusters with vectors of width 0. Torch would build them, and fail later with an obscure message."""
    if _width(in_features, div_value, clusters) < 1:
        largest = math.floor(100 * in_features ** (1 / clusters)) / 100
        raise ValueError(
            f"the last of {clusters} clusters would have vectors of width 0: in_features // div_value**{clusters} with "
            f"in_features={in_features}, div_value={div_value:g}; set div_value to {largest:g} or less"
            + (", or use fewer cutoffs" if clusters > 1 else "")
        )
