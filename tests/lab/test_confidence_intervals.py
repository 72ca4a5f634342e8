"""Scores of samples, and their intervals: definition, and how often they cover the true score."""

import math
import statistics

import pytest
import torch

from tests.lab.evaluated_text import EXAMPLES, KS, expected, text
from tests.lab.small_networks import build, small
from zloss_lab.evaluation import Evaluation, evaluate
from zloss_lab.score_table import formatted


def test_a_sample_is_the_same_every_time_and_says_so() -> None:
    network, batches = build(small()), text()
    result = evaluate(network, batches, limit=60)
    assert (result.examples, result.population) == (60, EXAMPLES)
    assert evaluate(network, batches, limit=60) == result
    assert evaluate(network, batches.sampled(60)) == result
    batches.start(4)
    assert evaluate(network, batches, limit=60) == result
    assert evaluate(network, batches, limit=EXAMPLES).half_widths is None


def test_half_widths_are_their_definition() -> None:
    ranks, population = [1, 2, 2, 5, 40, 7, 1, 1], 20
    log_prob = [-0.1 * rank for rank in ranks]
    result = Evaluation.of_ranks(
        torch.tensor(ranks), log_prob=torch.tensor(log_prob), population=population, ks=KS
    )

    def half_width(values: list[float]) -> float:
        return (
            1.96
            * statistics.stdev(values)
            * math.sqrt((1 - len(values) / population) / len(values))
        )

    def half_width_of_share(share: float) -> float:
        """From the shares that a score test at 95 % would not reject: Wilson's definition."""
        examples = len(ranks) * (population - 1) / (population - len(ranks))
        kept = [
            true
            for true in (number / 100_000 for number in range(1, 100_000))
            if abs(share - true) <= 1.96 * math.sqrt(true * (1 - true) / examples)
        ]
        return max(share - kept[0], kept[-1] - share)

    assert result.half_widths is not None
    perplexity = math.exp(-statistics.fmean(log_prob))
    wanted = {
        f"top_{k}_error": half_width_of_share(statistics.fmean(rank > k for rank in ranks))
        for k in KS
    }
    wanted |= {
        "mrr": half_width([1 / rank for rank in ranks]),
        "mean_rank": half_width([*map(float, ranks)]),
    }
    wanted["perplexity"] = perplexity * half_width([-value for value in log_prob])
    record = result.to_record()
    # 1.96 has three digits, shares are tried in steps of 1e-5, and the log-probabilities are float32.
    assert {name: record[f"{name}_half_width"] for name in wanted} == pytest.approx(
        wanted, rel=1e-4
    )
    assert result.perplexity == pytest.approx(perplexity, rel=1e-6)


def test_intervals_cover_what_they_should() -> None:
    """The ranks are distributed like ranks of words: most are small, and some are huge."""
    generator = torch.Generator().manual_seed(0)
    size, sample, repetitions = 5000, 500, 400
    log_prob = -8 * torch.rand(size, generator=generator, dtype=torch.float64)
    ranks = (-log_prob).exp().long()
    truth = Evaluation.of_ranks(ranks, log_prob=log_prob, ks=KS).to_record()
    covered = dict.fromkeys([*expected([1]), "perplexity"], 0)
    for _ in range(repetitions):
        drawn = torch.randperm(size, generator=generator)[:sample]
        result = Evaluation.of_ranks(
            ranks[drawn], log_prob=log_prob[drawn], population=size, ks=KS
        ).to_record()
        for name in covered:
            covered[name] += abs(result[name] - truth[name]) <= result[f"{name}_half_width"]
    # 95 %, give or take four standard deviations of 400 repetitions, and the normal approximation.
    assert all(0.90 < count / repetitions < 0.99 for count in covered.values()), covered


def test_one_example_says_nothing_about_the_others() -> None:
    result = evaluate(build(small()), text(), limit=1)
    assert result.half_widths is not None
    assert result.half_widths.mean_rank == math.inf


@pytest.mark.parametrize("rank", [1, 200])
def test_a_sample_that_is_all_right_or_all_wrong_has_an_interval(rank: int) -> None:
    """Of n examples without an exception, about 3.8 / (n + 3.8) exceptions are possible elsewhere."""
    result = Evaluation.of_ranks(torch.full((96,), rank), population=10**9)
    widths = result.half_widths
    assert widths is not None
    # z^2 / (n + z^2): 3.8415 / 99.8415; the population is so large that its correction is 1e-7.
    assert widths.top_k_error[1] == pytest.approx(0.038476, abs=1e-5)
    assert widths.mean_rank == widths.mean_reciprocal_rank == math.inf
    assert formatted(result)["top 1 error"] == f"{'0.0' if rank == 1 else '100.0'}% ± 3.8%"
    assert formatted(result)["mean rank"] == f"{rank}.0 ± unknown"


def test_no_interval_is_printed_as_zero() -> None:
    """Samples of nearly everything have tiny intervals; every number that is shown has two digits or more."""
    generator = torch.Generator().manual_seed(0)
    for size in (2, 10, 1000, 100_000):
        for population in (size + 1, 2 * size, 1000 * size):
            ranks = torch.randint(1, 300, (size,), generator=generator)
            for shown in formatted(Evaluation.of_ranks(ranks, population=population)).values():
                width = shown.partition(" ± ")[2].rstrip("%").replace(",", "")
                assert width == "unknown" or float(width) > 0, shown
