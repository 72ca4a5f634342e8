"""Every head keeps the promises of `zloss.Head`, judged by its slow definition in float64."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

import zloss
from tests.heads.registry import (
    CASES,
    CLASSES,
    HIDDEN,
    LOGIT_LOSSES,
    HeadCase,
    Weights,
    every_head,
    every_head_but_row_sparse,
    every_head_of_ours,
    every_head_with_a_foreign_loss,
    every_other_head,
    every_probability_model,
    every_row_sparse_head,
    unregistered,
)
from tests.losses.registry import CASES as LOSS_CASES
from zloss.heads.config import HEADS

ROWS = 12
IGNORED = -100
DRAWS = 5  # the seed of whatever a step draws
# float64; sums of up to 53 terms of size 1, and products of 8: some 1e-14. Any slip in a formula is far above 1e-10.
assert_close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-12)


# ---- help ------------------------------------------------------------------------------------------------------------


def hidden(rows: int = ROWS, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> Tensor:
    h = torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(rows), dtype=torch.float64)
    return h.to(device, dtype).requires_grad_()


def spread(*shape: int) -> Tensor:
    """Classes from all over their range, some of them twice."""
    return torch.arange(math.prod(shape)).mul(17).remainder(CLASSES + 3).remainder(CLASSES).reshape(shape)


def repeated(target: Tensor) -> Tensor:
    return torch.cat([target[:1].expand(3, *target.shape[1:]), target[3:]])


def with_ignored(target: Tensor, *rows: int) -> Tensor:
    target = target.clone()
    target[list(rows)] = IGNORED
    return target


def ragged() -> Tensor:
    """Three targets a row, fewer where the rest is padding: none in row 2, and the first of row 4 is missing."""
    target = with_ignored(spread(ROWS, 3), 2)
    target[::3, 1:] = IGNORED
    target[1, 2] = target[4, 0] = IGNORED
    target[5] = target[5, 0]  # thrice the same
    return target


def seeded(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Call what may draw at random, from the same point every time."""
    torch.manual_seed(DRAWS)
    return function(*args, **kwargs)


def leaves(weights: Weights) -> Weights:
    return {name: weight.requires_grad_() for name, weight in weights.items()}


def per_example(case: HeadCase, weights: Weights, h: Tensor, target: Tensor, ignored: int = IGNORED) -> Tensor:  # (B,)
    """The loss of each example by definition: the average over its targets that are not ignored."""
    shaped = target.long().reshape(len(h), -1)
    rows, columns = (shaped != ignored).nonzero(as_tuple=True)
    pairs = case.definition(weights, h[rows], shaped[rows, columns])
    return h.new_zeros(len(h)).index_add(0, rows, pairs) / (shaped != ignored).sum(1).clamp_min(1)


def reduced(rows: Tensor, target: Tensor, reduction: str, ignored: int = IGNORED) -> Tensor:
    counted = (target.reshape(len(rows), -1) != ignored).any(1).sum()
    return {"none": rows, "sum": rows.sum(), "mean": rows.sum() / counted.clamp_min(1)}[reduction]


def gradients(value: Tensor, weights: Weights) -> Weights:
    found = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
    pairs = zip(weights.items(), found, strict=True)
    return {name: torch.zeros_like(weight) if grad is None else grad for (name, weight), grad in pairs}


def by_definition(case: HeadCase, head: zloss.Head, h: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Weights]:
    """The mean loss of a batch, its gradient in h and in each weight."""
    weights = leaves(case.weights(head))
    value = reduced(seeded(per_example, case, weights, h, target), target, "mean")
    grads = gradients(value, {"h": h, **weights})
    return value.detach(), grads.pop("h"), grads


def assert_stepped(case: HeadCase, head: zloss.Head, before: Weights, change: Weights) -> None:
    """Every weight has changed by `change`, up to 1e-10 of it and the rounding of the weight itself."""
    for name, after in case.weights(head).items():
        error = (after - (before[name] + change[name])).abs().max()
        rounding = 4 * torch.finfo(after.dtype).eps * before[name].abs().max()
        assert error <= 1e-10 * change[name].abs().max() + rounding, name


def stepped_by(grads: Weights, lr: float) -> Weights:
    return {name: -lr * grad for name, grad in grads.items()}


def gradient_of(h: Tensor) -> Tensor:
    assert h.grad is not None
    return h.grad


def has_gradient(head: zloss.Head) -> bool:
    """A factored layer has a parameter that is marked while a gradient of its weights is recorded."""
    return any(parameter.grad is not None for parameter in head.parameters())


def step(head: zloss.Head, h: Tensor, target: Tensor, lr: float = 0.5) -> Tensor:
    loss = seeded(head, h, target)
    loss.backward()
    optimizer = head.sgd(lr)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def good_batch(head: zloss.Head) -> tuple[Tensor, Tensor]:
    weight = head.reference_weight
    return hidden(device=weight.device, dtype=weight.dtype), spread(ROWS).to(weight.device)


# ---- the registry ----------------------------------------------------------------------------------------------------


def test_every_public_head_is_registered() -> None:
    assert unregistered(vars(zloss).values()) == [], "add a row to CASES in tests/heads/registry.py"


