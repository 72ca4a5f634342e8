"""Scores of ranks against loops in Python, for networks and for a guess by word frequency."""

import json
import math
import re
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import zloss
from tests.lab.evaluated_text import CLASSES, CONTEXT, EXAMPLES, KS, TEXT, expected, text
from tests.lab.small_networks import COUNTS, build, every_head, small
from zloss_lab import evaluation
from zloss_lab.evaluation import Evaluation, constant_classifier, evaluate, evaluation_mode
from zloss_lab.networks import NgramNetwork
from zloss_lab.ngrams import NgramBatches

SUMMED = 1e-12  # float64 sums of some hundred terms


def assert_scores(result: Evaluation, wanted: dict[str, float], rel: float = SUMMED) -> None:
    record = result.to_record()
    assert {name: record[name] for name in wanted} == pytest.approx(wanted, rel=rel)


# ---- a network -------------------------------------------------------------------------------------------------------


def alive(network: NgramNetwork, bias: float = 1.0) -> NgramNetwork:
    """Return the network with biases that make the hidden layers non-zero, or all zero."""
    for layer in network.layers:
        assert isinstance(layer, torch.nn.Linear)
        layer.bias.data.fill_(bias)
    return network


def logits_of(network: NgramNetwork, context: Tensor) -> list[list[float]]:
    assert isinstance(network.head, zloss.DenseOutput | zloss.SphericalOutput)
    logits: list[list[float]] = network.head.logits(network.hidden(context)).tolist()
    return logits


@pytest.mark.parametrize("head", ["dense", "factored"])
def test_it_is_its_definition(head: str, device: torch.device) -> None:
    network = build(small(head), device)
    ranks, surprises = [], []
    for t in range(EXAMPLES):
        (row,), target = (
            logits_of(network, TEXT[None, t : t + CONTEXT].to(device)),
            int(TEXT[t + CONTEXT]),
        )
        ranks.append(1 + sum(other > row[target] for other in row) if any(row) else CLASSES)
        surprises.append(math.log(sum(map(math.exp, row))) - row[target])
    result = evaluate(network, text(device), ks=KS)
    assert_scores(result, expected(ranks))
    assert (result.examples, result.population, result.half_widths) == (EXAMPLES, EXAMPLES, None)
    if head == "dense":
        # Logits and their normaliser are float32.
        assert result.perplexity == pytest.approx(math.exp(statistics.fmean(surprises)), rel=1e-5)
    else:
        assert result.perplexity is None


@every_head
def test_it_agrees_with_the_metrics_of_the_library(head: str, device: torch.device) -> None:
    network = alive(build(small(head), device))
    context, target = next(iter(text(device).sampled(EXAMPLES, batch_size=EXAMPLES)))
    h = network.hidden(context)
    ranks = network.head.rank(h, target)
    metrics: dict[str, Any] = {f"top_{k}_error": zloss.TopKError(k) for k in KS} | {
        "mrr": zloss.MeanReciprocalRank()
    }
    for metric in metrics.values():
        metric.update(ranks)
    wanted = {name: metric.compute() for name, metric in metrics.items()}
    if network.head.is_likelihood:
        wanted["perplexity"] = network.head.perplexity(h, target)
    result = evaluate(network, text(device), ks=KS)
    assert (result.perplexity is not None) == network.head.is_likelihood
    # Products of batches of another size are rounded differently.
    assert_scores(result, wanted, rel=1e-5)


def test_order_and_size_of_batches_do_not_matter() -> None:
    network = build(small("dense"))
    results = [
        evaluate(
            network,
            NgramBatches(TEXT, context=CONTEXT, batch_size=size, shuffle=shuffle, seed=seed),
        ).to_record()
        for size, shuffle, seed in ((1, True, 1), (20, False, 2), (297, True, 3))
    ]
    assert results[0] == pytest.approx(results[1], rel=1e-6)
    assert results[0] == pytest.approx(results[2], rel=1e-6)


def test_equal_scores_share_the_better_rank() -> None:
    network = alive(build(small("dense")))
    assert isinstance(network.head, zloss.DenseOutput)
    torch.nn.init.zeros_(network.head.linear.weight)
    result = evaluate(network, text())
    assert (result.top_k_error[1], result.mean_rank) == (0, 1)
    assert result.perplexity == pytest.approx(CLASSES)


@pytest.mark.parametrize("bias", [False, True])
def test_a_dead_network_does_not_win(bias: bool) -> None:
    """Without a bias all scores are equal, and every target would have rank 1. With a bias it predicts something."""
    config = replace(small("dense"), head=zloss.HeadConfig(head="dense", options={"bias": bias}))
    network = alive(build(config), bias=-100.0)
    assert not network.hidden(torch.randint(CLASSES, (5, CONTEXT))).any()
    result = evaluate(network, text(), ks=KS)
    if bias:
        assert 0 < result.top_k_error[10] < 1
    else:
        assert (result.top_k_error[10], result.mean_rank) == (1, CLASSES)


