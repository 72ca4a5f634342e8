"""Table 2: models on large texts, beside the paper's numbers, and by all scores."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from reproduction.budgets import CONVERGED, FIXED, budget_order, budget_title
from reproduction.large_text_models import CONSTANT, MODELS, model_title
from reproduction.report.evidence import (
    Evidence,
    NotRunError,
    Trainings,
    TrainingsByModel,
    models_command,
)
from reproduction.report.published import FINAL_ERRORS, FINAL_SCORES
from reproduction.report.score_texts import estimate_text, score_label, score_text
from reproduction.report.table_cells import NOT_PRINTED, NOT_RUN, close_calls_text
from reproduction.report.timings import duration
from reproduction.scores import MRR, PAPER_SCORES, is_error, top
from zloss_lab.documents.document import BEST, Cell, Row, Table
from zloss_lab.seed_intervals import estimate

_MAIN_ERRORS = (top(1), top(10), top(100))


def final_tables(evidence: Evidence) -> Iterator[tuple[str, Table]]:
    """Yield our numbers beside the paper's, a titled table for each text and budget."""
    for budget, corpus in _budgets_and_texts(evidence):
        yield _title(evidence, corpus, budget), _final_table(evidence, corpus, budget)


def all_scores_tables(evidence: Evidence) -> Iterator[tuple[str, Table, str]]:
    """Yield the test scores of every model, a titled table for each text and budget, with a note on close calls.

    The best of a column is marked.
    """
    for budget, corpus in _budgets_and_texts(evidence):
        models = _trained_models(evidence, corpus, budget)
        rows: list[Row] = [
            [
                model_title(model),
                *_score_cells(models, model, PAPER_SCORES),
                _epochs(trainings),
                str(len(trainings)),
            ]
            for model, trainings in models.items()
        ]
        table = Table(("test error, %", *map(score_label, PAPER_SCORES), "epochs", "seeds"), rows)
        yield _title(evidence, corpus, budget), table, _close_calls(models)


def _close_calls(models: TrainingsByModel) -> str:
    return close_calls_text(
        {
            score: {
                model_title(model): [one.test[score] for one in trainings]
                for model, trainings in models.items()
                if model != CONSTANT
            }
            for score in PAPER_SCORES
        }
    )


def equal_time_table(evidence: Evidence) -> Table:
    """Return a few scores of every model after the same time, all texts side by side."""
    texts = {
        corpus: _trained_models(evidence, corpus, FIXED) for corpus in evidence.texts_with(FIXED)
    }
    columns = [f"{corpus}: {score_label(score)}" for corpus in texts for score in _MAIN_ERRORS]
    rows: list[Row] = [
        [
            model_title(model),
            *(
                cell
                for models in texts.values()
                for cell in _score_cells(models, model, _MAIN_ERRORS)
            ),
        ]
        for model in reversed(tuple(MODELS))
        if any(model in models for models in texts.values())
    ]
    return Table(("test error, %", *columns), rows)


@dataclass(frozen=True)
class TimedTrainings:
    """The trainings of a model with one budget, and their mean time."""

    seconds: float
    trainings: Trainings


def trainings_by_time(evidence: Evidence) -> dict[str, dict[str, list[TimedTrainings]]]:
    """Return trainings by text and model, from the shortest to the longest, where their time is known."""
    texts: dict[str, dict[str, list[TimedTrainings]]] = {}
    for budget, corpus in _budgets_and_texts(evidence):
        for model, trainings in _trained_models(evidence, corpus, budget).items():
            times = [time for one in trainings if (time := evidence.train_s(one)) is not None]
            if times and model != CONSTANT:
                timed = texts.setdefault(corpus, {}).setdefault(model, [])
                timed.append(TimedTrainings(fmean(times), trainings))
                timed.sort(key=lambda one: one.seconds)
    return texts


def text_title(evidence: Evidence, corpus: str) -> str:
    """Return the name and the size of a text."""
    classes = next(one.classes for one in evidence.results.table2 if one.corpus == corpus)
    return f"{corpus}, {classes:,} classes"


def _budgets_and_texts(evidence: Evidence) -> list[tuple[str, str]]:
    """Return the budgets and texts that have trainings."""
    if not evidence.results.table2:
        raise NotRunError(models_command(FIXED))
    found = dict.fromkeys(
        (one.budget, one.corpus) for one in evidence.results.table2 if one.budget is not None
    )
    return sorted(found, key=lambda pair: budget_order(pair[0]))


def _trained_models(evidence: Evidence, corpus: str, budget: str) -> TrainingsByModel:
    trainings = {model: evidence.trainings(corpus, model, budget) for model in MODELS}
    return {model: found for model, found in trainings.items() if found}


def _title(evidence: Evidence, corpus: str, budget: str) -> str:
    if budget == CONVERGED:
        return f"{text_title(evidence, corpus)}, trained until converged"
    trained = [
        one for one in evidence.results.table2 if (one.corpus, one.budget) == (corpus, budget)
    ]
    budget_s = trained[0].budget_s  # `PaperResults` checks that all are equal
    length = budget_title(budget) if budget_s is None else duration(budget_s)
    return f"{text_title(evidence, corpus)}, {length} of training each"


# ---- beside the paper ------------------------------------------------------------------------------------------------


def _final_table(evidence: Evidence, corpus: str, budget: str) -> Table:
    errors = [
        f"{score_label(score)}, %: {source}"
        for score in FINAL_ERRORS
        for source in ("paper", "ours")
    ]
    rows: list[Row] = []
    for model in MODELS:
        trainings = evidence.trainings(corpus, model, budget)
        if trainings or model in FINAL_SCORES:
            rows.append([model_title(model), *_final_cells(evidence, model, trainings)])
    columns = ("model", *errors, "training: paper", "training: ours", "epochs", "MRR", "seeds")
    return Table(columns, rows)


def _final_cells(evidence: Evidence, model: str, trainings: Trainings) -> Iterator[Cell | str]:
    paper = FINAL_SCORES.get(model)
    for score in FINAL_ERRORS:
        printed = None if paper is None else paper.error(score)
        yield NOT_PRINTED if printed is None else score_text(printed, score)
        yield _mean_score(trainings, score) if trainings else NOT_RUN
    yield NOT_PRINTED if paper is None or paper.train_s is None else duration(paper.train_s)
    about = "about " if any(one.is_alone is False for one in trainings) else ""
    yield _mean(map(evidence.train_s, trainings), lambda train_s: about + duration(train_s))
    yield _epochs(trainings)
    yield _mean_score(trainings, MRR) if trainings else ""
    yield str(len(trainings))


# ---- cells -----------------------------------------------------------------------------------------------------------


def _score_cells(models: TrainingsByModel, model: str, scores: Sequence[str]) -> Iterator[Cell]:
    """Yield the scores of one of several models. Without a second trained model no score is marked as the best."""
    has_rivals = len(models.keys() - {CONSTANT}) > 1
    for score in scores:
        if model not in models:
            yield NOT_RUN
            continue
        means = {name: fmean(one.test[score] for one in found) for name, found in models.items()}
        best = (min if is_error(score) else max)(means.values())
        is_best = has_rivals and means[model] == best
        yield Cell(_mean_score(models[model], score), BEST if is_best else "")


def _mean_score(trainings: Trainings, score: str) -> str:
    return estimate_text(estimate([one.test[score] for one in trainings]), score)


def _epochs(trainings: Trainings) -> str:
    return _mean([one.epochs for one in trainings], lambda epochs: f"{epochs:.3g}")


def _mean(values: Iterable[float | None], text: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    return text(fmean(known)) if known else ""
