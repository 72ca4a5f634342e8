"""Figures 3 and 4: what the parameters a and b of the Z-loss do."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from reproduction.experiments.chosen import Chosen
from reproduction.experiments.collecting import Collector, Wanted, scores_of
from reproduction.experiments.sources import Source
from reproduction.experiments.stacks import Trained
from reproduction.experiments.studies import SCORE
from reproduction.report.records import CURVES, FIGURE_B, SWEPT, SweepPoint
from zloss_lab.corpora import Corpus
from zloss_lab.records import Record

A, B = SWEPT
OTHER_B = (14.0, 56.0)  # half and double that of the figure


def geometric(low: float, high: float, count: int) -> list[float]:
    """Values from low to high at equal ratios, rounded to what is worth reading.

    >>> geometric(0.02, 2.0, 5)
    [0.02, 0.0632, 0.2, 0.632, 2.0]
    """
    steps = max(count - 1, 1)
    return [float(f"{low * (high / low) ** (step / steps):.3g}") for step in range(count)]


# ---- figure 3 --------------------------------------------------------------------------------------------------------


def collect_sweep(
    source: Source, values: Sequence[float], other_b: Sequence[float], collector: Collector
) -> list[str]:
    """Many a with the b of the figure, then other b at the a that validates best; returns what diverged.

    All else is as it is best for the top-10 error. Points where it was not, and other b at another a, give way.
    """
    sweep, ledger = _Sweep(source.best(SCORE)), collector.ledger("figure3")
    wanted = sweep.points([(a, FIGURE_B) for a in values], collector.seeds)
    asked = {one.choice for one in wanted}
    if leaving := [
        point for point in ledger.results() if point.choice not in asked and not sweep.has(point)
    ]:
        collector.tell(f"figure3: {ledger.will_give_way(len(leaving))}")
    faults = collector.collect("figure3", wanted)
    best = _best_a(point for point in ledger.results() if sweep.has(point))
    if best is None:  # and what there was before stays
        return faults
    dropped = ledger.drop(
        lambda point: not sweep.has(point) or (point.b != FIGURE_B and point.a != best)
    )
    if dropped:
        collector.tell(
            f"figure3: {dropped} records with other settings, or with other b at another a than {best:g}, have given "
            f"way; they are kept in {ledger.replaced}"
        )
    return faults + collector.collect(
        "figure3", sweep.points([(best, b) for b in other_b], collector.seeds)
    )


@dataclass(frozen=True)
class _Sweep:
    """Points that differ from a choice in a and b alone."""

    base: Chosen

    def points(self, places: Sequence[tuple[float, float]], seeds: Sequence[int]) -> list[Wanted]:
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
        return self.base.changed({A: a, B: b})


def _point(a: float, b: float, chosen: Chosen, seed: int) -> Wanted:
    def record(network: Trained) -> Record:
        valid, test = scores_of(network.best[SCORE].evaluation), scores_of(network.test[SCORE])
        return {"figure": 3, "a": a, "b": b, "valid": valid, "test": test}

    return Wanted(choice=(a, b), chosen=chosen, seed=seed, score=SCORE, record=record)


def _best_a(points: Iterable[SweepPoint]) -> float | None:
    """By the validation, with the b of the figure."""
    errors: dict[float, list[float]] = {}
    for point in points:
        if point.b == FIGURE_B:
            errors.setdefault(point.a, []).append(point.valid[SCORE])
    return min(errors, key=lambda a: fmean(errors[a]), default=None)


# ---- figure 4 --------------------------------------------------------------------------------------------------------


def collect_curves(source: Source, collector: Collector) -> list[str]:
    """Validation errors by epoch of the settings that are best for each of four errors; returns what diverged."""
    wanted = [
        _curve(score, chosen, seed)
        for score in CURVES
        for chosen in [source.best(score)]
        for seed in collector.seeds
    ]
    return collector.collect("figure4", wanted)


def _curve(score: str, chosen: Chosen, seed: int) -> Wanted:
    def record(network: Trained) -> Record:
        classes = len(Corpus.open(network.experiment.corpus).vocabulary)
        options = network.experiment.network.head.loss_options(classes)  # a and b
        curve = [{"epoch": point.epoch} | scores_of(point.evaluation) for point in network.curve]
        return {"figure": 4, "tuned_for": score, **options, "curve": curve}

    return Wanted(choice=(score,), chosen=chosen, seed=seed, score=None, record=record)
