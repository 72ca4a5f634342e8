"""The tables of the report but for table 2, ours beside the paper's."""

from collections.abc import Iterable
from itertools import combinations
from statistics import fmean

from reproduction.report.claims import Judged
from reproduction.report.duels import ENOUGH_SEEDS, Duel, Outcome, duel
from reproduction.report.evidence import (
    Evidence,
    NotRunError,
    bench_command,
    estimates,
    experiment_command,
)
from reproduction.report.intervals import estimate
from reproduction.report.loss_checks import FIGURE5_SCORES, NAMES
from reproduction.report.parameter_checks import minimum
from reproduction.report.published import EPOCH_S, HARDWARE, epoch_ratio
from reproduction.report.records import CURVES, LOSSES, Result
from reproduction.report.scores import (
    ERRORS,
    SCORES,
    TIMES,
    is_error,
    label,
    shown_difference,
    shown_estimate,
)
from reproduction.report.speed_checks import PLACES
from reproduction.report.tables import BEST, MISSING, Cell, Row, Table
from reproduction.report.timings import DEVICES, PARTS, Device, Part, duration
from reproduction.report.verdicts import Verdict
from zloss_lab.bench.model_suite import BATCHES, EPOCH_NGRAMS

FIGURE_SCORES = {2: SCORES, 5: FIGURE5_SCORES}
NOT_RUN = Cell("not run", MISSING)
NOT_PRINTED = "/"  # as in the paper


def not_run(command: str) -> str:
    """What stands in the place of a figure or table."""
    return f"not run yet: {command}"


# ---- claims ----------------------------------------------------------------------------------------------------------


def claims_table(claims: Iterable[Judged]) -> Table:
    """Claims, with verdicts."""
    rows = [
        (
            str(one.number),
            Cell(one.finding.verdict, verdict_kind(one.finding.verdict)),
            one.claim.says,
            one.claim.where,
            one.claim.paper,
            one.finding.ours,
        )
        for one in claims
    ]
    return Table(("", "verdict", "the paper says", "where", "paper", "ours"), rows, words=6)


def verdict_kind(verdict: Verdict) -> str:
    """The classes of the style sheet that colour it."""
    return f"verdict {verdict.replace(' ', '-')}"


# ---- table 1 ---------------------------------------------------------------------------------------------------------

TIMED = {"softmax": "softmax", "hierarchical": "H-softmax", "z_loss": "Z-loss"}
_PART_NAMES: dict[Part, str] = {"model": "net1", "output": "output"}
_SLOTS: tuple[tuple[Device, Part], ...] = tuple(
    (device, part) for device in DEVICES for part in PARTS
)


def epochs_table(evidence: Evidence) -> Table:
    """Table 1: an epoch of One Billion Word, and the time of others in times of the Z-loss."""
    columns = [
        f"{PLACES[device]}, {_PART_NAMES[part]}: {whose}"
        for device, part in _SLOTS
        for whose in ("paper", "ours")
    ]
    rows = [
        [name, *(cell for slot in _SLOTS for cell in _epochs(evidence, loss, *slot))]
        for loss, name in TIMED.items()
    ]
    rows += [
        [f"{name} / Z-loss", *(cell for slot in _SLOTS for cell in _ratios(evidence, loss, *slot))]
        for loss, name in TIMED.items()
        if loss != "z_loss"
    ]
    return Table(("an epoch", *columns), rows)


def _epochs(
    evidence: Evidence, loss: str, device: Device, part: Part
) -> tuple[Cell | str, Cell | str]:
    paper, ours = EPOCH_S.get((part, loss, device)), evidence.timings.epoch_s(part, loss, device)
    return (
        NOT_PRINTED if paper is None else duration(paper, digits=4),
        NOT_RUN if ours is None else duration(ours),
    )


def _ratios(
    evidence: Evidence, loss: str, device: Device, part: Part
) -> tuple[Cell | str, Cell | str]:
    paper, ours = epoch_ratio(part, loss, device), evidence.timings.ratio(part, loss, device)
    return (
        NOT_PRINTED if paper is None else f"{paper:.3g}{TIMES}",
        NOT_RUN if ours is None else f"{ours:.3g}{TIMES}",
    )


