"""RowAdam against torch's Adam and SparseAdam after every step, its state, and arguments that it refuses."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss

# Both compute a few products and one root for each number in float64, in another order.
assert_close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-15)


def made(*shape: int, seed: int = 0) -> nn.Parameter:
    generator = torch.Generator().manual_seed(seed)
    return nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))


def twins(options: dict[str, Any], *shape: int, torchs: Callable[..., Any]) -> tuple[Any, ...]:
    ours, theirs = made(*shape), made(*shape)
    return ours, theirs, zloss.RowAdam([ours], **options), torchs([theirs], **options)


OPTIONS: list[dict[str, Any]] = [
    {"lr": 0.1},
    {"lr": 1e-3, "betas": (0.5, 0.9), "eps": 1e-3},
    {"lr": 0.0},
    {"lr": 0.3, "betas": (0.0, 0.0), "eps": 1e-6},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_dense_gradients_step_as_by_adam(options: dict[str, Any]) -> None:
    ours, theirs, optimizer, torchs = twins(options, 7, 3, torchs=torch.optim.Adam)
    for number in range(10):
        ours.grad, theirs.grad = (made(7, 3, seed=number).data for _ in range(2))
        optimizer.step()
        torchs.step()
        assert_close(ours, theirs)


def sparse_gradient(rows: int, *width: int, seed: int) -> Tensor:
    """Return a gradient with some rows, of which one occurs twice."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(rows, (1 + seed % 4,), generator=generator)
    index = torch.cat([drawn, drawn[:1]])
    values = torch.randn(len(index), *width, generator=generator, dtype=torch.float64)
    return torch.sparse_coo_tensor(index[None], values, (rows, *width), check_invariants=True)


@pytest.mark.parametrize("width", [(), (3,), (2, 2)])
@pytest.mark.parametrize("options", OPTIONS[:2])
def test_row_sparse_gradients_step_as_by_sparse_adam(
    options: dict[str, Any], width: tuple[int, ...]
) -> None:
    # SparseAdam adds eps before the bias correction of v, and RowAdam after it, as Adam does.
    options = {**options, "eps": 0.0}
    ours, theirs = made(6, *width), made(6, *width)
    optimizer = zloss.RowAdam([ours], **options)
    torchs = torch.optim.SparseAdam([theirs], **{**options, "eps": 1e-300})
    for number in range(12):
        before = ours.detach().clone()
        ours.grad, theirs.grad = (sparse_gradient(6, *width, seed=number) for _ in range(2))
        rows = ours.grad.coalesce().indices()[0]
        optimizer.step()
        torchs.step()
        assert_close(ours, theirs)
        others = [row for row in range(6) if row not in rows]
        assert torch.equal(ours[others], before[others]), "other rows stay"


def test_a_sparse_gradient_with_all_rows_steps_as_a_dense_one() -> None:
    dense, sparse = made(5, 2), made(5, 2)
    optimizers = [zloss.RowAdam([one], 0.1) for one in (dense, sparse)]
    for number in range(5):
        dense.grad = made(5, 2, seed=number).data
        sparse.grad = dense.grad.to_sparse(1)
        for optimizer in optimizers:
            optimizer.step()
        assert_close(sparse, dense)


def test_a_parameter_without_a_gradient_stays() -> None:
    trained, idle = made(3, 2), made(2, 2, seed=1)
    groups: list[dict[str, Any]] = [{"params": [trained]}, {"params": [idle], "lr": 5.0}]
    optimizer = zloss.RowAdam(groups, 0.1)
    trained.grad = torch.ones(3, 2, dtype=torch.float64)
    before = idle.detach().clone()
    assert optimizer.step(lambda: 7.0) == 7.0
    assert torch.equal(idle, before)
    assert idle not in optimizer.state


