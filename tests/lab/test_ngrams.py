"""Contexts and targets: their definition by loops over the text, and the order in which they come."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gpu import no_synchronisation
from zloss_lab.ngrams import NgramBatch, NgramBatches, Ngrams

BOUNDARY, PADDING = 0, 9


def running(tokens: list[int], n: int) -> list[tuple[list[int], int]]:
    return [(tokens[t : t + n], tokens[t + n]) for t in range(len(tokens) - n)]


def by_sentence(tokens: list[int], n: int) -> list[tuple[list[int], int]]:
    examples, sentence = [], list[int]()
    for token in tokens:
        context = [PADDING] * n + sentence
        examples.append((context[-n:], token))
        sentence = [] if token == BOUNDARY else [*sentence, token]
    return examples


def pairs(batch: NgramBatch) -> list[tuple[list[int], int]]:
    context, target = batch
    assert context.dtype == target.dtype == torch.int64
    return list(zip(context.tolist(), target.tolist(), strict=True))


def numbered(size: int = 103, **options: Any) -> NgramBatches:
    """A text in which every target says which example it belongs to: target = number of the example + 3."""
    return NgramBatches(torch.arange(size), context=3, **({"batch_size": 10} | options))


def numbers(batch: NgramBatch) -> list[int]:
    found: list[int] = (batch[1] - 3).tolist()
    return found


def all_numbers(batches: NgramBatches) -> list[int]:
    return [number for batch in batches for number in numbers(batch)]


# ---- what is in an example -------------------------------------------------------------------------------------------

texts = st.lists(st.integers(0, 4), min_size=1, max_size=40)


@given(tokens=texts, n=st.integers(1, 6))
@settings(deadline=None, max_examples=100)
def test_running_text(tokens: list[int], n: int) -> None:
    if len(tokens) > n:
        ngrams = Ngrams(torch.tensor(tokens), context=n)
        assert pairs(ngrams.read(torch.arange(len(ngrams)))) == running(tokens, n)


@given(tokens=texts, n=st.integers(1, 6))
@settings(deadline=None, max_examples=100)
def test_sentences(tokens: list[int], n: int) -> None:
    ngrams = Ngrams(
        torch.tensor(tokens), context=n, mode="sentence", boundary=BOUNDARY, padding=PADDING
    )
    assert pairs(ngrams.read(torch.arange(len(ngrams)))) == by_sentence(tokens, n)


def test_an_example_of_each(device: torch.device) -> None:
    the, cat, sat, end = 1, 2, 3, BOUNDARY
    tokens = torch.tensor([the, cat, end, sat, end], device=device)
    ngrams = Ngrams(tokens, context=2, mode="sentence", boundary=end, padding=PADDING)
    assert pairs(ngrams.read(torch.arange(5, device=device))) == [
        ([PADDING, PADDING], the),
        ([PADDING, the], cat),
        ([the, cat], end),
        ([PADDING, PADDING], sat),
        ([PADDING, sat], end),
    ]
    assert pairs(Ngrams(tokens, context=2).read(torch.arange(3, device=device))) == [
        ([the, cat], end),
        ([cat, end], sat),
        ([end, sat], end),
    ]


def test_padding_may_be_the_boundary() -> None:
    ngrams = Ngrams(torch.tensor([1, 2, 0, 3]), context=2, mode="sentence", boundary=0, padding=0)
    assert pairs(ngrams.read(torch.arange(4))) == [
        ([0, 0], 1),
        ([0, 1], 2),
        ([1, 2], 0),
        ([0, 0], 3),
    ]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("mode", ["running", "sentence"])
def test_every_id_of_every_type(dtype: Any, mode: Any, device: torch.device) -> None:
    """Those above 32,767 too, which torch would read as negative."""
    most = min(np.iinfo(dtype).max, 2**32 - 1)
    tokens = np.array([0, 1, most // 2, most // 2 + 1, most - 1, most], dtype=dtype)
    options: Any = {
        "context": 1,
        "mode": mode,
        "boundary": most,
        "padding": most - 1,
        "device": device,
    }
    for given_tokens in (tokens, torch.from_numpy(tokens)):
        ngrams = Ngrams(given_tokens, **options)
        assert ngrams.tokens.itemsize == tokens.itemsize, "in their narrow type"
        _, target = ngrams.read(torch.arange(len(ngrams), device=device))
        assert target.tolist() == tokens.tolist()[-len(ngrams) :]


def test_a_memory_mapped_file_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "train.tokens"
    np.arange(1000, dtype="<u2").tofile(path)
    tokens = np.memmap(path, dtype="<u2", mode="r")
    batches = NgramBatches(tokens, context=2, batch_size=4)
    assert batches.ngrams.tokens.data_ptr() == tokens.ctypes.data
    in_order = batches.sampled(batches.population)
    assert in_order.ngrams.tokens.data_ptr() == tokens.ctypes.data
    assert pairs(in_order.at(0)) == running(list(range(6)), 2)


# ---- in which order --------------------------------------------------------------------------------------------------


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
    """So that a run goes on at any batch, whatever this one was asked before."""
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


# ---- on a GPU --------------------------------------------------------------------------------------------------------


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


# ---- bad input -------------------------------------------------------------------------------------------------------

TEXT = torch.arange(20)
GOOD: dict[str, Any] = {"tokens": TEXT, "context": 3, "batch_size": 4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, "context must be at least 1 word, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"mode": "words"}, "mode must be one of running, sentence, got 'words'"),
        (
            {"mode": "sentence", "boundary": 3},
            "needs the tokens for boundary and padding, got 3 and None",
        ),
        ({"mode": "sentence", "padding": 3}, "can be read in mode 'running' only"),
        ({"context": 20}, "a text of 20 tokens has no example with 20 words of context"),
        ({"batch_size": 18}, "the text has 17 n-grams, too few for one batch of 18"),
        ({"sample": 5}, "sample must be at least 1, and shuffle=False, got sample=5, shuffle=True"),
        ({"sample": 0, "shuffle": False}, "sample must be at least 1"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
        (
            {"tokens": TEXT.float()},
            "tokens must be integers in one dimension, got torch.float32 (20,)",
        ),
        (
            {"tokens": TEXT.reshape(4, 5)},
            "tokens must be integers in one dimension, got torch.int64 (4, 5)",
        ),
        (
            {"tokens": TEXT.numpy().astype(">u2")},
            "integers in the byte order of this machine, got >u2",
        ),
        (
            {"tokens": [1, 2, 3]},
            "tokens must be an array of integers in the byte order of this machine, got list",
        ),
        ({"tokens": np.zeros(9)}, "got <f8"),
    ],
)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        NgramBatches(**(GOOD | options))


@pytest.mark.parametrize("index", [-1, 10])
def test_there_is_no_such_batch(index: int) -> None:
    with pytest.raises(ValueError, match=f"there are 10 batches an epoch, got index {index}"):
        numbered().batch(0, index)
