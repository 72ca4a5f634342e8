"""Bad values on a GPU, where nothing waits for the device: they change nothing, and errors are raised later."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import zloss
from tests.heads.batches import (
    LR,
    good_batch,
    gradient_of,
    step,
    trained,
    with_value,
)
from tests.heads.registry import CLASSES, HeadCase, every_head
from zloss.heads.admission import Admission
from zloss.layers.device_reports import MOST_AHEAD

BAD_VALUES: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], str]] = {
    "target too large": (lambda h, t: (h, with_value(t, CLASSES)), "a target is out of range"),
    "target negative": (lambda h, t: (h, with_value(t, -1)), "a target is out of range"),
    "target enormous": (lambda h, t: (h, with_value(t, 2**62)), "a target is out of range"),
    "h NaN": (
        lambda h, t: (with_value(h, math.nan).requires_grad_(), t),
        "h has a NaN or an infinity",
    ),
    "h infinite": (
        lambda h, t: (with_value(h, math.inf).requires_grad_(), t),
        "h has a NaN or an infinity",
    ),
}


def take_refused_batch(head: zloss.Head, name: str) -> None:
    """Check that the loss is NaN, the layers below get a gradient of zero, and the step changes nothing."""
    h, target = BAD_VALUES[name][0](*good_batch(head))
    state = {key: tensor.clone() for key, tensor in head.state_dict().items()}
    optimizer = head.sgd(LR)
    loss = head(h, target)
    loss.backward()
    assert loss.isnan().all()
    assert gradient_of(h).count_nonzero() == 0
    optimizer.step()
    optimizer.zero_grad()
    assert all(torch.equal(tensor, state[key]) for key, tensor in head.state_dict().items())


def take_steps(head: zloss.Head, steps: int) -> None:
    for _ in range(steps):
        step(head, *good_batch(head))


@every_head
def test_bad_values_on_a_gpu_are_reported_within_a_few_steps(
    case: HeadCase, cuda: torch.device
) -> None:
    head = trained(case, cuda)
    for name, (_, message) in BAD_VALUES.items():
        take_refused_batch(head, name)
        with pytest.raises(ValueError, match=message):
            take_steps(head, 20)
        head.zero_grad()
        assert step(head, *good_batch(head)).isfinite()
        assert head.topk(good_batch(head)[0], 3)[0].isfinite().all()


@every_head
def test_bad_values_on_a_gpu_are_reported_where_results_are_read(
    case: HeadCase, cuda: torch.device
) -> None:
    head = trained(case, cuda)
    for name, (_, message) in BAD_VALUES.items():
        take_refused_batch(head, name)
        h, target = good_batch(head)
        with pytest.raises(ValueError, match=message):
            head.topk(h, 3)
        head.topk(h, 3)
        head.zero_grad()
        assert step(head, h, target).isfinite()


class NoReports:
    """A replacement of the reports from a GPU."""

    def latest(self, ahead: int) -> None:
        assert ahead == MOST_AHEAD

    def push(self, report: Tensor) -> None:
        pass


def test_a_validation_in_inference_mode_may_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch makes the tensor that notes faults on a device, and training has to write to it."""
    monkeypatch.setattr("zloss.layers.supervisor.DeviceReports", NoReports)
    admission = Admission(num_classes=10, ignore_index=-100)
    h, target = torch.randn(3, 4), torch.tensor([1, 2, 3])
    with torch.inference_mode():
        admission._admit_later(h, target)
    assert torch.equal(admission._admit_later(h, target).h, h)


@pytest.mark.parametrize("name", ["factored", "hierarchical"])
def test_training_after_a_validation_in_inference_mode(name: str, cuda: torch.device) -> None:
    head = zloss.HeadConfig(head=name).build(8, 60, device=cuda)
    optimizer = head.sgd(0.1)
    h, target = torch.randn(5, 8, device=cuda), torch.randint(60, (5,), device=cuda)
    with torch.inference_mode():
        head(h, target)
    head(h, target).backward()
    optimizer.step()
    if isinstance(head, zloss.SphericalOutput) and isinstance(head.layer, zloss.FactoredLinear):
        head.layer.refactor()
    assert head.rank(h, target).min() >= 1