def test_every_pair_of_the_config_is_registered() -> None:
    pairs = {(name, loss) for name, kind in HEADS.items() for loss in kind.losses}
    assert pairs - {(case.kind, case.loss) for case in CASES} == set(), "add rows to CASES in tests/heads/registry.py"


def test_a_head_that_was_forgotten_is_seen() -> None:
    class Forgotten(zloss.DenseOutput):
        """A head that no case makes."""

    assert unregistered([Forgotten, zloss.DenseOutput, zloss.Head, zloss.FactoredLinear, "a string"]) == ["Forgotten"]


def test_names_tell_the_cases_apart() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


NAMES_OF_LOSSES = {
    "softmax": "SoftmaxCrossEntropy",
    "sigmoid": "SigmoidCrossEntropy",
    "z_softmax": "ZSoftmax",
    "z_sigmoid": "ZSigmoid",
    "z_loss": "ZLoss",
    "squared_error": "SquaredError",
    "taylor_softmax": "TaylorSoftmax",
    "spherical_softmax": "SphericalSoftmax",
    "torch's softmax": "CrossEntropyLoss",
    "torch's z_softmax": "ZSoftmax",
}


@pytest.mark.parametrize("name", LOGIT_LOSSES)
def test_a_definition_here_is_that_of_the_losses(name: str) -> None:
    """Those are plain loops over Python numbers, these are for autograd: two ways to write one formula."""
    (definition,) = [case.definition for case in LOSS_CASES if case.name == NAMES_OF_LOSSES[name]]
    logits, index = torch.randn(6, 9, dtype=torch.float64), torch.tensor([0, 3, 8, 3, 1, 2])
    loops = [definition(row, c) for row, c in zip(logits.tolist(), index.tolist(), strict=True)]
    assert_close(LOGIT_LOSSES[name].definition(logits, index), torch.tensor(loops, dtype=torch.float64))


