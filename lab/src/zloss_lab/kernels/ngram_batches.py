"""A batch of n-grams in one kernel launch: the numbers of its examples in shuffled order, and their words.

It replaces some thirty small operations of `NgramBatches.at` in `zloss_lab.ngrams`, with the Feistel network of
`zloss_lab.permutation`. All arithmetic is on 64-bit integers, because a text may be longer than 2^31 tokens.

Shape letters: T tokens, N examples in the text, B examples in the batch, n words of context, a base of the digits.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from zloss.kernels.tiles import pieces, power_of_2

# Examples of one program. The kernel mostly waits for memory: with few examples each, many programs wait in parallel.
_ROWS, _WARPS = 8, 1

_UNSIGNED = {
    torch.int8: torch.uint8,
    torch.int16: torch.uint16,
    torch.int32: torch.uint32,
    torch.int64: torch.uint64,
}


def batch(
    tokens: Tensor,  # (T,), signed integers that are read as unsigned integers
    index: Tensor,  # () int64, on the device
    *,
    rows: int,  # B
    batch_size: int,  # B, except for a smaller last batch
    context: int,  # n
    order: tuple[Tensor, Tensor] | None,  # (rounds, a), (a^2 - N,); None for the order of the text
    ends: tuple[int, int] | None,  # boundary and padding; None for the mode "running"
) -> tuple[Tensor, Tensor]:  # (B, n), (B,)
    """Return contexts and targets of the examples at `index * batch_size` and the `rows - 1` positions after it."""
    words = torch.empty(rows, context, dtype=torch.int64, device=tokens.device)
    target = torch.empty(rows, dtype=torch.int64, device=tokens.device)
    digits, returns = order or (None, None)
    rounds, base = (0, 0) if digits is None else digits.shape
    size = 0 if returns is None else base**2 - len(returns)
    boundary, padding = ends or (None, None)
    with torch.cuda.device_of(tokens):
        _batch[(pieces(rows, _ROWS),)](
            tokens.view(_UNSIGNED[tokens.dtype]),
            tokens.stride(0),
            index,
            digits,
            returns,
            boundary,
            padding,
            words,
            target,
            rows,
            batch_size,
            base,
            size,
            NUM_CONTEXT=context,
            ROUNDS=rounds,
            ROWS=_ROWS,
            COLUMNS=power_of_2(context),
            num_warps=_WARPS,
        )
    return words, target


@triton.jit
def _batch(
    tokens,
    stride,
    index,
    digits,
    returns,
    boundary,
    padding,
    words,
    target,
    B,
    batch_size,
    base,
    size,
    NUM_CONTEXT: tl.constexpr,
    ROUNDS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # Rows beyond the batch repeat the last row and write nothing.
    example = tl.load(index).to(tl.int64) * batch_size + tl.minimum(r, B - 1)
    if digits is not None:
        example = _permuted(example, digits, returns, base, size, ROUNDS)
    first = example
    if boundary is not None:
        first -= NUM_CONTEXT
    goal = tl.load(tokens + (first + NUM_CONTEXT) * stride).to(tl.int64)
    tl.store(target + r, goal, mask=r < B)
    c = tl.arange(0, COLUMNS)
    place = first[:, None] + c[None, :]
    is_word = (c < NUM_CONTEXT)[None, :]
    word = tl.load(tokens + place * stride, mask=is_word & (place >= 0), other=0).to(tl.int64)
    if boundary is not None:
        # All words up to the last end of a sentence belong to earlier sentences than the target.
        ends = is_word & ((word == boundary) | (place < 0))
        last_end = tl.max(tl.where(ends, c[None, :], -1), 1)
        word = tl.where(c[None, :] <= last_end[:, None], padding, word)
    tl.store(words + r[:, None] * NUM_CONTEXT + c[None, :], word, mask=is_word & (r < B)[:, None])


@triton.jit
def _permuted(position, digits, returns, base, size, ROUNDS: tl.constexpr):
    high = position // base
    low = position - high * base
    for step in tl.static_range(ROUNDS):
        # The sum of two digits is less than twice the base, so a subtraction replaces the division.
        total = high + tl.load(digits + step * base + low)
        high = low
        low = tl.where(total >= base, total - base, total)
    image = high * base + low
    outside = image - size
    return tl.where(outside >= 0, tl.load(returns + outside, mask=outside >= 0, other=0), image)
