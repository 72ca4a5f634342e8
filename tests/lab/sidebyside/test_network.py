"""A stack of networks takes the steps that each network would take alone, and ranks as each does."""

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
from zloss_lab.sidebyside.stacked_ranking import evaluate_stack
from zloss_lab.training import Experiment, Trainer

# Differences between trials, without dropout: a network alone draws other random numbers for it than a stack.
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
    # No graph is captured: a captured step of the factored layer would refuse such large steps.
    experiment = replace(experiment, training=replace(experiment.training, graph=False))
    return Trainer(experiment, Run(tmp_path / "never written"), lambda _: None)


def layers_of(network: NgramNetwork) -> list[Tensor]:
    """Return the weights of a network in the order of `StackedWeights.tensors`."""
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
        # Float32 sums are in other orders. A step moves weights by up to 0.03, and keeps earlier errors.
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
            # The errors are larger if a ReLU is active in one network only.
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
    """An infinite score of the target does not rank first, and neither does one that is not a number."""
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
    """A score of the target that is not a number ranks below all others."""
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
        # The ranks are the same, but their reciprocals are added up in another order.
        assert result.to_record() == pytest.approx(record, rel=1e-12)
    assert len({result.mean_rank for result in results}) > 1, "not a test"


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_a_captured_stack_is_one_that_is_not(
    precision: str, corpus: Path, cuda: torch.device
) -> None:
    """With dropout too, a captured step sees the random numbers that were drawn for it.

    The loss is the softmax, because the Z-loss may amplify the last bit: see `SAME` in `test_captured_stack.py`.
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
    # The embeddings add up rows in no fixed order. The last bit that changes may round to another TF32 number. In 800
    # random orders on a CPU, the differences were up to 2e-7, and up to 1e-3 with rounded operands of products. Old
    # random numbers in all replays make differences of 2.6e-2 or more.
    tolerance = {"float32": 1e-4, "tf32": 5e-3}[precision]
    torch.testing.assert_close(captured_losses, losses, rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(captured_weights, weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