@every_head
def test_a_head_is_what_it_claims_to_be(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    assert head.is_likelihood == (case.log_prob is not None)
    assert head.is_row_sparse == case.is_row_sparse
    assert (head.in_features, head.num_classes, head.ignore_index) == (HIDDEN, CLASSES, IGNORED)
    assert head.reference_weight.shape[1] == HIDDEN


@every_row_sparse_head
def test_row_sparse_gradients_are_sparse(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    seeded(head, *good_batch(head)).backward()
    per_class = [parameter.grad for parameter in head.parameters() if len(parameter) == CLASSES]
    assert per_class
    assert all(grad is not None and grad.layout == torch.sparse_coo for grad in per_class)


@every_head_but_row_sparse
def test_other_gradients_are_not(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    seeded(head, *good_batch(head)).backward()
    assert all(parameter.grad is None or not parameter.grad.is_sparse for parameter in head.parameters())


# ---- training --------------------------------------------------------------------------------------------------------

BATCHES: dict[str, Tensor] = {
    "one target": spread(ROWS),
    "repeated": repeated(spread(ROWS)),
    "some rows ignored": with_ignored(spread(ROWS), 0, 5, 6),
    "one row": spread(1),
    "as a column": spread(ROWS, 1),
    "three targets": spread(ROWS, 3),
    "ragged": ragged(),
    "all ignored": torch.full((ROWS,), IGNORED),
    "all of several ignored": torch.full((ROWS, 2), IGNORED),
    "no rows": spread(0),
    "no rows of two": spread(0, 2),
}
FOREIGN_LOSSES_TAKE = ["one target", "repeated", "some rows ignored", "one row", "as a column"]


def assert_is_its_definition(
    case: HeadCase, head: zloss.Head, target: Tensor, reduction: str, weight: Tensor | None, ignored: int = IGNORED
) -> None:
    """Value, gradient of h, and one step of SGD on all weights."""
    device, lr = head.reference_weight.device, 0.5
    h, target = hidden(len(target), device=device), target.to(device)
    before, weights = case.weights(head), leaves(case.weights(head))
    rows = seeded(per_example, case, weights, h, target, ignored)
    expected = reduced(rows if weight is None else rows * weight, target, reduction, ignored)
    upstream = torch.linspace(-1, 2, expected.numel(), dtype=torch.float64, device=device).reshape(expected.shape)
    grads = gradients((expected * upstream).sum(), {"h": h, **weights})

    value = seeded(head, h, target, **({} if weight is None else {"weight": weight}))
    assert_close(value, expected)
    (value * upstream).sum().backward()
    assert_close(gradient_of(h), grads.pop("h"))
    empty = (target.reshape(len(h), -1) == ignored).all(1)
    assert gradient_of(h)[empty].count_nonzero() == 0, "exactly zero, not almost"
    if reduction == "none":
        assert value.detach()[empty].count_nonzero() == 0
    head.sgd(lr).step()
    assert_stepped(case, head, before, stepped_by(grads, lr))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("name", BATCHES)
@every_head
def test_loss_gradients_and_step(case: HeadCase, name: str, reduction: str, device: torch.device) -> None:
    if not case.is_ours and name not in FOREIGN_LOSSES_TAKE:
        pytest.skip("a loss of torch: one target per example, and NaN for the mean of none")
    assert_is_its_definition(case, case.made(device, reduction=reduction), BATCHES[name], reduction, None)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("name", ["some rows ignored", "ragged"])
@every_head_of_ours
def test_row_weights(case: HeadCase, name: str, reduction: str, device: torch.device) -> None:
    weight = torch.linspace(-1, 3, ROWS, dtype=torch.float64, device=device)
    weight[3] = 0
    assert_is_its_definition(case, case.made(device, reduction=reduction), BATCHES[name], reduction, weight)


@every_head_of_ours
def test_row_weights_of_ignored_rows_do_not_matter(case: HeadCase, device: torch.device) -> None:
    head, target = case.made(device), BATCHES["some rows ignored"].to(device)
    weight = torch.ones(ROWS, dtype=torch.float64, device=device)
    weight[[0, 5, 6]] = math.nan
    h = hidden(device=device)
    value = seeded(head, h, target, weight=weight)
    assert_close(value, seeded(head, h, target))
    value.backward()
    assert gradient_of(h).isfinite().all()


@pytest.mark.parametrize("ignored", [-1, 0, 11, CLASSES, 10**6])
@every_head
def test_another_ignore_index(case: HeadCase, ignored: int, device: torch.device) -> None:
    """Which may even be a class: it is no target then."""
    target = torch.where(BATCHES["some rows ignored"] == IGNORED, ignored, BATCHES["some rows ignored"])
    assert_is_its_definition(case, case.made(device, ignore_index=ignored), target, "mean", None, ignored)
    head = case.made(device, ignore_index=ignored)
    assert (head.rank(hidden(device=device), target.to(device)) == 0).tolist() == (target == ignored).tolist()


@every_head
def test_the_default_ignore_index_is_no_class_under_another(case: HeadCase, device: torch.device) -> None:
    if device.type == "cuda":
        pytest.skip("values are reported later on a GPU: see the tests of bad batches there")
    head = case.made(device, ignore_index=-1)
    with pytest.raises(ValueError, match="target -100 is out of range"):
        head(hidden(device=device), BATCHES["some rows ignored"].to(device))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
@every_head
def test_targets_may_have_any_integer_type(case: HeadCase, dtype: torch.dtype, device: torch.device) -> None:
    head = case.made(device)
    h, target = good_batch(head)
    assert torch.equal(seeded(head, h, target.to(dtype)), seeded(head, h, target))
    assert torch.equal(head.rank(h, target.to(dtype)), head.rank(h, target))


@every_head
def test_a_column_of_targets_is_one_target_each(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    h, target = good_batch(head)
    assert torch.equal(seeded(head, h, target[:, None]), seeded(head, h, target))
    assert torch.equal(head.rank(h, target[:, None]), head.rank(h, target)[:, None])


@every_head_with_a_foreign_loss
def test_a_foreign_loss_says_what_it_cannot_do(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    h, target = good_batch(head)
    for options in ({"weight": torch.ones(ROWS, device=device)}, {}):
        with pytest.raises(ValueError, match="CrossEntropyLoss is not of this library: it takes one target per"):
            head(h, target if options else spread(ROWS, 2).to(device), **options)
    assert not has_gradient(head)


@every_head
def test_gradients_accumulate_until_the_step(case: HeadCase, device: torch.device) -> None:
    head, lr = case.made(device), 0.5
    batches = [(hidden(rows, device=device), spread(rows).to(device)) for rows in (5, ROWS)]
    before, weights = case.weights(head), leaves(case.weights(head))
    torch.manual_seed(DRAWS)
    total = sum(per_example(case, weights, h, target).mean() for h, target in batches)
    assert isinstance(total, Tensor)
    torch.manual_seed(DRAWS)
    for h, target in batches:
        head(h, target).backward()
    head.sgd(lr).step()
    assert_stepped(case, head, before, stepped_by(gradients(total, weights), lr))


@every_head
def test_steps_start_anew_after_zero_grad(case: HeadCase, device: torch.device) -> None:
    head, optimizer = case.made(device), None
    h, target = good_batch(head)
    optimizer = head.sgd(0.5)
    seeded(head, h, target).backward()
    optimizer.zero_grad()
    assert not has_gradient(head)
    before, (_, _, grads) = case.weights(head), by_definition(case, head, h, target)
    seeded(head, h, target).backward()
    optimizer.step()
    assert_stepped(case, head, before, stepped_by(grads, 0.5))


@pytest.mark.parametrize("steps", [4])
@every_head
def test_several_steps(case: HeadCase, steps: int, device: torch.device) -> None:
    """Compared after every one of them: a step starts from what the last one left."""
    head = case.made(device)
    optimizer = head.sgd(0.5)
    for rows in range(3, 3 + steps):
        h, target = hidden(rows, device=device), spread(rows).to(device)
        before, (value, grad_h, grads) = case.weights(head), by_definition(case, head, h, target)
        loss = seeded(head, h, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert_close(loss, value)
        assert_close(gradient_of(h), grad_h)
        assert_stepped(case, head, before, stepped_by(grads, 0.5))


@every_head
def test_without_grad_there_is_no_gradient(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    h, target = good_batch(head)
    before = case.weights(head)
    with torch.no_grad():
        loss = seeded(head, h, target)
    assert not loss.requires_grad
    assert_close(loss, seeded(head, h, target))
    head.rank(h, target)
    head.topk(h, 3)
    assert not has_gradient(head)
    assert h.grad is None
    head.sgd(0.5).step()
    assert all(torch.equal(after, before[name]) for name, after in case.weights(head).items())


@every_head
def test_a_frozen_head_passes_gradients_on(case: HeadCase, device: torch.device) -> None:
    head = case.made(device).requires_grad_(False)
    h, target = good_batch(head)
    before, (_, grad_h, _) = case.weights(head), by_definition(case, head, h, target)
    seeded(head, h, target).backward()
    assert_close(gradient_of(h), grad_h)
    assert not has_gradient(head)
    head.requires_grad_(True)
    head.sgd(0.5).step()
    assert all(torch.equal(after, before[name]) for name, after in case.weights(head).items())


@every_head
def test_h_may_need_no_gradient(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    h, target = good_batch(head)
    before, (_, _, grads) = case.weights(head), by_definition(case, head, h, target)
    step(head, h.detach(), target)
    assert_stepped(case, head, before, stepped_by(grads, 0.5))


@every_head
def test_each_parameter_may_be_trained_alone(case: HeadCase, device: torch.device) -> None:
    """The bias, for one."""
    if case.kind == "factored":
        pytest.skip("a factored layer is trained as a whole")
    head = case.made(device)
    h, target = good_batch(head)
    _, _, grads = by_definition(case, head, h, target)
    for name, parameter in head.named_parameters():
        head.requires_grad_(False)
        parameter.requires_grad_(True)
        seeded(head, h.detach(), target).backward()
        others = [other for other in head.parameters() if other is not parameter]
        assert all(other.grad is None for other in others)
        assert parameter.grad is not None
        assert_close(parameter.grad.to_dense(), grads[name])
        head.zero_grad()


@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
@every_head
def test_clipping_is_that_of_the_dense_gradient(case: HeadCase, max_norm: float, device: torch.device) -> None:
    head, target = case.made(device), BATCHES["repeated"].to(device)
    h = hidden(device=device)
    before, (_, _, grads) = case.weights(head), by_definition(case, head, h, target)
    expected = torch.stack([grad.norm() for grad in grads.values()]).norm()
    seeded(head, h.detach(), target).backward()
    norm = zloss.clip_grad_norm_([head], max_norm)
    assert_close(norm, expected)
    head.sgd(0.5).step()
    factor = min(1.0, max_norm / (expected.item() + 1e-6))
    assert (factor < 1) == (max_norm < 1)
    assert_stepped(case, head, before, stepped_by(grads, 0.5 * factor))


@every_head_but_row_sparse
def test_weight_decay(case: HeadCase, device: torch.device) -> None:
    head, decay = case.made(device), 0.3
    h, target = good_batch(head)
    before, (_, _, grads) = case.weights(head), by_definition(case, head, h, target)
    optimizer = head.sgd(0.5, weight_decay=decay)
    seeded(head, h, target).backward()
    optimizer.step()
    change = {name: -0.5 * (grad + decay * before[name]) for name, grad in grads.items()}
    assert_stepped(case, head, before, change)


@every_row_sparse_head
def test_no_weight_decay_where_gradients_are_sparse(case: HeadCase, device: torch.device) -> None:
    with pytest.raises(ValueError, match=r"weight_decay=0\.1.*row-sparse"):
        case.made(device).sgd(0.5, weight_decay=0.1)


@every_head
def test_training_brings_the_loss_down(case: HeadCase, device: torch.device) -> None:
    """Six examples with a target each, in eight dimensions: all of them can be told from all other classes."""
    head = case.made(device)
    h, target = hidden(6, device=device).detach(), spread(6).to(device)
    optimizer, losses = head.sgd(case.lr), []
    for _ in range(200):
        optimizer.zero_grad()
        loss = head(h, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(map(math.isfinite, losses))
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert (head.rank(h, target) == 1).all()


# ---- evaluation ------------------------------------------------------------------------------------------------------


def ranks_by_definition(scores: Tensor, target: Tensor, margin: float = 0.0) -> Tensor:
    own = scores.gather(1, target.clamp_min(0).reshape(len(scores), -1))
    ranks = 1 + (scores[:, None] > own[..., None] + margin).sum(2)
    return torch.where(target.reshape(own.shape) == IGNORED, 0, ranks).reshape(target.shape)


@pytest.mark.parametrize("block_size", [1, 7, None])
@every_head
def test_topk_and_rank(case: HeadCase, block_size: int | None, device: torch.device) -> None:
    head, h = case.made(device), hidden(device=device)
    scores = case.scores(case.weights(head), h.detach())
    for k in (1, 5, CLASSES):
        values, classes = head.topk(h, k, block_size=block_size)
        assert torch.equal(classes, scores.argsort(1, descending=True)[:, :k])
        assert values.shape == (ROWS, k)
        assert not values.requires_grad
        assert (values.diff() <= 0).all()
    for target in (BATCHES["some rows ignored"].to(device), ragged().to(device)):
        ranks = head.rank(h, target, block_size=block_size)
        assert torch.equal(ranks, ranks_by_definition(scores, target))


@every_head
def test_topk_and_rank_after_training(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    h, target = good_batch(head)
    for _ in range(5):
        step(head, h.detach(), target)
    scores = case.scores(case.weights(head), h.detach())
    assert torch.equal(head.topk(h, 5)[1], scores.argsort(1, descending=True)[:, :5])
    assert torch.equal(head.rank(h, target), ranks_by_definition(scores, target))


@every_head
def test_topk_and_rank_agree(case: HeadCase, device: torch.device) -> None:
    head, h = case.made(device), hidden(device=device)
    ranks = head.rank(h, head.topk(h, CLASSES)[1])
    assert torch.equal(ranks, torch.arange(1, CLASSES + 1, device=device).expand(ROWS, -1))


@torch.no_grad()
def forget(head: zloss.Head) -> None:
    """All weights zero."""
    for parameter in head.parameters():
        parameter.zero_()
    if isinstance(head, zloss.SphericalOutput) and isinstance(head.layer, zloss.FactoredLinear):
        head.layer.adopt_rows()


@pytest.mark.parametrize("block_size", [1, 7, None])
@every_head
def test_ties_share_the_better_rank(case: HeadCase, block_size: int | None, device: torch.device) -> None:
    """Without weights all classes tie, or in a tree those that are in clusters of one size."""
    head, h = case.made(device), hidden(2, device=device)
    forget(head)
    every_class = torch.arange(CLASSES, device=device).expand(2, -1)
    # The definition may round equal scores differently, and different ones are a factor of 7/8 apart at least.
    scores = case.scores(case.weights(head), h.detach())
    expected = ranks_by_definition(scores, every_class, margin=1e-9)
    assert torch.equal(head.rank(h, every_class, block_size=block_size), expected)
    assert expected.unique().numel() < 8, "there are ties"


@every_head
def test_no_class_outranks_itself_in_float32(case: HeadCase, device: torch.device) -> None:
    """A score may differ in the last bit between two products."""
    head = case.made(device, dtype=torch.float32)
    h = torch.randn(300, HIDDEN, device=device)
    assert (head.rank(h, head.topk(h, 1)[1]) == 1).all()


@every_head
def test_evaluation_of_no_rows(case: HeadCase, device: torch.device) -> None:
    head, h, target = case.made(device), hidden(0, device=device), spread(0).to(device)
    assert head.rank(h, target).shape == (0,)
    assert [part.shape for part in head.topk(h, 3)] == [(0, 3), (0, 3)]
    if head.is_likelihood:
        assert head.log_prob(h).shape == (0, CLASSES)
        assert head.target_log_prob(h, target).shape == (0,)


@every_head
def test_evaluation_is_exact_under_autocast(case: HeadCase, device: torch.device) -> None:
    head = case.made(device, dtype=torch.float32)
    h, target = good_batch(head)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        values, classes = head.topk(h, CLASSES)
        ranks = head.rank(h, target)
        log_prob = head.log_prob(h) if head.is_likelihood else None
    assert all(map(torch.equal, head.topk(h, CLASSES), (values, classes)))
    assert torch.equal(head.rank(h, target), ranks)
    assert log_prob is None or torch.equal(head.log_prob(h), log_prob)


# ---- probabilities ---------------------------------------------------------------------------------------------------


@every_probability_model
def test_log_prob(case: HeadCase, device: torch.device) -> None:
    head, h = case.made(device), hidden(device=device)
    assert case.log_prob is not None
    log_prob = head.log_prob(h)
    assert_close(log_prob, case.log_prob(case.weights(head), h.detach()))
    assert_close(log_prob.exp().sum(1), torch.ones(ROWS, dtype=torch.float64, device=device))
    assert not log_prob.requires_grad
    of_the_best = log_prob.gather(1, head.topk(h, CLASSES)[1])
    assert (of_the_best.diff() <= 0).all(), "the best classes are the most probable ones"


@every_probability_model
def test_target_log_prob_and_perplexity(case: HeadCase, device: torch.device) -> None:
    head, h = case.made(device), hidden(device=device)
    log_prob = head.log_prob(h)
    for target in (BATCHES["some rows ignored"].to(device), ragged().to(device)):
        valid = target != IGNORED
        expected = log_prob.gather(1, target.clamp_min(0).reshape(ROWS, -1)).reshape(target.shape)
        expected = torch.where(valid, expected, 0)
        of_targets = head.target_log_prob(h, target)
        assert_close(of_targets, expected)
        assert of_targets[~valid].count_nonzero() == 0
        perplexity = math.exp(-(expected.sum() / valid.sum()).item())
        assert head.perplexity(h, target) == pytest.approx(perplexity, rel=1e-10)


@every_probability_model
def test_perplexity_in_two_halves(case: HeadCase, device: torch.device) -> None:
    head, h, target = case.made(device), hidden(device=device), BATCHES["some rows ignored"].to(device)
    metric = zloss.Perplexity()
    for part in (slice(0, 5), slice(5, None)):  # of different numbers of targets
        metric.update(head.target_log_prob(h[part], target[part]), counted=target[part] != IGNORED)
    assert metric.compute() == pytest.approx(head.perplexity(h, target), rel=1e-10)


@every_probability_model
def test_perplexity_needs_a_target(case: HeadCase, device: torch.device) -> None:
    with pytest.raises(ValueError, match="no targets yet"):
        case.made(device).perplexity(hidden(device=device), torch.full((ROWS,), IGNORED, device=device))


@every_other_head
def test_no_probabilities_where_there_is_no_model(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    h, target = good_batch(head)
    calls: list[Callable[[], object]] = [
        lambda: head.log_prob(h),
        lambda: head.target_log_prob(h, target),
        lambda: head.perplexity(h, target),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="is not a probability model: it ranks classes and gives them no prob"):
            call()


# ---- state -----------------------------------------------------------------------------------------------------------


def trained(case: HeadCase, device: torch.device, **options: Any) -> zloss.Head:
    head = case.made(device, **options)
    for _ in range(3):
        step(head, *good_batch(head))
    return head


def assert_same(head: zloss.Head, other: zloss.Head) -> None:
    """To the last bit: loss, ranks and a further step."""
    h, target = good_batch(head)
    assert torch.equal(seeded(other, h, target), seeded(head, h, target))
    assert torch.equal(other.rank(h, target), head.rank(h, target))
    assert all(map(torch.equal, other.topk(h, CLASSES), head.topk(h, CLASSES)))


@every_head
def test_state_dict_round_trip(case: HeadCase, device: torch.device) -> None:
    """Through a file that knows names and tensors only, into a head that was drawn otherwise."""
    head, other = trained(case, device), case.made(device, seed=1)
    h, target = good_batch(head)
    assert not torch.equal(seeded(other, h, target), seeded(head, h, target))
    other.load_state_dict(load(save(head.state_dict())))
    assert_same(head, other)
    assert step(head, h, target) == step(other, h, target)
    assert_same(head, other)


@every_head
def test_a_state_dict_is_complete_and_refuses_what_is_not(case: HeadCase, device: torch.device) -> None:
    state = case.made(device).state_dict()
    for name in state:
        with pytest.raises(RuntimeError, match="Missing key|clusters"):
            case.made(device).load_state_dict({key: value for key, value in state.items() if key != name})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        case.made(device).load_state_dict({**state, "surplus": torch.zeros(1)})


@every_head
def test_a_copy_is_the_same_and_independent(case: HeadCase, device: torch.device) -> None:
    head = trained(case, device)
    h, target = good_batch(head)
    seeded(head, h, target).backward()  # what is under way stays with the original
    twin = copy.deepcopy(head)
    head.zero_grad()
    twin.zero_grad()
    assert_same(head, twin)
    before = case.weights(head)
    step(twin, h.detach(), target)
    assert all(torch.equal(weight, before[name]) for name, weight in case.weights(head).items())
    moved = case.weights(twin)
    assert not any(torch.equal(moved[name], before[name]) for name in before)


@every_head
def test_conversion_to_float32(case: HeadCase, device: torch.device) -> None:
    head = trained(case, device)
    h, target = good_batch(head)
    exact = seeded(head, h, target)
    head = head.to(torch.float32)
    # eps = 1.2e-7, on sums of up to 53 terms of size 1; and the weights themselves are rounded.
    narrow = h.detach().float().requires_grad_()
    value = seeded(head, narrow, target)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=0)
    value.backward()
    assert gradient_of(narrow).dtype == torch.float32
    before = case.weights(head)
    head.sgd(0.5).step()
    moved = case.weights(head)
    assert all(weight.dtype == torch.float32 for weight in moved.values())
    assert not any(torch.equal(moved[name], before[name]) for name in before)


@every_head
def test_a_head_moves(case: HeadCase, device: torch.device) -> None:
    head = trained(case, torch.device("cpu"))
    h, target = good_batch(head)
    ranks = head.rank(h, target)
    head = head.to(device)
    assert torch.equal(head.rank(h.to(device), target.to(device)).cpu(), ranks)
    before = case.weights(head)
    step(head, h.detach().to(device), target.to(device))
    moved = case.weights(head)
    assert all(weight.device == device for weight in moved.values())
    assert not any(torch.equal(moved[name], before[name]) for name in before)


# ---- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden_dtype", [torch.float32, torch.bfloat16])
@every_head
def test_autocast(case: HeadCase, hidden_dtype: torch.dtype, device: torch.device) -> None:
    head = case.made(device, dtype=torch.float32)
    h, target = hidden(device=device, dtype=hidden_dtype), spread(ROWS).to(device)
    exact = seeded(head, h.detach().float(), target)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = seeded(head, h, target)
    assert loss.dtype == torch.float32
    # bfloat16 has 8 bits. Weights, h and logits of size 1 are rounded by up to 2^-9 each, so a logit errs by 0.01 at
    # most; a loss is a mean over 12 examples, of size 1 or more, and no steeper than a few logits.
    torch.testing.assert_close(loss, exact, rtol=0.02, atol=0)
    loss.backward()
    assert gradient_of(h).dtype == hidden_dtype
    assert gradient_of(h).isfinite().all()
    assert gradient_of(h).any()
    for parameter in head.parameters():
        if parameter.grad is not None:
            assert parameter.grad.dtype == torch.float32
    before = case.weights(head)
    head.sgd(0.5).step()
    moved = case.weights(head)
    assert not any(torch.equal(moved[name], before[name]) for name in before)
    assert all(weight.isfinite().all() for weight in moved.values())


@every_head
def test_half_precision_without_autocast_is_widened(case: HeadCase, device: torch.device) -> None:
    head = case.made(device, dtype=torch.float32)
    h, target = hidden(device=device, dtype=torch.bfloat16), spread(ROWS).to(device)
    loss = seeded(head, h, target)
    assert torch.equal(loss, seeded(head, h.detach().float(), target))
    loss.backward()
    assert gradient_of(h).dtype == torch.bfloat16
    assert gradient_of(h).any()
    assert torch.equal(head.rank(h, target), head.rank(h.float(), target))


# ---- bad input -------------------------------------------------------------------------------------------------------


def with_value(tensor: Tensor, value: float) -> Tensor:
    tensor = tensor.detach().clone()
    tensor.view(-1)[-1] = value
    return tensor


@contextmanager
def refuses(head: zloss.Head, message: str) -> Iterator[None]:
    """A ValueError that says so, and a head that is what it was to the last bit, without a gradient."""
    state = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        yield
    assert all(torch.equal(tensor, state[name]) for name, tensor in head.state_dict().items())
    assert not has_gradient(head)


BAD_HIDDEN: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "NaN": (lambda h: with_value(h, math.nan), "h has a NaN or an infinity"),
    "infinite": (lambda h: with_value(h, -math.inf), "h has a NaN or an infinity"),
    "integers": (lambda h: h.long(), r"floating-point tensor of shape \(B, 8\), got dtype torch\.int64"),
    "complex": (lambda h: h.to(torch.complex64), r"floating-point tensor.*got dtype torch\.complex64"),
    "a list": (lambda h: h.tolist(), r"floating-point tensor of shape \(B, 8\), got list"),
    "None": (lambda h: None, "floating-point tensor.*got NoneType"),
    "too narrow": (lambda h: h[:, 1:], r"h must have shape \(B, 8\), got \(12, 7\)"),
    "too wide": (lambda h: torch.cat([h, h], 1), r"h must have shape \(B, 8\), got \(12, 16\)"),
    "a vector": (lambda h: h[0], r"h must have shape \(B, 8\), got \(8,\)"),
    "three-dimensional": (lambda h: h[None], r"got \(1, 12, 8\); flatten leading dimensions first"),
    "finer than the head": (lambda h: h.double(), r"h has dtype torch\.float64 but the layer holds torch\.float32"),
    "elsewhere": (lambda h: h.to("meta"), "h is on meta but the layer is on"),
}
BAD_TARGETS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "too large": (lambda t: with_value(t, CLASSES), "target 53 is out of range: expected 0 <= target < 53, or the ign"),
    "negative": (lambda t: with_value(t, -1), "target -1 is out of range: expected 0 <= target < 53"),
    "one of several too large": (lambda t: with_value(torch.stack([t, t], 1), 10**9), "target 1000000000 is out of"),
    "wrapping": (lambda t: with_value(t, 2**63 - 1), "target 9223372036854775807 is out of range"),
    "narrow and negative": (lambda t: with_value(t, -7).to(torch.int8), "target -7 is out of range"),
    "float": (lambda t: t.float(), r"target must hold integer class indices, got dtype torch\.float32"),
    "bool": (lambda t: t > 3, r"target must hold integer class indices, got dtype torch\.bool"),
    "a list": (lambda t: t.tolist(), "target must be a tensor of class indices, got list"),
    "None": (lambda t: None, "target must be a tensor of class indices, got NoneType"),
    "too short": (lambda t: t[1:], r"target must have shape \(12,\) or \(12, K\).*got \(11,\)"),
    "one number": (lambda t: t[0], r"target must have shape \(12,\) or \(12, K\).*got \(\)"),
    "three-dimensional": (lambda t: t[:, None, None], r"got \(12, 1, 1\)"),
    "without columns": (lambda t: t[:, None][:, :0], "target has no columns"),
    "elsewhere": (lambda t: t.to("meta"), "h and target must be on one device, got .* and meta"),
}
VALUES = ["NaN", "infinite", "too large", "negative", "one of several too large", "wrapping", "narrow and negative"]


def narrow_head(case: HeadCase, device: torch.device) -> zloss.Head:
    return trained(case, device, dtype=torch.float32)


def readers(head: zloss.Head) -> list[Callable[[Any, Any], object]]:
    """Whatever evaluates a batch with targets."""
    return [head.rank, head.target_log_prob, head.perplexity] if head.is_likelihood else [head.rank]


@pytest.mark.parametrize("name", BAD_HIDDEN)
@every_head
def test_bad_hidden_batches(case: HeadCase, name: str, device: torch.device) -> None:
    head, (spoil, message) = narrow_head(case, device), BAD_HIDDEN[name]
    h, target = good_batch(head)
    bad = spoil(h.detach())
    if device.type == "cpu" or name not in VALUES:
        with refuses(head, message):
            head(bad, target)
    for read in readers(head):
        with refuses(head, message):
            read(bad, target)
    for look in [lambda h: head.topk(h, 3), *([head.log_prob] if head.is_likelihood else [])]:
        with refuses(head, message):
            look(bad)
    assert step(head, h, target).isfinite()


@pytest.mark.parametrize("name", BAD_TARGETS)
@every_head
def test_bad_targets(case: HeadCase, name: str, device: torch.device) -> None:
    head, (spoil, message) = narrow_head(case, device), BAD_TARGETS[name]
    h, target = good_batch(head)
    bad = spoil(target)
    if device.type == "cpu" or name not in VALUES:
        with refuses(head, message):
            head(h, bad)
    for read in readers(head):
        with refuses(head, message):
            read(h, bad)
    assert h.grad is None
    assert step(head, h, target).isfinite()


@every_head_of_ours
def test_bad_weights(case: HeadCase, device: torch.device) -> None:
    head = narrow_head(case, device)
    h, target = good_batch(head)
    for shape in ((ROWS - 1,), (1,), (ROWS, 1), ()):
        with refuses(head, rf"weight must have one entry per example, \(12,\), got {shape}".replace("()", r"\(\)")):
            head(h, target, weight=torch.ones(shape, device=device))
    with refuses(head, "weight must be a tensor, got list"):
        head(h, target, weight=[1.0] * ROWS)
    assert step(head, h, target).isfinite()


@every_head
def test_bad_ways_to_evaluate(case: HeadCase, device: torch.device) -> None:
    head = narrow_head(case, device)
    h, target = good_batch(head)
    for k in (0, -1, CLASSES + 1):
        with refuses(head, f"k must be between 1 and the number of classes, 53, got {k}"):
            head.topk(h, k)
    for block_size in (0, -3):
        with refuses(head, f"block_size must be at least 1 class, got {block_size}"):
            head.topk(h, 3, block_size=block_size)
        with refuses(head, f"block_size must be at least 1 class, got {block_size}"):
            head.rank(h, target, block_size=block_size)


@every_head_of_ours
def test_a_reduction_that_does_not_exist(case: HeadCase) -> None:
    with pytest.raises(ValueError, match="reduction must be one of none, mean, sum, got 'avg'"):
        case.made(reduction="avg")


# ---- bad values on a GPU: nothing waits for the device, so they are reported later -----------------------------------

BAD_VALUES: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], str]] = {
    "target too large": (lambda h, t: (h, with_value(t, CLASSES)), "a target is out of range"),
    "target negative": (lambda h, t: (h, with_value(t, -1)), "a target is out of range"),
    "target enormous": (lambda h, t: (h, with_value(t, 2**62)), "a target is out of range"),
    "h NaN": (lambda h, t: (with_value(h, math.nan).requires_grad_(), t), "h has a NaN or an infinity"),
    "h infinite": (lambda h, t: (with_value(h, math.inf).requires_grad_(), t), "h has a NaN or an infinity"),
}


def take_refused_batch(case: HeadCase, head: zloss.Head, name: str) -> None:
    """A loss that shows it, no gradient for the layers below, and a step that changes nothing."""
    h, target = BAD_VALUES[name][0](*good_batch(head))
    state = {key: tensor.clone() for key, tensor in head.state_dict().items()}
    optimizer = head.sgd(0.5)
    loss = head(h, target)
    loss.backward()
    assert loss.isnan().all()
    assert gradient_of(h).count_nonzero() == 0
    optimizer.step()
    optimizer.zero_grad()
    assert all(torch.equal(tensor, state[key]) for key, tensor in head.state_dict().items())


@pytest.mark.parametrize("name", BAD_VALUES)
@every_head
def test_bad_values_on_a_gpu_are_reported_within_a_few_steps(case: HeadCase, name: str, cuda: torch.device) -> None:
    head = trained(case, cuda)
    take_refused_batch(case, head, name)
    with pytest.raises(ValueError, match=BAD_VALUES[name][1]):
        for _ in range(20):
            step(head, *good_batch(head))
    head.zero_grad()
    assert step(head, *good_batch(head)).isfinite()
    assert head.topk(good_batch(head)[0], 3)[0].isfinite().all()


@pytest.mark.parametrize("name", BAD_VALUES)
@every_head
def test_bad_values_on_a_gpu_are_reported_where_results_are_read(
    case: HeadCase, name: str, cuda: torch.device
) -> None:
    head = trained(case, cuda)
    take_refused_batch(case, head, name)
    h, target = good_batch(head)
    with pytest.raises(ValueError, match=BAD_VALUES[name][1]):
        head.topk(h, 3)
    head.topk(h, 3)
    head.zero_grad()
    assert step(head, h, target).isfinite()
