"""Batches of n-grams made by the kernel, against those that PyTorch makes on a CPU."""

from typing import Any

import numpy as np
import pytest
import torch

from zloss import kernels
from zloss_lab.ngrams import NgramBatches

pytestmark = pytest.mark.skipif(not kernels.available(), reason="triton is not installed")

every_mode = pytest.mark.parametrize("mode", ["running", "sentence"])


def check(tokens: Any, indices: list[int] | None = None, **options: Any) -> None:
    """The kernel makes the same batches, for an index that is a number or a tensor on the device."""
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    batches, expected = (
        NgramBatches(tokens, device=device, **options),
        NgramBatches(tokens, **options),
    )
    for index in range(len(expected)) if indices is None else indices:
        words, target = expected.at(index)
        given: list[int | torch.Tensor] = [index]
        if len(target) == expected.batch_size:
            given.append(torch.tensor(index, device=device))
        for one in given:
            found = batches._in_one_launch(one, len(target))
            assert found[0].is_contiguous(), "or torch would copy it, twice"
            assert found[0].dtype == found[1].dtype == torch.int64
            assert torch.equal(found[0].cpu(), words)
            assert torch.equal(found[1].cpu(), target)


@every_mode
@pytest.mark.parametrize("shuffle", [True, False])
# Running text has 20 and 25 examples. In base 5 two digits have 25 numbers: 5 of them or none are unused.
@pytest.mark.parametrize("size", [23, 28])
def test_all_batches_of_a_text(mode: Any, shuffle: bool, size: int) -> None:
    tokens = torch.randint(4, (size,))
    check(tokens, context=3, batch_size=5, mode=mode, boundary=0, padding=3, shuffle=shuffle)


@every_mode
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.int64])
def test_every_id_of_every_type(mode: Any, dtype: Any) -> None:
    most = min(np.iinfo(dtype).max, 2**40)
    tokens = np.array([0, 1, most // 2, most // 2 + 1, most, most - 1, most // 2 + 2], dtype=dtype)
    check(
        tokens, context=2, batch_size=7, mode=mode, boundary=most, padding=most - 1, shuffle=False
    )


@pytest.mark.parametrize("signed", [torch.int8, torch.int16, torch.int32])
def test_negative_tokens_are_large_ones(signed: torch.dtype) -> None:
    check(torch.tensor([3, -1, -5, 2], dtype=signed), context=1, batch_size=3)


@every_mode
@pytest.mark.parametrize(("context", "batch_size"), [(1, 1), (4, 8), (10, 9), (17, 17)])
def test_ragged_shapes(mode: Any, context: int, batch_size: int) -> None:
    tokens = torch.randint(30, (60,))
    check(tokens, [0, 1], context=context, batch_size=batch_size, mode=mode, boundary=1, padding=0)


def test_a_text_of_one_example() -> None:
    check(torch.tensor([4, 5]), context=1, batch_size=1)


def test_a_sample() -> None:
    check(torch.arange(100), context=3, batch_size=10, shuffle=False, sample=35)


def test_tokens_with_gaps_between_them() -> None:
    check(torch.arange(40)[::2], [1], context=3, batch_size=5)


@pytest.mark.parametrize("shuffle", [True, False])
def test_texts_of_more_than_32_bits(shuffle: bool) -> None:
    tokens = np.zeros(2**31 + 100, dtype=np.uint8)  # virtual memory that is never touched
    options: Any = {"context": 2, "batch_size": 5, "shuffle": shuffle}
    batches = NgramBatches(tokens, **options)
    last = len(batches) - 1
    positions = torch.arange(last * 5, min(last * 5 + 5, batches.examples))
    assert positions[0] > 2**31
    examples = batches._order(positions) if batches._order else positions
    for example in examples.tolist():
        tokens[example : example + 3] = np.random.default_rng(example).integers(1, 256, 3)
    assert batches.at(last)[0].all()
    check(tokens, [last], **options)
