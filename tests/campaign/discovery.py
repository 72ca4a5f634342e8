"""The attacks of all modules in this folder, and single attempts of them."""

import hashlib
import importlib
import random
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from tests.campaign.attack import Attack

HERE = Path(__file__).parent


def module_names() -> list[str]:
    """Return the names of all modules of the campaign, without its tests."""
    files = sorted(path.stem for path in HERE.glob("*.py"))
    own_tests = [name for name in files if name.startswith("test_")]
    return [f"tests.campaign.{name}" for name in files if name not in own_tests]


def attacks_of(modules: Iterable[str]) -> dict[str, Attack]:
    """Return the attacks that these modules offer as `ATTACKS`, by their keys. A key that occurs twice is an error."""
    found: dict[str, Attack] = {}
    for module in modules:
        for attack in getattr(importlib.import_module(module), "ATTACKS", ()):
            if attack.key in found:
                raise ValueError(
                    f"two attacks have the key {attack.key!r}: rename that of {module}"
                )
            found[attack.key] = attack
    return found


def chosen(attacks: dict[str, Attack], keys: Sequence[str]) -> dict[str, Attack]:
    """Return the attacks with these keys, or all for no key. `ValueError` names an unknown key."""
    for key in keys:
        if key not in attacks:
            raise ValueError(f"there is no attack {key!r}: choose from {', '.join(attacks)}")
    return {key: attacks[key] for key in keys or attacks}


def attempt_seed(campaign_seed: int, key: str, number: int) -> int:
    """Return the seed of an attempt.

    >>> attempt_seed(0, "kills", 1) == attempt_seed(0, "kills", 1)
    True
    >>> len({attempt_seed(0, key, number) for key in ("kills", "disks") for number in range(9)})
    18
    """
    digest = hashlib.sha256(f"{campaign_seed}/{key}/{number}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def make_attempt(attack: Attack, seed: int, folder: Path) -> None:
    """Make an attempt in a new and empty folder. The generators that libraries share are seeded too."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as own:
        attack.attempt(random.Random(seed), Path(own))


def repeat_command(key: str, seed: int) -> str:
    """Return the command that repeats an attempt, with its traceback."""
    return f"python -m tests.campaign.campaign --repeat {key}:{seed}"
