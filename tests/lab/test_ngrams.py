"""Contexts and targets of n-grams: their definition by loops over the text, and wrong settings."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.numbered_ngrams import numbered, pairs
from zloss_lab.ngrams import NgramBatches, Ngrams

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
    """Ids above 32,767 are tested too, which torch would read as negative."""
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
