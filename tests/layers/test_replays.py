"""The look at a factored layer between replays of a captured step, with reports that arrive at once."""

import pytest
import torch
from torch import Tensor

import zloss
from tests.layers.small_layers import loss_of, make_layer, train
from zloss.layers import stepper
from zloss.layers.supervisor import DeviceReports, Fault

CPU = torch.device("cpu")


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Reports under way to the host: without a GPU there is no pinned memory that they could land in."""
    under_way: list[Tensor] = []
    monkeypatch.setattr(DeviceReports, "push", lambda _, report: under_way.append(report.clone()))
    monkeypatch.setattr(DeviceReports, "latest", lambda _: under_way.pop())
    return under_way


def captured_layer(monkeypatch: pytest.MonkeyPatch) -> tuple[zloss.FactoredLinear, Tensor]:
    """Return a layer that has taken a step in a pretended capture, and the report that replays write."""
    layer = make_layer(CPU)
    train(layer, 3)
    layer.begin_capture()
    loss_of(layer).backward()
    with monkeypatch.context() as capture:
        capture.setattr(stepper, "is_capturing", lambda: True)
        layer.step_(1.0)
    return layer, layer._stepper.backend(layer.matrix).report


def test_a_layer_without_a_step_needs_no_look() -> None:
    layer = make_layer(CPU)
    layer.begin_capture()
    loss_of(layer)
    assert layer.end_capture() is None


@pytest.mark.usefixtures("reports")
def test_a_bad_condition_leads_to_a_refactor(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, report = captured_layer(monkeypatch)
    look = layer.end_capture()
    assert look is not None
    before, version = layer.weight(), layer._stepper.integrity.version
    report.copy_(torch.tensor([0, 1.0, 1e12, 1e12]))
    for _ in range(DeviceReports.REPLAYS - 1):
        look()
    assert layer.refactors == 0
    look()
    assert layer.refactors == 1
    assert layer._stepper.integrity.version > version + DeviceReports.REPLAYS
    torch.testing.assert_close(layer.weight(), before, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("reports")
def test_a_fault_of_a_replay_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, report = captured_layer(monkeypatch)
    look = layer.end_capture()
    assert look is not None
    report[:2] = torch.tensor([Fault.SINGULAR.value, 0.25])
    for _ in range(DeviceReports.REPLAYS - 1):
        look()
    with pytest.raises(zloss.RefusedStepError, match=r"use lr <= 0\.25"):
        look()
