"""The types of the options of heads and losses in a `HeadConfig`.

To add an option, give it a type here.
"""

from numbers import Integral, Real
from typing import Any

from zloss.heads.clustering import Clustering
from zloss.heads.negatives import SharedNegatives
from zloss.heads.samplers import Sampler
from zloss.inputs import shown

# The first type is the type in a message. Instead of a number or a name, some options take an object of the library.
OPTION_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(
        ("bias", "synchronous", "exact_rows", "head_bias", "remove_accidental_hits"), (bool,)
    ),
    **dict.fromkeys(("a", "b", "eps", "max_condition", "div_value", "power", "balance"), (Real,)),
    **dict.fromkeys(("softmax", "implementation"), (str,)),
    "num_samples": (Integral,),
    "clusters": (Integral, Clustering),
    "negatives": (Integral, SharedNegatives),
    "sampler": (str, Sampler),
    "cutoffs": (list, tuple),
}
_IN_WORDS = {
    bool: "true or false",
    Real: "a number",
    Integral: "a whole number",
    str: "a name",
    list: "a list",
}


def check_option(name: str, value: Any) -> None:
    """Refuse a value of the wrong type for an option."""
    types = OPTION_TYPES[name]
    is_flag = isinstance(value, bool)  # Python counts a bool as a number
    if is_flag != (types == (bool,)) or not isinstance(value, types):
        raise ValueError(f"option {name} must be {_IN_WORDS[types[0]]}, got {shown(value)}")
