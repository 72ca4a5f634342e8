"""The forward and the backward pass of a factored layer by kernels. `zloss.layers.torch_backend` defines the result.

The forward pass computes the statistics of a batch. One launch gathers the batch and the rows of its targets in V. One
product multiplies them by the Gram matrix and by U. Another launch reduces each row to its statistics. The product
contains the rows of W for the targets, so the backward pass is one launch without a product. This is best for one or
two targets per row. For more targets, the forward pass multiplies the rows of V by `h U^T`, and the backward pass
multiplies their weighted sum by U. These are two products for any number of targets.

No launch waits for the device or depends on values that only the device knows. If a training step is captured as a CUDA
graph, the update starts early. Its products that need only the batch begin here, on branches beside these passes.

A batch is at fault if a target is not a class, or if an activation is not finite. Its fault bits are set in the fault
of the batch and in the fault of the layer. The rows at fault get a mean of NaN, and the gradient of h is 0.

Shape letters: B rows, H width of the layer, K targets per row, C classes.
"""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs
from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from zloss.kernels.tiles import power_of_2
from zloss.streams import Branch

_FEW_TARGETS = 2  # up to this number of targets per row, the forward pass computes their rows of W


class Begun(NamedTuple):
    """The first products of the update by a batch of B < H rows, which may still run on branches."""

    inner_branch: Branch
    inner: Tensor  # (B, B) h h^T
    scatter: Tensor  # (B, B) h gram h^T
    turned_branch: Branch
    turned: Tensor  # (B, 2 H) h U^T and h U_inv
    rounded: Tensor  # (B, H) h U_inv in float32

    @classmethod
    def of(cls, h: Tensor, hg: Tensor, pack: Tensor) -> "Begun":
        """Begin with a batch (B, H), its product with the Gram matrix, and the current factors."""
        inner_branch, turned_branch = Branch(), Branch()
        with inner_branch.open():
            inner, scatter = h @ h.T, hg @ h.T
        with turned_branch.open():
            turned = h @ pack[1:].flatten(0, 1).T
            rounded = turned[:, h.shape[1] :].float().contiguous()
        return cls(inner_branch, inner, scatter, turned_branch, turned, rounded)

    def join(self) -> None:
        """Make the main line wait for both branches."""
        self.inner_branch.join()
        self.turned_branch.join()


class Statistics(NamedTuple):
    """The results of a forward pass, and the tensors that the backward pass and the step need."""

    scores: Tensor  # (B, K) activations of the targets, 0 where ignored
    mean: Tensor  # (B,) float32
    scatter: Tensor  # (B,) float32
    valid: Tensor  # (B, K) bool
    classes: Tensor  # (B, K) int64, the targets, every entry in [0, C)
    h: Tensor  # (B, H) the batch with its bias column, in the dtype of products, like `hg` and `rows`
    hg: Tensor  # (B, H) h @ gram
    rows: Tensor  # (B, K, H) V[classes] @ U; empty if there are many targets
    exact_mean: Tensor  # (B,) float64
    fault: Tensor  # () int64, the bits of this batch


class Gradient(NamedTuple):
    """The results of a backward pass."""

    h: Tensor  # in the shape and dtype of the h of the caller
    curvature: Tensor  # (B,) 2 dL/dscatter, float64
    mean: Tensor  # (B,) dL/dmean / C, float64
    target: Tensor  # (B, K) dL/do_t, 0 where ignored, float64
    target_rows: Tensor  # (B, H) sum over the targets of dL/do_t W_t, in the dtype of products


def statistics(
    h: Tensor,  # (B, H), or one column less if the layer has a bias
    target: Tensor,  # (B, K) int64
    V: Tensor,  # (C, H) float32
    omega: Tensor,  # (H,)
    wbar: Tensor,  # (H,)
    pack: Tensor,  # (3, H, H) gram, U and U_inv^T in the dtype of products
    *,
    ignore_index: int,
    target_fault: int,
    hidden_fault: int,
    layer_fault: Tensor,  # () int64, changed in place
    begins_step: bool = False,
) -> tuple[Statistics, Begun | None]:
    """Return the statistics of the activations `h @ (V U + 1 omega^T)^T`, and the begun products or None."""
    (rows, own_width), num_targets, width = h.shape, target.shape[1], V.shape[1]
    is_few = num_targets <= _FEW_TARGETS
    gathered = pack.new_empty(1 + (num_targets if is_few else 0), rows, width)
    index, bits = torch.empty_like(target), torch.empty(rows, dtype=torch.long, device=h.device)
    valid = torch.empty(target.shape, dtype=torch.bool, device=h.device)
    fault = torch.empty((), dtype=torch.long, device=h.device)
    sizes = {"H": width, "K": num_targets, "WIDTH": power_of_2(width), "num_warps": 4}
    with torch.cuda.device_of(h):
        if rows:
            _gather[(rows,)](
                h.contiguous(), target.contiguous(), V, gathered, index, valid, bits, fault, rows, len(V), ignore_index,
                OWN=own_width, FAULT=target_fault, GATHERS=is_few, **sizes,
            )  # fmt: skip
        hg, turned = _multiply(gathered, pack)
        begun = Begun.of(gathered[0], hg, pack) if begins_step and rows < width else None
        scores, means = V.new_empty(target.shape), pack.new_empty(rows, dtype=torch.float64)
        moments = V.new_empty(2, rows)
        if rows:
            _reduce[(rows,)](
                gathered, hg, turned, V, index, omega, wbar, valid, bits, scores, moments, means, fault, layer_fault,
                rows, FAULT=hidden_fault, IS_FEW=is_few, **sizes,
            )  # fmt: skip
        else:
            fault.zero_()
    w_rows = turned.transpose(0, 1) if is_few else turned.new_empty(0)
    made = Statistics(
        scores, moments[0], moments[1], valid, index, gathered[0], hg, w_rows, means, fault
    )
    return made, begun


