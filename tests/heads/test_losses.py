"""The loss of every head and its gradients, after one step as well, against its slow definition in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import zloss
from tests.heads.batches import (
    BATCHES,
    IGNORED,
    ROWS,
    assert_close,
    assert_stepped,
    good_batch,
    gradient_of,
    gradients,
    has_gradient,
    hidden,
    in_columns,
    leaves,
    per_example,
    reduced,
    seeded,
    spread,
    stepped_by,
)
from tests.heads.registry import (
    CLASSES,
    HIDDEN,
    HeadCase,
    every_head,
    every_head_of_ours,
    every_head_with_a_foreign_loss,
)

REDUCTIONS = ("none", "sum", "mean")
FOREIGN_LOSSES_TAKE = ["one target", "repeated", "some rows ignored", "one row", "as a column"]


def assert_is_its_definition(
    case: HeadCase,
    head: zloss.Head,
    target: Tensor,
    reduction: str,
    *,
    weight: Tensor | None = None,
    ignored: int = IGNORED,
    class_weight: Tensor | None = None,
) -> None:
    """Check the value, the gradient of h, and one step of SGD on all weights."""
    device, lr = head.reference_weight.device, 0.5
    h, target = hidden(len(target), device=device), target.to(device)
    before, weights = case.weights(head), leaves(case.weights(head))
    rows = seeded(per_example, case, weights, h, target, ignored, class_weight)
    expected = reduced(rows if weight is None else rows * weight, target, reduction, ignored)
    upstream = torch.linspace(-1, 2, expected.numel(), dtype=torch.float64, device=device).reshape(
        expected.shape
    )
    grads = gradients((expected * upstream).sum(), {"h": h, **weights})

    value = seeded(head, h, target, **({} if weight is None else {"weight": weight}))
    assert_close(value, expected)
    (value * upstream).sum().backward()
    assert_close(gradient_of(h), grads.pop("h"))
    empty = (in_columns(target) == ignored).all(1)
    assert gradient_of(h)[empty].count_nonzero() == 0, "exactly zero, not almost"
    if reduction == "none":
        assert value.detach()[empty].count_nonzero() == 0
    head.sgd(lr).step()
    assert_stepped(case, head, before, stepped_by(grads, lr))


@pytest.mark.parametrize("name", BATCHES)
@every_head
def test_loss_gradients_and_step(case: HeadCase, name: str, device: torch.device) -> None:
    if not case.is_ours and name not in FOREIGN_LOSSES_TAKE:
        pytest.skip("a loss of torch: one target per example, and NaN for the mean of none")
    for reduction in REDUCTIONS:
        assert_is_its_definition(
            case, case.made(device, reduction=reduction), BATCHES[name], reduction
        )


@every_head_of_ours
def test_row_weights(case: HeadCase, device: torch.device) -> None:
    weight = torch.linspace(-1, 3, ROWS, dtype=torch.float64, device=device)
    weight[3] = 0
    for name in ("some rows ignored", "ragged"):
        for reduction in REDUCTIONS:
            head = case.made(device, reduction=reduction)
            assert_is_its_definition(case, head, BATCHES[name], reduction, weight=weight)


@every_head_of_ours
def test_weights_of_classes(case: HeadCase, device: torch.device) -> None:
    of_classes = torch.linspace(0, 2, CLASSES, dtype=torch.float64, device=device)
    of_rows = torch.linspace(-1, 3, ROWS, dtype=torch.float64, device=device)
    for name, weight in (("repeated", None), ("some rows ignored", of_rows), ("ragged", of_rows)):
        for reduction in REDUCTIONS:
            head = case.made(device, reduction=reduction, class_weight=of_classes)
            assert_is_its_definition(
                case, head, BATCHES[name], reduction, weight=weight, class_weight=of_classes
            )


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


@every_head
def test_another_ignore_index(case: HeadCase, device: torch.device) -> None:
    """The ignored index may be the number of a class, which cannot be a target then."""
    for ignored in (-1, 0, 11, CLASSES, 10**6):
        target = torch.where(
            BATCHES["some rows ignored"] == IGNORED, ignored, BATCHES["some rows ignored"]
        )
        head = case.made(device, ignore_index=ignored)
        assert (head.rank(hidden(device=device), target.to(device)) == 0).tolist() == (
            target == ignored
        ).tolist()
        assert_is_its_definition(case, head, target, "mean", ignored=ignored)


@every_head
def test_the_default_ignore_index_is_no_class_under_another(
    case: HeadCase, device: torch.device
) -> None:
    if device.type == "cuda":
        pytest.skip("values are reported later on a GPU: see the tests of bad batches there")
    head = case.made(device, ignore_index=-1)
    with pytest.raises(ValueError, match="target -100 is out of range"):
        head(hidden(device=device), BATCHES["some rows ignored"].to(device))


@every_head
def test_targets_may_have_any_integer_type(case: HeadCase, device: torch.device) -> None:
    head = case.made(device)
    h, target = good_batch(head)
    for dtype in (torch.int32, torch.int16, torch.int8, torch.uint8):
        assert torch.equal(seeded(head, h, target.to(dtype)), seeded(head, h, target))
        assert torch.equal(head.rank(h, target.to(dtype)), head.rank(h, target))


@every_head
def test_strides_do_not_matter(case: HeadCase, device: torch.device) -> None:
    """The batch is a part of a wider tensor, a transposed tensor, or one row that is expanded."""
    head = case.made(device)
    h, target = good_batch(head)
    wide, column = torch.cat([h, h], 1)[:, :HIDDEN], torch.stack([target, target], 1)[:, 0]
    transposed, same = h.T.contiguous().T, h[:1].expand(ROWS, -1)
    assert not any(tensor.is_contiguous() for tensor in (wide, column, transposed, same))
    for strided, plain in ((wide, h), (transposed, h), (same, same.contiguous())):
        (grad,) = torch.autograd.grad(seeded(head, strided, column), h)
        (expected,) = torch.autograd.grad(seeded(head, plain, target), h)
        assert_close(grad, expected)
        assert torch.equal(head.rank(strided, column), head.rank(plain, target))


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
        with pytest.raises(
            ValueError, match="CrossEntropyLoss is not of this library: it takes one target per"
        ):
            head(h, target if options else spread(ROWS, 2).to(device), **options)
    assert not has_gradient(head)


class Doubled(zloss.SoftmaxCrossEntropy):
    """A loss of a user, derived from a loss of the library."""

    def per_target(self, logits: Tensor, index: Tensor) -> Tensor:
        return 2 * super().per_target(logits, index)


def test_a_loss_that_derives_from_the_softmax_is_what_it_says(device: torch.device) -> None:
    head = zloss.DenseOutput(HIDDEN, CLASSES, loss=Doubled(), device=device)
    h, target = torch.randn(4, HIDDEN, device=device), torch.randint(CLASSES, (4,), device=device)
    assert torch.equal(head(h, target), Doubled()(head.linear(h), target))


def curvature(loss: Callable[[Tensor], Tensor], h: Tensor) -> Tensor | None:
    """Return the second derivative in one direction, or None if the head refuses it."""
    try:
        product: Tensor = torch.autograd.functional.vhp(loss, h, h.detach().cos())[1]
    except RuntimeError as refusal:
        if "second derivatives, and this layer has first ones only" not in str(refusal):
            raise
        return None
    return product


@every_head
def test_second_derivatives_are_right_or_refused(case: HeadCase, device: torch.device) -> None:
    if " by " in case.name:
        pytest.skip(
            "a softmax of others, torch's own among them, may have second derivatives of zero"
        )
    head = case.made(device)
    weights, (h, target) = case.weights(head), good_batch(head)
    expected = curvature(
        lambda h: reduced(seeded(per_example, case, weights, h, target), target, "mean"), h
    )
    found = curvature(lambda h: seeded(head, h, target), h)
    if found is not None:
        assert_close(found, expected)
