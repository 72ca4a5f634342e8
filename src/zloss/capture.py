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

Who has to be looked after between replays (factored layers, which refactor, and heads, which report bad batches) makes
itself known by `note_captured` while the step is captured; and who has put numbers of the host into the graph, as
losses do, by `note_constants`.
"""

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

_WARM_UP = 3  # steps that run without a graph first: torch and Triton prepare what cannot be prepared while capturing
_WAITING = "called a synchronizing CUDA operation"  # as torch says it


class Watched(Protocol):
    """Something that the host looks after between replays."""

    def after_replay(self) -> None:
        """Act on what replays have left on the device, and raise what they could not."""


def is_capturing() -> bool:
    """Whether operations are being recorded instead of run."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def must_not_wait() -> bool:
    """Whether a step is captured, or rehearsed for that: whoever can do without waiting for the device has to.

    Operations of a rehearsal do run. So branches, and reports on what has run, ask `is_capturing` instead.
    """
    return _is_rehearsing or is_capturing()


def is_capturing_step() -> bool:
    """Whether they are by a `CapturedStep`, which ends the branches that nobody has joined."""
    return _recording is not None


def note_captured(watched: Watched) -> None:
    """Have `after_replay` called after every replay of the step that is being captured, if one is."""
    if _recording is not None and all(watched is not other for other in _recording.watched):
        _recording.watched.append(watched)


def note_constants(read: Callable[[], Iterable[Any]]) -> None:
    """Have the step that is being captured, if one is, captured anew when this reads something else than now."""
    if _recording is not None:
        _recording.constants.append(_Constants(read))


class Branch:
    """A branch beside the main line of the CUDA graph that is being captured; without one, the same line.

    What both use must be referred to until they have joined, or its memory may be given away in between.
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream() if is_capturing() else None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Go on beside the main line, with all that was done on it so far."""
        if self._stream is None:
            yield
            return
        if _recording is not None:
            _recording.branches.append(self)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def follow(self, other: "Branch") -> None:
        """Have what comes on this branch wait for all that was done on the other so far."""
        if self._stream is not None and other._stream is not None:
            self._stream.wait_stream(other._stream)

    def join(self) -> None:
        """Go on with all that was done on the branch."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)


class _Recording:
    """What a step has made known of itself while it is captured."""

    def __init__(self) -> None:
        self.watched: list[Watched] = []
        self.constants: list[_Constants] = []
        self.branches: list[Branch] = []


class _Constants:
    """Numbers of the host that are part of a graph."""

    def __init__(self, read: Callable[[], Iterable[Any]]) -> None:
        self._read = read
        self._captured = self._now()

    def have_changed(self) -> bool:
        """Whether they are others than when the graph was captured."""
        return self._now() != self._captured

    def _now(self) -> list[Any]:
        return [_as_captured(value) for value in self._read()]


_recording: _Recording | None = None
_is_rehearsing = False


class CapturedStep:
    """A training step that is replayed from a CUDA graph where its inputs are on a GPU.

    Args:
        step: takes tensors, does everything that a step does (forward, backward, step and `zero_grad` of the
            optimizers) and returns the loss. It must not wait for the device or depend on its values, and what
            it does on the host happens once: while it is captured.
        optimizers: whose learning rates and other options the step depends on. Options are part of the graph; when
            one of them changes, the step is captured anew, which takes about as long as a hundred steps. An option that
            is a tensor on the GPU is read by the graph itself. The same holds for the hyper-parameters of this
            library's losses: `loss.a = 0.02` is heeded, and best done now and then instead of at every step.

    The first three calls run as they are, on real batches; the third is a rehearsal, in which a step that waits for the
    device is refused. Inputs of another shape get three such calls and a graph of their own. What is returned is
    overwritten by the next call. A step without inputs is where the parameters of the optimizers are. Within another
    captured step this one just runs.

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
        self._step, self._optimizers = step, list(optimizers)
        self._graphs: dict[Any, _Graph] = {}
        self._options: _Constants | None = None  # of all graphs; each has others of its own
        self._warmed_up: Counter[Any] = Counter()  # calls by the kind of their inputs

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Take the step on these inputs."""
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
            self._graphs[kind] = _Graph(self._step, inputs)
        return self._graphs[kind].replay(inputs)

    def _forget_if_options_changed(self) -> None:
        if self._options is None or self._options.have_changed():
            self._graphs.clear()
            self._options = _Constants(partial(_options_of, self._optimizers))


class _Graph:
    """One recording of the step, with inputs of its own."""

    def __init__(self, step: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
        global _recording
        self._inputs = [
            tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs
        ]
        self._graph = torch.cuda.CUDAGraph()
        recording = _recording = _Recording()
        try:
            # Where both want the device, the main line goes before the branches.
            main_line = torch.cuda.graph(self._graph, stream=torch.cuda.Stream(priority=-1))
            with _own_workspaces(), _garbage_kept(), main_line:
                try:
                    output = step(*self._inputs)
                finally:  # or torch would complain of them instead
                    for branch in recording.branches:
                        branch.join()
        finally:
            _recording = None
        self._watched, self._constants = recording.watched, recording.constants
        self._output = output.detach()

    @property
    def is_outdated(self) -> bool:
        """Whether numbers that are part of it have changed since."""
        return any(constants.have_changed() for constants in self._constants)

    def replay(self, inputs: Sequence[Tensor]) -> Tensor:
        """Run the step on new inputs."""
        with torch.no_grad():
            for own, given in zip(self._inputs, inputs, strict=True):
                own.copy_(given, non_blocking=True)
        self._graph.replay()
        for watched in self._watched:
            watched.after_replay()
        return self._output


def _options_of(optimizers: Sequence[Optimizer]) -> Iterator[Any]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from (value for name, value in group.items() if name != "params")


def _device_of(inputs: Sequence[Tensor], optimizers: Sequence[Optimizer]) -> torch.device:
    if inputs:
        return inputs[0].device
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    parameters: list[Tensor] = [parameter for group in groups for parameter in group["params"][:1]]
    return (
        parameters[0].device
        if parameters
        else torch.device("cuda" if torch.cuda.is_available() else "cpu")
    )


def _as_captured(option: Any) -> Any:
    """What a graph has of an option: a number, which may be a tensor on the host that is changed in place."""
    if isinstance(option, Tensor):
        return option.tolist() if option.device.type == "cpu" else id(option)
    return tuple(option) if isinstance(option, list) else option


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Have cuBLAS take scratch memory anew, before a capture and after it.

    Torch keeps that memory for each stream. Taken during a capture it belongs to the graph and goes with it, but would
    go on being used for the stream by others, who would then overwrite whatever has come in its place.
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
    global _is_rehearsing
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    _is_rehearsing = True
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
        _is_rehearsing = False
        torch.cuda.set_sync_debug_mode(before)


def _on_side_stream(step: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """Torch wants the first steps on another stream than the default one, or autograd's own would be captured."""
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        output = step(*inputs)
    current.wait_stream(side)
    return output
