"""Captured steps: which calls are captured and when, on a pretended GPU."""

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import zloss
from tests.gpu import pretend_gpu
from tests.training_steps import take_steps
from zloss.capture import CaptureContext
from zloss.streams import is_capturing, must_not_wait


def test_on_a_cpu_the_step_just_runs() -> None:
    calls = []
    step = zloss.CapturedStep(lambda x: calls.append(x) or x)  # type: ignore[func-returns-value]
    for number in range(5):
        assert step(torch.tensor(float(number))) == number
    assert len(calls) == 5


def test_the_third_call_must_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third call is a rehearsal: it must not wait, like the capture after it, but its operations run."""
    pretend_gpu(monkeypatch)
    seen = []
    step = zloss.CapturedStep(lambda x: seen.append((must_not_wait(), is_capturing())) or x)  # type: ignore[func-returns-value]
    for _ in range(3):
        step(torch.zeros(1))
        assert not must_not_wait()
    assert seen == [(False, False), (False, False), (True, False)]


def test_a_step_that_waits_is_refused_at_the_third_call(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch)
    step = zloss.CapturedStep(lambda x: x * x.tolist()[0])
    take_steps(step, [(torch.ones(1),)] * 2)
    with pytest.raises(RuntimeError, match="cannot be captured as a CUDA graph"):
        step(torch.ones(1))
    assert not must_not_wait()
    assert torch.ones(1).tolist() == [1.0]  # waiting is allowed again


def test_an_error_of_another_kind_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that catches an error of memory, to try a smaller batch, must get this error. The rehearsal is repeated."""
    pretend_gpu(monkeypatch)
    errors = [None, None, torch.OutOfMemoryError("no room"), None]
    rehearsed = []

    def failing(x: Tensor) -> Tensor:
        rehearsed.append(must_not_wait())
        if (error := errors.pop(0)) is not None:
            raise error
        return x

    step = zloss.CapturedStep(failing)
    take_steps(step, [(torch.ones(1),)] * 2)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        step(torch.ones(1))
    step(torch.ones(1))
    assert rehearsed == [False, False, True, True]


class CountedGraph:
    """A replacement of a graph that notes the captures, and runs the step."""

    captured: list[torch.Size]
    is_outdated = False

    def __init__(
        self, step: Callable[..., Tensor], inputs: Sequence[Tensor], _optimizers: Sequence[Any]
    ) -> None:
        self.captured.append(inputs[0].shape)
        self._step = step

    def replay(self, inputs: Sequence[Tensor]) -> Tensor:
        return self._step(*inputs)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of inputs that were captured, on a pretended GPU."""
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(CountedGraph, "captured", [], raising=False)
    monkeypatch.setattr("zloss.capture._Graph", CountedGraph)
    return CountedGraph.captured


def test_every_shape_is_rehearsed_before_its_capture(captured: list[torch.Size]) -> None:
    """Triton must compile for this shape before the capture, and a step that waits with this shape must be refused."""
    rehearsed = []
    step = zloss.CapturedStep(lambda x: rehearsed.append((len(x), must_not_wait())) or x)  # type: ignore[func-returns-value]
    take_steps(step, [(torch.ones(rows),) for rows in (4, 4, 4, 4, 2, 2, 2, 2, 4, 2)])
    assert captured == [(4,), (2,)]
    assert [rows for rows, is_rehearsal in rehearsed if is_rehearsal] == [4, 2]


@pytest.mark.parametrize("rate", [1.0, torch.tensor(1.0)])
def test_a_rate_that_a_schedule_changes_is_captured_anew(
    rate: Any, captured: list[torch.Size]
) -> None:
    """Schedules of torch change a rate that is a tensor in place."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.1)
    step = zloss.CapturedStep(lambda x: x, optimizers=[optimizer])
    for _ in range(9):
        step(torch.ones(1))
        optimizer.step()
        schedule.step()
    assert len(captured) == 2


@pytest.mark.parametrize(
    "loss", [zloss.ZLoss(a=0.1, b=10), zloss.ZNormalized(zloss.SigmoidCrossEntropy(b=1.0), a=0.1)]
)
def test_hyper_parameters_of_a_loss_are_constants_of_its_graph(
    loss: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CaptureContext(optimizers=[]) as context:
        loss(torch.randn(3, 20), torch.tensor([1, 2, 3]))
    constants = context.constants[0]
    loss.eval()
    assert not constants.have_changed(), "that has no part in it"
    loss.a = 0.05
    assert constants.have_changed()
    loss.a = 0.1
    assert not constants.have_changed()
    if isinstance(loss, zloss.ZNormalized):
        monkeypatch.setattr(loss.loss, "b", 2.0)
        assert constants.have_changed()


@pytest.mark.parametrize("kind", [np.float64, np.float32, torch.tensor])
def test_a_hyper_parameter_may_be_any_number_of_the_host(kind: Callable[[float], Any]) -> None:
    loss = zloss.ZLoss(a=kind(0.125), b=kind(10.0))
    with CaptureContext(optimizers=[]) as context:
        loss(torch.randn(3, 20), torch.tensor([1, 2, 3]))
    loss.b = kind(10.0)
    assert not context.constants[0].have_changed()
    loss.b += 1  # changes a tensor in place
    assert context.constants[0].have_changed()


def test_a_captured_step_goes_at_once(captured: list[torch.Size]) -> None:
    """The memory of its graphs is freed at once. On the host it looks small, so a collection might come too late."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    step = zloss.CapturedStep(lambda x: x, optimizers=[optimizer])
    take_steps(step, [(torch.ones(1),)] * 4)
    assert captured == [(1,)]
    kept = weakref.ref(step)
    gc.disable()
    try:
        del step
        assert kept() is None
    finally:
        gc.enable()


def test_a_captured_step_in_another_is_part_of_it(captured: list[torch.Size]) -> None:
    rehearsed = []
    inner = zloss.CapturedStep(lambda x: rehearsed.append(must_not_wait()) or x)  # type: ignore[func-returns-value]

    def outer_step(x: Tensor) -> Tensor:
        output = inner(x)
        assert must_not_wait() == rehearsed[-1], (
            "the end of the inner one is not that of the outer one"
        )
        return output

    take_steps(zloss.CapturedStep(outer_step), [(torch.ones(1),)] * 3)
    assert rehearsed == [False, False, True]
    assert captured == []


def test_a_step_without_inputs_is_where_its_parameters_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds on a machine with a GPU too: a graph would contain no operation of the CPU, and replay nothing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    calls = []
    step = zloss.CapturedStep(lambda: calls.append(1) or torch.ones(1), optimizers=[optimizer])  # type: ignore[func-returns-value]
    for _ in range(5):
        step()
    assert len(calls) == 5
