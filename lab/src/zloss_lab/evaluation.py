"""Evaluation of a network as a ranking of all classes, on all examples of a text or on a sample.

    result = evaluate(network, validation)
    result.top_k_error[10], result.mean_reciprocal_rank, result.half_widths

The rank of a target is 1 + the number of classes that score strictly higher: equal scores share the better rank. There
is one exception. In a network whose units have died, the last hidden layer is all zeros. If that makes the scores of
all classes equal, nothing is predicted, and the example gets the worst rank instead of the best.

A sample is drawn without replacement. Its scores have confidence intervals, see `confidence_intervals.py`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from zloss.heads import Head
from zloss.metrics import MeanReciprocalRank, Perplexity, TopKError
from zloss.names import check_name
from zloss_lab.confidence_intervals import HalfWidths, half_widths
from zloss_lab.networks import NgramNetwork
from zloss_lab.ngrams import NgramBatch, NgramBatches

TOP_K = (1, 5, 10, 20, 50, 100)
SCORES = (*(f"top_{k}_error" for k in TOP_K), "mrr", "mean_rank", "perplexity")

# Multiplications and additions of an evaluation on a CPU without a limit. They take about half a minute.
_CPU_OPERATIONS = 2e12
_LEAST_SAMPLE = 1000
# Examples in a batch. A GPU needs large products to be fast. On a CPU small batches let the progress bar move.
ROWS = {"cuda": 4096, "cpu": 256}

CountWatcher = Callable[[int, int], None]  # examples done, examples in all


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of a classifier on a text.

    >>> result = Evaluation.of_ranks(torch.tensor([1, 2, 4, 4]), ks=(1, 3))
    >>> result.top_k_error, result.mean_reciprocal_rank, result.mean_rank
    ({1: 0.75, 3: 0.5}, 0.5, 2.75)
    >>> result.score("top_3_error")
    0.5
    """

    top_k_error: dict[int, float]  # share of the targets that are not among the k best classes
    mean_reciprocal_rank: float
    mean_rank: float
    perplexity: float | None  # None if the head gives no probabilities
    examples: int
    population: int  # examples in the text; larger than `examples` if a sample was taken
    half_widths: HalfWidths | None  # None if all examples were taken

    def score(self, name: str) -> float:
        """Return a score by its name: "top_10_error" and so on, "mrr", "mean_rank" or "perplexity"."""
        scores = named_scores(self)
        if name == "perplexity" and name not in scores:
            raise ValueError(
                "no perplexity: the head ranks words and gives them no probabilities; use another score"
            )
        check_name("score", name, scores)
        return scores[name]

    def to_record(self) -> dict[str, float | int]:
        """Return a flat mapping of the scores by name. For a sample it has half-widths as `<name>_half_width`."""
        widths = {} if self.half_widths is None else named_scores(self.half_widths)
        counts: dict[str, float | int] = {"examples": self.examples, "population": self.population}
        return (
            named_scores(self)
            | {f"{name}_half_width": width for name, width in widths.items()}
            | counts
        )

    @classmethod
    def of_ranks(
        cls,
        ranks: Tensor,  # (n,) integers >= 1
        *,
        log_prob: Tensor | None = None,  # (n,) of the targets
        population: int | None = None,
        ks: Sequence[int] = TOP_K,
    ) -> "Evaluation":
        """Return the scores of the ranks of all targets.

        Args:
            ranks: the rank of each target.
            log_prob: the log-probability of each target, if the classifier gives probabilities.
            population: N, if the targets are a sample of N examples.
            ks: the values of k for the top-k errors.
        """
        _check_ks(ks)
        _check_ranks(ranks)
        population = len(ranks) if population is None else population
        if population < len(ranks):
            raise ValueError(
                f"a sample of {len(ranks)} cannot come from a population of {population}"
            )
        is_sample = population > len(ranks)
        return cls(
            top_k_error={k: _metric_of(TopKError(k), ranks) for k in ks},
            mean_reciprocal_rank=_metric_of(MeanReciprocalRank(), ranks),
            mean_rank=ranks.double().mean().item(),
            perplexity=None if log_prob is None else _metric_of(Perplexity(), log_prob),
            examples=len(ranks),
            population=population,
            half_widths=half_widths(ranks, log_prob, ks=ks, population=population)
            if is_sample
            else None,
        )


def require_score(score: str, *, is_likelihood: bool) -> None:
    """Refuse an unknown score, and perplexity for a head without probabilities, before training begins."""
    log_prob = torch.zeros(1) if is_likelihood else None
    Evaluation.of_ranks(torch.ones(1, dtype=torch.long), log_prob=log_prob).score(score)


def is_made_large(score: str) -> bool:
    """Return whether a larger score is better."""
    return score == "mrr"


def finite(record: Mapping[str, float]) -> dict[str, float | None]:
    """Return a record for JSON, which has no infinity: infinite numbers become None.

    >>> finite({"mrr": 0.25, "perplexity": math.inf})
    {'mrr': 0.25, 'perplexity': None}
    """
    return {name: value if math.isfinite(value) else None for name, value in record.items()}


