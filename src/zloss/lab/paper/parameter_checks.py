"""Claims about a and b, judged by the sweep of figure 3 and the four trainings of figure 4."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import fmean

from zloss.lab.paper.duels import Duel, Outcome, duel, told
from zloss.lab.paper.evidence import Evidence
from zloss.lab.paper.records import CURVES, TrainingCurve
from zloss.lab.paper.scores import ERRORS, MINUS, label, shown, top
from zloss.lab.paper.verdicts import Finding, Verdict, doubted, verdict_of_parts

FIGURE3_SCORES = tuple(map(top, (1, 5, 10)))
EARLY = 0.2  # of the training
_LITTLE = 0.005  # half a point of error

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
    return Finding(f"{_told_places(places)}; {_counted(clearly)} pairs beyond noise", _graded(clearly, apparently))


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
    """A doubling of a moves the error by more than a doubling of b."""
    moves = {
        score: (_points_a_doubling(evidence.sweep(score)), _points_a_doubling(evidence.sweep_of_b(score)))
        for score in FIGURE3_SCORES
    }
    texts = [f"{label(score)} {of_a:.2f} for a, {of_b:.2f} for b" for score, (of_a, of_b) in moves.items()]
    holds = [of_a > of_b for of_a, of_b in moves.values()]
    seeds = min(len(scores) for sweep in (evidence.sweep, evidence.sweep_of_b) for scores in sweep(top(1)).values())
    verdict = doubted(verdict_of_parts(holds), seeds)
    return Finding(f"points that a doubling moves the error: {'; '.join(texts)}", verdict)


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


def _points_a_doubling(sweep: Sweep) -> float:
    """From the lowest to the highest mean error, in points, over the doublings between the ends of the sweep."""
    means = [fmean(scores) for scores in sweep.values()]
    return 100 * (max(means) - min(means)) / max(math.log2(max(sweep) / min(sweep)), 1)


def _told_places(places: Places) -> str:
    told = ", ".join(f"{place:g} for {label(score)}" for score, place in places.items())
    return f"best a on validation: {told}"


# ---- figure 4 --------------------------------------------------------------------------------------------------------


def parameters_fit_the_score(evidence: Evidence) -> Finding:
    """Every model is the best at the score that it was tuned for, and clearly better than the worst."""
    bests = _bests(evidence)
    own = {score: bests[score][score] for score in CURVES}
    others = {score: _ranked(bests[score]) for score in CURVES}
    against_best = [duel(own[score], bests[score][others[score][0]], score) for score in CURVES]
    against_worst = [duel(own[score], bests[score][others[score][-1]], score) for score in CURVES]
    clearly = [
        _is_level(best) and worst.outcome is Outcome.WON
        for best, worst in zip(against_best, against_worst, strict=True)
    ]
    apparently = [one.is_better for one in against_worst]
    text = f"tuned for it (all settings, not a and b alone) {MINUS} worst of the four: {told(against_worst)}"
    return Finding(text, _graded(clearly, apparently))


def ends_are_opposite(evidence: Evidence) -> Finding:
    """The model tuned for top-1 is the worst at top-50, and the other way round."""
    bests = _bests(evidence)
    clearly, apparently, texts = [], [], []
    for tuned_for, score in ((top(1), top(50)), (top(50), top(1))):
        order = _ranked(bests[score])
        apparently.append(order[-1] == tuned_for)
        clash = duel(bests[score][tuned_for], bests[score][order[0]], score)
        clearly.append(apparently[-1] and clash.outcome is Outcome.LOST)
        texts.append(f"tuned for {label(tuned_for)}: number {1 + order.index(tuned_for)} of 4 at {label(score)}")
    return Finding("; ".join(texts), _graded(clearly, apparently))


def early_scores_are_enough(evidence: Evidence) -> Finding:
    """What leads after a fifth of the training costs little in the end."""
    bests = _bests(evidence)
    losses = {}
    for score in CURVES:
        early = {model: fmean(_early(curve, score) for curve in evidence.curves(model)) for model in CURVES}
        picked = min(early, key=lambda model: early[model])
        losses[score] = fmean(bests[score][picked]) - min(fmean(values) for values in bests[score].values())
    text = ", ".join(f"{shown(loss, score)} at {label(score)}" for score, loss in losses.items())
    seeds = min(len(evidence.curves(model)) for model in CURVES)
    verdict = doubted(verdict_of_parts([loss <= _LITTLE for loss in losses.values()]), seeds)
    return Finding(f"points lost by choosing after {EARLY:.0%} of the training: {text}", verdict)


def _bests(evidence: Evidence) -> dict[str, dict[str, list[float]]]:
    """By score and model, the lowest errors of the curves."""
    return {
        score: {model: [curve.best(score) for curve in evidence.curves(model)] for model in CURVES} for score in CURVES
    }


def _ranked(models: dict[str, list[float]]) -> list[str]:
    """Best first."""
    return sorted(models, key=lambda model: fmean(models[model]))


def _is_level(one: Duel) -> bool:
    return one.difference.mean == 0 or one.outcome in (Outcome.WON, Outcome.EVEN)


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
