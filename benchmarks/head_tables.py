"""Tables of the trials of heads: the defaults and what they reach, optimizers, single changes, numbers of samples."""

import time
from collections.abc import Callable, Sequence
from math import exp
from pathlib import Path

from benchmarks.head_defaults import (
    CHECK_TIMES,
    CHECKING,
    CHOOSING,
    HEADS,
    RECORDS,
    SAMPLES,
    biases,
    checked,
    choose,
    first_settings,
    joint_score,
    last_change,
    scales,
    search,
    trunk_rates,
    with_samples,
)
from benchmarks.head_trials import HeadTrial, Setting, TimeUp, Trials
from benchmarks.markdown_cells import NOT_RUN, markdown_table
from zloss_lab.documents.markdown import wrapped

_TITLES = {
    "sampled": "sampled softmax",
    "factored": "factored Z-loss",
    "dense": "dense softmax",
    "hierarchical": "hierarchical softmax",
    "nce": "NCE",
    "adaptive": "adaptive softmax",
    "gram": "Gram Z-loss",
}
_OPTIMIZERS = {"sgd": "SGD", "adagrad": "Adagrad", "adam": "Adam"}
_CORPORA = {
    "ptb": "Penn Treebank",
    "yoochoose": "Yoochoose 1/64",
    "diginetica": "Diginetica",
    "citeulike": "citeulike-t",
}


def recorded_trials(path: Path = RECORDS) -> Trials:
    """Return the trials of a file. A trial that is missing raises `TimeUp`."""
    return Trials(path, Path(), time.monotonic() - 1)


def head_defaults() -> str:
    """Return what the default of each head reaches, and what a search on the other corpora would have gained."""
    trials = recorded_trials()
    rows = [[_TITLES[name], *_cells(name, trials)] for name in HEADS]
    columns = [
        "head",
        "optimizer, rate; rate of the trunk",
        *(_CORPORA[corpus] for corpus in CHOOSING),
        *(f"{_CORPORA[corpus]}: default, best found" for corpus in CHECKING),
    ]
    return f"{markdown_table(columns, rows)}\n\n{_source(trials)}"


def _cells(name: str, trials: Trials) -> list[str]:
    """Return the cells of a head. Settings of the checks are chosen by validation, and shown by their test."""
    try:
        best = choose(name, trials)
    except TimeUp:
        return [NOT_RUN] * (1 + len(CHOOSING) + len(CHECKING))
    cells = [described(best)]
    for corpus in CHOOSING:
        found = trials.recorded(corpus, best, seed=1)
        cells.append(tested(found) if found else NOT_RUN)
    for corpus in CHECKING:
        settings = checked(best, corpus)
        trained = [
            trials.recorded(corpus, one, times=CHECK_TIMES[corpus], seed=1) for one in settings
        ]
        measured = [one for one in trained if one]
        if len(measured) < len(settings):
            cells.append(NOT_RUN)
            continue
        top = max(measured, key=lambda one: one.score)
        cells.append(f"{tested(measured[0])}, {tested(top)} ({named(top.setting)})")
    return cells


def described(setting: Setting) -> str:
    """Return the optimizers of a setting in words, first the one of the head."""
    return f"{named(setting)}; {setting.trunk_lr:g}"


def named(setting: Setting) -> str:
    """Return the optimizer of the head in words."""
    return f"{_OPTIMIZERS[setting.optimizer]} {setting.lr:g}"


def tested(trial: HeadTrial) -> str:
    """Return the score of a trial on the test examples, in percent."""
    return NOT_RUN if not trial.test else f"{next(iter(trial.test.values())):.1%}".rstrip("%")


def head_optimizers() -> str:
    """Return the best score of each optimizer in the first stage of a search."""
    trials = recorded_trials()
    score, rows = joint_score(trials), []
    for name, (first, _) in HEADS.items():
        try:
            scored = [(score(setting), setting) for setting in first_settings(first)]
        except TimeUp:
            rows.append([_TITLES[name], *[NOT_RUN] * len(_OPTIMIZERS)])
            continue
        row = [_TITLES[name]]
        for optimizer in _OPTIMIZERS:
            own = [pair for pair in scored if pair[1].optimizer == optimizer]
            value, setting = max(own, key=lambda pair: pair[0], default=(0.0, None))
            row.append(f"{_mean(value)} at {setting.lr:g}" if setting else "")
        rows.append(row)
    return markdown_table(["head", *_OPTIMIZERS.values()], rows)


def head_changes() -> str:
    """Return the scores of single changes of the sampled softmax, each beside the best setting before it."""
    trials = recorded_trials()
    score, rows = joint_score(trials), []
    best = search("sampled", score, stages=1)
    changes: dict[str, Callable[[Setting], Sequence[Setting]]] = {
        "rate of the trunk 0.01 instead of 0.003": lambda best: trunk_rates(best)[:1],
        "initial weights x 0.1": scales,
        "with a bias": biases,
        "sampler by frequency^0.75": lambda best: [last_change("sampled", best)],
    }
    for title, change in changes.items():
        (changed,) = change(best)
        rows.append([title, _mean(score(best)), _mean(score(changed))])
        best = max(best, changed, key=score)
    return markdown_table(["sampled softmax, S = 512", "before", "with the change"], rows)


def head_samples() -> str:
    """Return scores and times of the sampled softmax with other numbers of samples, each at its best rate."""
    trials = recorded_trials()
    try:
        best = choose("sampled", trials)
    except TimeUp:
        return NOT_RUN
    rows, pace = [], 0.0
    for number in SAMPLES:
        cells, seconds = [f"{number:,}"], 0.0
        for corpus in CHOOSING:
            settings = with_samples(best, number)
            found = [trials.recorded(corpus, setting, seed=1) for setting in settings]
            measured = [one for one in found if one]
            if len(measured) < len(settings):
                cells.append(NOT_RUN)
                continue
            top = max(measured, key=lambda one: one.score)
            cells.append(f"{tested(top)} ({named(top.setting)})")
            seconds += measured[0].cpu_s
        pace = pace or seconds
        rows.append([*cells, f"{seconds / pace:.1f}" if NOT_RUN not in cells else NOT_RUN])
    columns = ["S", *(_CORPORA[corpus] for corpus in CHOOSING), "time of a training / S = 256"]
    return markdown_table(columns, rows)


def _mean(score: float) -> str:
    """Return the geometric mean of the scores behind a joint score, in percent."""
    return f"{100 * exp(score / len(CHOOSING)):.1f}"


def _source(trials: Trials) -> str:
    record = trials.records[-1]
    return wrapped(
        f"{len(trials.records)} trainings on {record.device}, torch {record.versions['torch']}, beside other programs. "
        "Record: `benchmarks/records/head_defaults.cpu.jsonl`."
    )
