"""Steps of every head, against its slow definition in float64: several steps, frozen parameters, clipping and decay."""

import math

import pytest
import torch
from torch import Tensor

import zloss
from tests.heads.batches import (
    BATCHES,
    DRAWS,
    ROWS,
    assert_close,
    assert_stepped,
    by_definition,
    good_batch,
    gradient_of,
    gradients,
    has_gradient,
    hidden,
    leaves,
    per_example,
    seeded,
    spread,
    step,
    stepped_by,
)
from tests.heads.registry import (
    HIDDEN,
    HeadCase,
    every_head,
    every_head_but_row_sparse,
    every_row_sparse_head,
)


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
    head = case.made(device)
    h, target = good_batch(head)
    optimizer = head.sgd(0.5)
    seeded(head, h, target).backward()
    optimizer.zero_grad()
    assert not has_gradient(head)
    before, (_, _, grads) = case.weights(head), by_definition(case, head, h, target)
    seeded(head, h, target).backward()
    optimizer.step()
    assert_stepped(case, head, before, stepped_by(grads, 0.5))


@every_head
def test_several_steps(case: HeadCase, device: torch.device) -> None:
    """The test compares after every step, because each step starts from the result of the previous one."""
    head = case.made(device)
    optimizer = head.sgd(0.5)
    for rows in (3, ROWS, 1, 9):
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
    step(head, h.detach(), target, lr=0.5)
    assert_stepped(case, head, before, stepped_by(grads, 0.5))


@every_head
def test_each_parameter_may_be_trained_alone(case: HeadCase, device: torch.device) -> None:
    """The bias is one example."""
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
def test_clipping_is_that_of_the_dense_gradient(
    case: HeadCase, max_norm: float, device: torch.device
) -> None:
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
    """Six examples in eight dimensions, with one target each, can be separated from all other classes."""
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
    assert sum(losses[-10:]) / 10 < case.falls_to * losses[0]
    assert (head.rank(h, target) == 1).all()


@every_head
def test_the_default_device_is_nobodys_business(case: HeadCase) -> None:
    """A head trains and ranks on its own device, also if another one, such as "cuda", is the default of torch."""
    with torch.device("meta"):
        head = case.made("cpu")
        optimizer = head.sgd(0.1)
        h = torch.randn(6, HIDDEN, dtype=torch.float64, device="cpu", requires_grad=True)
        target = torch.arange(6, device="cpu")
        for _ in range(2):
            head(h, target).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert h.grad is not None
        assert h.grad.isfinite().all()
        assert (head.rank(h.detach(), target) > 0).all()
        assert head.topk(h.detach(), 3)[1].device.type == "cpu"
        head.load_state_dict(head.state_dict())
