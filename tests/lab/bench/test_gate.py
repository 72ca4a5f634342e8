"""The gate lets every head through that can run here, and refuses those that compute something else."""

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

import zloss
from zloss.layers import update
from zloss.layers.ranking import Scores
from zloss_lab.bench import gate, peers
from zloss_lab.bench.entries import ENTRIES, FACTORED, HeadEntry
from zloss_lab.bench.eval_suite import RankingCase
from zloss_lab.bench.gate import WrongResultError, check_head
from zloss_lab.bench.model_suite import check_capture
from zloss_lab.bench.output_suite import LayerCase
from zloss_lab.bench.peers import Peer
from zloss_lab.bench.schema import RankingTask

CPU = torch.device("cpu")
DENSE = ENTRIES["dense"]


@pytest.mark.filterwarnings("default")  # other libraries may warn
@pytest.mark.parametrize("is_full_rank", [False, True])
@pytest.mark.parametrize("key", ENTRIES)
def test_what_can_run_here_passes(key: str, is_full_rank: bool, device: torch.device) -> None:
    if reason := ENTRIES[key].missing(device):
        pytest.skip(reason)
    check_head(ENTRIES[key], "eager", device, is_full_rank=is_full_rank)


def off_by_a_percent(h: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return 1.01 * torch.nn.functional.cross_entropy(h @ weight.T, target)


def with_a_gradient_too_large(h: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    loss = torch.nn.functional.cross_entropy(h @ weight.T, target)
    return loss + 0.003 * (loss - loss.detach())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (off_by_a_percent, "the loss of step 1 is off by 1.0e-02"),
        (with_a_gradient_too_large, "change of the weights"),
    ],
)
def test_a_wrong_peer_is_refused(wrong: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.PEERS, "wrong", Peer(lambda: wrong, lambda device: None))
    with pytest.raises(WrongResultError, match=message):
        check_head(replace(DENSE, peer="wrong"), "eager", CPU, is_full_rank=False)


def test_a_wrong_update_of_the_factors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    step = zloss.FactoredLinear.step_
    monkeypatch.setattr(
        zloss.FactoredLinear,
        "step_",
        lambda self, lr, **options: step(self, lr * (1 + 1e-2), **options),
    )
    with pytest.raises(WrongResultError):
        check_head(FACTORED, "eager", CPU, is_full_rank=False)


@pytest.mark.parametrize(("way", "batch"), [("_low_rank", 200), ("_full_rank", 1000)])
def test_a_step_is_checked_in_the_way_that_is_measured(
    way: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = {
        size: LayerCase(entry=FACTORED, batch=size, hidden=512, classes=10_000)
        for size in (200, 1000)
    }
    monkeypatch.delattr(update, way)
    with pytest.raises(NameError, match=way):
        cases.pop(batch).check(CPU)
    (other,) = cases.values()
    other.check(CPU)
    assert other.gate != replace(other, batch=batch).gate


@pytest.mark.parametrize(
    ("task", "message"), [("rank", "ranks are not"), ("topk", "the best classes are not")]
)
def test_ranks_are_checked_beyond_the_first_block(
    task: RankingTask, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = RankingCase(entry=DENSE, task=task, batch=1, hidden=512, classes=100_000)
    case.check(CPU)
    blocks = Scores._blocks
    monkeypatch.setattr(Scores, "_blocks", lambda self, width: islice(blocks(self, width), 1))
    with pytest.raises(WrongResultError, match=message):
        case.check(CPU)


def test_a_wrong_estimate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gate.expected_loss
    monkeypatch.setattr(gate, "expected_loss", lambda head, h, target: 1.3 * right(head, h, target))
    with pytest.raises(WrongResultError, match="the loss of step 1 is off"):
        check_head(ENTRIES["nce"], "eager", CPU, is_full_rank=False)


class Replays:
    """A wrong stand-in for a captured step on a CPU: after three calls it ignores its new inputs."""

    made = 0

    def __init__(self, function: Any) -> None:
        type(self).made += 1
        self.function, self.calls = function, 0
        self.inputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> Any:
        self.calls += 1
        self.inputs = inputs if self.calls <= 3 else self.inputs
        return self.function(*self.inputs)


class Captures(Replays):
    """A right stand-in for a captured step on a CPU."""

    def __call__(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def check_graph(entry: HeadEntry, device: torch.device, *, is_full_rank: bool) -> None:
    check_head(entry, "graph", device, is_full_rank=is_full_rank)


@pytest.mark.parametrize("is_full_rank", [False, True])
@pytest.mark.parametrize("check", [check_graph, check_capture])
def test_a_graph_is_checked_as_it_is_replayed(
    check: Any, is_full_rank: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zloss, "CapturedStep", Captures, raising=False)
    check(FACTORED, CPU, is_full_rank=is_full_rank)
    assert Captures.made > 0
    monkeypatch.setattr(zloss, "CapturedStep", Replays, raising=False)
    with pytest.raises(WrongResultError):
        check(FACTORED, CPU, is_full_rank=is_full_rank)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("is_full_rank", [False, True])
@pytest.mark.parametrize("key", [key for key, entry in ENTRIES.items() if entry.is_capturable])
def test_what_can_be_captured_passes(key: str, is_full_rank: bool, cuda: torch.device) -> None:
    entry: HeadEntry = ENTRIES[key]
    if reason := entry.missing(cuda):
        pytest.skip(reason)
    check_graph(entry, cuda, is_full_rank=is_full_rank)
    check_capture(entry, cuda, is_full_rank=is_full_rank)
