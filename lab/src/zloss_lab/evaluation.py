"""How well a network ranks the words that come next: over all classes, in blocks, on all examples or on a sample.

    result = evaluate(network, validation)
    result.top_k_error[10], result.mean_reciprocal_rank, result.half_widths

The rank of a target is 1 + the number of classes that score strictly higher: equal scores share the better rank. But
where the last hidden layer is all zeros, as it is in a network whose units have died, and that makes the scores of all
classes equal, nothing is predicted: such an example counts as the worst rank there is, instead of the best.

A sample is drawn without replacement and gives, for every score, a mean m and a deviation s. The half-width of its 95 %
confidence interval is that of the normal approximation,

    1.96 s sqrt((1 - n / N) / n)                    n examples of N

For the mean rank this is rough where few targets have most of the ranks, and for an error near 0 or 1 it is too small.
The perplexity is exp(m) of the negative log-probabilities, so its half-width is exp(m) times theirs (delta method).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zloss.heads import Head
from zloss.metrics import perplexity_of
from zloss.names import check_name
from zloss_lab.networks import NgramNetwork
from zloss_lab.ngrams import NgramBatch, NgramBatches

TOP_K = (1, 5, 10, 20, 50, 100)
SCORES = (*(f"top_{k}_error" for k in TOP_K), "mrr", "mean_rank", "perplexity")

# Multiplications and additions that an evaluation on a CPU may take when nobody says how many: about half a minute.
_CPU_OPERATIONS = 2e12
_LEAST_SAMPLE = 1000
# Examples at a time. Ranking needs wide products on a GPU; on a CPU progress should be seen.
ROWS = {"cuda": 4096, "cpu": 256}
_NORMAL_95 = 1.959964  # 97.5 % of a normal distribution lie below

CountWatcher = Callable[[int, int], None]  # examples done, examples in all


@dataclass(frozen=True, kw_only=True)
class HalfWidths:
    """Half the width of the 95 % confidence interval of every score."""

    top_k_error: dict[int, float]
    mean_reciprocal_rank: float
    mean_rank: float
    perplexity: float | None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a classifier achieves on a text.

    >>> result = Evaluation.of_ranks(torch.tensor([1, 2, 4, 4]), ks=(1, 3))
    >>> result.top_k_error, result.mean_reciprocal_rank, result.mean_rank
    ({1: 0.75, 3: 0.5}, 0.5, 2.75)
    >>> result.score("top_3_error")
    0.5
    """

    top_k_error: dict[int, float]  # share of the targets that are not among the k best classes
    mean_reciprocal_rank: float
    mean_rank: float
    perplexity: float | None  # None where the head gives no probabilities
    examples: int
    population: int  # examples in the text; more than `examples` where a sample was taken
    half_widths: HalfWidths | None  # None where all examples were taken

    def score(self, name: str) -> float:
        """A score by name: "top_10_error" and so on, "mrr", "mean_rank" or "perplexity"."""
        scores = _named(self)
        if name == "perplexity" and name not in scores:
            raise ValueError(
                "no perplexity: the head ranks words and gives them no probabilities; use another score"
            )
        check_name("score", name, scores)
        return scores[name]

    def to_record(self) -> dict[str, float | int]:
        """One flat mapping for a file: scores by name, half-widths as `<name>_half_width` where a sample was taken."""
        widths = {} if self.half_widths is None else _named(self.half_widths)
        counts: dict[str, float | int] = {"examples": self.examples, "population": self.population}
        return (
            _named(self) | {f"{name}_half_width": width for name, width in widths.items()} | counts
        )

    @classmethod
    def of_ranks(
        cls,
        ranks: Tensor,  # (N,) integers >= 1
        *,
        log_prob: Tensor | None = None,  # (N,) of the targets
        population: int | None = None,
        ks: Sequence[int] = TOP_K,
    ) -> "Evaluation":
        """From the ranks of all targets at once, a sample of a `population` if that is given."""
        tally = _Tally(ks)
        tally.update(ranks, log_prob)
        return tally.result(population)


def require_score(score: str, *, is_likelihood: bool) -> None:
    """Refuse one that there is not, or not of such a head: else the first validation would find out."""
    log_prob = torch.zeros(1) if is_likelihood else None
    Evaluation.of_ranks(torch.ones(1, dtype=torch.long), log_prob=log_prob).score(score)


