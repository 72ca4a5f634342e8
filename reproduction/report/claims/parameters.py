"""Claims about a and b, judged by the sweep of figure 3 and the four trainings of figure 4."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import fmean

from reproduction.paper_figures import CURVE_ERRORS, FIGURE_3_B, FIGURE_3_SCORES
from reproduction.report.comparisons import Comparison, Standing, compare, comparisons_text
from reproduction.report.evidence import Evidence, NotRunError, ScoresByValue, experiment_command
from reproduction.report.score_texts import MINUS, score_label, score_text
from reproduction.report.verdicts import (
    LITTLE,
    Claim,
    Finding,
    Verdict,
    doubted,
    is_level_or_ahead,
    verdict_of,
    verdict_of_parts,
)
from reproduction.results.schema import TrainingCurve
from reproduction.scores import ERRORS, top

EARLY = 0.2  # of the training

BestValues = dict[str, float]  # the best a, by score


# ---- figure 3 --------------------------------------------------------------------------------------------------------


def minimum(sweep: ScoresByValue) -> float:
    """Return the value of the parameter with the lowest mean error.

    >>> minimum({0.1: [0.8, 0.9], 0.2: [0.7, 0.8], 0.3: [0.9, 0.9]})
    0.2
    """
    return min(sweep, key=lambda place: fmean(sweep[place]))


def minima_differ(evidence: Evidence) -> Finding:
    """Judge whether the a that is best for one error is clearly worse for another."""
    places = _best_places(evidence, FIGURE_3_SCORES)
    pairs = list(combinations(FIGURE_3_SCORES, 2))
    clearly = [_minima_differ_clearly(evidence, places, pair) for pair in pairs]
    apparently = [places[first] != places[second] for first, second in pairs]
    return Finding(
        f"{_places_text(places)}; {_counted(clearly)} pairs beyond noise",
        _graded(clearly, apparently),
    )


def higher_a_for_higher_k(evidence: Evidence) -> Finding:
    """Judge whether the best a does not fall with k, and is clearly larger for the highest k than for the lowest."""
    places = _best_places(evidence, ERRORS)
    first, last = ERRORS[0], ERRORS[-1]
    grows = places[first] < places[last]
    clearly = [
        all(before <= after for before, after in pairwise(places.values())),
        grows and _minima_differ_clearly(evidence, places, (first, last)),
    ]
    return Finding(_places_text(places), _graded(clearly, [grows]))


def a_matters_more_than_b(evidence: Evidence) -> Finding:
    """Judge whether a moves the error by more than b, when both are multiplied by the same factors.

    Both were swept around one place.
    """
    comparisons, texts = [], []
    for score in FIGURE_3_SCORES:
        of_a, (place, of_b) = evidence.sweep(score), evidence.sweep_of_b(score)
        factors = [b / FIGURE_3_B for b in of_b if min(of_a) <= place * b / FIGURE_3_B <= max(of_a)]
        if len(factors) < 2:
            raise NotRunError(experiment_command("figure3"))
        by_a = _moves([_at(of_a, place * factor) for factor in factors])
        by_b = _moves([_at(of_b, FIGURE_3_B * factor) for factor in factors])
        comparisons.append(compare(by_b, by_a, score))
        moved_by_a, moved_by_b = (score_text(fmean(moves), score) for moves in (by_a, by_b))
        texts.append(f"{score_label(score)} {moved_by_a} by a, {moved_by_b} by b")
    window = f"from {min(factors):g} to {max(factors):g} times a = {place:g} and b = {FIGURE_3_B:g}"
    moves = f"points that the error moves: {'; '.join(texts)}"
    text = f"{window}, {moves}; b {MINUS} a: {comparisons_text(comparisons)}"
    return Finding(text, verdict_of(comparisons))


def _best_places(evidence: Evidence, scores: Sequence[str]) -> BestValues:
    """Return the best a by validation. Test scores, which judge these values, would favour a lucky one."""
    return {score: minimum(evidence.sweep(score, "valid")) for score in scores}


def _minima_differ_clearly(evidence: Evidence, places: BestValues, pair: tuple[str, str]) -> bool:
    """Return whether one test error is higher, beyond noise, at the best value of the other."""
    return any(
        compare(sweep[places[own]], sweep[places[other]], own).standing is Standing.WON
        for own, other in (pair, pair[::-1])
        for sweep in [evidence.sweep(own)]
    )


def _at(sweep: ScoresByValue, place: float) -> list[float]:
    """Return the scores at a value; between two values of the sweep, on the straight line over the logarithm."""
    left = max(other for other in sweep if other <= place)
    right = min(other for other in sweep if other >= place)
    share = math.log(place / left) / math.log(right / left) if left < right else 0.0
    return [
        (1 - share) * low + share * high
        for low, high in zip(sweep[left], sweep[right], strict=False)
    ]


def _moves(places: Sequence[Sequence[float]]) -> list[float]:
    """Return the rise from the lowest mean error to the highest, one number a seed."""
    lowest, highest = min(places, key=fmean), max(places, key=fmean)
    return [high - low for low, high in zip(lowest, highest, strict=False)]


def _places_text(places: BestValues) -> str:
    bests = ", ".join(f"{place:g} for {score_label(score)}" for score, place in places.items())
    return f"best a on validation: {bests}"


# ---- figure 4 --------------------------------------------------------------------------------------------------------


def parameters_fit_the_score(evidence: Evidence) -> Finding:
    """Judge whether every model is best at the score that it was tuned for, and clearly better than the worst."""
    models = _distinct(evidence)
    against_worst, clearly = [], []
    for score in CURVE_ERRORS:
        bests = _bests(evidence, models, score)
        order, own = _ranked(bests), models[score]
        against_worst.append(compare(bests[own], bests[order[-1]], score))
        is_best = own == order[0] or is_level_or_ahead(compare(bests[own], bests[order[0]], score))
        clearly.append(is_best and against_worst[-1].standing is Standing.WON)
    apparently = [one.is_better for one in against_worst]
    what = f"tuned for it (all settings, not a and b alone) {MINUS} worst of {_differing(models)}"
    return Finding(f"{what}: {comparisons_text(against_worst)}", _graded(clearly, apparently))


def ends_are_opposite(evidence: Evidence) -> Finding:
    """Judge whether the model tuned for top-1 is clearly the worst at top-50, and the other way round."""
    models = _distinct(evidence)
    comparisons, texts = [], []
    for tuned_for, score in ((top(1), top(50)), (top(50), top(1))):
        bests, own = _bests(evidence, models, score), models[tuned_for]
        place = f"number {1 + _ranked(bests).index(own)} of {_differing(models)} at {score_label(score)}"
        comparison = _against_next_worst(bests, own, score)
        behind = f"; it {MINUS} next worst: {comparisons_text([comparison])}" if comparison else ""
        comparisons.append(comparison)
        texts.append(f"tuned for {score_label(tuned_for)}: {place}{behind}")
    clearly = [
        comparison is not None and comparison.standing is Standing.LOST
        for comparison in comparisons
    ]
    return Finding(
        ". ".join(texts), _graded(clearly, [comparison is not None for comparison in comparisons])
    )


def early_scores_are_enough(evidence: Evidence) -> Finding:
    """Judge whether the model that leads after a fifth of the training is close to the best in the end."""
    models = _distinct(evidence)
    losses = {}
    for score in CURVE_ERRORS:
        bests = _bests(evidence, models, score)
        early = {
            model: fmean(_early(curve, score) for curve in evidence.curves(model))
            for model in bests
        }
        picked = min(early, key=lambda model: early[model])
        losses[score] = fmean(bests[picked]) - min(map(fmean, bests.values()))
    text = ", ".join(
        f"{score_text(loss, score)} at {score_label(score)}" for score, loss in losses.items()
    )
    seeds = min(len(evidence.curves(model)) for model in CURVE_ERRORS)
    verdict = doubted(verdict_of_parts([loss <= LITTLE for loss in losses.values()]), seeds)
    what = f"points lost by choosing after {EARLY:.0%} of the training among {_differing(models)}"
    return Finding(f"{what}: {text}", verdict)


def _distinct(evidence: Evidence) -> dict[str, str]:
    """Return for every model the first one with its settings: one trial can be the best for several scores."""
    settings = {
        model: (curve.a, curve.b, curve.settings)
        for model in CURVE_ERRORS
        for curve in evidence.curves(model)[:1]
    }
    return {
        model: next(other for other in CURVE_ERRORS if settings[other] == settings[model])
        for model in CURVE_ERRORS
    }


def _differing(models: dict[str, str]) -> str:
    return f"{len(set(models.values()))} models that differ"


def _bests(evidence: Evidence, models: dict[str, str], score: str) -> dict[str, list[float]]:
    """Return the lowest errors of the curves by model. Models with the same settings are there once."""
    distinct = dict.fromkeys(models.values())
    return {model: [curve.best(score) for curve in evidence.curves(model)] for model in distinct}


def _against_next_worst(bests: dict[str, list[float]], own: str, score: str) -> Comparison | None:
    """Compare the worst model with the next worst; None where this model is not the worst."""
    *others, worst = _ranked(bests)
    return compare(bests[own], bests[others[-1]], score) if others and own == worst else None


def _ranked(models: dict[str, list[float]]) -> list[str]:
    """Return the models in order, the best first."""
    return sorted(models, key=lambda model: fmean(models[model]))


def _early(curve: TrainingCurve, score: str) -> float:
    end = curve.curve[-1].epoch
    return next(point.valid[score] for point in curve.curve if point.epoch >= EARLY * end)


# ---- both ------------------------------------------------------------------------------------------------------------


def _graded(clearly: Sequence[bool], apparently: Sequence[bool]) -> Verdict:
    """Return the verdict: reproduced where all parts are clear, partly where some part appears so."""
    if all(clearly):
        return Verdict.REPRODUCED
    return Verdict.PARTLY if any(apparently) else Verdict.NOT_REPRODUCED


def _counted(parts: Sequence[bool]) -> str:
    return f"{sum(parts)} of {len(parts)}"


PARAMETER_CLAIMS = (
    Claim(
        about="figure 3",
        where="figure 3",
        says="Top-1, top-5 and top-10 error have their minima at different a.",
        paper="three minima",
        check=minima_differ,
    ),
    Claim(
        about="figure 3",
        where="discussion",
        says="The higher a, the better the top-k errors with a high k, and the other way round.",
        paper="the best a grows with k",
        check=higher_a_for_higher_k,
    ),
    Claim(
        about="figure 3",
        where="figure 3, discussion",
        says="For top-k errors a matters more than b.",
        paper="no number",
        check=a_matters_more_than_b,
    ),
    Claim(
        about="figure 4",
        where="sections 2 and 3.1, figure 4, conclusion",
        says="a and b fit the loss to a score: tuned for another one, it is much worse.",
        paper="“drastically”",
        check=parameters_fit_the_score,
    ),
    Claim(
        about="figure 4",
        where="figure 4",
        says="The best model at top-1 is the worst at top-50, and the other way round.",
        paper="4th of 4, twice",
        check=ends_are_opposite,
    ),
    Claim(
        about="figure 4",
        where="discussion",
        says="a and b are easy to tune: the first iterations are enough to choose by.",
        paper="no number",
        check=early_scores_are_enough,
    ),
)
