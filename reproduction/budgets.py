"""Budget: for how long a model of table 2 is trained."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIXED, CONVERGED = "fixed", "converged"  # keys of budgets; that of N epochs is `epochs_key(N)`
_EPOCHS_KEY = re.compile(r"([1-9][0-9]*)_epochs?")

# Fewer and larger reductions of the learning rates than by default, because each costs a good part of a training. And
# more validation examples: their top-1 error is good to 0.35 points, so that chance reduces nothing early.
CONVERGING: Mapping[str, Any] = {
    "training.schedule": "plateau",
    "training.lr_factor": 0.25,
    "training.stop_after": 2,
    "training.validation_examples": 50_000,
}


@dataclass(frozen=True)
class Budget:
    """The length of a training: seconds or epochs, over which the learning rates fall to zero.

    Where neither is given, the training ends when lower learning rates bring no improvement.
    """

    seconds: float | None = None
    epochs: int | None = None

    @property
    def key(self) -> str:
        """The name in records."""
        if self.seconds is not None:
            return FIXED
        return CONVERGED if self.epochs is None else epochs_key(self.epochs)

    @property
    def description(self) -> str:
        """The length of a training, as a sentence has it."""
        if self.seconds is not None:
            return f"for {self.seconds:g} s"
        return "until it converges" if self.epochs is None else f"for {budget_title(self.key)}"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a training with this budget, by dotted key."""
        lengths = {"training.seconds": self.seconds, "training.epochs": self.epochs}
        given = {key: length for key, length in lengths.items() if length is not None}
        return {"training.schedule": "linear", **given} if given else dict(CONVERGING)


def epochs_key(epochs: int) -> str:
    """Return the key of a budget of this number of epochs.

    >>> epochs_key(1), epochs_key(4)
    ('1_epoch', '4_epochs')
    """
    return f"{epochs}_epoch{'s' if epochs > 1 else ''}"


def budget_title(key: str) -> str:
    """Return a budget as tables name it.

    >>> budget_title("2_epochs"), budget_title("converged")
    ('2 epochs', 'converged')
    """
    return key.replace("_", " ")


def is_budget_key(key: str) -> bool:
    """Return whether a budget has this key. "1_epochs" is not one: it would be a second name of "1_epoch"."""
    epochs = _EPOCHS_KEY.fullmatch(key)
    return key in (FIXED, CONVERGED) or (epochs is not None and key == epochs_key(int(epochs[1])))


def budget_order(key: str) -> tuple[int, int]:
    """Return a sort key: a fixed time comes first, then epochs from few to many, then convergence.

    >>> sorted(["converged", "10_epochs", "2_epochs", "fixed"], key=budget_order)
    ['fixed', '2_epochs', '10_epochs', 'converged']
    """
    epochs = _EPOCHS_KEY.fullmatch(key)
    return (1, int(epochs[1])) if epochs else (0 if key == FIXED else 2, 0)