def _multiply(
    gathered: Tensor, pack: Tensor
) -> tuple[Tensor, Tensor]:  # (B, H), (K, B, H) or (B, H)
    """Return `h @ gram`, and `V[t] @ U` or else `h @ U^T`."""
    if len(gathered) == 1:
        return gathered[0] @ pack[0], gathered[0] @ pack[1].T
    if len(gathered) == 2:
        both = torch.bmm(gathered, pack[:2])
        return both[0], both[1:]
    return gathered[0] @ pack[0], (gathered[1:].flatten(0, 1) @ pack[1]).reshape(gathered[1:].shape)


def gradient(
    score_grad: Tensor,  # (B, K)
    mean_grad: Tensor,  # (B,)
    scatter_grad: Tensor,  # (B,)
    passed: Statistics,
    V: Tensor,  # (C, H)
    omega: Tensor,  # (H,)
    wbar: Tensor,  # (H,)
    pack: Tensor,  # (3, H, H) as in `statistics`
    *,
    shape: torch.Size,  # of the h of the caller
    dtype: torch.dtype,  # of the h of the caller
) -> Gradient:
    """Return the gradient of h, and the parts of the gradient of W that the step needs."""
    (rows, width), num_targets = passed.hg.shape, passed.classes.shape[1]
    made = Gradient(
        h=passed.hg.new_empty(shape, dtype=dtype),
        curvature=torch.empty_like(passed.exact_mean),
        mean=torch.empty_like(passed.exact_mean),
        target=passed.exact_mean.new_empty(rows, num_targets),
        target_rows=torch.empty_like(passed.hg),
    )
    if rows:
        score_grad, is_few = score_grad.contiguous(), num_targets <= _FEW_TARGETS
        sizes = {"H": width, "K": num_targets, "WIDTH": power_of_2(width), "num_warps": 4}
        with torch.cuda.device_of(passed.hg):
            w_rows = (
                passed.rows.transpose(0, 1)
                if is_few
                else _weighted_rows(score_grad, passed, V, sizes) @ pack[1]
            )
            _gradient[(rows,)](
                score_grad, mean_grad.contiguous(), scatter_grad.contiguous(),
                passed.valid, passed.hg, w_rows, passed.fault, omega, wbar,
                made.h, made.curvature, made.mean, made.target, made.target_rows, rows, len(V),
                OWN=shape[1], IS_FEW=is_few, **sizes,
            )  # fmt: skip
    return made


def _weighted_rows(
    score_grad: Tensor, passed: Statistics, V: Tensor, sizes: dict[str, int]
) -> Tensor:  # (B, H)
    """Return the sum over the targets of dL/do_t V_t."""
    weighted = torch.empty_like(passed.h)
    _weigh[(len(weighted),)](score_grad, passed.valid, passed.classes, V, weighted, **sizes)
    return weighted


