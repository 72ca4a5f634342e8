"""A step as a CUDA graph: the same steps as without, whatever happens between replays."""

import copy
import gc
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import zloss
from tests.gpu import no_synchronisation, pretend_gpu
from zloss.capture import CaptureContext
from zloss.streams import is_capturing, must_not_wait

H, C, B = 32, 400, 24


def make_head(device: torch.device) -> zloss.SphericalOutput:
    return zloss.SphericalOutput(
        zloss.FactoredLinear(H, C, device=device), zloss.ZLoss(a=0.2, b=8.0)
    )


def training_step(
    head: zloss.Head, optimizer: torch.optim.Optimizer
) -> Callable[[Tensor, Tensor], Tensor]:
    def step(h: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = head(h, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def batch(number: int, device: torch.device, rows: int = B) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    h, target = (
        torch.randn(rows, H, generator=generator),
        torch.randint(C, (rows,), generator=generator),
    )
    return h.to(device), target.to(device)


def take_steps(step: Callable[..., Tensor], batches: Iterable[tuple[Tensor, ...]]) -> None:
    for inputs in batches:
        step(*inputs)


def test_captured_steps_are_the_steps(device: torch.device) -> None:
    plain = make_head(device)
    replayed = copy.deepcopy(plain)
    optimizers = [plain.sgd(5.0, weight_decay=1e-3), replayed.sgd(5.0, weight_decay=1e-3)]
    expected = training_step(plain, optimizers[0])
    step = zloss.CapturedStep(training_step(replayed, optimizers[1]), optimizers=[optimizers[1]])
    for number in range(60):
        if number == 30:  # a learning rate is part of the graph
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = 1.0
        inputs = batch(number, device, rows=B if number % 7 else B // 2)  # and so is a shape
        assert torch.allclose(step(*inputs), expected(*inputs), rtol=1e-4)
    # Both round to float32 after every step, in another order where targets repeat.
    assert torch.allclose(replayed.layer.weight(), plain.layer.weight(), rtol=0, atol=1e-5)


def test_on_a_cpu_the_step_just_runs() -> None:
    calls = []
    step = zloss.CapturedStep(lambda x: calls.append(x) or x)  # type: ignore[func-returns-value]
    for number in range(5):
        assert step(torch.tensor(float(number))) == number
    assert len(calls) == 5


def test_the_third_call_must_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the capture after it must not; but its operations run, and are none of a graph."""
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
    assert torch.ones(1).tolist() == [1.0]  # which is no error any more


def test_an_error_of_another_kind_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who catches a lack of memory, to try less, must hear of it; and the rehearsal is still to come."""
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
    """In place of a graph: notes what was captured, and runs the step."""

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
    """What Triton compiles for it must lie before the capture, and what waits with it must be refused."""
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
    loss.b += 1  # in place where it is a tensor
    assert context.constants[0].have_changed()


def test_a_changed_hyper_parameter_is_heeded(device: torch.device) -> None:
    """As it is without a graph: one that was captured with the old value would go on with it."""

    def losses(*, is_captured: bool) -> list[float]:
        torch.manual_seed(1)
        head = make_head(device)
        optimizer = head.sgd(0.5)
        step: Callable[..., Tensor] = training_step(head, optimizer)
        if is_captured:
            step = zloss.CapturedStep(step, optimizers=[optimizer])
        found = []
        for number, a in enumerate([0.1] * 5 + [0.5, 0.5, 0.02]):
            assert isinstance(head.loss, zloss.ZLoss)
            head.loss.a = a
            found.append(step(*batch(number, device)).item())
        return found

    # float32, and other kernels while a step is captured; with the old a the loss would be another by a tenth or more.
    assert losses(is_captured=True) == pytest.approx(losses(is_captured=False), rel=1e-4)


def test_a_captured_step_goes_at_once(captured: list[torch.Size]) -> None:
    """With the memory of its graphs, which nobody would miss on the host: a collection might come too late."""
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


class Trainer:
    """Has a captured step that is a method of its own: a cycle, which goes by garbage collection."""

    def __init__(self, device: torch.device) -> None:
        head = make_head(device)
        optimizer = head.sgd(1.0)
        self._take_step = training_step(head, optimizer)
        self.step = zloss.CapturedStep(self._step, optimizers=[optimizer])

    def _step(self, h: Tensor, target: Tensor) -> Tensor:
        return self._take_step(h, target)


def test_an_old_graph_does_not_go_during_a_capture(cuda: torch.device) -> None:
    """To destroy one then is not permitted, and spoils the other."""
    batches = [batch(number, cuda) for number in range(6)]
    old, new = [Trainer(cuda)], Trainer(cuda)
    take_steps(old[0].step, batches)

    def step(h: Tensor, target: Tensor) -> Tensor:
        if is_capturing():
            old.clear()
            assert not gc.isenabled()
        return new.step(h, target)

    take_steps(zloss.CapturedStep(step), batches)
    assert gc.isenabled()


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
    """On a machine with a GPU too: a graph would hold nothing of what a CPU does, and replay nothing."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    calls = []
    step = zloss.CapturedStep(lambda: calls.append(1) or torch.ones(1), optimizers=[optimizer])  # type: ignore[func-returns-value]
    for _ in range(5):
        step()
    assert len(calls) == 5


def test_a_layer_is_refactored_between_replays(cuda: torch.device) -> None:
    layer = zloss.FactoredLinear(H, C, device=cuda, max_condition=1.02)
    head = zloss.SphericalOutput(layer, zloss.ZLoss(a=0.2, b=8.0))
    plain = copy.deepcopy(head)
    step = zloss.CapturedStep(training_step(head, head.sgd(20.0)))
    take_steps(step, (batch(number, cuda) for number in range(600)))
    take_steps(
        training_step(plain, plain.sgd(20.0)), (batch(number, cuda) for number in range(600))
    )
    assert layer.condition() < 1.1
    assert isinstance(plain.layer, zloss.FactoredLinear)
    # The host hears of the condition later than without a graph, and so refactors no more often.
    assert 0 < layer.refactors <= plain.layer.refactors + 1


def test_replays_do_not_wait_for_the_device(cuda: torch.device) -> None:
    head = make_head(cuda)
    step = zloss.CapturedStep(training_step(head, head.sgd(0.1)))
    inputs = batch(0, cuda)
    for _ in range(5):
        step(*inputs)
    with no_synchronisation():
        for _ in range(3):
            step(*inputs)


@pytest.mark.parametrize("name", ["factored", "dense", "hierarchical", "adaptive", "sampled"])
def test_a_bad_batch_is_reported_some_replays_later(name: str, cuda: torch.device) -> None:
    head = zloss.HeadConfig(head=name).build(H, C, device=cuda)
    step = zloss.CapturedStep(training_step(head, head.sgd(0.1)))
    for number in range(6):
        step(*batch(number, cuda))
    h, target = batch(7, cuda)
    with pytest.raises(ValueError, match="out of range"):
        take_steps(step, [(h, target + C)] * 200)
    for number in range(20):
        loss = step(*batch(number, cuda))
    assert loss.isfinite()


def test_a_step_too_large_is_refused_with_a_rate_that_would_do(cuda: torch.device) -> None:
    head = make_head(cuda)
    optimizer = head.sgd(0.1)
    step = zloss.CapturedStep(training_step(head, optimizer), optimizers=[optimizer])
    take_steps(step, (batch(number, cuda) for number in range(6)))
    optimizer.param_groups[0]["lr"] = (
        1e4  # before the capture, a step is solved instead of summed up
    )
    with pytest.raises(zloss.RefusedStepError, match="lr <=") as refused:
        take_steps(step, (batch(number, cuda) for number in range(200)))
    assert 0 < refused.value.safe_lr < 1e4


def test_a_step_that_waits_says_so(cuda: torch.device) -> None:
    head = make_head(cuda)
    plain = training_step(head, head.sgd(0.1))
    step = zloss.CapturedStep(lambda h, target: plain(h, target) * plain(h, target).item())
    with pytest.raises(RuntimeError, match="cannot be captured as a CUDA graph"):
        take_steps(step, (batch(number, cuda) for number in range(5)))


def test_graphs_do_not_outlive_their_memory(cuda: torch.device) -> None:
    """Graphs come and go with every change of a learning rate; what cuBLAS scratched in must not be used afterwards."""
    plain = make_head(cuda)
    replayed = copy.deepcopy(plain)
    optimizers = [plain.sgd(5.0), replayed.sgd(5.0)]
    expected = training_step(plain, optimizers[0])
    step = zloss.CapturedStep(training_step(replayed, optimizers[1]), optimizers=[optimizers[1]])
    for number in range(80):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 5.0 - 0.01 * (number // 2)
        torch.full((2**20,), float("nan"), device=cuda)  # in the place of a graph that went
        inputs = batch(number, cuda)
        assert torch.allclose(step(*inputs), expected(*inputs), rtol=1e-4)
