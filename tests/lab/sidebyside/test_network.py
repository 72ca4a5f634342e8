"""A stack of networks takes the steps that each of them would take alone, and ranks as they do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zloss
from tests.lab.sidebyside.small_trials import trial
from zloss.heads.config import DENSE, SPHERICAL
from zloss_lab.evaluation import evaluate
from zloss_lab.networks import NgramNetwork
from zloss_lab.runs import Run
from zloss_lab.sidebyside import SideBySide
from zloss_lab.sidebyside.dropout import DropoutNumbers
from zloss_lab.sidebyside.network import StackedNetwork
from zloss_lab.sidebyside.stacked_ranking import evaluate_stack
from zloss_lab.sidebyside.trial_settings import TrialSettings
from zloss_lab.sidebyside.weights import StackedWeights
from zloss_lab.training import Experiment, Trainer

# What trials may differ in, but for dropout, whose random numbers are others than those of a network alone.
DIFFERENCES: list[dict[str, Any]] = [
    {"lr": 0.03, "seed": 3, "output_lr": 0.01, "network": {"output_scale": 0.3}},
    {"lr": 0.1, "seed": 4, "output_lr": 0.03, "network": {"embedding_scale": 0.5}},
    {"lr": 0.06, "seed": 3, "output_lr": 0.01, "weight_decay": 0.1, "output_weight_decay": 0.2},
]
OPTIONS: dict[str, tuple[float, ...]] = {
    "a": (0.2, 0.5, 1.0),
    "b": (2.0, 3.0, 5.0),
    "eps": (0.1, 0.5, 1.0),
}


def trials(corpus: Path, loss: str, device: torch.device, head: str = "dense") -> list[Experiment]:
    names = [name for name in OPTIONS if name in zloss.heads.config.LOSSES[loss].options]
    return [
        trial(
            corpus,
            loss=loss,
            head={"head": head} | {name: OPTIONS[name][number] for name in names},
            device=str(device),
            **options,
        )
        for number, options in enumerate(DIFFERENCES)
    ]


def trainer_of(experiment: Experiment, tmp_path: Path) -> Trainer:
    # Without a graph: these are leaps, that a captured step of the factored layer would refuse.
    experiment = replace(experiment, training=replace(experiment.training, graph=False))
    return Trainer(experiment, Run(tmp_path / "never written"), lambda _: None)


def layers_of(network: NgramNetwork) -> list[Tensor]:
    """As `StackedWeights.tensors`, of one trial."""
    if isinstance(network.head, zloss.DenseOutput):
        output = network.head.linear.weight
    else:
        assert isinstance(network.head, zloss.SphericalOutput)
        output = network.head.layer.weight()
    layers = [layer for layer in network.layers if isinstance(layer, nn.Linear)]
    return [
        network.embedding.weight,
        *(tensor for layer in layers for tensor in (layer.weight, layer.bias[None])),
        output,
    ]


@pytest.mark.parametrize(
    ("loss", "head"),
    [
        *((loss, "dense") for loss in DENSE),
        *((loss, "factored") for loss in SPHERICAL),
        ("z_loss", "gram"),
    ],
)
def test_a_stack_takes_the_steps_of_every_trial_alone(
    loss: str, head: str, corpus: Path, tmp_path: Path, device: torch.device
) -> None:
    experiments = trials(corpus, loss, device, head)
    stack = SideBySide(experiments)
    alone = [trainer_of(experiment, tmp_path) for experiment in experiments]
    for row, trainer in enumerate(alone):
        for ours, theirs in zip(
            stack.network.weights.tensors(), layers_of(trainer.network), strict=True
        ):
            assert torch.equal(ours[row], theirs), "they start with the same weights"
    before = stack.network.weights.clone()
    for _ in range(30):
        losses = stack.take_step()
        expected = torch.stack([trainer.take_step() for trainer in alone])
        # Float32, sums in other orders; a step moves weights by up to 0.03 and repeats what errors there are.
        torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    for row, trainer in enumerate(alone):
        weights = zip(
            stack.network.weights.tensors(),
            layers_of(trainer.network),
            before.tensors(),
            strict=True,
        )
        for ours, theirs, start in weights:
            moved = (theirs - start[row]).abs().max().item()
            assert moved > 1e-4, "not a test"
            # Rectifiers that one has open and the other shut make more of that.
            torch.testing.assert_close(ours[row], theirs.detach(), rtol=1e-3, atol=1e-3 * moved)


def test_there_may_be_no_hidden_layer(corpus: Path, tmp_path: Path, device: torch.device) -> None:
    experiment = trial(corpus, device=str(device), network={"hidden": ()})
    stack, alone = SideBySide([experiment]), trainer_of(experiment, tmp_path)
    for _ in range(5):
        torch.testing.assert_close(stack.take_step(), alone.take_step()[None], rtol=1e-5, atol=1e-6)


def test_a_dead_network_does_not_win(corpus: Path) -> None:
    stack = SideBySide([trial(corpus), trial(corpus, seed=1)])
    stack.network.weights.hidden[-1].bias[0] = -100.0
    context, target = torch.randint(10, (6, 3)), torch.randint(10, (6,))
    ranks = stack.network.rank(context, target)
    assert (ranks[0] == stack.network.num_classes).all()
    assert (ranks[1] < stack.network.num_classes).any()


# By which three layers are made larger, so that scores, the last hidden layer, or squares of scores overflow.
OVERFLOWING = [("softmax", 1e15), ("z_loss", 1e15), ("softmax", 1e25), ("taylor_softmax", 1e9)]


@pytest.mark.parametrize(("loss", "scale"), OVERFLOWING)
def test_activations_that_overflow_do_not_win(
    loss: str, scale: float, corpus: Path, device: torch.device
) -> None:
    """Infinity is not above all others, and what is not a number is not the first of its kind."""
    network = SideBySide(
        [trial(corpus, loss=loss, device=str(device), seed=seed) for seed in range(2)]
    ).network
    context = torch.randint(network.num_classes, (200, 3), device=device)
    target = torch.randint(network.num_classes, (200,), device=device)
    ordinary = network.rank(context, target)
    assert network.is_sound.all()
    for weight in (network.weights.output, *(layer.weight for layer in network.weights.hidden)):
        weight[0].mul_(scale)
    assert network.weights.is_finite().all(), "not a test"
    ranks = network.rank(context, target)
    assert network.is_sound.tolist() == [False, True]
    assert torch.equal(ranks[1], ordinary[1])
    assert (ranks[0] == network.num_classes).all()


def test_a_score_that_is_not_a_number_stands_above_the_others(corpus: Path) -> None:
    """And below all of them where it is that of the target."""
    network = SideBySide([trial(corpus)]).network
    context, target = torch.randint(10, (200, 3)), torch.randint(5, (200,))
    ordinary = network.rank(context, target)
    assert (ordinary == 1).any(), "not a test"
    network.weights.output[0, 5] = torch.nan
    assert (network.rank(context, target) > 1).all()
    assert network.is_sound.all()
    assert (network.rank(context, torch.full((200,), 5)) == network.num_classes).all()
    assert not network.is_sound.any()


@pytest.mark.parametrize("loss", DENSE)
@pytest.mark.parametrize("limit", [None, 100])
def test_evaluation_is_that_of_every_network_alone(
    loss: str, limit: int | None, corpus: Path, tmp_path: Path, device: torch.device
) -> None:
    experiments = trials(corpus, loss, device)
    stack = SideBySide(experiments)
    alone = [trainer_of(experiment, tmp_path) for experiment in experiments]
    results = evaluate_stack(stack.network, alone[0].validation, limit=limit)
    for trainer, result in zip(alone, results, strict=True):
        expected = evaluate(trainer.network, trainer.validation, limit=limit)
        record = {
            name: value
            for name, value in expected.to_record().items()
            if not name.startswith("perplexity")
        }
        assert result.perplexity is None
        # The same ranks, whose reciprocals are added up in another order.
        assert result.to_record() == pytest.approx(record, rel=1e-12)
    assert len({result.mean_rank for result in results}) > 1, "not a test"


# ---- dropout ---------------------------------------------------------------------------------------------------------


def stacked_at(
    corpus: Path, rates: list[float], device: torch.device
) -> tuple[StackedNetwork, Tensor]:
    """The same wide network, with another rate of dropout in each trial, and contexts."""
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
    """Of trials with the same seed, for 100 examples."""
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
        # About 20,000 activations: a deviation of 0.0035 at most, and six of them.
        assert share == pytest.approx(rate, abs=0.02)
        kept = dropped[number] > 0
        torch.testing.assert_close(dropped[number][kept], plain[number][kept] / (1 - rate))
        # Ten deviations at the larger rate, where the mean has one of 1 %.
        assert dropped[number].mean().item() == pytest.approx(plain[number].mean().item(), rel=0.1)
    # Drawn from the same numbers: what is dropped at a lower rate is so at a higher one.
    assert not ((dropped[2] > 0) & (dropped[1] == 0)).any()


def test_steps_with_dropout_have_the_gradient_of_what_is_left(
    corpus: Path, device: torch.device
) -> None:
    """Against autograd through the same masks, for the lower hidden layer, which has another one above it."""
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
            # Differences of weights near 0.1, each rounded to 1e-8.
            torch.testing.assert_close(
                leaf - ours[row], moved, rtol=1e-3, atol=2e-8 + 1e-4 * moved.abs().max().item()
            )


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_a_captured_stack_is_one_that_is_not(
    precision: str, corpus: Path, cuda: torch.device
) -> None:
    """Dropout included: a captured step sees the random numbers that were drawn for it.

    By the softmax: the Z-loss may make much of the last bit, see `SAME` in `test_training.py`.
    """
    stacks = []
    for graph in (False, True):
        options: dict[str, Any] = {
            "loss": "softmax",
            "graph": graph,
            "device": str(cuda),
            "steps": 40,
        }
        shape = {"precision": precision, "dropout": 0.3}
        experiments = [
            trial(corpus, lr=lr, seed=seed, network=shape, **options)
            for lr, seed in ((0.1, 0), (0.2, 1))
        ]
        stack = SideBySide(experiments)
        losses = torch.stack([stack.take_step().clone() for _ in range(40)])
        stacks.append((losses, stack.network.weights.tensors()))
    (losses, weights), (captured_losses, captured_weights) = stacks
    # The embeddings add up rows in no fixed order; what that changes in the last bit may be another TF32 number. Orders
    # drawn at random on a CPU, 800 times, made up to 2e-7, and 1e-3 between products of rounded operands; old random
    # numbers in all replays make 2.6e-2 or more.
    tolerance = {"float32": 1e-4, "tf32": 5e-3}[precision]
    torch.testing.assert_close(captured_losses, losses, rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(captured_weights, weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
