"""Claims about large texts, table 2: scores and training times of whole models, on every text that was trained on."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean

from reproduction.report.duels import Duel, Outcome, duel, told
from reproduction.report.evidence import Evidence, NotRunError, models_command
from reproduction.report.published import FINAL_ERRORS, convergence_ratio
from reproduction.report.records import CONVERGED, ScoredModel
from reproduction.report.scores import MINUS, top
from reproduction.report.timings import duration
from reproduction.report.verdicts import (
    Check,
    Finding,
    Verdict,
    combined_finding,
    doubted,
    is_level_or_ahead,
    ratio_finding,
    verdict_of,
    verdict_of_parts,
    verdict_of_slightly_worse,
)

HIERARCHICAL, SAME_SIZE, LARGER = "H-softmax net1", "Z-loss net1", "Z-loss net2"

Models = dict[str, list[ScoredModel]]  # trainings on one text, by model


def on_every_text(
    budget: str,
    needed: Sequence[str],
    judge: Callable[[Models], Finding],
    *,
    or_epochs: bool = False,
    of_speed: bool = False,
) -> Check:
    """A check that combines the findings on all texts which all of these models were trained on.

    Where a text lacks some of them with this budget, `or_epochs` takes those of the most epochs that all have.
    """

    def check(evidence: Evidence) -> Finding:
        findings = {}
        for corpus in evidence.texts():
            for one in (budget, *(evidence.epochs_budgets(corpus) if or_epochs else ())):
                models = {model: evidence.models(corpus, model, one) for model in needed}
                if all(models.values()):
                    with suppress(NotRunError):
                        findings[corpus if one == budget else f"{corpus}, {one}"] = judge(models)
                        break
        if not findings:
            raise NotRunError(models_command(budget))
        return combined_finding(findings, of_speed=of_speed)

    return check


def slightly_worse_scores(models: Models) -> Finding:
    """Of the Z-loss with the same network."""
    duels = [
        duel_of_models(models[SAME_SIZE], models[HIERARCHICAL], score) for score in FINAL_ERRORS
    ]
    return Finding(f"Z-loss {MINUS} H-softmax: {told(duels)}", verdict_of_slightly_worse(duels))


def converges_faster(models: Models) -> Finding:
    """By the factor of table 2."""
    trained = [models[model] for model in (HIERARCHICAL, SAME_SIZE)]
    hierarchical_s, z_loss_s = map(_train_s, trained)
    found = ratio_finding(hierarchical_s / z_loss_s, convergence_ratio())
    return replace(found, verdict=doubted(found.verdict, min(map(len, trained))))


def larger_network_wins_top_1(models: Models) -> Finding:
    """In less time, which counts only where the error is not the higher one."""
    clash = duel_of_models(models[LARGER], models[HIERARCHICAL], top(1))
    times = [_train_s(models[model]) for model in (LARGER, HIERARCHICAL)]
    text = f"{duration(times[0])} against {duration(times[1])}; net2 {MINUS} H-softmax: {told([clash])}"
    if clash.outcome in (Outcome.LOST, Outcome.BEHIND):
        return Finding(text, Verdict.NOT_REPRODUCED)
    verdict = verdict_of_parts([clash.outcome is not Outcome.EVEN, times[0] < times[1]])
    return Finding(text, doubted(verdict, clash.difference.seeds))


def larger_network_is_worse_at_top_20(models: Models) -> Finding:
    """Than hierarchical softmax with the smaller network."""
    clash = duel_of_models(models[LARGER], models[HIERARCHICAL], top(20))
    if clash.outcome is Outcome.LOST:
        verdict = Verdict.REPRODUCED
    else:
        verdict = Verdict.BETTER if is_level_or_ahead(clash) else Verdict.PARTLY
    return Finding(f"net2 {MINUS} H-softmax: {told([clash])}", verdict)


def better_top_1_in_the_same_time(models: Models) -> Finding:
    """By the Z-loss network that validates better."""
    chosen = validating_best([models[SAME_SIZE], models[LARGER]])
    clash = duel_of_models(chosen, models[HIERARCHICAL], top(1))
    name, budget_s = chosen[0].model, chosen[0].budget_s or 0.0
    return Finding(
        f"after {duration(budget_s)}, {name} {MINUS} H-softmax: {told([clash])}",
        verdict_of([clash]),
    )


def validating_best(
    trained: Iterable[Sequence[ScoredModel]], error: str = top(1)
) -> Sequence[ScoredModel]:
    """The trainings of the model with the lowest error on validation."""
    return min(trained, key=lambda found: fmean(model.valid[error] for model in found))


def duel_of_models(first: Sequence[ScoredModel], second: Sequence[ScoredModel], score: str) -> Duel:
    """Their test scores."""
    return duel(
        [model.test[score] for model in first], [model.test[score] for model in second], score
    )


def _train_s(models: Sequence[ScoredModel]) -> float:
    times = [model.train_s for model in models if model.train_s is not None]
    if len(times) < len(models):  # none was alone on its device
        raise NotRunError(models_command(CONVERGED))
    return fmean(times)
