"""The order of n-grams: epochs, seeds and samples, on a CPU and in a CUDA graph."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu import no_synchronisation
from tests.lab.numbered_ngrams import all_numbers, numbered, numbers, pairs


def test_an_epoch_is_all_examples_but_the_last_few(device: torch.device) -> None:
    batches = numbered(device=device)
    assert (batches.examples, batches.population, len(batches)) == (100, 100, 10)
    assert sorted(all_numbers(batches)) == list(range(100))
    batches = numbered(size=110, device=device)
    seen = all_numbers(batches)
    assert (batches.examples, len(seen), len(set(seen))) == (107, 100, 100)


def test_others_are_left_over_every_time() -> None:
    batches = numbered(size=110)
    left_over = []
    for epoch in range(5):
        batches.start(epoch)
        left_over.append(tuple(set(range(107)) - set(all_numbers(batches))))
    assert len(set(left_over)) == 5


@given(seed=st.integers(0, 2**32), epoch=st.integers(0, 50), index=st.integers(0, 9))
@settings(deadline=None, max_examples=50)
def test_a_batch_is_a_pure_function_of_seed_epoch_and_index(
    seed: int, epoch: int, index: int
) -> None:
    """A run can therefore continue at any batch, whatever was computed before."""
    used = numbered(seed=seed)
    for other_epoch, other_index in ((0, 3), (epoch + 1, 0), (epoch, 9)):
        used.batch(other_epoch, other_index)
    assert pairs(used.batch(epoch, index)) == pairs(numbered(seed=seed).batch(epoch, index))


def test_seeds_and_epochs_make_different_orders() -> None:
    orders = {
        tuple(numbers(numbered(seed=seed).batch(epoch, 0)))
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25


def test_the_index_may_be_a_tensor(device: torch.device) -> None:
    batches = numbered(device=device)
    batches.start(4)
    for index in range(len(batches)):
        assert pairs(batches.at(torch.tensor(index, device=device))) == pairs(
            batches.batch(4, index)
        )


def test_in_the_order_of_the_text(device: torch.device) -> None:
    for batches in (
        numbered(shuffle=False, size=110, device=device),
        numbered(size=110, device=device).sampled(107),
    ):
        assert (batches.examples, len(batches)) == (107, 11)
        assert [len(target) for _, target in batches] == [10] * 10 + [7]
        assert all_numbers(batches) == list(range(107))
        assert numbers(batches.batch(5, 10)) == list(range(100, 107))
    assert len(numbered().sampled(100, batch_size=33)) == 4


def test_a_sample_is_fixed_and_without_repetition() -> None:
    batches = numbered(seed=1)
    sample = batches.sampled(35)
    assert (sample.examples, sample.population, len(sample)) == (35, 100, 4)
    drawn = all_numbers(sample)
    assert (len(drawn), len(set(drawn))) == (35, 35)
    assert drawn != sorted(drawn)
    batches.start(3)
    assert all_numbers(batches.sampled(35)) == drawn
    assert all_numbers(numbered(seed=1, shuffle=False, sample=35)) == drawn
    assert all_numbers(numbered(seed=2, shuffle=False, sample=35)) != drawn
    assert numbers(sample.batch(8, 0)) == drawn[:10], "every epoch is the same"
    assert all_numbers(sample.sampled(12)) == drawn[:12], "a smaller one is the beginning of it"


def test_a_sample_of_all_is_the_text_in_order() -> None:
    for size in (100, 10**6):
        assert all_numbers(numbered().sampled(size)) == list(range(100))


def test_what_is_derived_leaves_the_batches_alone() -> None:
    batches = numbered()
    batches.start(2)
    before = pairs(batches.at(1))
    batches.sampled(100).start(9)
    batches.sampled(5, batch_size=2).start(9)
    assert pairs(batches.at(1)) == before
    assert (batches.batch_size, batches.shuffle, batches.examples) == (10, True, 100)


@pytest.mark.parametrize("mode", ["running", "sentence"])
def test_batches_are_made_without_waiting_for_the_device(mode: Any, cuda: torch.device) -> None:
    batches = numbered(mode=mode, boundary=50, padding=0, device=cuda)
    index = torch.tensor(1, device=cuda)
    with no_synchronisation():
        on_device, from_host = batches.at(index), batches.batch(0, 1)
    on_cpu = numbered(mode=mode, boundary=50, padding=0).batch(0, 1)
    assert pairs(on_device) == pairs(from_host) == pairs(on_cpu)


def test_a_graph_goes_through_all_batches_of_all_epochs(cuda: torch.device) -> None:
    batches, index = numbered(device=cuda), torch.zeros((), dtype=torch.int64, device=cuda)
    batches.at(index)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = batches.at(index)
        index += 1
    for epoch in range(2):
        batches.start(epoch)
        index.zero_()
        for number in range(len(batches)):
            graph.replay()
            assert pairs(captured) == pairs(numbered().batch(epoch, number))
