"""The drawing of one training step in `src/zloss/layers/README.md` is what a step really does."""

import re
import sys
from collections import OrderedDict
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest
import torch

import zloss

LIBRARY = Path(zloss.__file__).parent
README = (LIBRARY / "layers/README.md").read_text("utf-8")
DRAWING = README.split("```")[1]
LINE = re.compile(r"    (?P<file>\w+\.py) +(?P<function>[\w.]+)(?:  |$)")
MOST_FILES = 8


class Call(NamedTuple):
    """A function that was entered, and how many functions of the drawing were running at that time."""

    file: str  # below the folder of the library
    function: str
    depth: int


def drawn_calls() -> list[Call]:
    lines = [line for line in map(LINE.match, DRAWING.splitlines()) if line]
    first = min(line.start("function") for line in lines)
    return [
        Call(f"layers/{line['file']}", line["function"], (line.start("function") - first) // 2)
        for line in lines
    ]


def traced_calls(work: Callable[[], object]) -> list[tuple[Call, FrameType]]:
    """Return the functions of the library that work enters, in order; the depth is left open."""
    entered: list[tuple[Call, FrameType]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(LIBRARY):
            file = path.relative_to(LIBRARY).as_posix()
            entered.append((Call(file, frame.f_code.co_qualname, 0), frame))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return entered


def restricted(entered: list[tuple[Call, FrameType]], drawn: set[tuple[str, str]]) -> list[Call]:
    """Return the calls of drawn functions, each with the number of drawn functions that called it."""
    kept: dict[FrameType, int] = {}
    calls = []
    for call, frame in entered:
        if call[:2] in drawn:
            above, caller = 0, frame.f_back
            while caller is not None:
                if caller in kept:
                    above = kept[caller] + 1
                    break
                caller = caller.f_back
            kept[frame] = above
            calls.append(call._replace(depth=above))
    return calls


def one_step() -> list[tuple[Call, FrameType]]:
    layer = zloss.FactoredLinear(16, 1000)
    optimizer, loss_of = zloss.FactoredSGD(layer, lr=1.0), zloss.ZLoss(a=0.1, b=10)
    h, target = torch.randn(4, 16, requires_grad=True), torch.randint(1000, (4,))

    def step() -> None:
        loss_of(layer(h, target)).backward()
        optimizer.step()

    step()  # the first one prepares what the later ones use
    return traced_calls(step)


@pytest.fixture(autouse=True)
def no_hooks_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers without an optimizer, which other tests have, make torch call the library at every step."""
    for hooks in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(import_module("torch.optim.optimizer"), hooks, OrderedDict())


def test_a_step_goes_the_way_that_is_drawn() -> None:
    drawn = drawn_calls()
    assert restricted(one_step(), {call[:2] for call in drawn}) == drawn


def test_a_step_enters_the_files_that_are_named() -> None:
    entered = {call.file for call, _ in one_step()}
    in_layers = {file for file in entered if file.startswith("layers/")}
    assert in_layers == {call.file for call in drawn_calls()}
    assert len(in_layers) <= MOST_FILES
    outside = README.partition("Outside of this folder")[2].partition("On a GPU")[0]
    assert entered - in_layers == set(re.findall(r"`([\w/]+\.py)`", outside))


def test_a_call_that_is_not_drawn_is_seen() -> None:
    def inner() -> None: ...

    def outer() -> None:
        inner()

    place = "f.py"
    frames = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            frames.append((Call(place, frame.f_code.co_name, 0), frame))

    sys.setprofile(note)
    outer()
    inner()
    sys.setprofile(None)
    drawn = {(place, "outer"), (place, "inner")}
    assert [call[1:] for call in restricted(frames, drawn)] == [
        ("outer", 0),
        ("inner", 1),
        ("inner", 0),
    ]