def test_the_network_is_left_as_it_was() -> None:
    network = build(small("dense", dropout=0.5))
    network.head.eval()
    before = {module: module.training for module in network.modules()}
    first = evaluate(network, text())
    assert evaluate(network, text()) == first, "no dropout"
    assert {module: module.training for module in network.modules()} == before
    assert all(parameter.grad is None for parameter in network.parameters())
    with pytest.raises(ZeroDivisionError), evaluation_mode(network):
        _ = 1 / (network.training or torch.is_grad_enabled())
    assert {module: module.training for module in network.modules()} == before
    assert torch.is_grad_enabled()


def test_progress() -> None:
    seen: list[tuple[int, int]] = []
    evaluate(build(small()), text(), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(256, EXAMPLES), (EXAMPLES, EXAMPLES)]
    seen.clear()
    evaluate(
        build(small()), text(), limit=30, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(30, 30)]


# ---- the constant classifier -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_the_constant_classifier_is_its_definition(kind: str, device: torch.device) -> None:
    counts = [int(count) for count in torch.randint(1, 9, (CLASSES,))]  # many of them are equal
    targets = TEXT[CONTEXT:].tolist()
    ranks = [1 + sum(other > counts[target] for other in counts) for target in targets]
    surprise = statistics.fmean(-math.log(counts[target] / sum(counts)) for target in targets)
    given = torch.tensor(counts) if kind == "tensor" else np.array(counts)
    result = constant_classifier(given, text(device), ks=KS)
    assert_scores(result, expected(ranks) | {"perplexity": math.exp(surprise)})
    assert result.examples == EXAMPLES


def test_a_word_that_never_occurred_is_infinitely_surprising() -> None:
    counts = COUNTS.clone()
    counts[TEXT[50]] = 0
    result = constant_classifier(counts, text())
    assert result.perplexity == math.inf
    sample = constant_classifier(counts, text(), limit=290)
    assert sample.half_widths is not None
    assert sample.half_widths.perplexity in (math.inf, pytest.approx(0, abs=10))


def test_the_constant_classifier_on_the_sample_of_a_network() -> None:
    network, batches = build(small()), text(seed=3)
    assert (
        evaluate(network, batches, limit=50).examples
        == constant_classifier(COUNTS, batches, limit=50).examples
        == 50
    )
    targets = torch.cat([target for _, target in batches.sampled(50)])
    assert constant_classifier(COUNTS, batches, limit=50).mean_rank == (targets + 1).double().mean()


def test_a_cpu_takes_a_sample_where_all_would_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build(small("factored"))
    monkeypatch.setattr(evaluation, "_LEAST_SAMPLE", 20)
    monkeypatch.setattr(evaluation, "_CPU_OPERATIONS", 2 * 8 * CLASSES * 100)
    assert evaluate(network, text()).examples == 100
    assert evaluate(build(small("dense")), text()).examples == 50, (
        "two passes: ranks and probabilities"
    )
    assert evaluate(network, text(), limit=EXAMPLES).examples == EXAMPLES
    monkeypatch.setattr(evaluation, "_CPU_OPERATIONS", 1)
    assert evaluate(network, text()).examples == 20
    assert evaluation.default_limit(network, torch.device("cuda")) is None


# ---- records, bad input ----------------------------------------------------------------------------------------------


def test_scores_by_name() -> None:
    result = Evaluation.of_ranks(torch.tensor([1, 2, 4, 4]), ks=(1, 3))
    scores = {"top_1_error": 0.75, "top_3_error": 0.5, "mrr": 0.5, "mean_rank": 2.75}
    assert {name: result.score(name) for name in scores} == scores
    assert json.loads(json.dumps(result.to_record())) == scores | {"examples": 4, "population": 4}
    with pytest.raises(
        ValueError, match=re.escape("unknown score: 'top_5_error'; did you mean 'top_3_error'?")
    ):
        result.score("top_5_error")
    with pytest.raises(
        ValueError, match="no perplexity: the head ranks words and gives them no probabilities"
    ):
        result.score("perplexity")


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        ([], {}, "nothing to evaluate: there are no ranks"),
        ([1, 0], {}, "a rank was below 1: ranks start at 1, and no target can be ignored here"),
        ([1, 2], {"population": 1}, "a sample of 2 cannot come from a population of 1"),
        ([1], {"ks": ()}, "ks must be integers of at least 1, got []"),
        ([1], {"ks": (5, 0)}, "ks must be integers of at least 1, got [5, 0]"),
    ],
)
def test_bad_ranks(ranks: list[int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Evaluation.of_ranks(torch.tensor(ranks, dtype=torch.long), **options)


def test_bad_limits_and_counts() -> None:
    with pytest.raises(ValueError, match="limit must be at least 1 example, got 0"):
        evaluate(build(small()), text(), limit=0)
    for counts in (torch.zeros(CLASSES), torch.full((CLASSES,), -1), torch.ones(2, 3)):
        with pytest.raises(
            ValueError, match="counts must be one number >= 0 per class, and not all 0"
        ):
            constant_classifier(counts, text())