@triton.jit
def _gather(
    h, target, V, gathered, index, valid, bits, fault, B, C, ignore_index,
    OWN: tl.constexpr, FAULT: tl.constexpr, GATHERS: tl.constexpr,
    H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gather a row of the batch with its bias column and, if `GATHERS`, the rows of V for its targets."""
    i, j = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    row = tl.load(h + i * OWN + j, mask=j < OWN, other=0).to(gathered.dtype.element_ty)
    tl.store(gathered + i * H + j, tl.where(j < OWN, row, 1), mask=j < H)
    found = 0
    for k in range(K):
        asked = tl.load(target + i * K + k)
        is_valid = asked != ignore_index
        known = tl.where(is_valid & (asked >= 0) & (asked < C), asked, 0)
        found = found | tl.where(is_valid & (known != asked), FAULT, 0)
        tl.store(valid + i * K + k, is_valid)
        tl.store(index + i * K + k, known)
        if GATHERS:
            own = tl.load(V + known * H + j, mask=j < H, other=0).to(gathered.dtype.element_ty)
            tl.store(gathered + ((k + 1) * B + i) * H + j, own, mask=j < H)
    tl.store(bits + i, found)
    if i == 0:
        tl.store(fault, 0)  # `_reduce` sets bits in it later


@triton.jit
def _reduce(
    gathered, hg, turned, V, index, omega, wbar, valid, bits, scores, moments, means, fault, layer_fault, B,
    FAULT: tl.constexpr, IS_FEW: tl.constexpr, H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Reduce a row to its statistics, in float64."""
    i, j = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    row = tl.load(gathered + i * H + j, mask=j < H, other=0).to(tl.float64)
    mean = tl.sum(row * tl.load(wbar + j, mask=j < H, other=0))
    shift = tl.load(omega + j, mask=j < H, other=0)
    scatter = tl.sum(row * tl.load(hg + i * H + j, mask=j < H, other=0))
    # 0 x is 0 for a finite x, and NaN otherwise. A sum that is finite in float64 may overflow the dtype of the result.
    found = tl.load(bits + i) | tl.where(
        (mean + scatter).to(moments.dtype.element_ty) * 0 == 0, 0, FAULT
    )
    if not IS_FEW:
        hu, level = (
            tl.load(turned + i * H + j, mask=j < H, other=0).to(tl.float64),
            tl.sum(row * shift),
        )
    for k in range(K):
        if IS_FEW:
            own = tl.load(turned + (k * B + i) * H + j, mask=j < H, other=0) + shift
            score = tl.sum(row * own)
        else:
            own = tl.load(V + tl.load(index + i * K + k) * H + j, mask=j < H, other=0)
            score = tl.sum(hu * own) + level
        score = tl.where(tl.load(valid + i * K + k), score, 0)
        tl.store(scores + i * K + k, score.to(scores.dtype.element_ty))
    tl.store(means + i, mean)
    tl.store(moments + i, tl.where(found == 0, mean, float("nan")).to(moments.dtype.element_ty))
    tl.store(moments + B + i, tl.where(scatter > 0, scatter, 0).to(moments.dtype.element_ty))
    if found != 0:
        tl.atomic_or(fault, found)
        tl.atomic_or(layer_fault, found)


@triton.jit
def _gradient(
    score_grad, mean_grad, scatter_grad, valid, hg, w_rows, fault, omega, wbar,
    grad_h, curvature, mean_out, target_out, target_rows, B, C,
    OWN: tl.constexpr, IS_FEW: tl.constexpr, H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute a row of `A h G + dL/dmean wbar + sum_k dL/do_k W_k`."""
    i, j = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    bend = 2 * tl.load(scatter_grad + i).to(tl.float64)
    level = tl.load(mean_grad + i).to(tl.float64)
    tl.store(curvature + i, bend)
    tl.store(mean_out + i, level / C)
    shift = tl.load(omega + j, mask=j < H, other=0).to(tl.float64)
    own = shift * 0
    if not IS_FEW:
        own += tl.load(w_rows + i * H + j, mask=j < H, other=0)
    for k in range(K):
        g = tl.where(tl.load(valid + i * K + k), tl.load(score_grad + i * K + k), 0).to(tl.float64)
        tl.store(target_out + i * K + k, g)
        own += g * shift
        if IS_FEW:
            own += g * tl.load(w_rows + (k * B + i) * H + j, mask=j < H, other=0)
    tl.store(target_rows + i * H + j, own.to(target_rows.dtype.element_ty), mask=j < H)
    bent = bend * tl.load(hg + i * H + j, mask=j < H, other=0)
    result = bent + level * tl.load(wbar + j, mask=j < H, other=0) + own
    # The layers below must not learn from a batch that this layer has refused.
    result = tl.where(tl.load(fault) == 0, result, 0)
    tl.store(grad_h + i * OWN + j, result.to(grad_h.dtype.element_ty), mask=j < OWN)


@triton.jit
def _weigh(
    score_grad, valid, classes, V, weighted, H: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr
):
    """Compute a row of the sum over the targets of dL/do_t V_t."""
    i, j = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH,), tl.float64)
    for k in range(K):
        g = tl.where(tl.load(valid + i * K + k), tl.load(score_grad + i * K + k), 0).to(tl.float64)
        total += g * tl.load(V + tl.load(classes + i * K + k) * H + j, mask=j < H, other=0)
    tl.store(weighted + i * H + j, total.to(weighted.dtype.element_ty), mask=j < H)
