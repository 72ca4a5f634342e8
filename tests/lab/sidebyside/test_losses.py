"""The losses of a stack have the values and the gradients of the library's losses under autograd."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from zloss.heads import HeadConfig
from zloss.heads.config import DENSE, LOSSES
from zloss_lab.sidebyside.stacked_losses import STACKED_LOSSES

TRIALS, ROWS, CLASSES = 3, 7, 30
OPTIONS: dict[str, tuple[float, ...]] = {
    "a": (0.1, 0.7, 2.0),
    "b": (10.0, -1.0, 3.0),
    "eps": (0.1, 1e-3, 2.0),
}
every_loss = pytest.mark.parametrize("name", STACKED_LOSSES)


def spread(scale: float, shift: float = 0.0) -> Callable[[torch.device], Tensor]:
    def logits(device: torch.device) -> Tensor:
        torch.manual_seed(0)
        return (scale * torch.randn(TRIALS, ROWS, CLASSES, dtype=torch.float64) + shift).to(device)

    return logits


def flat(device: torch.device) -> Tensor:
    """Return rows without spread among others: constant rows, and one with a spread of rounding noise."""
    logits = spread(1.0)(device)
    logits[:, 0], logits[:, 1] = 0.0, 3.7
    logits[:, 2] = 1e6
    logits[:, 2, 5] += 1e-10
    return logits


CASES: dict[str, Callable[[torch.device], Tensor]] = {
    "ordinary": spread(1.0),
    "large": spread(100.0),
    "small": spread(1e-6),
    "shifted": spread(1.0, shift=1000.0),
    "flat": flat,
}


def targets(device: torch.device) -> Tensor:
    return torch.randint(CLASSES, (TRIALS, ROWS), generator=torch.Generator().manual_seed(1)).to(
        device
    )


def options_of(name: str) -> dict[str, tuple[float, ...]]:
    return {option: OPTIONS[option] for option in LOSSES[name].options}


def stacked(
    name: str, device: torch.device, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    return {
        option: torch.tensor(values, dtype=dtype, device=device)[:, None, None]
        for option, values in options_of(name).items()
    }


def definition(name: str, trial: int) -> Any:
    options = {option: values[trial] for option, values in options_of(name).items()}
    return HeadConfig(head="dense", loss=name, options=options, reduction="none").build_loss(
        CLASSES
    )


def test_there_is_every_loss_of_a_dense_head() -> None:
    assert STACKED_LOSSES.keys() == set(DENSE)


@every_loss
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_those_of_the_definition(
    name: str, case: str, device: torch.device
) -> None:
    logits, target = CASES[case](device), targets(device)
    grad = logits.clone()
    loss = STACKED_LOSSES[name].of(grad, target, **stacked(name, device))
    assert loss.shape == (TRIALS, ROWS)
    for trial in range(TRIALS):
        leaf = logits[trial].clone().requires_grad_()
        expected = definition(name, trial)(leaf, target[trial])
        expected.sum().backward()
        # All numbers are float64. If the mean is 1000 deviations, sums of activations lose three digits.
        torch.testing.assert_close(loss[trial], expected.detach(), rtol=1e-10, atol=1e-12)
        assert leaf.grad is not None
        largest = leaf.grad.abs().max().item()
        torch.testing.assert_close(grad[trial], leaf.grad, rtol=1e-9, atol=1e-10 * largest)


@every_loss
def test_float32_is_as_close_as_it_can_be(name: str, device: torch.device) -> None:
    """Float32, as in training, differs from float64 by a few roundings of numbers near 1."""
    logits, target = spread(2.0)(device), targets(device)
    single = logits.float()
    loss = STACKED_LOSSES[name].of(single, target, **stacked(name, device, torch.float32))
    expected = STACKED_LOSSES[name].of(logits, target, **stacked(name, device))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    largest = logits.abs().max().item()
    torch.testing.assert_close(single.double(), logits, rtol=1e-5, atol=2e-6 * largest)


def test_a_hopeless_target_of_a_softmax_has_the_largest_loss_that_there_is(
    device: torch.device,
) -> None:
    logits = torch.tensor([[[0.0, 200.0, 0.0]]], device=device)
    loss = STACKED_LOSSES["softmax"].of(logits, torch.tensor([[0]], device=device))
    assert loss.item() == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))
    assert logits.flatten().tolist() == [-1.0, 1.0, 0.0]


@every_loss
def test_what_is_not_a_number_stays_with_its_trial(name: str, device: torch.device) -> None:
    logits, target = spread(1.0)(device), targets(device)
    alone = logits.clone()
    STACKED_LOSSES[name].of(alone, target, **stacked(name, device))
    logits[1, :, 3] = math.nan
    loss = STACKED_LOSSES[name].of(logits, target, **stacked(name, device))
    assert loss.isnan().all(1).tolist() == [False, True, False]
    for trial in (0, 2):
        assert torch.equal(logits[trial], alone[trial])


@every_loss
def test_classes_are_ranked_by_the_score_of_the_loss(name: str, device: torch.device) -> None:
    logits = spread(1.0)(device)
    score = STACKED_LOSSES[name].score
    scores = logits.clone() if score is None else score(logits.clone(), **stacked(name, device))
    for trial in range(TRIALS):
        assert torch.equal(scores[trial], definition(name, trial).score(logits[trial]))