def is_made_large(score: str) -> bool:
    """Whether more of it is better."""
    return score == "mrr"


def finite(record: Mapping[str, float]) -> dict[str, float | None]:
    """A record for JSON, which has no infinity: the perplexity of a word that never occurred becomes null.

    >>> finite({"mrr": 0.25, "perplexity": math.inf})
    {'mrr': 0.25, 'perplexity': None}
    """
    return {name: value if math.isfinite(value) else None for name, value in record.items()}


def _named(scores: Evaluation | HalfWidths) -> dict[str, float]:
    named = {f"top_{k}_error": value for k, value in scores.top_k_error.items()}
    named |= {"mrr": scores.mean_reciprocal_rank, "mean_rank": scores.mean_rank}
    return named if scores.perplexity is None else named | {"perplexity": scores.perplexity}


def evaluate(
    network: NgramNetwork,
    batches: NgramBatches,
    *,
    ks: Sequence[int] = TOP_K,
    limit: int | None = None,
    progress: CountWatcher | None = None,
) -> Evaluation:
    """Rank the targets of a text among all classes.

    Args:
        network: left in the mode that it was in, training or not.
        batches: of the text, in any order and of any size: all examples are taken, or those of its sample.
        ks: of the top-k errors.
        limit: a sample of at most so many examples, the same one every time. By default all of them on a GPU, and on a
            CPU as many as take about half a minute; the result says how many.
        progress: called with the number of examples done, and of all.
    """
    limit = default_limit(network, batches.device) if limit is None else limit
    with evaluation_mode(network):
        zeros_tie = zeros_make_equal(network.head, batches.device)
        return _evaluation(
            lambda batch: _judged(network, batch, zeros_tie), batches, ks, limit, progress
        )


def default_limit(network: NgramNetwork, device: torch.device) -> int | None:
    """How many examples to take when nobody says; None for all."""
    if device.type != "cpu":
        return None
    head = network.head
    return cpu_sample(head.in_features, head.num_classes, passes=2 if head.is_likelihood else 1)


def cpu_sample(in_features: int, num_classes: int, *, passes: int = 2) -> int:
    """How many examples a CPU ranks in about half a minute; with probabilities that takes two passes."""
    return max(_LEAST_SAMPLE, int(_CPU_OPERATIONS / (2 * passes * in_features * num_classes)))


