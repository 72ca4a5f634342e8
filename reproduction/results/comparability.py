"""Checks that results can be compared: a figure is of one text, a table of equal conditions.

A file may mix texts and conditions while it is made anew, choice by choice. So only a reader of all results checks
them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reproduction.budgets import CONVERGED
from reproduction.paper_figures import SWEPT_KEYS
from reproduction.results.schema import (
    Choice,
    LargeTextResult,
    SweepPoint,
    TrainingCurve,
    TrainingResult,
)

# These settings decide when a training has converged, so they are the budget of such trainings. After how many steps
# it validates may differ, because a larger batch means fewer steps.
_CONVERGENCE = tuple(
    f"training.{name}" for name in ("lr_factor", "patience", "stop_after", "validation_examples")
)


def check_one_text(name: str, results: Iterable[TrainingResult]) -> None:
    """Refuse a figure with results on several texts."""
    texts = sorted({result.text for result in results})
    if len(texts) > 1:
        raise ValueError(
            f"{name} has results on several texts, {', '.join(texts)}, which cannot be compared: "
            "keep those of one text, and those of another in a folder of their own"
        )


def check_one_sweep(points: Sequence[SweepPoint]) -> None:
    """Refuse points that differ in more than a and b, whose effect it would be taken for.

    A setting that only some points name may well have the same value in the others, that of a preset.
    """
    for point in points[1:]:
        first, own = points[0].settings, point.settings
        others = [
            key
            for key in own
            if own[key] != first.get(key, own[key]) and key not in (*SWEPT_KEYS, "corpus")
        ]
        if others:
            raise ValueError(
                f"figure3 has points that differ in {', '.join(others)}, not in a and b alone, which cannot be "
                "compared: run `python -m reproduction run figure3` to its end"
            )


def check_shared_epochs(curves: Iterable[TrainingCurve]) -> None:
    """Refuse seeds that have no epoch in common: their curves have no mean."""
    shared: dict[Choice, set[float]] = {}
    for one in curves:
        epochs = {point.epoch for point in one.curve}
        shared[one.choice] = shared.get(one.choice, epochs) & epochs
        if not shared[one.choice]:
            raise ValueError(
                f"the curves of figure4 tuned for {one.tuned_for} have no epoch in common: make them anew"
            )


def check_equal_conditions(models: Iterable[LargeTextResult]) -> None:
    """Refuse models of one text and budget that had another time or device. The constant model needs neither."""
    conditions: dict[tuple[str, str], set[tuple[float | None, str]]] = {}
    for one in models:
        if one.budget is not None:
            conditions.setdefault((one.corpus, one.budget), set()).add((one.budget_s, one.device))
    for (corpus, budget), found in conditions.items():
        if len(found) > 1:
            differing = " and ".join(sorted(_condition_text(*each) for each in found))
            raise ValueError(
                f"table2 has models of {corpus} with the budget {budget!r} {differing}, which cannot be compared: "
                "train all of them alike, or keep those of one time and device, and the others in a folder of their own"
            )


def check_equal_convergence(models: Iterable[LargeTextResult]) -> None:
    """Refuse models of one text that stopped by different rules: more patience takes longer, and ends better."""
    rules: dict[str, Mapping[str, Any]] = {}
    for one in models:
        if one.budget == CONVERGED:
            rule = {key: one.settings.get(key) for key in _CONVERGENCE}
            first = rules.setdefault(one.corpus, rule)
            if others := [key for key in _CONVERGENCE if rule[key] != first[key]]:
                raise ValueError(
                    f"table2 has models of {one.corpus} that converged with different {', '.join(others)}, which "
                    "cannot be compared: train all of them alike"
                )


def check_equal_tests(models: Iterable[LargeTextResult]) -> None:
    """Refuse models of one text and budget, or the constant model beside them, tested on another number of examples."""
    tests: dict[str, dict[str | None, set[int]]] = {}
    for one in models:
        tests.setdefault(one.corpus, {}).setdefault(one.budget, set()).add(one.test.examples)
    for corpus, budgets in tests.items():
        of_constant = budgets.pop(None, set())
        for budget, found in budgets.items():
            if len(found | of_constant) > 1:
                numbers = " and ".join(f"{number:,}" for number in sorted(found | of_constant))
                raise ValueError(
                    f"table2 has models of {corpus} with the budget {budget!r} or the constant one tested on {numbers} "
                    "examples, which cannot be compared: run `python -m reproduction run table2` for all of them with "
                    "the same --limit"
                )


def _condition_text(budget_s: float | None, device: str) -> str:
    return f"on {device}" if budget_s is None else f"trained for {budget_s:g} s on {device}"
