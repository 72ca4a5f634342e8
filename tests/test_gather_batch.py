"""`gather_batch` on processes with unequal batches: exact gradients, and one error in all of them for bad batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import zloss
from tests.processes import in_processes

WIDTH, CLASSES, STEPS = 5, 30, 20
IGNORED = -100
# Sums of the same few float64 terms in another order, in 20 steps that depend on each other.
RELATIVE, ABSOLUTE = 1e-11, 1e-12


def rows_at(step: int, processes: int) -> list[int]:
    """Return uneven numbers of rows; the rank without any changes from step to step, and one step has no rows."""
    if step == 7:
        return [0] * processes
    generator = torch.Generator().manual_seed(step)
    rows: list[int] = torch.randint(1, 9, (processes,), generator=generator).tolist()
    if step % 3 == 1:
        rows[step % processes] = 0
    return rows


def whole_batch(step: int, columns: tuple[int, ...], processes: int) -> tuple[Tensor, Tensor]:
    """Return a batch with ignored targets; in some steps a whole process has nothing else."""
    rows = rows_at(step, processes)
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(sum(rows), 4, generator=generator, dtype=torch.float64)
    target = torch.randint(CLASSES, (sum(rows), *columns), generator=generator)
    target[torch.rand(target.shape, generator=generator) < 0.3] = IGNORED
    if step % 4 == 2:
        target[: rows[0]] = IGNORED
    return x, target


def make_network(reduction: Any) -> tuple[nn.Module, zloss.Head]:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh()).double()
    layer = zloss.FactoredLinear(WIDTH, CLASSES, dtype=torch.float64, bias=True)
    return trunk, zloss.SphericalOutput(layer, zloss.ZLoss(a=0.5, b=4.0, reduction=reduction))


def trained(
    trunk: nn.Module,
    output: zloss.Head,
    batch: Callable[[int], tuple[Tensor, Tensor]],
    lr: float,
) -> list[Tensor]:
    """Train, and return every loss, every gradient of the trunk and the weights at the end."""
    optimizers = [torch.optim.SGD(trunk.parameters(), lr=0.1), output.sgd(lr)]
    seen: list[Tensor] = []
    for step in range(STEPS):
        x, target = batch(step)
        loss = output(*zloss.gather_batch(trunk(x), target))
        loss.backward()
        seen += [loss.detach(), *(p.grad.clone() for p in trunk.parameters() if p.grad is not None)]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert isinstance(output, zloss.SphericalOutput)
    return [*seen, output.layer.weight()]


RATES = {"mean": 2.0, "sum": 0.2}


def train_a_share(rank: int, case: tuple[str, tuple[int, ...]]) -> list[Tensor]:
    reduction, columns = case
    trunk, output = make_network(reduction)
    processes = dist.get_world_size()

    def own_batch(step: int) -> tuple[Tensor, Tensor]:
        x, target = whole_batch(step, columns, processes)
        rows = rows_at(step, processes)
        first = sum(rows[:rank])
        own = slice(first, first + rows[rank])
        return x[own], target[own]

    return trained(DistributedDataParallel(trunk), output, own_batch, RATES[reduction])


@pytest.mark.parametrize(
    ("processes", "reduction", "columns"), [(2, "mean", ()), (3, "mean", (3,)), (3, "sum", (2,))]
)
def test_uneven_batches_train_as_one_process_with_all_rows(
    processes: int, reduction: str, columns: tuple[int, ...], tmp_path: Path
) -> None:
    trunk, output = make_network(reduction)
    expected = trained(
        trunk, output, lambda step: whole_batch(step, columns, processes), RATES[reduction]
    )
    for found in in_processes(train_a_share, (reduction, columns), tmp_path, processes):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=RELATIVE, atol=ABSOLUTE)


def gathered_rows(rank: int, columns: tuple[int, ...]) -> dict[str, Any]:
    """Rank 1 has the most rows, rank 2 has none; with a promise, all have two."""
    result = {}
    for promise in (False, True):
        rows = 2 if promise else [3, 5, 0][rank]
        h = torch.full((rows, 4), float(rank), requires_grad=True)
        target = torch.full((rows, *columns), rank, dtype=torch.int16)
        gathered, targets = zloss.gather_batch(h, target, equal_rows=promise)
        upstream = torch.arange(gathered.numel()).view_as(gathered).float()
        (gathered * upstream).sum().backward()
        result[str(promise)] = [gathered.detach(), targets, h.grad, upstream]
    return result


@pytest.mark.parametrize("columns", [(), (2,)])
def test_the_rows_stand_in_the_order_of_the_ranks_and_the_gradient_is_that_of_the_own(
    columns: tuple[int, ...], tmp_path: Path
) -> None:
    found = in_processes(gathered_rows, columns, tmp_path, 3)
    for promise, rows in (("False", [3, 5, 0]), ("True", [2, 2, 2])):
        ranks = torch.tensor([rank for rank, count in enumerate(rows) for _ in range(count)])
        for rank, result in enumerate(found):
            gathered, targets, grad, upstream = result[promise]
            assert torch.equal(gathered, ranks[:, None].expand(-1, 4).float())
            assert targets.dtype == torch.int16
            like = ranks.view(-1, *[1] * len(columns)).expand(-1, *columns)
            assert torch.equal(targets.long(), like)
            # The factor is the number of processes, by which `DistributedDataParallel` divides.
            first = sum(rows[:rank])
            assert torch.equal(grad, 3 * upstream[first : first + rows[rank]])


def good_batch() -> tuple[Tensor, Tensor]:
    return torch.zeros(2, 4), torch.zeros(2, dtype=torch.long)


# What rank 1 of three gives, and what all of them say. The others give `good_batch()`.
MISFITS: dict[str, tuple[Callable[[], tuple[Any, Any]], str]] = {
    "width": (
        lambda: (torch.zeros(2, 5), good_batch()[1]),
        r"do not fit together: process 0, 2 has h \(2, 4\) torch.float32 .* process 1 has h \(2, 5\)",
    ),
    "dtype": (lambda: (good_batch()[0].double(), good_batch()[1]), "h .2, 4. torch.float64"),
    "dtype of targets": (
        lambda: (good_batch()[0], good_batch()[1].int()),
        "target .2,. torch.int32",
    ),
    "K": (lambda: (good_batch()[0], torch.zeros(2, 3, dtype=torch.long)), r"target \(2, 3\)"),
    "one column": (lambda: (good_batch()[0], good_batch()[1][:, None]), r"target \(2, 1\)"),
    "no rows and another width": (
        lambda: (torch.zeros(0, 5), torch.zeros(0, dtype=torch.long)),
        r"h \(0, 5\)",
    ),
}
# What rank 1 refuses by itself.
REFUSED: dict[str, tuple[Callable[[], tuple[Any, Any]], str]] = {
    "no tensor": (lambda: ([[1.0]], good_batch()[1]), "h must be a tensor of floating-point"),
    "integers": (lambda: (good_batch()[0].long(), good_batch()[1]), "h must be .* torch.int64"),
    "dimensions": (
        lambda: (torch.zeros(2, 4, 1), good_batch()[1]),
        "h must be .* with 2 dimensions, got torch.float32 .2, 4, 1.",
    ),
    "sparse": (lambda: (good_batch()[0].to_sparse(), good_batch()[1]), "to_dense"),
    "rows of targets": (lambda: (good_batch()[0], good_batch()[1][:1]), "one row per example"),
    "float targets": (lambda: (good_batch()[0], torch.zeros(2)), "integer class indices"),
    "no targets": (lambda: (good_batch()[0], None), "got NoneType"),
    "elsewhere": (lambda: (good_batch()[0].to("meta"), good_batch()[1].to("meta")), "meta"),
}


def told_of_bad_batches(rank: int, argument: None) -> dict[str, str]:
    """Return what each bad batch of rank 1 makes this process say; after every error gathering goes on."""
    told = {}
    for name, (spoiled, _) in (MISFITS | REFUSED).items():
        try:
            zloss.gather_batch(*(spoiled() if rank == 1 else good_batch()))
        except ValueError as error:
            told[name] = str(error)
        assert zloss.gather_batch(*good_batch())[0].shape == (6, 4)
    return told


def test_bad_batches_are_one_error_in_every_process(tmp_path: Path) -> None:
    found = in_processes(told_of_bad_batches, None, tmp_path, 3)
    for name, (_, message) in MISFITS.items():
        assert found[0][name] == found[1][name] == found[2][name], name
        with pytest.raises(ValueError, match=message):
            raise ValueError(found[0][name])
    for name, (_, message) in REFUSED.items():
        assert found[0][name] == found[2][name], name
        assert found[0][name].startswith("process 1 refused the batch that it was given")
        with pytest.raises(ValueError, match=message):
            raise ValueError(found[1][name])


@pytest.mark.parametrize("name", REFUSED)
def test_a_single_process_refuses_what_several_would(name: str) -> None:
    spoiled, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        zloss.gather_batch(*spoiled())


def test_a_single_process_has_its_own_batch() -> None:
    h, target = torch.randn(3, 4), torch.tensor([1, 2, 3])
    gathered = zloss.gather_batch(h, target)
    assert gathered[0] is h
    assert gathered[1] is target
    with pytest.raises(ValueError, match="equal_rows must be True or False, got 1"):
        zloss.gather_batch(h, target, equal_rows=1)  # type: ignore[arg-type]


def test_a_capture_needs_the_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can read the numbers of the others while a graph is recorded, nor would its replays read them again."""
    monkeypatch.setattr("zloss.parallel.has_other_processes", lambda group: True)
    monkeypatch.setattr("zloss.parallel.must_not_wait", lambda: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cuda:nccl")
    with pytest.raises(ValueError, match="equal_rows=True"):
        zloss.gather_batch(*good_batch())
