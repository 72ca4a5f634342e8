"""Training by captured steps: it gives the results of plain steps, and reports what goes wrong."""

import copy
import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import zloss
from tests.gpu import no_synchronisation
from tests.training_steps import B, C, H, batch, make_head, take_steps, training_step
from zloss.streams import is_capturing


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
    # Both round to float32 after every step. The order of sums differs for repeated targets.
    assert torch.allclose(replayed.layer.weight(), plain.layer.weight(), rtol=0, atol=1e-5)


def test_a_changed_hyper_parameter_is_heeded(device: torch.device) -> None:
    """A changed value has the same effect with and without a graph. An old graph would go on with the old value."""

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

    # A captured step uses other kernels in float32. With the old a the loss would differ by a tenth or more.
    assert losses(is_captured=True) == pytest.approx(losses(is_captured=False), rel=1e-4)


class Trainer:
    """A trainer with a captured step that is its own method. This makes a cycle, which garbage collection deletes."""

    def __init__(self, device: torch.device) -> None:
        head = make_head(device)
        optimizer = head.sgd(1.0)
        self._take_step = training_step(head, optimizer)
        self.step = zloss.CapturedStep(self._step, optimizers=[optimizer])

    def _step(self, h: Tensor, target: Tensor) -> Tensor:
        return self._take_step(h, target)


def test_an_old_graph_does_not_go_during_a_capture(cuda: torch.device) -> None:
    """CUDA does not permit to destroy a graph during a capture, and the capture would fail."""
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
    # The host gets the condition later than without a graph, so it does not refactor more often.
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
        1e4  # before the capture, a step solves its system instead of summing a series
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
    """Every change of a learning rate makes a new graph. The workspace of cuBLAS in an old one must not be used."""
    plain = make_head(cuda)
    replayed = copy.deepcopy(plain)
    optimizers = [plain.sgd(5.0), replayed.sgd(5.0)]
    expected = training_step(plain, optimizers[0])
    step = zloss.CapturedStep(training_step(replayed, optimizers[1]), optimizers=[optimizers[1]])
    for number in range(80):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 5.0 - 0.01 * (number // 2)
        torch.full(
            (2**20,), float("nan"), device=cuda
        )  # this may take the memory of a deleted graph
        inputs = batch(number, cuda)
        assert torch.allclose(step(*inputs), expected(*inputs), rtol=1e-4)
