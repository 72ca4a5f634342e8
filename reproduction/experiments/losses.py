"""Figures 2 and 5: every loss with the settings that are best for each score, tested for that score.

Both figures have the Z-loss, softmax and sigmoid: what one file has of them serves in the other too.
"""

from collections.abc import Sequence

from reproduction.experiments.chosen import Chosen
from reproduction.experiments.collecting import Collector, Wanted, scores_of
from reproduction.experiments.sources import Source
from reproduction.experiments.stacks import Trained
from zloss_lab.records import Record

_OTHER = {2: 5, 5: 2}


def collect_losses(
    figure: int, losses: Sequence[Source], scores: Sequence[str], collector: Collector
) -> list[str]:
    """The records of figure 2 or 5 for some losses and scores; returns what diverged, and has none."""
    wanted = [
        _wanted(figure, loss, score, chosen, seed)
        for loss in losses
        for score in scores
        for chosen in [loss.best(score)]
        for seed in collector.seeds
    ]
    _borrow(figure, wanted, collector)
    return collector.collect(f"figure{figure}", wanted)


def _wanted(figure: int, source: Source, score: str, chosen: Chosen, seed: int) -> Wanted:
    def record(network: Trained) -> Record:
        return {
            "figure": figure,
            "loss": source.loss,
            "tuned_for": score,
            "epochs": network.curve[-1].epoch,
            "trials": source.trials(score),
            "valid": scores_of(network.best[score].evaluation),
            "test": scores_of(network.test[score]),
        }

    return Wanted(choice=(source.loss, score), chosen=chosen, seed=seed, score=score, record=record)


def _borrow(figure: int, wanted: Sequence[Wanted], collector: Collector) -> None:
    """Take over from the other figure what it has of the same losses, settings and seeds."""
    own, other = (collector.ledger(f"figure{number}") for number in (figure, _OTHER[figure]))
    missing = [one for one in wanted if not one.found_in(own)]
    if taken := [(one, record) for one in missing if (record := one.found_in(other))]:
        collector.warn(own, [one for one, _ in taken])  # of the others, `collect` does
        own.add(record | {"figure": figure} for _, record in taken)
