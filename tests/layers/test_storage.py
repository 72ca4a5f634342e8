"""Every storage serves a factored layer alike: a new one needs one more line in `STORAGES`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import zloss
from zloss.layers.mark import GradientMark
from zloss.layers.matrix import FactoredMatrix
from zloss.layers.ranking import LinearScores
from zloss.layers.stepper import Stepper
from zloss.layers.storage import InMemory, Stamp, Storage, stamp_of
from zloss.layers.update import Factors
from zloss.stats import SphericalStats
from zloss.targets import checked_targets

CLASSES, WIDTH, BATCH = 37, 6, 5
LOSS = zloss.ZLoss(a=0.3, b=5)
NEAR = 1e-11  # blocks of other sizes are added up in another order


@dataclass(frozen=True)
class InPieces(Storage):
    """Rows in several tensors, none of which has all of them: what a layer must not notice."""

    pieces: Sequence[Tensor]

    @property
    def num_rows(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def width(self) -> int:
        return self.pieces[0].shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.pieces[0].dtype

    @property
    def device(self) -> torch.device:
        return self.pieces[0].device

    @property
    def tensor(self) -> Tensor:
        raise AssertionError("only kernels need all rows as one tensor")

    @property
    def has_memory(self) -> bool:
        return True

    def stamp(self) -> Stamp:
        return self.pieces[0].data_ptr(), sum(stamp_of(piece)[1] for piece in self.pieces)

    def block(self, start: int, stop: int) -> Tensor:
        return self.gather(torch.arange(start, stop))

    def gather(self, classes: Tensor) -> Tensor:
        return torch.stack([self._row(int(row)) for row in classes])

    def add_(self, classes: Tensor, changes: Tensor) -> None:
        for row, change in zip(classes, changes, strict=True):
            self._row(int(row)).add_(change)

    def replace_(self, function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
        for piece in self.pieces:
            piece.copy_(function(piece))

    def add_up_(
        self,
        totals: Sequence[Tensor],
        function: Callable[[Tensor], Sequence[Tensor]],
        dtype: torch.dtype,
    ) -> None:
        for piece in self.pieces:
            for total, part in zip(totals, function(piece), strict=True):
                total += part

    def copied(self) -> InMemory:
        return InMemory(torch.cat(list(self.pieces)))

    def _row(self, row: int) -> Tensor:
        for piece in self.pieces:
            if row < len(piece):
                return piece[row]
            row -= len(piece)
        raise IndexError(row)


STORAGES: dict[str, Callable[[Tensor], Storage]] = {
    "in memory": lambda rows: InMemory(rows.clone()),
    "in small blocks": lambda rows: InMemory(rows.clone(), least_block_bytes=100),
    "in pieces": lambda rows: InPieces([part.clone() for part in rows.split([20, 1, 16])]),
}


@pytest.fixture(params=STORAGES)
def make(request: pytest.FixtureRequest) -> Callable[[Tensor], Storage]:
    return STORAGES[request.param]


def trained_rows() -> Tensor:
    return torch.randn(CLASSES, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("times", [1, 30], ids=["few changes", "more changes than rows"])
def test_rows_are_gathered_read_and_added_to(make: Callable[[Tensor], Storage], times: int) -> None:
    rows = trained_rows()
    storage, classes = make(rows), torch.tensor([36, 0, 20, 0] * times)
    assert (storage.num_rows, storage.width, storage.dtype) == (CLASSES, WIDTH, torch.float64)
    assert torch.equal(storage.gather(classes), rows[classes])
    assert torch.equal(storage.block(18, 23), rows[18:23])
    before, changes = storage.stamp(), torch.randn(len(classes), WIDTH, dtype=torch.float64)
    storage.add_(classes, changes)
    assert storage.stamp() != before
    assert_close(storage.copied().rows, rows.index_add(0, classes, changes), rtol=NEAR, atol=NEAR)


def test_passes_see_every_row_once(make: Callable[[Tensor], Storage]) -> None:
    rows = trained_rows()
    storage, total = make(rows), torch.zeros(WIDTH, dtype=torch.float64)
    storage.add_up_((total,), lambda block: [block.sum(0)], torch.float64)
    assert_close(total, rows.sum(0), rtol=NEAR, atol=NEAR)
    storage.replace_(lambda block: 2 * block, torch.float64)
    assert torch.equal(storage.copied().rows, 2 * rows)


def test_a_copy_has_memory_of_its_own(make: Callable[[Tensor], Storage]) -> None:
    storage = make(trained_rows())
    copy = storage.copied()
    storage.replace_(torch.zeros_like, torch.float64)
    assert copy.rows.all()


def test_a_layer_trains_refactors_and_ranks_over_any_storage(
    make: Callable[[Tensor], Storage],
) -> None:
    rows = trained_rows()
    linear = torch.nn.Linear(WIDTH, CLASSES, bias=False, dtype=torch.float64)
    linear.weight.data.copy_(rows)
    dense = zloss.DenseLinear.from_linear(linear)
    sgd = torch.optim.SGD(dense.parameters(), lr=0.5, weight_decay=0.1)
    empty = torch.empty(WIDTH, WIDTH, dtype=torch.float64)
    factors = Factors(empty, empty.clone(), empty[0].clone(), empty[0].clone(), empty.clone())
    matrix = FactoredMatrix(make(rows), factors, torch.float64)
    mark = GradientMark.like(empty)
    stepper = Stepper(matrix, mark, max_condition=None, synchronous=False, implementation="torch")
    with torch.no_grad():
        stepper.adopt_rows_(matrix)

    for number in range(20):
        h = torch.randn(BATCH, WIDTH, dtype=torch.float64)
        target = torch.randint(CLASSES, (BATCH,))
        LOSS(dense(h, target)).backward()
        sgd.step()
        sgd.zero_grad()
        scores, mean, scatter, valid, _ = stepper.statistics(
            matrix, h, target, -100, record=stepper.pending.record
        )
        stats = SphericalStats.from_moments(
            scores[:, 0], mean, scatter, CLASSES, valid=valid[:, 0], once_differentiable=True
        )
        LOSS(stats).backward()
        with torch.no_grad():
            stepper.step_(matrix, 0.5, 0.1)
            if number == 10:
                stepper.refactor_(matrix)
            assert_close(matrix.materialised(), dense.weight(), rtol=NEAR, atol=NEAR)

    with torch.no_grad():
        stepper.refactor_(matrix)  # now V is W
    h, target = torch.randn(BATCH, WIDTH, dtype=torch.float64), torch.tensor([0, 19, 20, 21, 36])
    ours = LinearScores(h, matrix.rows)
    assert torch.equal(ours.topk(7, block_size=9)[1], dense.topk(h, 7)[1])
    targets = checked_targets(target, BATCH, CLASSES, -100)
    assert torch.equal(ours.rank(targets, block_size=9)[:, 0], dense.rank(h, target))