def epochs_notes(evidence: Evidence) -> list[str]:
    """Where it was measured, and which softmax it is."""
    notes = [
        f"All of net1, or its output layer alone; batches of {BATCHES['net1']}, extrapolated to the paper's "
        f"{EPOCH_NGRAMS // 10**6} million n-grams.",
        f"Paper: {HARDWARE['cpu']} and {HARDWARE['cuda']}.",
    ]
    for device in DEVICES:
        steps = {part: evidence.timings.step(part, "softmax", device) for part in PARTS}
        ways = dict.fromkeys(step["name"].removeprefix("net1, ") for step in steps.values() if step)
        if ways:
            places = dict.fromkeys(step["device"] for step in steps.values() if step)
            notes.append(
                f"{PLACES[device]}: {'; '.join(places)}; softmax as it is fastest there: {'; '.join(ways)}."
            )
    missing = [
        bench_command(part, device)
        for device, part in _SLOTS
        if not evidence.timings.step(part, "z_loss", device)
    ]
    return notes + [f"{not_run(command)}." for command in missing]


# ---- figures 2 and 5 -------------------------------------------------------------------------------------------------


def scores_table(evidence: Evidence, figure: int) -> Table:
    """Test scores of every loss, tuned for each score; the best mean of a column is marked."""
    losses, scores = losses_of(evidence, figure), FIGURE_SCORES[figure]
    bests = {score: _best_loss(evidence, figure, score) for score in scores}
    rows = []
    for loss in losses:
        cells = [
            _score_cell(evidence, figure, loss, score, is_best=loss == bests[score])
            for score in scores
        ]
        rows.append(
            [
                NAMES[loss],
                *cells,
                seeds_of(result for result in evidence.figure(figure) if result.loss == loss),
            ]
        )
    return Table(("test error, %", *map(label, scores), "seeds"), rows)


def losses_of(evidence: Evidence, figure: int) -> list[str]:
    """Those with results, in the order of the figure."""
    present = {result.loss for result in evidence.figure(figure)}
    if not present:
        raise NotRunError(experiment_command(f"figure{figure}"))
    return [loss for loss in LOSSES[figure] if loss in present]


def _score_cell(
    evidence: Evidence, figure: int, loss: str, score: str, *, is_best: bool
) -> Cell | str:
    if not evidence.has_tuned(figure, loss, score):
        return NOT_RUN
    return Cell(
        shown_estimate(estimate(evidence.tuned(figure, loss, score)), score),
        BEST if is_best else "",
    )


def _best_loss(evidence: Evidence, figure: int, score: str) -> str | None:
    means = {
        loss: fmean(evidence.tuned(figure, loss, score))
        for loss in losses_of(evidence, figure)
        if evidence.has_tuned(figure, loss, score)
    }
    pick = min if is_error(score) else max
    return pick(means, key=lambda loss: means[loss]) if means else None


def seeds_of(results: Iterable[Result]) -> str:
    """How many seeds a choice has: one number, or the least and the most."""
    counts: dict[object, int] = {}
    for result in results:
        counts[result.choice] = counts.get(result.choice, 0) + 1
    least, most = min(counts.values(), default=0), max(counts.values(), default=0)
    return str(least) if least == most else f"{least} to {most}"


def differences_table(evidence: Evidence, figure: int) -> Table:
    """The Z-loss minus every other loss, with Welch's interval."""
    scores = FIGURE_SCORES[figure]
    rivals = [other for other in losses_of(evidence, figure) if other != "z_loss"]
    rows = [
        [NAMES[other], *(_difference_cell(evidence, figure, other, score) for score in scores)]
        for other in rivals
    ]
    return Table((f"{NAMES['z_loss']} minus", *map(label, scores)), rows)


