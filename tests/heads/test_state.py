"""Every head as a module: it can be saved, copied, moved, converted, and used in half precision."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load, save

import zloss
from tests.heads.batches import (
    LR,
    ROWS,
    assert_close,
    good_batch,
    gradient_of,
    hidden,
    seeded,
    spread,
    step,
    trained,
)
from tests.heads.registry import CLASSES, HeadCase, every_head, every_head_of_ours
from zloss.heads.config import HEADS


def assert_same(head: zloss.Head, other: zloss.Head) -> None:
    """Check that loss, ranks and scores of two heads are equal to the last bit."""
    h, target = good_batch(head)
    assert torch.equal(seeded(other, h, target), seeded(head, h, target))
    assert torch.equal(other.rank(h, target), head.rank(h, target))
    assert all(map(torch.equal, other.topk(h, CLASSES), head.topk(h, CLASSES)))


@every_head
def test_state_dict_round_trip(case: HeadCase, device: torch.device) -> None:
    """The state goes through a file of names and tensors, into a head with other random weights."""
    head, other = trained(case, device), case.made(device, seed=1)
    h, target = good_batch(head)
    assert not torch.equal(seeded(other, h, target), seeded(head, h, target))
    other.load_state_dict(load(save(head.state_dict())))
    assert_same(head, other)
    for each in (head, other):
        step(each, h, target)
    assert_close(
        seeded(other, h, target), seeded(head, h, target)
    )  # a GPU may add up rows in any order


@every_head
def test_a_state_dict_is_complete_and_refuses_what_is_not(
    case: HeadCase, device: torch.device
) -> None:
    state = case.made(device).state_dict()
    for name in state:
        with pytest.raises(RuntimeError, match=r"Missing key"):
            case.made(device).load_state_dict(
                {key: value for key, value in state.items() if key != name}
            )
    with pytest.raises(RuntimeError, match="Unexpected key"):
        case.made(device).load_state_dict({**state, "surplus": torch.zeros(1)})


COPIES: dict[str, Callable[[zloss.Head], zloss.Head]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda head: pickle.loads(pickle.dumps(head)),
}


@pytest.mark.parametrize("way", COPIES)
@every_head
def test_a_copy_is_the_same_and_independent(case: HeadCase, way: str, device: torch.device) -> None:
    head = trained(case, device)
    h, target = good_batch(head)
    twin = COPIES[way](head)
    assert_same(head, twin)
    before = case.weights(head)
    step(twin, h.detach(), target)
    assert all(torch.equal(weight, before[name]) for name, weight in case.weights(head).items())
    moved = case.weights(twin)
    assert not any(torch.equal(moved[name], before[name]) for name in before)


@pytest.mark.parametrize("assign", [True, False])
@pytest.mark.parametrize("name", HEADS)
def test_a_head_without_memory_loads(name: str, assign: bool) -> None:
    """The head is built on "meta". It gets its memory from the checkpoint, or before the checkpoint is loaded."""
    config = zloss.HeadConfig(head=name)
    head, other = config.build(8, 60), config.build(8, 60, device="meta")
    if not assign:
        other.to_empty(device="cpu")
    other.load_state_dict(copy.deepcopy(head.state_dict()), assign=assign)
    h, target = torch.randn(5, 8), torch.randint(60, (5,))
    for _ in range(2):
        assert torch.equal(seeded(other, h, target), seeded(head, h, target))
        for each in (head, other):
            optimizer = each.sgd(0.1)
            seeded(each, h, target).backward()
            optimizer.step()
            each.zero_grad(set_to_none=False)
    assert torch.equal(other.rank(h, target), head.rank(h, target))


@every_head
def test_conversion_to_float32(case: HeadCase, device: torch.device) -> None:
    head = trained(case, device)
    h, target = good_batch(head)
    exact = seeded(head, h, target)
    head = head.to(torch.float32)
    # eps = 1.2e-7 for sums of up to 53 terms of size 1. The weights are rounded as well.
    narrow = h.detach().float().requires_grad_()
    value = seeded(head, narrow, target)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=0)
    value.backward()
    assert gradient_of(narrow).dtype == torch.float32
    before = case.weights(head)
    head.sgd(LR).step()
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
    # bfloat16 has 8 bits. Weights, h and logits of size 1 are rounded by up to 2^-9 each, so a logit errs by at most
    # 0.01. A loss is a mean over 12 examples. Its size is 1 or more, and it changes no faster than a few logits.
    torch.testing.assert_close(loss, exact, rtol=0.02, atol=0)
    loss.backward()
    assert gradient_of(h).dtype == hidden_dtype
    assert gradient_of(h).isfinite().all()
    assert gradient_of(h).any()
    for parameter in head.parameters():
        if parameter.grad is not None:
            assert parameter.grad.dtype == torch.float32
    before = case.weights(head)
    head.sgd(LR).step()
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_head_of_ours
def test_a_whole_head_in_half_precision(
    case: HeadCase, dtype: torch.dtype, device: torch.device
) -> None:
    """The head is converted by `model.to(torch.bfloat16)`, and its loss is in float32."""
    head = case.made(device, dtype=torch.float32)
    if case.kind == "factored":
        with pytest.raises(
            ValueError, match="run the layers below under autocast, or convert them alone"
        ):
            head.to(dtype)
        return
    head = head.to(dtype)
    exact = copy.deepcopy(head).to(torch.float32)
    h, target = hidden(device=device, dtype=dtype), spread(ROWS).to(device)
    loss = seeded(head, h, target)
    assert loss.dtype == torch.float32
    # Weights and h are equal. Logits that are held in half precision are rounded to 2^-9. Torch's linear_cross_entropy
    # rounds the sum of the losses in this way too.
    torch.testing.assert_close(loss, seeded(exact, h.detach().float(), target), rtol=0.01, atol=0)
    loss.backward()
    assert gradient_of(h).dtype == dtype
    head.sgd(LR).step()
    assert all(weight.isfinite().all() for weight in case.weights(head).values())
    assert head.rank(h, target).min() >= 1