def named_scores(scores: Evaluation | HalfWidths) -> dict[str, float]:
    """Return scores, or their half-widths, by the names of `SCORES`. A head without probabilities has no perplexity."""
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
    """Rank the targets of a text among all classes, and return the scores.

    The ranks and log-probabilities of all examples are held until the end, 12 bytes for each example.

    Args:
        network: the network. Afterwards it is in the same mode as before, training or evaluation.
        batches: the n-grams of the text. Their order and the size of a batch do not matter.
        ks: the values of k for the top-k errors.
        limit: the largest number of examples. If the text has more, a random sample is taken, which is the same every
            time. The default is all examples on a GPU, and on a CPU the number that takes about half a minute.
        progress: called after each batch with the number of examples done and their total number.
    """
    limit = default_limit(network, batches.device) if limit is None else limit
    with evaluation_mode(network):
        zeros_tie = zeros_make_equal(network.head, batches.device)
        return evaluation_of(
            lambda batch: _judged(network, batch, zeros_tie), batches, ks, limit, progress
        )


def default_limit(network: NgramNetwork, device: torch.device) -> int | None:
    """Return the number of examples for an evaluation without a limit; None stands for all."""
    if device.type != "cpu":
        return None
    head = network.head
    return cpu_sample(head.in_features, head.num_classes, passes=2 if head.is_likelihood else 1)


def cpu_sample(in_features: int, num_classes: int, *, passes: int = 2) -> int:
    """Return the number of examples that a CPU ranks in about half a minute.

    Args:
        in_features: width of the last hidden layer.
        num_classes: number of classes.
        passes: passes over the classes. A head with probabilities needs two, others one.
    """
    return max(_LEAST_SAMPLE, int(_CPU_OPERATIONS / (2 * passes * in_features * num_classes)))


def constant_classifier(
    counts: Tensor | np.ndarray[tuple[int], np.dtype[np.int64]],  # (C,) of the training text
    batches: NgramBatches,
    *,
    ks: Sequence[int] = TOP_K,
    limit: int | None = None,
    progress: CountWatcher | None = None,
) -> Evaluation:
    """Return the scores of a classifier that ranks words by frequency and ignores the context.

    Any network has to beat it. The rank of a word is 1 + the number of words that are strictly more frequent. Its
    probability is its share of all occurrences, so a target that never occurs in training makes the perplexity
    infinite. Without a limit all examples are taken, on a CPU too.
    """
    counts = torch.as_tensor(
        np.array(counts) if isinstance(counts, np.ndarray) else counts, device=batches.device
    )
    if counts.dim() != 1 or not counts.sum() > 0 or (counts < 0).any():
        raise ValueError("counts must be one number >= 0 per class, and not all 0")
    ascending = counts.sort().values
    ranks = len(counts) - torch.searchsorted(ascending, counts, right=True) + 1
    log_prob = (counts.double() / counts.sum()).log()
    return evaluation_of(
        lambda batch: (ranks[batch[1]], log_prob[batch[1]]), batches, ks, limit, progress
    )


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Switch off dropout and gradients for the block; afterwards every module is in the mode that it was in before."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


Judged = tuple[Tensor, Tensor | None]  # ranks (B,) of the targets, and log-probabilities (B,)


def _judged(network: NgramNetwork, batch: NgramBatch, zeros_tie: bool) -> Judged:
    context, target = batch
    h = network.hidden(context)
    log_prob = network.head.target_log_prob(h, target) if network.head.is_likelihood else None
    ranks = network.head.rank(h, target)
    return (worst_where_zero(ranks, h, network.num_classes) if zeros_tie else ranks), log_prob


def zeros_make_equal(head: Head, device: torch.device) -> bool:
    """Return whether a hidden layer of zeros makes the scores of all classes equal, as in a head without a bias.

    Two equal best scores are taken as the sign of that.
    """
    scores, _ = head.topk(torch.zeros(1, head.in_features, device=device), 2)
    return bool(scores[0, 0] == scores[0, 1])


def worst_where_zero(ranks: Tensor, h: Tensor, num_classes: int) -> Tensor:
    """Return the ranks, with the worst rank for the examples whose hidden layer is all zeros."""
    return torch.where(h.any(-1), ranks, num_classes)


def evaluation_of(
    judge: Callable[[NgramBatch], Judged],
    batches: NgramBatches,
    ks: Sequence[int],
    limit: int | None,
    progress: CountWatcher | None,
) -> Evaluation:
    """Return the scores of a classifier on a text, from a function that judges batches."""
    _check_ks(ks)
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1 example, got {limit}")
    wanted = batches.examples if limit is None else min(limit, batches.examples)
    chosen = batches.sampled(wanted, batch_size=ROWS.get(batches.device.type))
    judged: list[Judged] = []
    done = 0
    for batch in chosen:
        judged.append(judge(batch))
        done += len(batch[1])
        if progress is not None:
            progress(done, chosen.examples)
    log_probs = [log_prob for _, log_prob in judged if log_prob is not None]
    return Evaluation.of_ranks(
        torch.cat([ranks for ranks, _ in judged]),
        log_prob=torch.cat(log_probs) if log_probs else None,
        population=batches.population,
        ks=ks,
    )


def _check_ks(ks: Sequence[int]) -> None:
    if not ks or min(ks) < 1:
        raise ValueError(f"ks must be integers of at least 1, got {list(ks)}")


def _check_ranks(ranks: Tensor) -> None:
    if not len(ranks):
        raise ValueError("nothing to evaluate: there are no ranks")
    if (ranks < 1).any():
        raise ValueError("a rank was below 1: ranks start at 1, and no target can be ignored here")


def _metric_of(metric: TopKError | MeanReciprocalRank | Perplexity, values: Tensor) -> float:
    metric.update(values)
    return metric.compute()
