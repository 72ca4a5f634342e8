"""Cases for the kernels of the factored layer: a layer, a batch that has passed it by definition, and the calls."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import zloss
from zloss.kernels import load
from zloss.layers.gradient import RecordedGradient

CLASSES, LR, DECAY, IGNORED = 300, 20.0, 1e-3, -100
TARGET, HIDDEN, GRADIENT, SINGULAR = 1, 2, 4, 8
# Rows, width, targets per row: on both sides of B = H, and so that no size is a multiple of a tile.
SIZES = [(7, 16, 1), (5, 40, 3), (9, 24, 2), (40, 33, 1), (70, 20, 2), (33, 20, 5), (16, 16, 1)]
DTYPES = [torch.float64, torch.float32]  # of products
# The definition computes in float64. Sums of some dozens of float32 products are exact to a few times 6e-8. Some parts
# are float32 even with float64 products: the statistics, V, and the terms of the series, relative to the change of
# U_inv.
FLOAT32 = 1e-6


class Case(NamedTuple):
    """A layer, the results of a batch by definition, and the input of the kernels."""

    layer: zloss.FactoredLinear
    stats: zloss.SphericalStats
    h: Tensor
    target: Tensor
    stats_grads: tuple[Tensor, ...]
    record: RecordedGradient
    pack: Tensor
    fault: Tensor


def make_case(
    rows: int,
    width: int,
    targets: int,
    dtype: torch.dtype,
    device: torch.device,
    bias: bool = False,
) -> Case:
    layer = zloss.FactoredLinear(
        width,
        CLASSES,
        bias=bias,
        device=device,
        product_dtype=torch.float64,
        synchronous=True,
        implementation="torch",
    )
    optimizer, loss = zloss.FactoredSGD(layer, LR, weight_decay=DECAY), zloss.ZLoss(a=0.2, b=8.0)
    for _ in range(3):  # away from U = 1
        loss(
            layer(torch.randn(9, width, device=device), torch.randint(CLASSES, (9,), device=device))
        ).backward()
        optimizer.step()
    h = torch.randn(rows, width, device=device, requires_grad=True)
    target = torch.randint(40, (rows, targets), device=device)  # some repeat
    target[torch.rand(rows, targets, device=device) < 0.1] = IGNORED
    stats = layer(h, target)
    value = loss(stats)
    grads = torch.autograd.grad(value, [stats.target, stats.mean, stats.scatter], retain_graph=True)
    value.backward()
    record = layer.recorded_gradient()
    assert record is not None
    pack, update = (
        torch.empty(3, *layer.U.shape, dtype=dtype, device=device),
        load("factored_update"),
    )
    report = torch.ones(update.report_length(len(layer.U)), dtype=torch.float64, device=device)
    update.refresh_(pack, report, layer.gram, layer.U, layer.U_inv)
    assert report.sum() == 2, "the norms of other factors are forgotten, the fault is not"
    return Case(
        layer,
        stats,
        h,
        target,
        grads,
        record,
        pack,
        torch.zeros((), dtype=torch.long, device=device),
    )


def statistics(case: Case, h: Tensor | None = None, target: Tensor | None = None) -> Any:
    layer = case.layer
    made, begun = load("factored_statistics").statistics(
        case.h.detach() if h is None else h,
        case.target if target is None else target,
        layer.V.detach(),
        layer.omega,
        layer.wbar,
        case.pack,
        ignore_index=IGNORED,
        target_fault=TARGET,
        hidden_fault=HIDDEN,
        layer_fault=case.fault,
    )
    assert begun is None, "nobody has asked for it"
    return made


def gradient(case: Case, made: Any) -> Any:
    return load("factored_statistics").gradient(
        *case.stats_grads,
        made,
        case.layer.V.detach(),
        case.layer.omega,
        case.layer.wbar,
        case.pack,
        shape=case.h.shape,
        dtype=case.h.dtype,
    )


def step(
    case: Case,
    lr: float = LR,
    decay: float = DECAY,
    scale: float = 1.0,
    most_condition: float = 1e3,
    norms: float = 0.0,
) -> tuple[list[Tensor], Tensor]:
    """Return V and the factors after a step, and the report on it."""
    update, made = load("factored_update"), statistics(case)
    grad, state = (
        gradient(case, made),
        [case.layer.V.detach().clone(), *(part.clone() for part in case.layer.factors())],
    )
    report = torch.zeros(
        update.report_length(len(case.layer.U)), dtype=torch.float64, device=case.h.device
    )
    report[2:] = norms
    update.step_(
        update.State(*state, case.pack, case.fault, report),
        update.Batch(
            made.h, made.hg, made.exact_mean, scale * grad.curvature, scale * grad.mean,
            made.classes, scale * grad.target, scale * grad.target_rows,
        ),
        lr,
        decay,
        most_condition=most_condition,
        gradient_fault=GRADIENT,
        singular_fault=SINGULAR,
    )  # fmt: skip
    return state, report


def largest_curvature(case: Case) -> float:
    """Return the inverse of the learning rate at which P is singular."""
    k1 = case.record.h.T @ (case.record.curvature[:, None] * case.record.h)
    return float(torch.linalg.eigvalsh(k1)[-1])


def error(value: Tensor, expected: Tensor) -> float:
    scale = expected.detach().double().norm().clamp_min(1e-300)
    return float((value - expected).detach().double().norm() / scale)
