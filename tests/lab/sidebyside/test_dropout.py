"""Dropout of a stack: its rates, its gradients, and its random numbers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import zloss
from tests.lab.sidebyside.small_trials import trial
from zloss_lab.networks import NgramNetwork
from zloss_lab.sidebyside.dropout import DropoutNumbers
from zloss_lab.sidebyside.network import StackedNetwork
from zloss_lab.sidebyside.trial_settings import TrialSettings
from zloss_lab.sidebyside.weights import StackedWeights


def stacked_at(
    corpus: Path, rates: list[float], device: torch.device
) -> tuple[StackedNetwork, Tensor]:
    """Return a stack of the same wide network with different rates of dropout, and contexts."""
    shape = {"hidden": (400, 300), "context": 3}
    head = {"a": 0.1, "b": 10.0}
    experiments = [
        trial(corpus, head=head, network=shape | {"dropout": rate}, device=str(device))
        for rate in rates
    ]
    torch.manual_seed(0)
    network = NgramNetwork(experiments[0].network, 13, device=device)
    weights = StackedWeights.of([network] * len(rates))
    context = torch.randint(13, (100, 3), generator=torch.Generator().manual_seed(0)).to(device)
    return StackedNetwork(
        weights, TrialSettings.of(experiments, 13, device), loss="z_loss"
    ), context


def numbers_for(network: StackedNetwork, device: torch.device) -> list[Tensor]:
    """Return random numbers for 100 examples, of trials with the same seed."""
    numbers = DropoutNumbers(
        [1] * network.weights.trials, batch_size=100, widths=(400, 300), device=device
    )
    numbers.draw()
    return numbers.of_layers()


def test_dropout_has_the_rate_of_the_trial_and_keeps_the_mean(
    corpus: Path, device: torch.device
) -> None:
    rates = [0.0, 0.2, 0.6]
    network, context = stacked_at(corpus, rates, device)
    rows = context + torch.arange(3, device=device)[:, None, None] * 13
    _, plain, _ = network.activations(rows)
    _, dropped, _ = network.activations(rows, numbers_for(network, device))
    assert torch.equal(dropped[0], plain[0]), "at a rate of 0 nothing changes"
    for number, rate in enumerate(rates):
        positive = plain[number] > 0
        share = (dropped[number][positive] == 0).double().mean().item()
        # Of about 20,000 activations, the deviation is 0.0035 at most. The bound is about six deviations.
        assert share == pytest.approx(rate, abs=0.02)
        kept = dropped[number] > 0
        torch.testing.assert_close(dropped[number][kept], plain[number][kept] / (1 - rate))
        # At the larger rate, the deviation of the mean is 1 %. The bound is ten deviations.
        assert dropped[number].mean().item() == pytest.approx(plain[number].mean().item(), rel=0.1)
    # The random numbers are the same: units that are dropped at a lower rate are dropped at a higher one.
    assert not ((dropped[2] > 0) & (dropped[1] == 0)).any()


def test_steps_with_dropout_have_the_gradient_of_what_is_left(
    corpus: Path, device: torch.device
) -> None:
    """The gradient of the lower of two hidden layers is that of autograd through the same masks."""
    network, context = stacked_at(corpus, [0.5, 0.3], device)
    target = context.sum(1) % 13
    stacked = context.expand(2, -1, -1), target.expand(2, -1)
    before = network.weights.clone()
    numbers = numbers_for(network, device)
    network.learn(*stacked, numbers)
    chances = [layer[0] for layer in numbers]
    for row, rate in enumerate((0.5, 0.3)):
        embedding, *hidden, output = (
            tensor[row].clone().requires_grad_() for tensor in before.tensors()
        )
        h = embedding[context].flatten(1)
        for weight, bias, chance in zip(hidden[::2], hidden[1::2], chances, strict=True):
            h = torch.relu(h @ weight.T + bias) * (chance >= rate) / (1 - rate)
        zloss.ZLoss(a=0.1, b=10)(h @ output.T, target).backward()
        for ours, leaf, lr in zip(
            network.weights.tensors(), (embedding, *hidden, output), [0.1] * 5 + [0.05], strict=True
        ):
            assert leaf.grad is not None
            moved = lr * leaf.grad
            # The differences are of weights near 0.1, each rounded to 1e-8.
            torch.testing.assert_close(
                leaf - ours[row], moved, rtol=1e-3, atol=2e-8 + 1e-4 * moved.abs().max().item()
            )
