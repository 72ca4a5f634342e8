"""The shuffling permutation: a bijection for every size, which looks random."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.gpu import no_synchronisation
from zloss_lab import permutation
from zloss_lab.permutation import Permutation


def order(
    size: int, seed: int = 0, epoch: int = 0, device: torch.device | None = None
) -> list[int]:
    shuffled = Permutation(size, seed=seed, device=device)
    shuffled.start(epoch)
    images: list[int] = shuffled(torch.arange(size, device=device)).tolist()
    return images


def by_walking(shuffled: Permutation) -> list[int]:
    """The definition by loops: the rounds of the network, repeated while the result is too large."""
    tables = shuffled._digits.tolist()
    base = len(tables[0])

    def mixed(number: int) -> int:
        high, low = divmod(number, base)
        for table in tables:
            high, low = low, (high + table[low]) % base
        return high * base + low

    images = []
    for position in range(shuffled.size):
        image = mixed(position)
        while image >= shuffled.size:
            image = mixed(image)
        images.append(image)
    return images


@given(size=st.integers(1, 5000), seed=st.integers(0, 2**64), epoch=st.integers(0, 1000))
@settings(deadline=None, max_examples=150)
def test_every_number_occurs_once(size: int, seed: int, epoch: int) -> None:
    assert sorted(order(size, seed, epoch)) == list(range(size))


@given(size=st.integers(1, 300), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=100)
def test_it_is_its_definition(size: int, seed: int) -> None:
    assert order(size, seed) == by_walking(Permutation(size, seed=seed))


def test_small_sizes_and_those_around_squares() -> None:
    for size in (
        *range(1, 40),
        *(root**2 + offset for root in (7, 50, 101) for offset in (-1, 0, 1)),
    ):
        for seed in range(5):
            assert sorted(order(size, seed)) == list(range(size))


def test_the_order_is_the_same_for_ever_and_everywhere(device: torch.device) -> None:
    """A run keeps its order of examples with later versions of all packages."""
    assert order(12, seed=3, epoch=2, device=device) == [2, 6, 5, 4, 7, 0, 11, 10, 9, 1, 8, 3]
    assert order(9, seed=2**40, device=device) == [5, 0, 8, 2, 7, 1, 4, 6, 3]


def test_seeds_and_epochs_make_different_orders() -> None:
    orders = {tuple(order(100, seed, epoch)) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_an_epoch_can_be_returned_to() -> None:
    shuffled = Permutation(50, seed=1)
    first = shuffled(torch.arange(50))
    shuffled.start(7)
    assert shuffled.epoch == 7
    assert not torch.equal(shuffled(torch.arange(50)), first)
    shuffled.start(0)
    assert torch.equal(shuffled(torch.arange(50)), first)


def test_positions_may_have_any_shape() -> None:
    shuffled = Permutation(24, seed=1)
    positions = torch.arange(24)
    assert torch.equal(shuffled(positions.reshape(2, 3, 4)), shuffled(positions).reshape(2, 3, 4))
    assert shuffled(torch.tensor(5)).item() == shuffled(positions)[5].item()


def test_a_billion_elements_take_little_memory() -> None:
    size = 1_000_000_007
    shuffled = Permutation(size, seed=0)
    held = sum(value.numel() for value in vars(shuffled).values() if isinstance(value, Tensor))
    # There are four tables of digits, and fewer than 2 a entries for repeated walks.
    assert held < 6 * math.sqrt(size) + 6
    images = shuffled(torch.arange(100_000))
    assert images.unique().numel() == 100_000
    assert images.min() >= 0
    assert images.max() < size


# ---- does it look random? Bounds at five standard deviations, seeds fixed. -------------------------------------------

BASE = 320  # a base that is a multiple of the number of bins, so that all bins are equally full
BINS = 20
SIZES = [BASE**2, BASE**2 - 500, (BASE - 1) ** 2 + 1]
every_size = pytest.mark.parametrize("size", SIZES)


def chi_square(rows: Tensor, columns: Tensor) -> float:
    """Return the distance of a table of pairs in [0, 1) from independence, in standard deviations."""
    cells = (rows * BINS).long() * BINS + (columns * BINS).long()
    counts = cells.bincount(minlength=BINS**2).double()
    expected = len(cells) / BINS**2
    freedom = (BINS - 1) ** 2
    return float(((counts - expected).square().sum() / expected - freedom) / math.sqrt(2 * freedom))


@every_size
@pytest.mark.parametrize("lag", [1, 2, 250, BASE])
def test_neighbours_are_strangers(size: int, lag: int) -> None:
    images = torch.tensor(order(size, seed=5)).double()
    centred = images - images.mean()
    correlation = (centred[:-lag] * centred[lag:]).sum() / centred.square().sum()
    assert abs(correlation) < 5 / math.sqrt(size)
    places = images / size
    assert abs(chi_square(places[:-lag], places[lag:])) < 5


def dependence(images: Tensor) -> list[float]:
    """Test numbers and digits of elements against positions: too few rounds of a Feistel network would show there."""
    size, positions = len(images), torch.arange(len(images))
    wholes = [(positions / size, images / size)]
    digits = [
        (positions % BASE / BASE, images // BASE / BASE),
        (positions % BASE / BASE, images % BASE / BASE),
    ]
    return [chi_square(*pair) for pair in wholes + digits]


@every_size
def test_positions_say_nothing_about_what_stands_there(size: int) -> None:
    assert max(map(abs, dependence(torch.tensor(order(size, seed=6))))) < 5


def test_too_few_rounds_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permutation, "_ROUNDS", 3)
    assert max(dependence(torch.tensor(order(SIZES[1], seed=6)))) > 20


def test_epochs_say_nothing_about_each_other() -> None:
    size = SIZES[1]
    first, second = (torch.tensor(order(size, seed=7, epoch=epoch)) / size for epoch in (0, 1))
    assert abs(chi_square(first, second)) < 5


def test_anything_may_come_first() -> None:
    shuffled, size, epochs = Permutation(10, seed=0), 10, 2000
    first = []
    for epoch in range(epochs):
        shuffled.start(epoch)
        first.append(shuffled(torch.tensor(0)).item())
    counts = torch.tensor(first).bincount(minlength=size).double()
    expected = epochs / size
    # There are few tables of four digits, so the counts are not quite uniform: the tolerance is a quarter.
    assert ((counts - expected).abs() < expected / 4).all()


# ---- devices, bad input ----------------------------------------------------------------------------------------------


def test_looking_up_does_not_wait_for_the_device(cuda: torch.device) -> None:
    shuffled, positions = Permutation(10_000, seed=1, device=cuda), torch.arange(250, device=cuda)
    with no_synchronisation():
        images = shuffled(positions)
    assert images.tolist() == order(10_000, seed=1)[:250]


@pytest.mark.parametrize(
    ("size", "seed", "epoch", "message"),
    [
        (0, 0, 0, "a permutation needs at least 1 element, got size=0"),
        (5, -1, 0, "seed must be an integer >= 0, got -1"),
        (5, 0, -1, "epoch must be an integer >= 0, got -1"),
    ],
)
def test_bad_input(size: int, seed: int, epoch: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Permutation(size, seed=seed).start(epoch)
