"""Bad input to every public name: one argument of a valid call is replaced by a bad value.

The code holds if it refuses the value by a `ValueError` or `TypeError` of its own, and every object is as it was
before. It also holds if the value means something: then the result is finite, and what was made can be used.
"""

import inspect
import linecache
import random
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import zloss
from tests.campaign.attack import Attack, FellError
from tests.campaign.bad_values import Bad, Verdict, bad_value
from tests.campaign.calls import Call
from tests.campaign.public_calls import CALLS
from zloss.layers.ranking import Scores

_LIBRARY = str(Path(zloss.__file__).parent)
_MAKES_A_MESSAGE_CLEAR = ("must", "expected", "needs", "unknown", "takes", "cannot", "got")


def attack_bad_input(rng: random.Random, folder: Path) -> None:
    """Make one valid call with one bad value."""
    attack_name(rng, rng.choice(list(CALLS)))


def attack_name(rng: random.Random, name: str) -> None:
    """Attack one public name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about tensors that it will not have any more
        _attack(rng, name)


def _attack(rng: random.Random, name: str) -> None:
    seed = rng.getrandbits(32)
    call = _made(name, seed)
    argument = rng.choice(list(call.arguments))
    good = call.arguments[argument]
    bad = bad_value(
        rng,
        good.value,
        good.kind,
        takes_none="None" in good.may_take or _takes_none(call, argument),
        may_take=good.may_take,
    )
    what = f"{name}({argument}={bad.label}) with the seed {seed}"
    before = _state(call.watched)
    try:
        result = call(**{argument: bad.value})
        leaves = list(_leaves(result))
        if bad.verdict is not Verdict.LOUD:
            for made in (result, *(one for one in call.watched if isinstance(one, Optimizer))):
                _use(made)
    except Exception as error:
        if bad.verdict is Verdict.SAME:
            raise FellError(f"{what} was refused: {error!r}") from error
        _check_clear(error, argument, what)
        _check_unchanged(before, _state(call.watched), what)
        return
    _check_result(leaves, bad, what, _made(name, seed))


def _made(name: str, seed: int) -> Call:
    torch.manual_seed(seed)
    return CALLS[name](random.Random(seed))


def _takes_none(call: Call, argument: str) -> bool:
    parameters = inspect.signature(call.function).parameters
    # An option that goes on to another constructor has a default there.
    return argument not in parameters or parameters[argument].default is None


# ---- errors ----------------------------------------------------------------------------------------------------------


def _check_clear(error: Exception, argument: str, what: str) -> None:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    is_ours = frame.filename.startswith(_LIBRARY) and line.startswith("raise ")
    message = str(error)
    says = argument in message or any(word in message for word in _MAKES_A_MESSAGE_CLEAR)
    if not isinstance(error, ValueError | TypeError) or not is_ours or not says:
        raise FellError(
            f"{what} ended in {type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {message[:200]}"
        ) from error
    if any(not (character.isprintable() or character == "\n") for character in message):
        raise FellError(f"{what} has a message with control characters: {message!r}")


# ---- results ---------------------------------------------------------------------------------------------------------


def _check_result(leaves: list[Any], bad: Bad, what: str, twin: Call) -> None:
    if bad.verdict is Verdict.REFUSED:
        raise FellError(f"{what} was accepted")
    if bad.verdict is Verdict.SAME and not _equal(leaves, list(_leaves(twin()))):
        raise FellError(f"{what} gave another result than the good value of the same meaning")
    if bad.verdict is not Verdict.LOUD:
        for leaf in leaves:
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.isnan().any():
                raise FellError(f"{what} gave NaN")


def _leaves(result: Any) -> Iterator[Any]:
    """Yield the tensors and the numbers of a result."""
    if isinstance(result, zloss.SphericalStats):
        yield from (result.target, result.mean, result.scatter, result.valid)
    elif isinstance(result, Scores):
        yield result.all().detach()
    elif isinstance(result, nn.Module):
        yield from (t for t in result.state_dict().values() if not t.is_meta)
    elif isinstance(result, zloss.Clustering):
        yield from (result.order, *result.sizes)
    elif isinstance(result, list | tuple):
        for part in result:
            yield from _leaves(part)
    elif isinstance(result, dict):
        yield from _leaves(list(result.values()))
    elif isinstance(result, Tensor):
        yield result.detach()
    elif isinstance(result, int | float | str):
        yield result


def _equal(first: list[Any], second: list[Any]) -> bool:
    return len(first) == len(second) and all(
        torch.allclose(a.double(), b.double(), equal_nan=True) if isinstance(a, Tensor) else a == b
        for a, b in zip(first, second, strict=True)
    )


def _use(made: Any) -> None:
    """Use an object that was made with a value that seems fine: what it cannot do later, it had to refuse at once."""
    if isinstance(made, zloss.Head | zloss.FactoredLinear | zloss.DenseLinear):
        weight = next(made.parameters())
        if weight.is_meta:
            return
        h = torch.randn(3, made.in_features, dtype=weight.dtype)
        made(h, torch.tensor([0, 1, 1]))
        made.topk(h, 1)
        made.rank(h, torch.tensor([0, 1, 1]))
    elif isinstance(
        made, zloss.SphericalLoss | zloss.SoftmaxCrossEntropy | zloss.SigmoidCrossEntropy
    ):
        classes = 4 if made.class_weight is None else len(made.class_weight)
        made(torch.randn(3, classes), torch.tensor([0, 1, 1]))
    elif isinstance(made, Optimizer):
        made.step()
    elif isinstance(made, zloss.HeadConfig):
        _use(made.build(8, 40))
    elif isinstance(made, zloss.TopKError):
        made.update(torch.tensor([1, 2]))
        made.compute()
    elif isinstance(made, zloss.CapturedStep):
        made(torch.ones(2))
    elif hasattr(made, "draw") and not made._home.is_meta:
        made.log_prob(made.draw(4))


# ---- state -----------------------------------------------------------------------------------------------------------


def _state(watched: list[Any]) -> list[Any]:
    """Return a copy of all that objects remember."""
    return [part for one in watched for part in _parts(one)]


def _parts(one: Any) -> Iterator[Any]:
    if isinstance(one, Tensor):
        yield one.detach().clone()
    elif isinstance(one, nn.Module):
        yield from (t.clone() for t in one.state_dict().values())
        yield from (p.grad.detach().clone() for p in one.parameters() if p.grad is not None)
        for module in one.modules():
            record = (
                module.recorded_gradient() if isinstance(module, zloss.FactoredLinear) else None
            )
            if record is not None:
                yield from (
                    part.clone() for part in vars(record).values() if isinstance(part, Tensor)
                )
    elif isinstance(one, zloss.FactoredSGD):
        yield from (len(one.param_groups), *_state(one.layers), *_options(one))
    elif isinstance(one, Optimizer):
        yield from (len(one.param_groups), *_options(one))
        for group in one.param_groups:
            yield from _state(group["params"])
    elif isinstance(one, zloss.TopKError | zloss.MeanReciprocalRank | zloss.Perplexity):
        yield None if one._sums is None else one._sums.clone()
    elif isinstance(one, list):
        yield from _state(one)


def _options(optimizer: Optimizer) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from (repr(value) for name, value in group.items() if name != "params")


def _check_unchanged(before: list[Any], after: list[Any], what: str) -> None:
    same = len(before) == len(after) and all(
        torch.equal(a.to_dense().nan_to_num(), b.to_dense().nan_to_num())
        if isinstance(a, Tensor)
        else a == b
        for a, b in zip(before, after, strict=True)
    )
    if not same:
        raise FellError(f"{what} was refused, and yet has changed the state of an object")


ATTACKS = [
    Attack(
        key="bad_inputs",
        title="bad inputs",
        attempt=attack_bad_input,
        tries_in_tests=300,
    )
]
