"""A report on runs as a document: what differs between them, their scores, curves, seeds and machines.

Everything comes from the files of the runs. Nothing is trained or evaluated. All texts from these files are made
visible here, and the renderers escape them.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from zloss_lab.documents.document import (
    BEST,
    MISSING,
    Block,
    Cell,
    Code,
    Document,
    Link,
    Picture,
    Row,
    Section,
    Table,
    bullets,
    paragraph,
)
from zloss_lab.evaluation import SCORES, is_made_large
from zloss_lab.inspection.plotting import AXES, draw_curves, figure_bytes
from zloss_lab.inspection.run_facts import Record, RunFacts, differing_settings
from zloss_lab.score_table import score_text
from zloss_lab.seed_intervals import estimate
from zloss_lab.terminal import utf_8, visible

_SEED = "training.seed"
_COMPARED = ("seconds", "epochs")  # axes of the curves
_PICTURE_SIZE = (5.0, 3.8)  # inches: letters stay readable on a phone
_NOTHING = Cell("\N{EN DASH}", MISSING)


def build_report(facts: Sequence[RunFacts], faults: Sequence[str], metric: str) -> Document:
    """Return the report on runs.

    Args:
        facts: the facts about each run.
        faults: messages about folders that are left out.
        metric: the score of the curves, and of the comparison after equal time.
    """
    scores = [
        score for score in SCORES if any(score in one for run in facts for one in run.validations)
    ]
    sections = [
        Section("notes", "What to know before you compare", (bullets(_notes(facts, faults)),)),
        _scores_section(facts, scores),
        *(part for x in _COMPARED if (part := _curves_section(facts, metric, x, scores))),
        *_seeds_sections(facts, scores),
        *_settings_sections(facts),
        _machines_section(facts),
    ]
    return Document(
        title=f"Comparison of {len(facts)} runs" if len(facts) > 1 else f"The run {facts[0].name}",
        introduction=(
            paragraph("Written by ", Code("zloss report"), " from the files of the runs alone."),
            _overview(facts),
        ),
        links=tuple(Link(section.title, f"#{section.key}") for section in sections),
        sections=tuple(sections),
    )


# ---- sections --------------------------------------------------------------------------------------------------------


def _overview(facts: Sequence[RunFacts]) -> Table:
    rows: list[Row] = []
    for run in facts:
        head = run.experiment.network.head
        epoch = _NOTHING if run.epoch is None else f"{run.epoch:.2f}"
        seconds = _NOTHING if run.seconds is None else f"{run.seconds:,.1f}"
        state = "not ended" if run.open_end else "ended"
        rows.append((run.name, head.head, head.loss, state, f"{run.step:,}", epoch, seconds))
    columns = ("run", "head", "loss", "training", "steps", "epochs", "seconds")
    return Table(columns, rows, words=4)


def _notes(facts: Sequence[RunFacts], faults: Sequence[str]) -> Iterator[str]:
    """Yield what is missing or not comparable."""
    yield "All scores are of the validation split. For the test split use zloss evaluate."
    yield "Seconds are those of training steps, without validations and checkpoints."
    yield from (f"Left out: {_text(fault)}." for fault in faults)
    for run in facts:
        if run.open_end:
            yield f"{run.name}: {run.open_end}."
        if not run.validations:
            yield f"{run.name} has no validation yet."
        elif run.best is None:
            yield f"{run.name} has no metrics of its best checkpoint."
    if len({run.state.vocabulary for run in facts if run.state}) > 1:
        yield "The runs have different vocabularies: their scores cannot be compared."
    best = [one for run in facts if (one := run.best)]
    if len({(one.get("examples"), one.get("population")) for one in best}) > 1:
        yield "The runs were validated on different numbers of examples."
    if any(name.endswith("_half_width") for one in best for name in one):
        yield "\N{PLUS-MINUS SIGN} is half of the 95 % interval of a sample. It says nothing about other seeds."
    machines = {
        (start.device, *sorted(start.versions.items())) for run in facts for start in run.starts
    }
    if len(machines) > 1:
        yield "The runs were trained on different machines or with different versions: do not compare their times."


def _scores_section(facts: Sequence[RunFacts], scores: Sequence[str]) -> Section:
    note = paragraph("Each run at the validation of its best checkpoint.", role="note")
    table = _scores_table(facts, [run.best for run in facts], scores, "epoch")
    return Section("scores", "Scores", (note, table))


def _curves_section(
    facts: Sequence[RunFacts], metric: str, x: str, scores: Sequence[str]
) -> Section | None:
    """Return the curves against an axis; None if no run has them."""
    with_curves = [
        run
        for run in facts
        if any(record.get(metric) is not None for record in run.validations)
        and all(record.get(AXES[x]) is not None for record in run.validations)
    ]
    if not with_curves:
        return None
    figure, _ = draw_curves([run.run for run in with_curves], metric, x)
    figure.set_size_inches(_PICTURE_SIZE)
    name = _label(metric)
    drawing = Picture(
        figure_bytes(figure, "svg"),
        f"Curves of the {name} against {x}. The tables have its numbers.",
        f"The {name} on the validation split against {x} of training.",
    )
    left_out = [run.name for run in facts if run not in with_curves]
    blocks: list[Block] = [drawing]
    if left_out:
        blocks.append(paragraph(f"Not drawn, without {name} or {x}: {', '.join(left_out)}."))
    if x == "seconds":
        blocks += _equal_time(with_curves, metric, scores)
    return Section(f"by-{x}", f"By {x} of training", tuple(blocks))


def _equal_time(facts: Sequence[RunFacts], metric: str, scores: Sequence[str]) -> Iterator[Block]:
    """Yield a table of what every run has reached when the shortest one stopped."""
    if len(facts) < 2:
        return
    shortest = min(facts, key=lambda run: float(run.validations[-1]["seconds"]))
    seconds = float(shortest.validations[-1]["seconds"])
    yield paragraph(
        f"After equal time: the validation with the best {_label(metric)} within {seconds:,.1f} seconds, the time of "
        f"{shortest.name} up to its last validation."
    )
    records = [run.best_within(seconds, metric) for run in facts]
    yield _scores_table(facts, records, scores, "seconds")


def _seeds_sections(facts: Sequence[RunFacts], scores: Sequence[str]) -> Iterator[Section]:
    """Yield means over runs that differ in their seed alone, with intervals."""
    groups: dict[str, list[RunFacts]] = {}
    for run in facts:
        same = {key: value for key, value in run.settings.items() if key != _SEED}
        groups.setdefault(repr(sorted(same.items())), []).append(run)
    rows: list[Row] = []
    for members in groups.values():
        judged = [run for run in members if run.best]
        cells = [_mean(judged, score) for score in scores]
        rows.append((", ".join(run.name for run in members), str(len(judged)), *cells))
    if len(groups) == len(facts):
        text = "No two runs differ in their seed alone. One seed is a hint: train others to know how much seeds differ."
        yield Section("seeds", "Seeds", (paragraph(text),))
        return
    note = paragraph(
        "Means over runs that differ in their seed alone, with half of Student's 95 % interval.",
        role="note",
    )
    table = Table(("runs", "seeds", *map(_label, scores)), rows)
    yield Section("seeds", "Means over seeds", (note, table))


def _settings_sections(facts: Sequence[RunFacts]) -> Iterator[Section]:
    differing = differing_settings(facts)
    if differing:
        rows = [(key, *(_value(run.settings, key) for run in facts)) for key in differing]
        columns = ("setting", *(run.name for run in facts))
        table = Table(columns, rows, words=len(columns))
        yield Section("differences", "Settings that differ", (table,))
    common = [key for key in facts[0].settings if key not in differing]
    rows = [(key, _value(facts[0].settings, key)) for key in common]
    title = "Settings of all runs" if len(facts) > 1 else "Settings"
    yield Section("settings", title, (Table(("setting", "value"), rows, words=2),))


def _machines_section(facts: Sequence[RunFacts]) -> Section:
    names = sorted({name for run in facts for start in run.starts for name in start.versions})
    rows: list[Row] = []
    for run in facts:
        rows += [
            (
                run.name,
                f"{start.step:,}",
                _text(start.device),
                *(_text(start.versions.get(name, "")) for name in names),
                _text(start.commit),
            )
            for start in run.starts
        ] or [(run.name, _NOTHING, "not noted: an earlier version", *[""] * len(names), "")]
    columns = ("run", "from step", "device", *names, "commit")
    return Section("machines", "Machines and versions", (Table(columns, rows, words=len(columns)),))


# ---- cells -----------------------------------------------------------------------------------------------------------


def _scores_table(
    facts: Sequence[RunFacts], records: Sequence[Record | None], scores: Sequence[str], place: str
) -> Table:
    """Return a table of the scores of one validation of each run. The best of each column is marked."""
    best = {}
    for score in scores:
        values = [one[score] for one in records if one and one.get(score) is not None]
        if len(values) > 1:
            best[score] = max(values) if is_made_large(score) else min(values)
    rows: list[Row] = []
    for run, record in zip(facts, records, strict=True):
        cells = [_score(record, score, best.get(score)) for score in scores]
        at = _NOTHING if record is None or record.get(place) is None else f"{record[place]:,.2f}"
        rows.append((run.name, *cells, at))
    return Table(("run", *map(_label, scores), f"at {place}"), rows)


def _score(record: Record | None, score: str, best: float | None) -> Cell:
    value = None if record is None else record.get(score)
    if record is None or value is None:
        return _NOTHING
    text = score_text(score, value, record.get(f"{score}_half_width"))
    return Cell(text, BEST if value == best else "")


def _mean(runs: Sequence[RunFacts], score: str) -> Cell:
    values = [run.best[score] for run in runs if run.best and run.best.get(score) is not None]
    if not values:
        return _NOTHING
    mean = estimate(values)
    # Equal values do not tell how much others would differ.
    half_width = math.inf if mean.half_width == 0 else mean.half_width
    return Cell(score_text(score, mean.mean, half_width))


def _value(settings: dict[str, Any], key: str) -> Cell | str:
    if key not in settings:
        return _NOTHING
    value = settings[key]
    return "none" if value is None else _text(value)


def _label(score: str) -> str:
    return score.replace("_", " ")


def _text(value: object) -> str:
    """Return a text of a file in a form that every program can show: visible, and UTF-8."""
    return utf_8(visible(str(value)))
