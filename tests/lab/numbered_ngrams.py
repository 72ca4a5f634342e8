"""Batches of a text whose words are their own positions, so that a batch shows its examples."""

from typing import Any

import torch

from zloss_lab.ngrams import NgramBatch, NgramBatches


def numbered(size: int = 103, **options: Any) -> NgramBatches:
    """Return batches of a text in which the target of an example is its number + 3."""
    return NgramBatches(torch.arange(size), context=3, **({"batch_size": 10} | options))


def numbers(batch: NgramBatch) -> list[int]:
    found: list[int] = (batch[1] - 3).tolist()
    return found


def all_numbers(batches: NgramBatches) -> list[int]:
    return [number for batch in batches for number in numbers(batch)]


def pairs(batch: NgramBatch) -> list[tuple[list[int], int]]:
    context, target = batch
    assert context.dtype == target.dtype == torch.int64
    return list(zip(context.tolist(), target.tolist(), strict=True))
