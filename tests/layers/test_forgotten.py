"""A step that is forgotten is an error at the first step of others, and nothing else is one."""

import copy
import gc
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss
from zloss.layers import forgotten

LOSS = zloss.ZLoss(a=0.2, b=8.0)
HOLDS = r"{} holds the parameters of FactoredLinear.* Instead, .*zloss.Optimizer\(model"
PASSED_OVER = r"an optimizer took a step, and none is there for the gradient of FactoredLinear"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(3, 4)
        self.output = zloss.FactoredLinear(4, 30)

    def backward(self) -> Tensor:
        loss: Tensor = LOSS(self.output(self.trunk(torch.randn(5, 3)), torch.randint(30, (5,))))
        loss.backward()
        return loss


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """Let any warning fail."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


OPTIMIZERS: list[Callable[..., torch.optim.Optimizer]] = [
    torch.optim.Adam,
    torch.optim.AdamW,
    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    torch.optim.Adagrad,
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_the_first_step_of_another_optimizer_is_refused(
    make: Callable[..., torch.optim.Optimizer],
) -> None:
    model = Model()
    optimizer = make(model.parameters())
    before = model.trunk.weight.detach().clone()
    model.backward()
    for _ in range(2):
        with pytest.raises(ValueError, match=HOLDS.format(type(optimizer).__name__)):
            optimizer.step()
    assert torch.equal(model.trunk.weight, before)


@pytest.mark.parametrize("name", ["V", "gradient_mark"])
def test_one_parameter_is_enough(name: str) -> None:
    model = Model()
    parameters = [*model.trunk.parameters(), getattr(model.output, name)]
    model.backward()
    with pytest.raises(ValueError, match=HOLDS.format("SGD")):
        torch.optim.SGD(parameters, 0.1).step()


def test_a_step_with_a_closure_is_refused_when_it_has_run() -> None:
    model = Model()
    with pytest.raises(ValueError, match=HOLDS.format("Adam")):
        torch.optim.Adam(model.parameters()).step(model.backward)


def test_a_gradient_for_embeddings_counts() -> None:
    model = Model()
    zloss.TiedEmbedding(model.output)(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ValueError, match=HOLDS.format("Adam")):
        torch.optim.Adam(model.parameters()).step()


@pytest.mark.parametrize("zeroes", [False, True])
def test_an_optimizer_of_the_trunk_alone_is_found_at_the_second_backward(zeroes: bool) -> None:
    model = Model()
    optimizer = torch.optim.Adam(model.trunk.parameters())
    model.backward()
    optimizer.step()
    if zeroes:
        model.zero_grad()
    for _ in range(2):
        with pytest.raises(ValueError, match=PASSED_OVER):
            model.backward()
    trained = zloss.FactoredSGD(model.output, 1.0)
    model.backward()
    trained.step()
    del trained
    gc.collect()
    model.backward()  # no step of others came before it


def test_an_optimizer_that_is_gone_does_not_count() -> None:
    model = Model()
    trained = zloss.FactoredSGD(model.output, 1.0)
    model.backward()
    trained.step()
    del trained
    gc.collect()
    model.backward()
    with pytest.raises(ValueError, match=HOLDS.format("Adam")):
        torch.optim.Adam(model.parameters()).step()


def test_a_copy_needs_an_optimizer_of_its_own() -> None:
    model = Model()
    trained = zloss.FactoredSGD(model.output, 1.0)
    twin = copy.deepcopy(model)
    twin.backward()
    with pytest.raises(ValueError, match=HOLDS.format("Adam")):
        torch.optim.Adam(twin.parameters()).step()
    both, _ = copy.deepcopy((model, trained))
    both.backward()
    torch.optim.Adam(model.parameters()).step()


# ---- no false alarm --------------------------------------------------------------------------------------------------


def two_optimizers(model: Model) -> None:
    """The optimizer of the trunk got all parameters, which is allowed."""
    optimizers = [torch.optim.Adam(model.parameters()), zloss.FactoredSGD(model.output, 1.0)]
    for _ in range(3):
        model.backward()
        for optimizer in optimizers:
            optimizer.step()
            assert model.trunk.weight.grad is not None
        model.zero_grad()


def made_late(model: Model) -> None:
    """The optimizers are made after the first backward pass."""
    model.backward()
    two_optimizers(model)


def accumulation(model: Model) -> None:
    others = torch.optim.Adam(Model().parameters())
    for _ in range(5):
        model.backward()
    others.step()


def frozen(model: Model) -> None:
    model.output.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model.backward()
        optimizer.step()
        optimizer.zero_grad()


def scaler_skips(model: Model) -> None:
    optimizer = zloss.Optimizer(model, torch.optim.SGD, lr=0.1, output_lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for times in (float("inf"), float("nan"), 1.0):
        x, target = torch.randn(5, 3), torch.randint(30, (5,))
        scaler.scale(LOSS(model.output(model.trunk(x), target)) * times).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert model.output.recorded_gradient() is None


def analysis_by_autograd(model: Model) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        h = torch.randn(5, 4, requires_grad=True)
        torch.autograd.grad(LOSS(model.output(h, torch.randint(30, (5,)))), h)
        optimizer.step()


def evaluation(model: Model) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        with torch.no_grad():
            LOSS(model.output(torch.randn(5, 4), torch.randint(30, (5,))))
            model.output.topk(torch.randn(5, 4), 2)
        optimizer.step()


def gradients_to_look_at(model: Model) -> None:
    """Somebody looks at gradients and drops them, with and without an optimizer, between steps of others."""
    other = Model()
    others = zloss.Optimizer(other, torch.optim.SGD, lr=0.1, output_lr=1.0)
    for _ in range(3):
        model.backward()
        model.output.grad_norm()
        model.zero_grad()
        other.backward()
        others.step()
    known = zloss.FactoredSGD(model.output, 1.0)
    for _ in range(3):
        model.backward()
        others.step()
        known.zero_grad()


def steps_by_hand(model: Model) -> None:
    optimizer = torch.optim.Adam(model.trunk.parameters())
    for _ in range(3):
        model.backward()
        optimizer.step()
        model.output.step_(1.0)
        model.zero_grad()
    model.backward()
    torch.optim.Adam(model.parameters()).step()


def captured(model: Model) -> None:
    optimizer = zloss.Optimizer(model, torch.optim.SGD, lr=0.1, output_lr=1.0)

    def work() -> Tensor:
        loss = model.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = zloss.CapturedStep(work, optimizers=[optimizer])
    for _ in range(5):
        step()


@pytest.mark.parametrize(
    "use",
    [
        two_optimizers,
        made_late,
        accumulation,
        frozen,
        scaler_skips,
        analysis_by_autograd,
        evaluation,
        gradients_to_look_at,
        steps_by_hand,
        captured,
    ],
)
def test_no_false_alarm(use: Callable[[Model], None]) -> None:
    use(Model())


def test_the_layer_is_watched_only_while_it_needs_an_optimizer() -> None:
    model, waiting = Model(), forgotten._WAITING
    others: Any = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
    model.backward()
    assert model.output in waiting
    trained = zloss.FactoredSGD(model.output, 1.0)
    others.step()
    assert model.output not in waiting
    model.backward()
    assert model.output not in waiting
    trained.step()


def test_a_program_that_trains_its_layers_registers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch calls hooks at the steps of all optimizers, also of those that have nothing to do with this library."""
    hooks = [OrderedDict[int, object](), OrderedDict[int, object]()]
    for name, empty in zip(("pre", "post"), hooks, strict=True):
        torchs = import_module("torch.optim.optimizer")
        monkeypatch.setattr(torchs, f"_global_optimizer_{name}_hooks", empty)
    forgotten._watch_steps.cache_clear()
    two_optimizers(Model())
    assert hooks == [{}, {}]
    Model().backward()
    assert [len(some) for some in hooks] == [1, 1]
    forgotten._watch_steps.cache_clear()
