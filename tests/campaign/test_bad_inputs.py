"""The attack with bad input reaches every public name, and it sees what it has to see."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.campaign import bad_inputs
from tests.campaign.attack import FellError
from tests.campaign.bad_inputs import attack_name
from tests.campaign.bad_values import JUNK
from tests.campaign.calls import Call, given
from tests.campaign.public_calls import CALLS, UNCALLED
from tests.test_public_names import FROZEN

ATTEMPTS = 20


def takes_arguments(line: str) -> bool:
    """Return whether a line of `public_names.txt` is a function that takes more than `self`."""
    return "(" in line and line.partition("(")[2].rstrip(")") not in ("", "self")


def test_every_public_name_is_attacked() -> None:
    expected = {line.partition("(")[0] for line in FROZEN if takes_arguments(line)}
    assert expected == set(CALLS) | set(UNCALLED), "add a valid call to public_calls.py"


def test_every_argument_is_attacked() -> None:
    """An argument that a valid call leaves out would never get a bad value."""
    left_out = {}
    for line in FROZEN:
        name, _, rest = line.partition("(")
        if name in CALLS:
            # The base class of the losses and of the heads is made by a class that has no more arguments.
            named = {word.strip(" *)") for word in rest.split(",")} - {
                "self",
                "",
                "others",
                "kwargs",
                "options",
            }
            given_ones = set(CALLS[name](random.Random(0)).arguments)
            if missing := named - given_ones:
                left_out[name] = missing
    assert not left_out


@pytest.mark.parametrize("name", CALLS)
def test_bad_input(name: str) -> None:
    rng = random.Random(name)
    for _ in range(ATTEMPTS):
        attack_name(rng, name)


def double(values: Any) -> Any:
    return values * 2


def refuses_without_words(values: Any) -> Any:
    raise KeyError("values")


def damages(values: Any) -> Any:
    if isinstance(values, torch.Tensor):
        values.data.zero_()
    raise ValueError("values must be something else")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (double, "was accepted|ended in|gave"),
        (refuses_without_words, "ended in KeyError|was refused"),
        (damages, "changed the state|ended in|was refused"),
    ],
)
def test_a_fall_is_seen(
    function: Callable[..., Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(_: random.Random) -> Call:
        values = torch.randn(3, 2)
        return Call(function, {"values": given(values)}, [values])

    monkeypatch.setitem(CALLS, "victim", made)
    falls = []
    for seed in range(30):
        try:
            attack_name(random.Random(seed), "victim")
        except FellError as fall:
            falls.append(str(fall))
    assert falls
    with pytest.raises(FellError, match=message):
        raise FellError(" ".join(falls))


def test_an_attempt_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(
        bad_inputs, "_check_result", lambda leaves, bad, what, twin: seen.append(what)
    )
    monkeypatch.setattr(bad_inputs, "_check_clear", lambda error, argument, what: seen.append(what))
    for _ in range(2):
        for seed in range(5):
            attack_name(random.Random(seed), "Head.topk")
    assert seen[:5] == seen[5:]
    assert len(set(seen)) == 5


def test_junk_is_of_many_types() -> None:
    assert len({type(make()) for make, _, _ in JUNK.values()}) > 20
