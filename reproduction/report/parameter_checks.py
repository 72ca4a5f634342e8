"""Claims about a and b, judged by the sweep of figure 3 and the four trainings of figure 4."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import fmean

from reproduction.report.duels import Duel, Outcome, duel, told
from reproduction.report.evidence import Evidence, NotRunError, experiment_command
from reproduction.report.records import CURVES, FIGURE_B, TrainingCurve
from reproduction.report.scores import ERRORS, MINUS, label, shown, top
from reproduction.report.verdicts import (
    LITTLE,
    Finding,
    Verdict,
    doubted,
    is_level_or_ahead,
    verdict_of,
    verdict_of_parts,
)

FIGURE3_SCORES = tuple(map(top, (1, 5, 10)))
EARLY = 0.2  # of the training

Sweep = dict[float, list[float]]  # scores, one a seed, by a or by b
Places = dict[str, float]  # the best a, by score


# ---- figure 3 --------------------------------------------------------------------------------------------------------


def minimum(sweep: Sweep) -> float:
    """Where the mean error is lowest.

    >>> minimum({0.1: [0.8, 0.9], 0.2: [0.7, 0.8], 0.3: [0.9, 0.9]})
    0.2
    """
    return min(sweep, key=lambda place: fmean(sweep[place]))


def minima_differ(evidence: Evidence) -> Finding:
    """The a that is best for one error is clearly worse for another."""
    places = _best_places(evidence, FIGURE3_SCORES)
    pairs = list(combinations(FIGURE3_SCORES, 2))
    clearly = [_minima_differ_clearly(evidence, places, pair) for pair in pairs]
    apparently = [places[first] != places[second] for first, second in pairs]
    return Finding(
        f"{_told_places(places)}; {_counted(clearly)} pairs beyond noise",
        _graded(clearly, apparently),
    )


def higher_a_for_higher_k(evidence: Evidence) -> Finding:
    """The best a does not fall with k, and is clearly larger for the highest k than for the lowest."""
    places = _best_places(evidence, ERRORS)
    first, last = ERRORS[0], ERRORS[-1]
    grows = places[first] < places[last]
    clearly = [
        all(before <= after for before, after in pairwise(places.values())),
        grows and _minima_differ_clearly(evidence, places, (first, last)),
    ]
    return Finding(_told_places(places), _graded(clearly, [grows]))


def a_matters_more_than_b(evidence: Evidence) -> Finding:
    """Multiplied by the same factors, a moves the error by more than b does, around the place where both were swept."""
    duels, texts = [], []
    for score in FIGURE3_SCORES:
        of_a, (place, of_b) = evidence.sweep(score), evidence.sweep_of_b(score)
        factors = [b / FIGURE_B for b in of_b if min(of_a) <= place * b / FIGURE_B <= max(of_a)]
        if len(factors) < 2:
            raise NotRunError(experiment_command("figure3"))
        by_a = _moves([_at(of_a, place * factor) for factor in factors])
        by_b = _moves([_at(of_b, FIGURE_B * factor) for factor in factors])
        duels.append(duel(by_b, by_a, score))
        texts.append(
            f"{label(score)} {shown(fmean(by_a), score)} by a, {shown(fmean(by_b), score)} by b"
        )
    window = f"from {min(factors):g} to {max(factors):g} times a = {place:g} and b = {FIGURE_B:g}"
    text = f"{window}, points that the error moves: {'; '.join(texts)}; b {MINUS} a: {told(duels)}"
    return Finding(text, verdict_of(duels))


def _best_places(evidence: Evidence, scores: Sequence[str]) -> Places:
    """By validation: test scores, which judge these places, would look good where they were lucky."""
    return {score: minimum(evidence.sweep(score, "valid")) for score in scores}


def _minima_differ_clearly(evidence: Evidence, places: Places, pair: tuple[str, str]) -> bool:
    """Whether either test error has lost something, beyond noise, at the place of the other."""
    return any(
        duel(sweep[places[own]], sweep[places[other]], own).outcome is Outcome.WON
        for own, other in (pair, pair[::-1])
        for sweep in [evidence.sweep(own)]
    )


def _at(sweep: Sweep, place: float) -> list[float]:
    """Scores there; between two places of the sweep, on the straight line over the logarithm."""
    left = max(other for other in sweep if other <= place)
    right = min(other for other in sweep if other >= place)
    share = math.log(place / left) / math.log(right / left) if left < right else 0.0
    return [
        (1 - share) * low + share * high
        for low, high in zip(sweep[left], sweep[right], strict=False)
    ]


def _moves(places: Sequence[Sequence[float]]) -> list[float]:
    """From where the mean error is lowest to where it is highest, one a seed."""
    lowest, highest = min(places, key=fmean), max(places, key=fmean)
    return [high - low for low, high in zip(lowest, highest, strict=False)]


def _told_places(places: Places) -> str:
    told = ", ".join(f"{place:g} for {label(score)}" for score, place in places.items())
    return f"best a on validation: {told}"


# ---- figure 4 --------------------------------------------------------------------------------------------------------


def parameters_fit_the_score(evidence: Evidence) -> Finding:
    """Every model is the best at the score that it was tuned for, and clearly better than the worst."""
    models = _distinct(evidence)
    against_worst, clearly = [], []
    for score in CURVES:
        bests = _bests(evidence, models, score)
        order, own = _ranked(bests), models[score]
        against_worst.append(duel(bests[own], bests[order[-1]], score))
        is_best = own == order[0] or is_level_or_ahead(duel(bests[own], bests[order[0]], score))
        clearly.append(is_best and against_worst[-1].outcome is Outcome.WON)
    apparently = [one.is_better for one in against_worst]
    what = f"tuned for it (all settings, not a and b alone) {MINUS} worst of {_differing(models)}"
    return Finding(f"{what}: {told(against_worst)}", _graded(clearly, apparently))


def ends_are_opposite(evidence: Evidence) -> Finding:
    """The model tuned for top-1 is the worst at top-50, clearly behind the next worst, and the other way round."""
    models = _distinct(evidence)
    clashes, texts = [], []
    for tuned_for, score in ((top(1), top(50)), (top(50), top(1))):
        bests, own = _bests(evidence, models, score), models[tuned_for]
        place = f"number {1 + _ranked(bests).index(own)} of {_differing(models)} at {label(score)}"
        clash = _against_next_worst(bests, own, score)
        behind = f"; it {MINUS} next worst: {told([clash])}" if clash else ""
        clashes.append(clash)
        texts.append(f"tuned for {label(tuned_for)}: {place}{behind}")
    clearly = [clash is not None and clash.outcome is Outcome.LOST for clash in clashes]
    return Finding(". ".join(texts), _graded(clearly, [clash is not None for clash in clashes]))


def early_scores_are_enough(evidence: Evidence) -> Finding:
    """What leads after a fifth of the training costs little in the end."""
    models = _distinct(evidence)
    losses = {}
    for score in CURVES:
        bests = _bests(evidence, models, score)
        early = {
            model: fmean(_early(curve, score) for curve in evidence.curves(model))
            for model in bests
        }
        picked = min(early, key=lambda model: early[model])
        losses[score] = fmean(bests[picked]) - min(map(fmean, bests.values()))
    text = ", ".join(f"{shown(loss, score)} at {label(score)}" for score, loss in losses.items())
    seeds = min(len(evidence.curves(model)) for model in CURVES)
    verdict = doubted(verdict_of_parts([loss <= LITTLE for loss in losses.values()]), seeds)
    what = f"points lost by choosing after {EARLY:.0%} of the training among {_differing(models)}"
    return Finding(f"{what}: {text}", verdict)


def _distinct(evidence: Evidence) -> dict[str, str]:
    """For every model the first one that has its settings: one trial can be the best for several scores."""
    settings = {
        model: (curve.a, curve.b, curve.settings)
        for model in CURVES
        for curve in evidence.curves(model)[:1]
    }
    return {
        model: next(other for other in CURVES if settings[other] == settings[model])
        for model in CURVES
    }


def _differing(models: dict[str, str]) -> str:
    return f"{len(set(models.values()))} models that differ"


def _bests(evidence: Evidence, models: dict[str, str], score: str) -> dict[str, list[float]]:
    """By model, the lowest errors of the curves; models with the same settings once."""
    distinct = dict.fromkeys(models.values())
    return {model: [curve.best(score) for curve in evidence.curves(model)] for model in distinct}


def _against_next_worst(bests: dict[str, list[float]], own: str, score: str) -> Duel | None:
    """Of the worst model; None where it is not that."""
    *others, worst = _ranked(bests)
    return duel(bests[own], bests[others[-1]], score) if others and own == worst else None


def _ranked(models: dict[str, list[float]]) -> list[str]:
    """Best first."""
    return sorted(models, key=lambda model: fmean(models[model]))


def _early(curve: TrainingCurve, score: str) -> float:
    end = curve.curve[-1]["epoch"]
    return next(point[score] for point in curve.curve if point["epoch"] >= EARLY * end)


# ---- both ------------------------------------------------------------------------------------------------------------


def _graded(clearly: Sequence[bool], apparently: Sequence[bool]) -> Verdict:
    """Reproduced where all is clear, partly where something at least appears so."""
    if all(clearly):
        return Verdict.REPRODUCED
    return Verdict.PARTLY if any(apparently) else Verdict.NOT_REPRODUCED


def _counted(parts: Sequence[bool]) -> str:
    return f"{sum(parts)} of {len(parts)}"
