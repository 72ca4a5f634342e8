"""Figures 2 and 5: every loss with the settings that are best for each score, tested for that score.

Both figures have the Z-loss, softmax and sigmoid: each takes such records over from the file of the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from reproduction.results.schema import SplitScores, TunedResult
from reproduction.running.chosen import Chosen
from reproduction.running.collecting import Collector, WantedResult
from reproduction.running.sources import SettingsSource
from reproduction.running.stacks import TrainedNetwork

LossFigure = Literal[2, 5]
_OTHER: Mapping[LossFigure, LossFigure] = {2: 5, 5: 2}


def collect_losses(
    figure: LossFigure,
    losses: Sequence[SettingsSource],
    scores: Sequence[str],
    collector: Collector,
) -> list[str]:
    """Make the records of figure 2 or 5 for some losses and scores; return messages about networks that diverged."""
    wanted = [
        _wanted(figure, loss, score, chosen, seed)
        for loss in losses
        for score in scores
        for chosen in [loss.best(score)]
        for seed in collector.seeds
    ]
    _borrow(figure, wanted, collector)
    return collector.collect(f"figure{figure}", wanted)


def _wanted(
    figure: LossFigure, source: SettingsSource, score: str, chosen: Chosen, seed: int
) -> WantedResult:
    def result(network: TrainedNetwork, shared: Mapping[str, Any]) -> TunedResult:
        return TunedResult(
            figure=figure,
            loss=source.loss,
            tuned_for=score,
            epochs=network.curve[-1].epoch,
            trials=source.trials(score),
            valid=SplitScores.of(network.best[score].evaluation),
            test=SplitScores.of(network.test[score]),
            **shared,
        )

    choice = (source.loss, score)
    return WantedResult(choice=choice, chosen=chosen, seed=seed, score=score, make=result)


def _borrow(figure: LossFigure, wanted: Sequence[WantedResult], collector: Collector) -> None:
    """Take over records of the same losses, settings and seeds from the other figure."""
    own, other = (collector.ledger(f"figure{number}") for number in (figure, _OTHER[figure]))
    missing = [one for one in wanted if not one.found_in(own)]
    if taken := [(one, result) for one in missing if (result := one.found_in(other))]:
        collector.warn(own, [one for one, _ in taken])  # `collect` warns of all others
        own.add(replace(result, figure=figure) for _, result in taken)  # type: ignore[call-arg]
