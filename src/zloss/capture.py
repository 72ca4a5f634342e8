"""A training step as a CUDA graph: recorded once, then replayed at the speed of the GPU instead of that of Python.

    def step(h, target):
        loss = head(h, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = zloss.CapturedStep(step, optimizers=[optimizer])
    for h, target in batches:
        loss = step(h, target)

On a GPU a small step takes longer to launch than to run: every operation costs the host some ten microseconds. A graph
is launched as a whole. On other devices the step just runs, so that the same code serves everywhere.

While a step is captured, `CapturedStep` collects the modules that it calls. Factored layers and heads need a look
between replays, for refactors and for bad batches. Losses have put numbers of the host into the graph. Neither knows
anything of this file: a module takes part by the methods of `Watched` or `HasConstants`.
"""

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer

from zloss.inputs import check_callable, shown
from zloss.optim import FactoredSGD
from zloss.optim import Optimizer as WholeOptimizer
from zloss.optim.groups import listed
from zloss.streams import must_not_wait

_WARM_UP = 3  # steps that run without a graph first: torch and Triton prepare what cannot be prepared while capturing
_WAITING = "called a synchronizing CUDA operation"  # as torch says it


@runtime_checkable
class Watched(Protocol):
    """A module that prepares for a capture and may need a look between replays."""

    def begin_capture(self) -> None:
        """Prepare for the capture of a step that uses this module."""

    def end_capture(self) -> Callable[[], None] | None:
        """Finish the capture. Returns what has to run after every replay, if anything."""


@runtime_checkable
class HasConstants(Protocol):
    """A module with numbers of the host that become part of a graph."""

    def captured_constants(self) -> Iterable[Any]:
        """Return these numbers as they are now."""


class CaptureContext:
    """A context around one capture: it collects the modules that the step calls, and finishes with them at its end."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._watched: list[Watched] = []
        self._with_constants: list[HasConstants] = []
        self.after_replay: list[Callable[[], None]] = []
        self.constants: list[_Constants] = []

    def __enter__(self) -> Self:
        for optimizer in self._optimizers:
            if isinstance(optimizer, FactoredSGD | WholeOptimizer):
                for layer in optimizer.layers:
                    self.collect(layer)
        self._hook = register_module_forward_pre_hook(lambda module, _: self.collect(module))
        return self

    def collect(self, module: nn.Module) -> None:
        """Take note of a module that the step uses; one that torch has compiled calls others unseen."""
        parts = module.modules() if hasattr(module, "_orig_mod") else [module]
        for part in parts:
            if isinstance(part, Watched) and all(part is not other for other in self._watched):
                part.begin_capture()
                self._watched.append(part)
            if isinstance(part, HasConstants) and all(
                part is not other for other in self._with_constants
            ):
                self._with_constants.append(part)
                self.constants.append(_Constants(part.captured_constants))

    def __exit__(self, *_: object) -> None:
        self._hook.remove()
        # Also after an error: branches that nobody has joined would raise another one, and hide it.
        called = [watched.end_capture() for watched in self._watched]
        self.after_replay = [function for function in called if function is not None]


class _Constants:
    """Numbers of the host that are part of a graph."""

    def __init__(self, read: Callable[[], Iterable[Any]]) -> None:
        self._read = read
        self._captured = self._now()

    def have_changed(self) -> bool:
        """Return True if they differ from the captured ones."""
        return self._now() != self._captured

    def _now(self) -> list[Any]:
        return [_as_captured(value) for value in self._read()]


class CapturedStep:
    """A training step that is replayed from a CUDA graph if its inputs are on a GPU.

    Args:
        step: a function of tensors that does everything that a step does, and returns the loss: forward, backward,
            step and `zero_grad` of the optimizers. It must not wait for the device or depend on values there. What it
            does on the host happens once, while it is captured.
        optimizers: the optimizers that the step uses. Their options, such as learning rates, are part of the graph.
            When an option changes, the step is captured anew, which takes as long as about a hundred steps. An option
            that is a tensor on the GPU is read by the graph itself. The same holds for the hyper-parameters of this
            library's losses: `loss.a = 0.02` takes effect. Change them now and then, not at every step.

    The first three calls run as they are, on real batches. The third is a rehearsal, which refuses a step that waits
    for the device. Inputs of another shape get three such calls and a graph of their own. The next call overwrites the
    tensor that was returned. The device of a step without inputs is the device of the optimizers' parameters. A call
    within another captured step just runs the function.

    >>> layer = zloss.FactoredLinear(8, 1000)
    >>> optimizer = zloss.FactoredSGD(layer, lr=1.0)
    >>> def step(h, target):
    ...     loss = zloss.ZLoss(a=0.1, b=10)(layer(h, target))
    ...     loss.backward()
    ...     optimizer.step()
    ...     return loss
    >>> step = CapturedStep(step, optimizers=[optimizer])
    >>> loss = step(torch.randn(4, 8), torch.randint(1000, (4,)))       # on a CPU: the step itself
    """

    def __init__(
        self, step: Callable[..., Tensor], *, optimizers: Sequence[Optimizer] = ()
    ) -> None:
        check_callable("step", step)
        given = listed(optimizers)
        if not all(isinstance(optimizer, Optimizer) for optimizer in given):
            raise ValueError(f"optimizers must be a list of optimizers, got {shown(optimizers)}")
        self._step, self._optimizers = step, given
        self._graphs: dict[Any, _Graph] = {}
        self._options: _Constants | None = (
            None  # of the optimizers, for all graphs; a graph has constants of its own
        )
        self._warmed_up: Counter[Any] = Counter()  # calls by the kind of their inputs

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Take the step on these inputs."""
        for tensor in inputs:
            if not isinstance(tensor, Tensor):
                raise ValueError(f"a captured step takes tensors alone, got {shown(tensor)}")
        if _device_of(inputs, self._optimizers).type != "cuda" or must_not_wait():
            return self._step(*inputs)
        kind = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in inputs)
        if self._warmed_up[kind] < _WARM_UP:
            with _rehearsal() if self._warmed_up[kind] == _WARM_UP - 1 else nullcontext():
                output = _on_side_stream(self._step, inputs)
            self._warmed_up[kind] += 1
            return output
        self._forget_if_options_changed()
        if kind in self._graphs and self._graphs[kind].is_outdated:
            del self._graphs[kind]  # before the next one wants memory
        if kind not in self._graphs:
            self._graphs[kind] = _Graph(self._step, inputs, self._optimizers)
        return self._graphs[kind].replay(inputs)

    def _forget_if_options_changed(self) -> None:
        if self._options is None or self._options.have_changed():
            self._graphs.clear()
            self._options = _Constants(partial(_options_of, self._optimizers))


