"""Table 2: models on large texts, beside the paper's numbers, and by all scores."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from reproduction.report.evidence import Evidence, NotRunError, models_command
from reproduction.report.intervals import estimate
from reproduction.report.published import FINAL_ERRORS, FINAL_SCORES
from reproduction.report.records import (
    CONSTANT,
    CONVERGED,
    FIXED,
    MODELS,
    ScoredModel,
    budget_order,
)
from reproduction.report.results import NOT_PRINTED, NOT_RUN, needing_seeds
from reproduction.report.scores import SCORES, is_error, label, shown, shown_estimate, top
from reproduction.report.tables import BEST, Cell, Table
from reproduction.report.timings import duration

_MAIN = (top(1), top(10), top(100))
PROGRESS_SCORES = (top(1), top(100))
Trainings = dict[str, list[ScoredModel]]  # on one text, by model


def final_tables(evidence: Evidence) -> Iterator[tuple[str, Table]]:
    """Ours beside the paper's, one table for each text and budget, with its title."""
    for budget, corpus in _texts(evidence):
        yield _title(evidence, corpus, budget), _final_table(evidence, corpus, budget)


def all_scores_tables(evidence: Evidence) -> Iterator[tuple[str, Table, str]]:
    """The test scores of every model, one table for each text and budget, with its title and what to be careful with.

    The best of a column is marked.
    """
    for budget, corpus in _texts(evidence):
        trainings = _trainings(evidence, corpus, budget)
        rows = [
            [model, *_score_cells(trainings, model, SCORES), _epochs(found), str(len(found))]
            for model, found in trainings.items()
        ]
        table = Table(("test error, %", *map(label, SCORES), "epochs", "seeds"), rows)
        yield _title(evidence, corpus, budget), table, _close_calls(trainings)


def _close_calls(trainings: Trainings) -> str:
    models = {model: found for model, found in trainings.items() if model != CONSTANT}
    return needing_seeds(
        {
            score: {model: [one.test[score] for one in found] for model, found in models.items()}
            for score in SCORES
        }
    )


def equal_time_table(evidence: Evidence) -> Table:
    """A few scores of every model after the same time, all texts side by side."""
    by_text = {corpus: _trainings(evidence, corpus, FIXED) for corpus in evidence.corpora(FIXED)}
    columns = [f"{corpus}: {label(score)}" for corpus in by_text for score in _MAIN]
    trained = [
        model for model in reversed(MODELS) if any(model in each for each in by_text.values())
    ]
    rows = [
        [model, *(cell for each in by_text.values() for cell in _score_cells(each, model, _MAIN))]
        for model in trained
    ]
    return Table(("test error, %", *columns), rows)


@dataclass(frozen=True)
class Point:
    """What a model came to with one budget."""

    seconds: float  # of training
    trainings: Sequence[ScoredModel]


def progress(evidence: Evidence) -> dict[str, dict[str, list[Point]]]:
    """By text and model, from the shortest training to the longest. Where no time is known there is no point."""
    texts: dict[str, dict[str, list[Point]]] = {}
    for budget, corpus in _texts(evidence):
        for model, found in _trainings(evidence, corpus, budget).items():
            times = [one.train_s for one in found if one.train_s is not None]
            if times and model != CONSTANT:
                points = texts.setdefault(corpus, {}).setdefault(model, [])
                points.append(Point(fmean(times), found))
                points.sort(key=lambda point: point.seconds)
    return texts


def _texts(evidence: Evidence) -> list[tuple[str, str]]:
    """Budgets and corpora that there are trainings of."""
    if not evidence.records.table2:
        raise NotRunError(models_command(FIXED))
    found = dict.fromkeys(
        (one.budget, one.corpus) for one in evidence.records.table2 if one.budget is not None
    )
    return sorted(found, key=lambda pair: budget_order(pair[0]))


def _trainings(evidence: Evidence, corpus: str, budget: str) -> Trainings:
    trainings = {model: evidence.models(corpus, model, budget) for model in MODELS}
    return {model: found for model, found in trainings.items() if found}


def text_title(evidence: Evidence, corpus: str) -> str:
    """Its name and size."""
    classes = next(model.classes for model in evidence.records.table2 if model.corpus == corpus)
    return f"{corpus}, {classes:,} classes"


def _title(evidence: Evidence, corpus: str, budget: str) -> str:
    found = [
        model
        for model in evidence.records.table2
        if (model.corpus, model.budget) == (corpus, budget)
    ]
    budget_s = found[0].budget_s  # of all of them, as `PaperRecords` checks
    spent = budget if budget_s is None else duration(budget_s)
    trained = "trained until converged" if budget == CONVERGED else f"{spent} of training each"
    return f"{text_title(evidence, corpus)}, {trained}"


# ---- beside the paper ------------------------------------------------------------------------------------------------


def _final_table(evidence: Evidence, corpus: str, budget: str) -> Table:
    columns = [
        f"{label(score)}, %: {whose}" for score in FINAL_ERRORS for whose in ("paper", "ours")
    ]
    rows = []
    for model in MODELS:
        trainings = evidence.models(corpus, model, budget)
        if trainings or model in FINAL_SCORES:
            rows.append([model, *_final_cells(model, trainings)])
    return Table(
        ("model", *columns, "training: paper", "training: ours", "epochs", "MRR", "seeds"), rows
    )


def _final_cells(model: str, trainings: Sequence[ScoredModel]) -> Iterator[Cell | str]:
    paper = FINAL_SCORES.get(model)
    for score in FINAL_ERRORS:
        printed = None if paper is None else paper.error(score)
        yield NOT_PRINTED if printed is None else shown(printed, score)
        yield _shown(trainings, score) if trainings else NOT_RUN
    yield NOT_PRINTED if paper is None or paper.train_s is None else duration(paper.train_s)
    about = "" if all(one.alone for one in trainings) else "about "
    yield _mean([one.train_s for one in trainings], lambda train_s: about + duration(train_s))
    yield _epochs(trainings)
    yield _shown(trainings, "mrr") if trainings else ""
    yield str(len(trainings))


# ---- cells -----------------------------------------------------------------------------------------------------------


def _score_cells(trainings: Trainings, model: str, scores: Sequence[str]) -> Iterator[Cell | str]:
    for score in scores:
        means = {name: fmean(one.test[score] for one in found) for name, found in trainings.items()}
        best = (min if is_error(score) else max)(means.values())
        is_best = (
            means.get(model) == best and len(means.keys() - {CONSTANT}) > 1
        )  # of several, or it means nothing
        yield (
            Cell(_shown(trainings[model], score), BEST if is_best else "")
            if model in means
            else NOT_RUN
        )


def _shown(trainings: Sequence[ScoredModel], score: str) -> str:
    return shown_estimate(estimate([one.test[score] for one in trainings]), score)


def _epochs(trainings: Sequence[ScoredModel]) -> str:
    return _mean([one.epochs for one in trainings], lambda epochs: f"{epochs:.3g}")


def _mean(values: Sequence[float | None], show: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    return show(fmean(known)) if known else ""
