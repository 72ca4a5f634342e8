"""A stand-in for CUDA graphs on a CPU, to test which tensors a captured stack reads anew at every replay."""

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

# A function, its arguments and its result.
Operation = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any], Any]


class PretendedGraph:
    """A stand-in for the graph of a `CapturedStep`: it repeats the operations of a step on the same tensors.

    As in a graph, Python code is not repeated. Numbers of the host stay the same. A tensor that has replaced another
    one is not used.
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
        """Run the step. The first time nothing is done, because the step has run while it was recorded."""
        for operation, arguments, options, result in () if self._is_new else self._operations:
            _put(operation(*arguments, **options), result)
        self._is_new = False
        return self._output


class _Recorder(TorchDispatchMode):
    """A recorder of the operations of a step."""

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
    """Copy a new result to the tensor that later operations read, unless both share their memory."""
    for tensor, old in zip(tree_leaves(new), tree_leaves(place), strict=True):
        if tensor.data_ptr() != old.data_ptr():
            old.copy_(tensor)


def pretend_captured_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture stacks on a CPU as on a GPU, with the eager steps before the capture."""
    pretend_gpu(monkeypatch)
    step_of = SideBySide._captured_step

    def captured_step(stack: SideBySide) -> Callable[[], Tensor]:
        step, is_captured = step_of(stack), stack.outcomes[0].experiment.training.graph
        return zloss.CapturedStep(step) if is_captured else step

    monkeypatch.setattr(SideBySide, "_captured_step", captured_step)
    monkeypatch.setattr("zloss.capture._Graph", PretendedGraph)