class _Graph:
    """One recording of the step, with inputs of its own."""

    def __init__(
        self,
        step: Callable[..., Tensor],
        inputs: Sequence[Tensor],
        optimizers: Sequence[Optimizer],
    ) -> None:
        self._inputs = [
            tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs
        ]
        self._graph = torch.cuda.CUDAGraph()
        # Where both want the device, the main line goes before the branches.
        main_line = torch.cuda.graph(self._graph, stream=torch.cuda.Stream(priority=-1))
        with _own_workspaces(), _garbage_kept(), main_line, CaptureContext(optimizers) as context:
            output = step(*self._inputs)
        self._after_replay, self._constants = context.after_replay, context.constants
        self._output = output.detach()

    @property
    def is_outdated(self) -> bool:
        """True if numbers that are part of the graph have changed since."""
        return any(constants.have_changed() for constants in self._constants)

    def replay(self, inputs: Sequence[Tensor]) -> Tensor:
        """Run the step on new inputs."""
        with torch.no_grad():
            for own, given in zip(self._inputs, inputs, strict=True):
                own.copy_(given, non_blocking=True)
        self._graph.replay()
        for look in self._after_replay:
            look()
        return self._output


def _options_of(optimizers: Sequence[Optimizer]) -> Iterator[Any]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from (value for name, value in group.items() if name != "params")
        if isinstance(optimizer, FactoredSGD | WholeOptimizer):
            yield from optimizer.units  # which a state dict may bring


def _device_of(inputs: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> torch.device:
    if inputs:
        return inputs[0].device
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    parameters: list[Tensor] = [parameter for group in groups for parameter in group["params"][:1]]
    if parameters:
        return parameters[0].device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _as_captured(option: Any) -> Any:
    """Return what a graph holds of an option: a number, also of a tensor on the host that is changed in place."""
    if isinstance(option, Tensor):
        return option.tolist() if option.device.type == "cpu" else id(option)
    return tuple(option) if isinstance(option, list) else option


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Make cuBLAS take scratch memory anew, before a capture and after it.

    Torch keeps that memory for each stream. Memory that was taken during a capture belongs to the graph and goes with
    it. Later work on the stream would go on using it, and overwrite the tensors that have come in its place.
    """
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Collect no cycles: an old graph may be part of one, as where a captured step is a method, and must not go now."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _rehearsal() -> Iterator[None]:
    """Refuse what waits for the device, before a capture would fail on it and leave torch in disorder."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        if _WAITING not in str(error):
            raise
        raise RuntimeError(
            f"this step cannot be captured as a CUDA graph, it waits for the device: {error}. Look for .item(), a "
            "condition on a tensor, an optimizer or a head that needs to; or run it without CapturedStep"
        ) from error
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _on_side_stream(step: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """Run a step on another stream than the default one, as torch wants it before a capture."""
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        output = step(*inputs)
    current.wait_stream(side)
    return output
