"""Attacks of the campaign: generators of attempts, each of which the code has to withstand.

An attack draws everything from the random numbers that it receives, so that the seed of an attempt repeats it. A module
of this folder offers its attacks as a list `ATTACKS`, and `campaign.py` runs them.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Attempt = Callable[[random.Random, Path], None]  # the folder is new and empty


class FellError(AssertionError):
    """The code did not withstand an attempt; the message says what went wrong, and with which input."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A kind of attempt, and how often it is made.

    Args:
        key: the name in records and on the command line, such as `bad_inputs`.
        title: the name in tables, such as "bad inputs".
        attempt: makes one attempt and returns if the code has held. Any exception means that the code fell.
        tries_in_tests: the number of attempts in `make test`.
        weight: the share of the time of a long campaign, relative to the other attacks.
        needs_gpu: this attack is passed over where there is no GPU.
    """

    key: str
    title: str
    attempt: Attempt
    tries_in_tests: int
    weight: float = 1.0
    needs_gpu: bool = False
