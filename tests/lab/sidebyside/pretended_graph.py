"""CUDA graphs for tests without a GPU: what a captured stack reads anew at every replay, and what it does not."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import zloss
from tests.gpu import pretend_gpu
from zloss_lab.sidebyside import SideBySide

Operation = tuple[
    Callable[..., Any], Sequence[Any], Mapping[str, Any], Any
]  # with its arguments and what it gave


class PretendedGraph:
    """In place of the graph of a `CapturedStep`: repeats the operations of a step, each on the tensors it had first.

    As in a graph, nothing that Python does is repeated. A number of the host stays what it was, and whoever puts a new
    tensor in the place of another is not heard of.
    """

    is_outdated = False

    def __init__(
        self, step: Callable[..., Tensor], inputs: Sequence[Tensor], _optimizers: Sequence[Any]
    ) -> None:
        assert not inputs, "the step of a stack has none"
        self._is_new = True
        with _Recorder() as recorder:
            self._output = step()
        self._operations = recorder.operations

    @torch.no_grad()
    def replay(self, _inputs: Sequence[Tensor]) -> Tensor:
        """Run the step; the first time it has run already, as a CPU records nothing that it does not do."""
        for operation, arguments, options, result in () if self._is_new else self._operations:
            _put(operation(*arguments, **options), result)
        self._is_new = False
        return self._output


class _Recorder(TorchDispatchMode):
    """Notes the operations that it lets through."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, result))
        return result


def _put(new: Any, place: Any) -> None:
    """Where the operations that follow look for it; views, and what was changed in place, are there already."""
    for tensor, old in zip(tree_leaves(new), tree_leaves(place), strict=True):
        if tensor.data_ptr() != old.data_ptr():
            old.copy_(tensor)


def pretend_captured_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have stacks on a CPU captured as they are on a GPU, the steps before it included."""
    pretend_gpu(monkeypatch)
    step_of = SideBySide._captured_step

    def captured_step(stack: SideBySide) -> Callable[[], Tensor]:
        step, is_captured = step_of(stack), stack.outcomes[0].experiment.training.graph
        return zloss.CapturedStep(step) if is_captured else step

    monkeypatch.setattr(SideBySide, "_captured_step", captured_step)
    monkeypatch.setattr("zloss.capture._Graph", PretendedGraph)
