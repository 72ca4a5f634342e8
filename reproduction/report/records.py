"""What the experiments of the paper leave behind, checked line by line: `figure2.jsonl` to `table2.jsonl`.

A file has one JSON object a line, one for each training. All of them have

    "seed": 0,  "settings": {"training.lr": 0.1, ...}            every setting that was tuned or set, by dotted key
    "digest": "0a1b..."                                          of those that were not set too; early ones have none
    "device": ..., "versions": {...}, "commit": ...              `zloss_lab.records.provenance`

and scores by split, `{"top_1_error": 0.79, ..., "top_100_error": 0.27, "mrr": 0.3}`, errors as shares of 1. What else
is in an object or among its scores is left alone. Beside that, in

    figure2, figure5   "figure": 2, "loss": "z_loss", "tuned_for": "top_5_error", "epochs": 12, "trials": 60,
                       "valid": {scores}, "test": {scores}
    figure3            "figure": 3, "a": 0.1, "b": 28.0, "valid": {scores}, "test": {scores}
                       b = 28 is the figure; with other b at one of its a, that claim of the paper can be judged too
    figure4            "figure": 4, "tuned_for": "top_1_error", "a": 0.1, "b": 10.0,
                       "curve": [{"epoch": 1.0, errors}, ...]     on the validation split
    table2             "table": 2, "corpus": "fil8", "classes": 213271, "model": "Z-loss net1", "head": "factored",
                       "loss": "z_loss", "network": "net1", "budget": "fixed", "2 epochs" or "converged",
                       "budget_s": 120.0 where it is fixed, "train_s": 118.2, "epochs": 0.7, "alone": true,
                       "valid": {scores}, "test": {scores}
                       alone on the device, or train_s says nothing; early ones were, and do not say so
                       the model "constant" has null for what it does not have

Settings were chosen on the validation split, before these trainings; a line is one of the seeds of the choice. Seeds of
one choice have the same settings, and a seed is there once.

What is compared must be comparable: a figure is of one text, the points of figure 3 differ in a and b alone, and table
2 has one device, one time or rule of convergence, and as many examples in "test" for all models of a text and budget. A
file need not be so while it is being made anew, choice by choice; `PaperRecords` wants it.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from reproduction.report.scores import SCORES, top
from zloss_lab.records import Record, read_records, write_records

LOSSES = {
    2: ("squared_error", "taylor_softmax", "spherical_softmax", "sigmoid", "softmax", "z_loss"),
    5: ("softmax", "z_softmax", "sigmoid", "z_sigmoid", "z_loss"),
}
MODELS = (
    "constant",
    "softmax net1",
    "H-softmax net1",
    "sampled softmax net1",
    "adaptive softmax net1",
    "Z-loss net1",
    "Z-loss top-10 net1",
    "Z-loss top-100 net1",
    "Z-loss net2",
    "Z-loss top-10 net2",
)
CONSTANT = "constant"
SOFTMAXES = tuple(model for model in MODELS if "softmax" in model)
FIXED, CONVERGED = "fixed", "converged"  # budgets of table 2; `epochs_budget` names the others
PENN_TREEBANK = "ptb"  # the text of the figures, where their settings name none
FIGURE_B = 28.0
SWEPT = ("network.head.a", "network.head.b")  # what the points of figure 3 differ in
CURVES = tuple(map(top, (1, 5, 10, 50)))  # the panels of figure 4
# What a training comes to does not depend on these. Early records have them among their settings.
LOOKS = ("training.log_every", "training.checkpoint_every", "training.keep", "training.graph")
# When a training has converged is decided by these, so that they are the budget of those that do. After how many steps
# it validates may differ: those of larger batches are fewer.
_CONVERGENCE = tuple(
    f"training.{name}" for name in ("lr_factor", "patience", "stop_after", "validation_examples")
)

_EPOCHS = re.compile(r"([1-9][0-9]*) epochs?")

Scores = Mapping[str, float]
Choice = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What every line has."""

    seed: int
    settings: Mapping[str, Any]
    digest: str | None = None
    device: str
    versions: Mapping[str, str]
    commit: str

    def is_made_with(self, settings: Mapping[str, Any], digest: str | None) -> bool:
        """Whether it differs from such a training in its seed at most. The digest decides, where both have one."""
        if self.digest is not None and digest is not None:
            return self.digest == digest
        return self.settings == settings

    @property
    def text(self) -> str:
        """The text that it was trained on."""
        return str(self.settings.get("corpus", PENN_TREEBANK))

    @property
    def choice(self) -> Choice:
        """What seeds of one choice have in common."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TunedResult(Result):
    """Figures 2 and 5: a loss with the settings that were best for one score."""

    loss: str
    tuned_for: str
    epochs: float
    trials: int
    valid: Scores
    test: Scores

    @property
    def choice(self) -> Choice:
        return self.loss, self.tuned_for


@dataclass(frozen=True, kw_only=True)
class SweepPoint(Result):
    """Figure 3: one architecture with one a and b."""

    a: float
    b: float
    valid: Scores
    test: Scores

    @property
    def choice(self) -> Choice:
        return self.a, self.b


@dataclass(frozen=True, kw_only=True)
class TrainingCurve(Result):
    """Figure 4: validation errors by epoch of the Z-loss with the settings, a and b among them, best for one error."""

    tuned_for: str
    a: float
    b: float
    curve: tuple[Scores, ...]  # with "epoch"

    @property
    def choice(self) -> Choice:
        return (self.tuned_for,)

    def best(self, score: str) -> float:
        """The lowest error of the curve: what early stopping would keep."""
        return min(point[score] for point in self.curve)


@dataclass(frozen=True, kw_only=True)
class ScoredModel(Result):
    """Table 2: a model trained on a large text, for a fixed time, for some epochs or until it stops improving."""

    corpus: str
    classes: int
    model: str
    head: str | None
    loss: str | None
    network: str | None
    budget: str | None
    budget_s: float | None
    train_s: float | None
    epochs: float | None
    alone: bool
    valid: Scores
    test: Scores
    examples: int | None = None  # in the test; not all records say so

    @property
    def text(self) -> str:
        return self.corpus

    @property
    def choice(self) -> Choice:
        return self.corpus, self.model, self.budget

    @property
    def kind(self) -> Choice:
        """What decides how long a step takes; a, b and the score that it is tuned for do not."""
        return self.network, self.head, self.loss


@dataclass(frozen=True, kw_only=True)
class PaperRecords:
    """All of them; what has no file yet is empty. `ValueError` where results cannot be compared."""

    figure2: tuple[TunedResult, ...] = ()
    figure3: tuple[SweepPoint, ...] = ()
    figure4: tuple[TrainingCurve, ...] = ()
    figure5: tuple[TunedResult, ...] = ()
    table2: tuple[ScoredModel, ...] = ()

    def __post_init__(self) -> None:
        for name in ("figure2", "figure3", "figure4", "figure5"):
            _check_one_text(name, getattr(self, name))
        _check_one_sweep(self.figure3)
        _check_epochs(self.figure4)
        _check_equal_conditions(self.table2)
        _check_equal_convergence(self.table2)
        _check_equal_tests(self.table2)

    @classmethod
    def read(cls, folder: Path) -> "PaperRecords":
        """The files of a folder; `ValueError` names the file and line of what is wrong."""
        found = {name: _read(folder / f"{name}.jsonl", parse) for name, parse in PARSERS.items()}
        try:
            return cls(**found)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from error


def epochs_budget(epochs: int) -> str:
    """The budget of a model that is trained for so many epochs.

    >>> epochs_budget(1), epochs_budget(4)
    ('1 epoch', '4 epochs')
    """
    return f"{epochs} epoch{'s' if epochs > 1 else ''}"


def budget_order(budget: str) -> tuple[int, int]:
    """What sorts budgets as tables have them: a fixed time, epochs from few to many, and until convergence.

    >>> sorted(["converged", "10 epochs", "2 epochs", "fixed"], key=budget_order)
    ['fixed', '2 epochs', '10 epochs', 'converged']
    """
    epochs = _EPOCHS.fullmatch(budget)
    return (1, int(epochs[1])) if epochs else (0 if budget == FIXED else 2, 0)


def write_results(folder: Path, name: str, records: Collection[Record]) -> None:
    """Check the records of a figure or table, "figure2" and so on, and replace its file."""
    _checked(name, records, PARSERS[name])
    write_records(folder / f"{name}.jsonl", records)


AnyResult = TypeVar("AnyResult", bound=Result)


def _read(path: Path, parse: Callable[[Record], AnyResult]) -> tuple[AnyResult, ...]:
    if not path.exists():
        return ()
    try:
        lines = read_records(path)
    except ValueError as error:
        raise ValueError(f"{path} is no file of records: {error}") from error
    return _checked(str(path), lines, parse)


def _checked(
    place: str, records: Iterable[Record], parse: Callable[[Record], AnyResult]
) -> tuple[AnyResult, ...]:
    seen: dict[Choice, dict[int, AnyResult]] = {}
    for number, record in enumerate(records, start=1):
        try:
            result = parse(record)
            _check_seed(result, seen.setdefault(result.choice, {}))
        except ValueError as error:
            raise ValueError(f"{place}, line {number}: {error}") from error
    # By seed, not as they came in: what is read off them must not depend on who was trained first.
    return tuple(seeds[seed] for seeds in seen.values() for seed in sorted(seeds))


def _check_seed(result: AnyResult, others: dict[int, AnyResult]) -> None:
    what = ", ".join(map(str, result.choice))
    if result.seed in others:
        raise ValueError(f"seed {result.seed} of {what} is there twice")
    if not all(other.is_made_with(result.settings, result.digest) for other in others.values()):
        raise ValueError(
            f"seeds of {what} have different settings, so their mean would mean nothing"
        )
    others[result.seed] = result


# ---- what can be compared --------------------------------------------------------------------------------------------


def _check_one_text(name: str, results: Iterable[Result]) -> None:
    texts = sorted({result.text for result in results})
    if len(texts) > 1:
        raise ValueError(
            f"{name} has results on several texts, {', '.join(texts)}, which cannot be compared: "
            "keep those of one text, and those of another in a folder of their own"
        )


def _check_one_sweep(points: Sequence[SweepPoint]) -> None:
    """While it is made anew with other settings, what they do would pass for the effect of a and b.

    What one point does not name may well have the same value, that of a preset.
    """
    for point in points[1:]:
        first, own = points[0].settings, point.settings
        others = [
            key
            for key in own
            if own[key] != first.get(key, own[key]) and key not in (*SWEPT, "corpus")
        ]
        if others:
            raise ValueError(
                f"figure3 has points that differ in {', '.join(others)}, not in a and b alone, which cannot be "
                "compared: run `zloss paper figure3` to its end"
            )


def _check_epochs(curves: Iterable[TrainingCurve]) -> None:
    """Seeds have an epoch in common, or there is no mean of their curves."""
    shared: dict[Choice, set[float]] = {}
    for one in curves:
        epochs = {point["epoch"] for point in one.curve}
        shared[one.choice] = shared.get(one.choice, epochs) & epochs
        if not shared[one.choice]:
            raise ValueError(
                f"the curves of figure4 tuned for {one.tuned_for} have no epoch in common: make them anew"
            )


def _check_equal_conditions(models: Iterable[ScoredModel]) -> None:
    """Models of one text and budget had the same time on the same device; the constant one needs neither."""
    conditions: dict[tuple[str, str], set[tuple[float | None, str]]] = {}
    for one in models:
        if one.budget is not None:
            conditions.setdefault((one.corpus, one.budget), set()).add((one.budget_s, one.device))
    for (corpus, budget), found in conditions.items():
        if len(found) > 1:
            told = " and ".join(sorted(_told_condition(*each) for each in found))
            raise ValueError(
                f"table2 has models of {corpus} with the budget {budget!r} {told}, which cannot be compared: "
                "train all of them alike, or keep those of one time and device, and the others in a folder of their own"
            )


def _check_equal_convergence(models: Iterable[ScoredModel]) -> None:
    """Models of one text were given up by one rule: with more patience they take longer, and end better."""
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


def _check_equal_tests(models: Iterable[ScoredModel]) -> None:
    """Models of one text and budget were tested on as many examples, and the constant one with them."""
    tests: dict[str, dict[str | None, set[int]]] = {}
    for one in models:
        if one.examples is not None:
            tests.setdefault(one.corpus, {}).setdefault(one.budget, set()).add(one.examples)
    for corpus, budgets in tests.items():
        of_constant = budgets.pop(None, set())
        for budget, found in budgets.items():
            if len(found | of_constant) > 1:
                told = " and ".join(f"{number:,}" for number in sorted(found | of_constant))
                raise ValueError(
                    f"table2 has models of {corpus} with the budget {budget!r} or the constant one tested on {told} "
                    "examples, which cannot be compared: run `zloss paper table2` for all of them with the same --limit"
                )


def _told_condition(budget_s: float | None, device: str) -> str:
    return f"on {device}" if budget_s is None else f"trained for {budget_s:g} s on {device}"


# ---- from JSON -------------------------------------------------------------------------------------------------------


def _tuned(figure: int) -> Callable[[Record], TunedResult]:
    def parse(record: Record) -> TunedResult:
        _expect(record, "figure", figure)
        return TunedResult(
            **_provenance(record),
            loss=_choice(record, "loss", LOSSES[figure]),
            tuned_for=_choice(record, "tuned_for", SCORES),
            epochs=_number(record, "epochs"),
            trials=_whole(record, "trials"),
            valid=_scores(record, "valid"),
            test=_scores(record, "test"),
        )

    return parse


def _sweep_point(record: Record) -> SweepPoint:
    _expect(record, "figure", 3)
    a, b = _number(record, "a"), _number(record, "b")
    return SweepPoint(
        **_provenance(record),
        a=a,
        b=b,
        valid=_scores(record, "valid"),
        test=_scores(record, "test"),
    )


def _training_curve(record: Record) -> TrainingCurve:
    _expect(record, "figure", 4)
    points = _value(record, "curve", list)
    if not points or not all(isinstance(point, dict) for point in points):
        raise ValueError('"curve" must be a list of points, each with "epoch" and errors')
    curve = tuple({"epoch": _number(point, "epoch"), **_shares(point, CURVES)} for point in points)
    if any(before["epoch"] >= after["epoch"] for before, after in pairwise(curve)):
        raise ValueError('the epochs of "curve" must grow')
    return TrainingCurve(
        **_provenance(record),
        tuned_for=_choice(record, "tuned_for", CURVES),
        a=_number(record, "a"),
        b=_number(record, "b"),
        curve=curve,
    )


def _scored_model(record: Record) -> ScoredModel:
    _expect(record, "table", 2)
    model = _choice(record, "model", MODELS)
    if model == CONSTANT:
        training: dict[str, Any] = dict.fromkeys(
            ("head", "loss", "network", "budget", "budget_s", "train_s", "epochs")
        )
        training["alone"] = True
    else:
        budget = _budget(record)
        training = {name: _value(record, name, str) for name in ("head", "loss", "network")}
        training |= {name: _number(record, name) for name in ("train_s", "epochs")}
        training |= {
            "budget": budget,
            "budget_s": _number(record, "budget_s") if budget == FIXED else None,
        }
        training["alone"] = _value({"alone": True} | record, "alone", bool)
    return ScoredModel(
        **_provenance(record),
        corpus=_value(record, "corpus", str),
        classes=_whole(record, "classes"),
        model=model,
        **training,
        valid=_scores(record, "valid"),
        test=_scores(record, "test"),
        examples=_whole(record["test"], "examples") if "examples" in record["test"] else None,
    )


PARSERS: dict[str, Callable[[Record], Any]] = {
    "figure2": _tuned(2),
    "figure3": _sweep_point,
    "figure4": _training_curve,
    "figure5": _tuned(5),
    "table2": _scored_model,
}


def _provenance(record: Record) -> dict[str, Any]:
    settings = _value(record, "settings", dict)
    return {
        "seed": _whole(record, "seed"),
        "settings": {key: value for key, value in settings.items() if key not in LOOKS},
        "digest": None if record.get("digest") is None else _value(record, "digest", str),
        "device": _value(record, "device", str),
        "versions": _value(record, "versions", dict),
        "commit": _value(record, "commit", str),
    }


def _value(record: Record, name: str, kind: type) -> Any:
    if name not in record:
        raise ValueError(f'"{name}" is missing')
    if not isinstance(record[name], kind):
        words: dict[type, str] = {
            str: "text",
            dict: "an object",
            list: "a list",
            bool: "true or false",
        }
        raise ValueError(f'"{name}" must be {words[kind]}, got {record[name]!r}')
    return record[name]


def _expect(record: Record, name: str, number: int) -> None:
    if record.get(name) != number:
        raise ValueError(f'"{name}" must be {number} in this file, got {record.get(name)!r}')


def _budget(record: Record) -> str:
    budget: str = _value(record, "budget", str)
    epochs = _EPOCHS.fullmatch(budget)
    of_epochs = (
        epochs_budget(int(epochs[1])) if epochs else None
    )  # not "1 epochs", which would be a budget of its own
    if budget not in (FIXED, CONVERGED, of_epochs):
        raise ValueError(
            f'"budget" must be {FIXED}, {CONVERGED} or a number of epochs, as in "2 epochs", got {budget!r}'
        )
    return budget


def _choice(record: Record, name: str, allowed: Collection[str]) -> str:
    value: str = _value(record, name, str)
    if value not in allowed:
        raise ValueError(f'"{name}" must be one of {", ".join(allowed)}, got {value!r}')
    return value


def _number(record: Record, name: str) -> float:
    value = record.get(name)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value < 0
    ):
        raise ValueError(f'"{name}" must be a finite number from 0 on, got {value!r}')
    return float(value)


def _whole(record: Record, name: str) -> int:
    value = _number(record, name)
    if value != int(value):
        raise ValueError(f'"{name}" must be a whole number, got {value!r}')
    return int(value)


def _scores(record: Record, name: str) -> dict[str, float]:
    scores = _value(record, name, dict)
    try:
        return _shares(scores, SCORES)
    except ValueError as error:
        raise ValueError(f'in "{name}": {error}') from error


def _shares(record: Record, names: Iterable[str]) -> dict[str, float]:
    shares = {name: _number(record, name) for name in names}
    for name, share in shares.items():
        if share > 1:
            raise ValueError(
                f'"{name}" must be a share between 0 and 1, not a percentage, got {share}'
            )
    return shares