def _difference_cell(evidence: Evidence, figure: int, other: str, score: str) -> Cell | str:
    if not all(evidence.has_tuned(figure, name, score) for name in ("z_loss", other)):
        return NOT_RUN
    return difference_cell(
        duel(evidence.tuned(figure, "z_loss", score), evidence.tuned(figure, other, score), score)
    )


def difference_cell(clash: Duel) -> Cell:
    """By how much, and how sure that is; `MARKS_NOTE` says what the marks mean."""
    kinds = {Outcome.WON: "won", Outcome.LOST: "lost", Outcome.EVEN: "even"}
    marks = f"{' ~' if clash.outcome is Outcome.EVEN else ''}{' *' if clash.needs_seeds else ''}"
    return Cell(
        f"{shown_difference(clash.difference, clash.score)}{marks}", kinds.get(clash.outcome, "")
    )


MARKS_NOTE = f"~ within noise; * within a point, and needs {ENOUGH_SEEDS} seeds."
DIFFERENCES_NOTE = (
    "Difference of means with Welch's 95 % interval, errors in points: below zero the Z-loss is better, but for MRR. "
    f"{MARKS_NOTE}"
)


ValuesByScore = dict[
    str, dict[str, list[float]]
]  # one a seed, by score and by the name of a loss or model


def close_calls(evidence: Evidence, figure: int) -> str:
    """The losses that are within a point of each other and have too few seeds to tell, by score."""
    by_score: ValuesByScore = {}
    for score in FIGURE_SCORES[figure]:
        present = [
            loss for loss in losses_of(evidence, figure) if evidence.has_tuned(figure, loss, score)
        ]
        by_score[score] = {NAMES[loss]: evidence.tuned(figure, loss, score) for loss in present}
    return needing_seeds(by_score)


def needing_seeds(values: ValuesByScore) -> str:
    """Whose values are too close to each other to be told apart by so few seeds; "" where there are none."""
    scores: dict[str, list[str]] = {}  # by the names of those
    for score, by_name in values.items():
        close: set[str] = set()
        for pair in combinations(by_name, 2):
            if duel(by_name[pair[0]], by_name[pair[1]], score).needs_seeds:
                close |= {name for name in pair if len(by_name[name]) < ENOUGH_SEEDS}
        if close:
            scores.setdefault(", ".join(name for name in by_name if name in close), []).append(
                label(score)
            )
    found = [f"{', '.join(labels)} ({names})" for names, labels in scores.items()]
    return f"Within a point, and needs {ENOUGH_SEEDS} seeds: {'; '.join(found)}." if found else ""


# ---- figures 3 and 4 -------------------------------------------------------------------------------------------------


def sweep_table(evidence: Evidence) -> Table:
    """Figure 3: test errors by a; the lowest of a column is marked."""
    columns = {score: estimates(evidence.sweep(score)) for score in ERRORS}
    lowest = {score: minimum(evidence.sweep(score)) for score in ERRORS}
    rows: list[Row] = [
        [
            f"{a:g}",
            *(
                Cell(shown_estimate(columns[score][a], score), BEST if a == lowest[score] else "")
                for score in ERRORS
            ),
            str(columns[ERRORS[0]][a].seeds),
        ]
        for a in columns[ERRORS[0]]
    ]
    return Table(("a", *map(label, ERRORS), "seeds"), rows)


def curves_table(evidence: Evidence) -> Table:
    """Figure 4: the lowest validation errors of the four models; the best of a column is marked."""
    trainings = {model: evidence.curves(model) for model in CURVES}
    means = {
        score: {
            model: fmean(curve.best(score) for curve in curves)
            for model, curves in trainings.items()
        }
        for score in CURVES
    }
    rows = []
    for model, curves in trainings.items():
        cells: list[Cell | str] = [
            Cell(
                shown_estimate(estimate([curve.best(score) for curve in curves]), score),
                BEST if means[score][model] == min(means[score].values()) else "",
            )
            for score in CURVES
        ]
        rows.append(
            [label(model), f"{curves[0].a:g}", f"{curves[0].b:g}", *cells, str(len(curves))]
        )
    return Table(("tuned for", "a", "b", *map(label, CURVES), "seeds"), rows)
