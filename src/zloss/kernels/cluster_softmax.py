"""A softmax over many classes with narrow vectors, for the wanted examples of a batch only.

The kernels compute

    scores = p @ weight.T
    normalizer = scores.logsumexp(1)
    log_prob[i, k] = scores[i, index[i, k]] - normalizer[i]

and the gradients of `p` and `weight`. Only the device knows which examples are wanted. `order` contains the number of
every example, with the wanted examples first, and `count` is the number of wanted examples.

The host always launches the same number of programs. Each program has a **piece** of the classes and goes over all
wanted examples. So neither scores nor their gradients are ever in memory. Sums over pieces are taken in the same order
every time.

Shape letters: B examples, D width, C classes, K targets per example, P pieces of the classes.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from zloss.kernels.tiles import pieces, places, power_of_2, store_tile, tile

# Products need at least sixteen rows and columns.
_LEAST = 16
# The number of weights that a program holds at a time. Vectors wider than MOST_WIDTH would leave too few classes.
_ELEMENTS = 4096
MOST_WIDTH = _ELEMENTS // _LEAST
# Enough programs for any GPU. Each one writes a gradient of every example, and another launch adds these up.
_MOST_PIECES = 512
# The number of examples at a time, and the number of pieces that are added up at a time.
_EXAMPLES, _PIECES = 16, 256
# With fewer warps, or with tiles that are loaded ahead, a program would need more registers than a GPU has.
_LAUNCH = {"num_warps": 8, "num_stages": 1}


def normalizers(
    p: Tensor,  # (B, D) float32
    weight: Tensor,  # (C, D) float32
    order: Tensor,  # (B,) int64
    count: Tensor,  # () int64
) -> Tensor:  # (B,)
    """Return the logarithm of the sum of exponentials of the scores of each wanted example, 0 for the others."""
    (num, width), num_classes = p.shape, len(weight)
    parts, cut = _cut(num_classes, width)
    highest, total = torch.empty(2, num, parts, dtype=p.dtype, device=p.device)
    out = torch.empty(num, dtype=p.dtype, device=p.device)
    if num:
        with torch.cuda.device_of(p):
            _sums_of_pieces[(parts,)](
                p.contiguous(), weight.contiguous(), order, count, highest, total, num_classes, width, parts,
                **cut, EXAMPLES=_EXAMPLES, **_LAUNCH,
            )  # fmt: skip
            _add_up_sums[(num,)](
                order, count, highest, total, out, parts, PIECES=_PIECES, num_warps=4
            )
    return out


def gradients(
    p: Tensor,  # (B, D) float32
    weight: Tensor,  # (C, D) float32
    order: Tensor,  # (B,) int64
    count: Tensor,  # () int64
    normalizer: Tensor,  # (B,)
    index: Tensor,  # (B, K) int64, -1 for a target in another cluster
    grad: Tensor,  # (B, K), of log_prob, and 0 for a target in another cluster
) -> tuple[Tensor, Tensor]:  # (B, D), (C, D)
    """Return the gradients of `p` and of `weight`, including their zeros."""
    (num, width), num_classes = p.shape, len(weight)
    parts, cut = _cut(num_classes, width)
    parts_of_p = torch.empty(parts, num, width, dtype=p.dtype, device=p.device)
    grad_p = torch.empty(num, width, dtype=p.dtype, device=p.device)
    grad_weight = torch.empty(num_classes, width, dtype=p.dtype, device=p.device)
    with torch.cuda.device_of(p):
        _gradients_of_pieces[(parts,)](
            p.contiguous(), weight.contiguous(), order, count, normalizer, index.contiguous(), grad.contiguous(),
            parts_of_p, grad_weight, num, num_classes, width, index.shape[1],
            **cut, EXAMPLES=_EXAMPLES, **_LAUNCH,
        )  # fmt: skip
        if num:
            _add_up_gradients[(num,)](
                order, count, parts_of_p, grad_p, num, width, parts,
                PIECES=max(1, _PIECES // cut["WIDTH"]), WIDTH=cut["WIDTH"], num_warps=4,
            )  # fmt: skip
    return grad_p, grad_weight


def _cut(num_classes: int, width: int) -> tuple[int, dict[str, int]]:
    """Return the number of pieces, the tiles of a piece, and the classes and the padded width of a tile."""
    held = max(_LEAST, power_of_2(width))
    classes = _ELEMENTS // held
    tiles = pieces(pieces(num_classes, classes), _MOST_PIECES)
    return pieces(num_classes, tiles * classes), {"tiles": tiles, "CLASSES": classes, "WIDTH": held}


@triton.jit
def _wanted_examples(p, order, start, wanted, d, D, EXAMPLES: tl.constexpr):
    """Return places in the order, a mask of the places of wanted examples, and their numbers and vectors."""
    slot = start + tl.arange(0, EXAMPLES)
    there = slot < wanted
    example = tl.load(order + slot, mask=there, other=0)
    x = tl.load(p + places(example, d, D), mask=there[:, None] & (d < D)[None, :], other=0)
    return slot, there, example, x


@triton.jit
def _classes(number, tiles, part, CLASSES: tl.constexpr):
    """Return the classes of a tile of a piece."""
    return (number * tiles + part) * CLASSES + tl.arange(0, CLASSES)


@triton.jit
def _product(left, right):
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def _sums_of_pieces(
    p, weight, order, count, highest, total, C, D, P, tiles,
    CLASSES: tl.constexpr, WIDTH: tl.constexpr, EXAMPLES: tl.constexpr,
):  # fmt: skip
    number, d = tl.program_id(0), tl.arange(0, WIDTH)
    wanted = tl.load(count).to(tl.int32)
    for start in range(0, wanted, EXAMPLES):
        slot, there, _, x = _wanted_examples(p, order, start, wanted, d, D, EXAMPLES)
        high = tl.full((EXAMPLES,), float("-inf"), tl.float32)
        sums = tl.zeros((EXAMPLES,), tl.float32)
        for part in range(tiles):
            c = _classes(number, tiles, part, CLASSES)
            scores = _product(x, tl.trans(tile(weight, c, d, C, D, D)))
            scores = tl.where((c < C)[None, :], scores, float("-inf"))
            # This is finite from the first tile on, which has at least one class.
            higher = tl.maximum(high, tl.max(scores, 1))
            sums = sums * tl.exp(high - higher) + tl.sum(tl.exp(scores - higher[:, None]), 1)
            high = higher
        here = slot.to(tl.int64) * P + number
        tl.store(highest + here, high, mask=there)
        tl.store(total + here, sums, mask=there)


@triton.jit
def _add_up_sums(order, count, highest, total, out, P, PIECES: tl.constexpr):
    slot = tl.program_id(0).to(tl.int64)
    normalizer = tl.full((), 0.0, tl.float32)
    if slot < tl.load(count):
        high = tl.full((), float("-inf"), tl.float32)
        for start in range(0, P, PIECES):
            j = start + tl.arange(0, PIECES)
            high = tl.maximum(
                high, tl.max(tl.load(highest + slot * P + j, mask=j < P, other=float("-inf")), 0)
            )
        sums = tl.zeros((PIECES,), tl.float32)
        for start in range(0, P, PIECES):
            j = start + tl.arange(0, PIECES)
            below = tl.load(highest + slot * P + j, mask=j < P, other=float("-inf")) - high
            sums += tl.load(total + slot * P + j, mask=j < P, other=0) * tl.exp(below)
        normalizer = high + tl.log(tl.sum(sums, 0))
    tl.store(out + tl.load(order + slot), normalizer)


@triton.jit
def _gradients_of_pieces(
    p, weight, order, count, normalizer, index, grad, parts_of_p, grad_weight, B, C, D, K, tiles,
    CLASSES: tl.constexpr, WIDTH: tl.constexpr, EXAMPLES: tl.constexpr,
):  # fmt: skip
    number, d = tl.program_id(0), tl.arange(0, WIDTH)
    wanted = tl.load(count).to(tl.int32)
    # Without wanted examples the loop runs once, because it has to write the gradient of the weights.
    for start in range(0, tl.maximum(wanted, 1), EXAMPLES):
        slot, there, example, x = _wanted_examples(p, order, start, wanted, d, D, EXAMPLES)
        bound = tl.load(normalizer + example, mask=there, other=0)
        of_x = tl.zeros((EXAMPLES, WIDTH), tl.float32)
        for part in range(tiles):
            c = _classes(number, tiles, part, CLASSES)
            w = tile(weight, c, d, C, D, D)
            of_scores = tl.zeros((EXAMPLES, CLASSES), tl.float32)
            of_normalizer = tl.zeros((EXAMPLES,), tl.float32)
            for k in range(K):
                own = tl.load(grad + example * K + k, mask=there, other=0)
                target = tl.load(index + example * K + k, mask=there, other=-1)
                of_scores += tl.where(target[:, None] == c[None, :], own[:, None], 0.0)
                of_normalizer += own
            of_scores -= of_normalizer[:, None] * tl.exp(_product(x, tl.trans(w)) - bound[:, None])
            of_scores = tl.where(there[:, None] & (c < C)[None, :], of_scores, 0.0)
            of_x += _product(of_scores, w)
            of_w = _product(tl.trans(of_scores), x)
            if start > 0:
                of_w += tile(grad_weight, c, d, C, D, D)
            store_tile(grad_weight, of_w, c, d, C, D, D)
        store_tile(parts_of_p + number.to(tl.int64) * B * D, of_x, slot, d, wanted, D, D)
        # The next examples read values that other threads wrote.
        tl.debug_barrier()


@triton.jit
def _add_up_gradients(
    order, count, parts_of_p, grad_p, B, D, P, PIECES: tl.constexpr, WIDTH: tl.constexpr
):
    slot, d = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    sums = tl.zeros((PIECES, WIDTH), tl.float32)
    if slot < tl.load(count):
        for start in range(0, P, PIECES):
            j = start + tl.arange(0, PIECES)
            sums += tile(parts_of_p + slot * D, j, d, P, D, B * D)
    tl.store(grad_p + tl.load(order + slot) * D + d, tl.sum(sums, 0), mask=d < D)
