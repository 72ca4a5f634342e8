"""A batch that is written to between its forward pass and its backward pass or step.

`nn.Linear` keeps the batch itself, and autograd refuses the backward pass. A head may refuse it likewise. It may also
have copied what it needs. Then gradients and the step have to belong to the batch that it has seen.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import zloss
from tests.heads.batches import DRAWS, spread
from tests.heads.registry import HIDDEN, HeadCase, every_head

ROWS = 12
DTYPES = (torch.float32, torch.float64)  # a layer in float64 could do without a copy of h
CHANGES: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "h": lambda h, target, weight: h.mul_(-3),
    "target": lambda h, target, weight: target.copy_(target.flip(0)),
    "weight": lambda h, target, weight: weight.mul_(5),
    "all": lambda h, target, weight: (h.zero_(), target.fill_(-100), weight.zero_()),
}


def gradients_and_step(
    head: zloss.Head,
    batch: tuple[Tensor, Tensor, Tensor],
    change: Callable[..., object] | None,
    *,
    takes_weight: bool,
    is_before_backward: bool,
) -> list[Tensor]:
    """Return the gradient of what made h, and the head after a step."""
    source, target, weight = (tensor.clone() for tensor in batch)
    source.requires_grad_()
    h = source * 1.0
    torch.manual_seed(DRAWS)
    loss = head(h, target, weight=weight) if takes_weight else head(h, target)
    for is_now in (True, False):
        if change is not None and is_now == is_before_backward:
            with torch.no_grad():
                change(h, target, weight)
        if is_now:
            loss.backward()
    head.sgd(0.5).step()
    assert source.grad is not None
    return [source.grad, *head.state_dict().values()]


@pytest.mark.parametrize("dtype", DTYPES)
@every_head
def test_a_changed_batch_is_refused_or_does_not_matter(
    case: HeadCase, dtype: torch.dtype, device: torch.device
) -> None:
    head = case.make(device=device, dtype=dtype)
    h = torch.randn(ROWS, HIDDEN, device=device, dtype=dtype)
    target, weight = spread(ROWS).to(device), torch.rand(ROWS, device=device, dtype=dtype)
    batch, takes_weight = (h, target, weight), case.is_ours
    twin = copy.deepcopy(head)
    expected = gradients_and_step(
        twin, batch, None, takes_weight=takes_weight, is_before_backward=True
    )
    for change in CHANGES.values():
        for is_before_backward in (True, False):
            changed, refusal = copy.deepcopy(head), None
            try:
                found = gradients_and_step(
                    changed,
                    batch,
                    change,
                    takes_weight=takes_weight,
                    is_before_backward=is_before_backward,
                )
            except RuntimeError as error:
                refusal = str(error)
            if refusal is not None:
                assert is_before_backward, "the gradients of the step are there"
                assert "modified by an inplace operation" in refusal
                continue
            for ours, theirs in zip(found, expected, strict=True):
                # Sums on a GPU are taken in no fixed order; a batch that matters changes them by about 1.
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("implementation", ["auto", "torch"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_factored_layer_has_a_batch_of_its_own(
    dtype: torch.dtype, implementation: str, device: torch.device
) -> None:
    """It never refuses: a loop may read its next batch into the memory of the last one."""
    for columns in ((), (2,), (5,)):  # kernels take another route with many targets
        layer = zloss.FactoredLinear(
            HIDDEN,
            40,
            device=device,
            dtype=dtype,
            implementation=implementation,  # type: ignore[arg-type]
        )
        head = zloss.SphericalOutput(layer, zloss.SquaredError())
        h = torch.randn(ROWS, HIDDEN, device=device, dtype=dtype)
        target = torch.randint(40, (ROWS, *columns), device=device)
        batch = (h, target, torch.rand(ROWS, device=device, dtype=dtype))
        twin = copy.deepcopy(head)
        expected = gradients_and_step(
            twin, batch, None, takes_weight=False, is_before_backward=True
        )
        for is_before_backward in (True, False):
            found = gradients_and_step(
                copy.deepcopy(head),
                batch,
                CHANGES["all"],
                takes_weight=False,
                is_before_backward=is_before_backward,
            )
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