@pytest.mark.parametrize("kind", [zloss.RowAdam, torch.optim.SparseAdam])
def test_a_loaded_state_goes_on(kind: Callable[..., torch.optim.Optimizer]) -> None:
    """The first steps are taken by RowAdam or by SparseAdam, whose state it takes over."""
    options: dict[str, Any] = {"lr": 0.1, "eps": 1e-300}
    one = made(6, 2)
    first = kind([one], **options)
    for number in range(3):
        one.grad = sparse_gradient(6, 2, seed=number)
        first.step()
    other = nn.Parameter(one.detach().clone())
    second = zloss.RowAdam([other], 3.0)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for number in range(3, 6):
        one.grad, other.grad = (sparse_gradient(6, 2, seed=number) for _ in range(2))
        first.step()
        second.step()
        assert_close(other, one)


def test_schedulers_change_its_rate() -> None:
    one = made(2, 2)
    optimizer = zloss.RowAdam([one], 0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step else 1.0)
    one.grad = torch.ones_like(one)
    optimizer.step()
    schedule.step()
    before = one.detach().clone()
    optimizer.step()
    assert torch.equal(one, before)


def test_a_captured_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of steps would be a constant of the graph. No GPU is needed to see the refusal."""
    one = made(2, 2)
    one.grad = torch.ones_like(one)
    optimizer, before = zloss.RowAdam([one], 0.1), one.detach().clone()
    monkeypatch.setattr("zloss.optim.row_adam.must_not_wait", lambda: True)
    with pytest.raises(ValueError, match="a CUDA graph would repeat one step"):
        optimizer.step()
    assert torch.equal(one, before)
    assert not optimizer.state


PARAMETER = made(2, 2)
BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: zloss.RowAdam([PARAMETER], -1.0), "lr must be a finite number >= 0"),
    (lambda: zloss.RowAdam([PARAMETER], "fast"), "lr must be a finite number"),  # type: ignore[arg-type]
    (lambda: zloss.RowAdam([PARAMETER], 0.1, betas=(0.9, 1.0)), "betas must be below 1, got 1.0"),
    (lambda: zloss.RowAdam([PARAMETER], 0.1, betas=(-0.1, 0.9)), "betas must be a finite number"),
    (lambda: zloss.RowAdam([PARAMETER], 0.1, betas=0.9), "betas must be two numbers, got 0.9"),  # type: ignore[arg-type]
    (lambda: zloss.RowAdam([PARAMETER], 0.1, eps=float("nan")), "eps must be a finite number"),
    (lambda: zloss.RowAdam(PARAMETER, 0.1), "params must be one or more parameters in a list"),
    (lambda: zloss.RowAdam([], 0.1), "params must be one or more parameters in a list"),
    (lambda: zloss.RowAdam([PARAMETER, PARAMETER], 0.1), "a parameter is here twice"),
    (lambda: zloss.RowAdam([PARAMETER * 2], 0.1), "params must be parameters"),
    (
        lambda: zloss.RowAdam([{"params": [PARAMETER], "weight_decay": 0.1}], 0.1),
        "RowAdam has lr, betas and eps, got weight_decay",
    ),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_arguments_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("weight_decay", 0.1, "got weight_decay"),
        ("amsgrad", True, "got amsgrad"),
        ("maximize", True, "got maximize"),
        ("lr", float("inf"), "lr must be a finite number"),
        ("betas", (0.9, 2.0), "betas must be below 1"),
        ("eps", None, "eps must be a finite number"),
    ],
)
def test_a_bad_state_dict_changes_nothing(option: str, value: Any, message: str) -> None:
    optimizer = zloss.RowAdam([made(2, 2)], 0.1)
    before = optimizer.state_dict()
    spoiled = copy.deepcopy(before)
    spoiled["param_groups"][0][option] = value
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(spoiled)
    assert optimizer.state_dict() == before
    del spoiled["param_groups"][0][option]
    if option in before["param_groups"][0]:
        with pytest.raises(ValueError, match=f"a group without {option}"):
            optimizer.load_state_dict(spoiled)
