"""The look at a factored layer between replays of a captured step, with reports that arrive at once."""

import pytest
import torch
from torch import Tensor

import zloss
from tests.layers.small_layers import loss_of, make_layer, train
from zloss.layers import stepper
from zloss.layers.device_reports import MOST_AHEAD, DeviceReports
from zloss.layers.supervisor import Conditioning, Fault

CPU = torch.device("cpu")
LONG_AGO = 1000  # steps, after which the host may run ahead as far as ever
SHARED = MOST_AHEAD // DeviceReports.DEPTH  # replays that share a report


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Reports under way to the host: without a GPU there is no pinned memory that they could land in."""
    under_way: list[Tensor] = []
    monkeypatch.setattr(DeviceReports, "push", lambda _, report: under_way.append(report.clone()))
    monkeypatch.setattr(DeviceReports, "latest", lambda *_: under_way.pop())
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
    layer._stepper.conditioning.steps_since_refactor = LONG_AGO
    for _ in range(SHARED - 1):
        look()
    assert layer.refactors == 0
    look()
    assert layer.refactors == 1
    assert layer._stepper.integrity.version > version + SHARED
    torch.testing.assert_close(layer.weight(), before, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("reports")
def test_a_fault_of_a_replay_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, report = captured_layer(monkeypatch)
    look = layer.end_capture()
    assert look is not None
    report[:2] = torch.tensor([Fault.SINGULAR.value, 0.25])
    layer._stepper.conditioning.steps_since_refactor = LONG_AGO
    for _ in range(SHARED - 1):
        look()
    with pytest.raises(zloss.RefusedStepError, match=r"use lr <= 0\.25"):
        look()


@pytest.mark.parametrize(("steps", "ahead"), [(0, 1), (31, 1), (32, 2), (160, 10), (10**6, 32)])
def test_the_host_runs_ahead_by_a_part_of_the_steps_that_went_well(steps: int, ahead: int) -> None:
    conditioning = Conditioning(None)
    conditioning.steps_since_refactor = steps
    assert conditioning.steps_ahead == ahead


class PretendedEvent:
    """An event of a GPU that has not happened until somebody waits for it."""

    has_happened = False

    def synchronize(self) -> None:
        self.has_happened = True

    def query(self) -> bool:
        return self.has_happened


@pytest.mark.parametrize("ahead", [1, 2, 5, 8, 20, MOST_AHEAD])
def test_a_report_is_at_most_as_many_replays_old_as_the_host_may_be_ahead(ahead: int) -> None:
    reports, replays, newest = DeviceReports(), 0, 0.0

    def push(report: Tensor) -> None:
        reports._pending.append((report.clone(), PretendedEvent()))  # type: ignore[arg-type]

    reports.push = push  # type: ignore[method-assign]
    for replays in range(1, 200):
        arrived = reports.after_replay(torch.tensor(float(replays)), ahead)
        newest = newest if arrived is None else float(arrived)
        assert replays - newest <= ahead
    assert newest > 100