def constant_classifier(
    counts: Tensor | np.ndarray[tuple[int], np.dtype[np.int64]],  # (C,) of the training text
    batches: NgramBatches,
    *,
    ks: Sequence[int] = TOP_K,
    limit: int | None = None,
    progress: CountWatcher | None = None,
) -> Evaluation:
    """What the frequencies of the words achieve, whatever the context: what any network has to beat.

    The rank of a word is 1 + the number of words that are strictly more frequent, its probability its share of all.
    A target that never occurs in training makes the perplexity infinite. All examples by default, on a CPU too.
    """
    counts = torch.as_tensor(
        np.array(counts) if isinstance(counts, np.ndarray) else counts, device=batches.device
    )
    if counts.dim() != 1 or not counts.sum() > 0 or (counts < 0).any():
        raise ValueError("counts must be one number >= 0 per class, and not all 0")
    ascending = counts.sort().values
    ranks = len(counts) - torch.searchsorted(ascending, counts, right=True) + 1
    log_prob = (counts.double() / counts.sum()).log()
    return _evaluation(
        lambda batch: (ranks[batch[1]], log_prob[batch[1]]), batches, ks, limit, progress
    )


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """No dropout and no gradients; every module goes back to the mode that it was in."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


Judged = tuple[
    Tensor, Tensor | None
]  # ranks (B,), log-probabilities of the targets (B,) where there are any


def _judged(network: NgramNetwork, batch: NgramBatch, zeros_tie: bool) -> Judged:
    context, target = batch
    h = network.hidden(context)
    log_prob = network.head.target_log_prob(h, target) if network.head.is_likelihood else None
    ranks = network.head.rank(h, target)
    return (worst_where_zero(ranks, h, network.num_classes) if zeros_tie else ranks), log_prob


def zeros_make_equal(head: Head, device: torch.device) -> bool:
    """Whether a hidden layer of zeros says nothing about the classes, as without a bias: the two best are equal."""
    scores, _ = head.topk(torch.zeros(1, head.in_features, device=device), 2)
    return bool(scores[0, 0] == scores[0, 1])


def worst_where_zero(ranks: Tensor, h: Tensor, num_classes: int) -> Tensor:
    """The ranks, but the worst one where nothing was predicted."""
    return torch.where(h.any(-1), ranks, num_classes)


def _evaluation(
    judge: Callable[[NgramBatch], Judged],
    batches: NgramBatches,
    ks: Sequence[int],
    limit: int | None,
    progress: CountWatcher | None,
) -> Evaluation:
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1 example, got {limit}")
    wanted = batches.examples if limit is None else min(limit, batches.examples)
    chosen = batches.sampled(wanted, batch_size=ROWS.get(batches.device.type))
    tally = _Tally(ks)
    for batch in chosen:
        tally.update(*judge(batch))
        if progress is not None:
            progress(tally.examples, chosen.examples)
    return tally.result(batches.population)


class _Tally:
    """Sums of scores and of their squares, on the device until the result is wanted."""

    def __init__(self, ks: Sequence[int]) -> None:
        if not ks or min(ks) < 1:
            raise ValueError(f"ks must be integers of at least 1, got {list(ks)}")
        self.ks, self.examples = tuple(ks), 0
        self._names: list[str] = []
        self._sums: Tensor | None = None  # (2, scores) float64: sums, and sums of squares

    def update(self, ranks: Tensor, log_prob: Tensor | None) -> None:
        """Add the ranks of some targets, and their log-probabilities where there are any."""
        scores = {f"top_{k}_error": ranks > k for k in self.ks}
        scores |= {"mrr": 1 / ranks.double(), "mean_rank": ranks, "is_no_rank": ranks < 1}
        if log_prob is not None:
            scores["surprise"] = -log_prob
        table = torch.stack([score.double() for score in scores.values()])
        sums = torch.stack([table.sum(1), table.square().sum(1)])
        self._sums = sums if self._sums is None else self._sums + sums
        self._names = list(scores)
        self.examples += len(ranks)

    def result(self, population: int | None = None) -> Evaluation:
        """The means so far, those of a sample of a population if that is given."""
        if self._sums is None or not self.examples:
            raise ValueError("nothing to evaluate: there are no ranks")
        means, squares = (
            dict(zip(self._names, row, strict=True))
            for row in (self._sums / self.examples).tolist()
        )
        if means["is_no_rank"]:
            raise ValueError(
                "a rank was below 1: ranks start at 1, and no target can be ignored here"
            )
        population = self.examples if population is None else population
        if population < self.examples:
            raise ValueError(
                f"a sample of {self.examples} cannot come from a population of {population}"
            )
        left_out = 1 - self.examples / population
        widths = {
            name: _half_width(means[name], squares[name], self.examples, left_out)
            for name in self._names
        }
        perplexity = perplexity_of(means["surprise"]) if "surprise" in means else None
        of_perplexity = None if perplexity is None else perplexity * widths["surprise"]
        return Evaluation(
            **self._of_ranks(means),
            perplexity=perplexity,
            examples=self.examples,
            population=population,
            half_widths=HalfWidths(**self._of_ranks(widths), perplexity=of_perplexity)
            if left_out
            else None,
        )

    def _of_ranks(self, values: dict[str, float]) -> dict[str, Any]:
        errors = {k: values[f"top_{k}_error"] for k in self.ks}
        return {
            "top_k_error": errors,
            "mean_reciprocal_rank": values["mrr"],
            "mean_rank": values["mean_rank"],
        }


def _half_width(mean: float, mean_square: float, examples: int, left_out: float) -> float:
    """Of the 95 % interval of a mean, see above; `left_out` is the share of the population outside the sample."""
    if examples < 2 or not math.isfinite(mean_square):
        return math.inf
    variance = max(0.0, mean_square - mean**2) * examples / (examples - 1)
    return _NORMAL_95 * math.sqrt(variance * left_out / examples)
