"""Figures 3 and 4: the effect of the parameters a and b of the Z-loss."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from reproduction.paper_figures import CURVE_ERRORS, FIGURE_3_B, SWEPT_KEYS
from reproduction.results.schema import CurvePoint, SplitScores, SweepPoint, TrainingCurve
from reproduction.running.chosen import Chosen
from reproduction.running.collecting import Collector, WantedResult
from reproduction.running.sources import SettingsSource
from reproduction.running.stacks import TrainedNetwork
from reproduction.running.studies import SCORE
from zloss_lab.corpora import Corpus

A_KEY, B_KEY = SWEPT_KEYS
OTHER_B = (14.0, 56.0)  # half and double the b of the figure


def geometric(low: float, high: float, count: int) -> list[float]:
    """Return values from low to high at equal ratios, rounded to three digits.

    >>> geometric(0.02, 2.0, 5)
    [0.02, 0.0632, 0.2, 0.632, 2.0]
    """
    steps = max(count - 1, 1)
    return [float(f"{low * (high / low) ** (step / steps):.3g}") for step in range(count)]


# ---- figure 3 --------------------------------------------------------------------------------------------------------


def collect_sweep(
    source: SettingsSource, values: Sequence[float], other_b: Sequence[float], collector: Collector
) -> list[str]:
    """Train with many a and the b of the figure, then with other b at the a that validates best.

    All other settings are those that are best for the top-10 error. Points with other settings are removed, and so
    are other b at another a. Returns messages about networks that diverged.
    """
    sweep, ledger = _Sweep(source.best(SCORE)), collector.ledger("figure3")
    wanted = sweep.points([(a, FIGURE_3_B) for a in values], collector.seeds)
    asked = {one.choice for one in wanted}
    if leaving := [
        point for point in ledger.results() if point.choice not in asked and not sweep.has(point)
    ]:
        collector.tell(f"figure3: {ledger.replacement_notice(len(leaving))}")
    faults = collector.collect("figure3", wanted)
    best = _best_a(point for point in ledger.results() if sweep.has(point))
    if best is None:  # and all old points stay
        return faults
    dropped = ledger.drop(
        lambda point: not sweep.has(point) or (point.b != FIGURE_3_B and point.a != best)
    )
    if dropped:
        collector.tell(
            f"figure3: removed {dropped} records with other settings, or with other b at another a than {best:g}; "
            f"they are kept in {ledger.replaced}"
        )
    return faults + collector.collect(
        "figure3", sweep.points([(best, b) for b in other_b], collector.seeds)
    )


@dataclass(frozen=True)
class _Sweep:
    """Points that differ from a choice in a and b alone."""

    base: Chosen

    def points(
        self, places: Sequence[tuple[float, float]], seeds: Sequence[int]
    ) -> list[WantedResult]:
        return [
            _point(a, b, chosen, seed)
            for a, b in places
            for chosen in [self.at(a, b)]
            for seed in seeds
        ]

    def has(self, point: SweepPoint) -> bool:
        chosen = self.at(point.a, point.b)
        return point.is_made_with(chosen.settings, chosen.digest)

    def at(self, a: float, b: float) -> Chosen:
        return self.base.changed({A_KEY: a, B_KEY: b})


def _point(a: float, b: float, chosen: Chosen, seed: int) -> WantedResult:
    def result(network: TrainedNetwork, shared: Mapping[str, Any]) -> SweepPoint:
        valid = SplitScores.of(network.best[SCORE].evaluation)
        test = SplitScores.of(network.test[SCORE])
        return SweepPoint(figure=3, a=a, b=b, valid=valid, test=test, **shared)

    return WantedResult(choice=(a, b), chosen=chosen, seed=seed, score=SCORE, make=result)


def _best_a(points: Iterable[SweepPoint]) -> float | None:
    """Return the a with the lowest validation error, at the b of the figure."""
    errors: dict[float, list[float]] = {}
    for point in points:
        if point.b == FIGURE_3_B:
            errors.setdefault(point.a, []).append(point.valid[SCORE])
    return min(errors, key=lambda a: fmean(errors[a]), default=None)


# ---- figure 4 --------------------------------------------------------------------------------------------------------


def collect_curves(source: SettingsSource, collector: Collector) -> list[str]:
    """Make curves of validation errors by epoch, with the settings that are best for each of four errors.

    Returns messages about networks that diverged.
    """
    wanted = [
        _curve(score, chosen, seed)
        for score in CURVE_ERRORS
        for chosen in [source.best(score)]
        for seed in collector.seeds
    ]
    return collector.collect("figure4", wanted)


def _curve(score: str, chosen: Chosen, seed: int) -> WantedResult:
    def result(network: TrainedNetwork, shared: Mapping[str, Any]) -> TrainingCurve:
        classes = len(Corpus.open(network.experiment.corpus).vocabulary)
        parameters = network.experiment.network.head.loss_options(classes)
        curve = tuple(
            CurvePoint(epoch=point.epoch, valid=SplitScores.of(point.evaluation))
            for point in network.curve
        )
        a, b = parameters["a"], parameters["b"]
        return TrainingCurve(figure=4, tuned_for=score, a=a, b=b, curve=curve, **shared)

    return WantedResult(choice=(score,), chosen=chosen, seed=seed, score=None, make=result)
