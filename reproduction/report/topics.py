"""The figures and tables of the paper, one section of the report each: what the paper shows, ours, and the verdicts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from reproduction.report.claims import Judged
from reproduction.report.evidence import VARIANTS, Evidence, NotRunError
from reproduction.report.figures import FIGURES, picture
from reproduction.report.final_scores import all_scores_tables, final_tables, progress
from reproduction.report.in_time import IN_TIME_NOTE, in_time_tables
from reproduction.report.page import Html, boxed, bullets, element, figure, paragraph, section
from reproduction.report.records import FIGURE_B
from reproduction.report.results import (
    DIFFERENCES_NOTE,
    close_calls,
    curves_table,
    differences_table,
    epochs_notes,
    epochs_table,
    not_run,
    scores_table,
    sweep_table,
)
from reproduction.report.summary import badge


@dataclass(frozen=True)
class Topic:
    """A figure or table of the paper."""

    label: str  # as claims name it
    title: str
    shows: str  # in the paper
    content: Callable[[Evidence], Iterator[str]]

    @property
    def name(self) -> str:
        """For links."""
        return self.label.replace(" ", "-")


def _drawn(evidence: Evidence, name: str, alternative: str, caption: str) -> Html:
    return figure(picture(FIGURES[name], evidence, "svg"), alternative, caption)


def _figure1(evidence: Evidence) -> Iterator[str]:
    yield _drawn(
        evidence,
        "figure1",
        "The Z-loss falls from its asymptote on the left to near zero on the right, between the bounds of z",
        "Computed with the loss of the library.",
    )


def _losses(number: int, caption: str) -> Callable[[Evidence], Iterator[str]]:
    def content(evidence: Evidence) -> Iterator[str]:
        table = scores_table(evidence, number)
        yield _drawn(
            evidence,
            f"figure{number}",
            "Test scores of the losses with intervals; the table below has the numbers",
            caption,
        )
        yield boxed(table)
        yield boxed(differences_table(evidence, number))
        yield paragraph(DIFFERENCES_NOTE, css="note")
        yield paragraph(close_calls(evidence, number))

    return content


def _figure2(evidence: Evidence) -> Iterator[str]:
    yield from _losses(
        2,
        "Mean test score with 95 % interval over seeds. Arrows lead to what is far outside of a panel.",
    )(evidence)
    for name, variant in VARIANTS.items():
        yield element("h3", f"The same settings {variant.title}")
        try:
            changed = evidence.variant(name)
        except NotRunError as error:
            yield _pending(error)
        else:
            yield boxed(scores_table(changed, 2))
            yield boxed(differences_table(changed, 2))


def _figure3(evidence: Evidence) -> Iterator[str]:
    table = sweep_table(evidence)
    caption = (
        "Test errors against a; bands are 95 % intervals over seeds, circles the lowest means."
    )
    yield _drawn(
        evidence, "figure3", "Three curves of error against a, with their minima marked", caption
    )
    yield paragraph(f"Test errors with b = {FIGURE_B:g}, in %:")
    yield boxed(table)


def _figure4(evidence: Evidence) -> Iterator[str]:
    table = curves_table(evidence)
    caption = (
        "Validation errors by epoch, mean over seeds with 95 % bands. Beginnings are cut off. Each model has all "
        "settings of the trial that was best for its error: it is not a and b alone that differ."
    )
    yield _drawn(
        evidence,
        "figure4",
        "Four panels of error by epoch, four curves in each; the table below has their minima",
        caption,
    )
    yield paragraph("The lowest validation error of every curve, in %:")
    yield boxed(table)


def _table1(evidence: Evidence) -> Iterator[str]:
    yield boxed(epochs_table(evidence))
    yield bullets(epochs_notes(evidence))


def _table2(evidence: Evidence) -> Iterator[str]:
    yield paragraph(
        "The paper's numbers are of One Billion Word (793,471 classes, on a Titan X); ours are of the texts named "
        "here. Compare models within a column, not columns."
    )
    if progress(evidence):
        yield _drawn(
            evidence,
            "table2",
            "Test errors of the models against the time of training, for every text; the tables below have the numbers",
            "Mean test error with 95 % interval over seeds, against the time of training: a point for each table "
            "below. Every point is a training of its own, with learning rates for its length.",
        )
    yield from _in_time(evidence)
    for title, table in final_tables(evidence):
        yield element("h3", title)
        yield boxed(table)
    yield element("h3", "All scores")
    for title, table, note in all_scores_tables(evidence):
        yield paragraph(f"{title}; test errors in %:")
        yield boxed(table)
        if note:
            yield paragraph(note)


def _in_time(evidence: Evidence) -> Iterator[str]:
    try:
        tables = list(in_time_tables(evidence))
    except NotRunError:  # the other tables say what to run
        return
    yield element("h3", "The Z-loss in the time of a softmax")
    for title, table in tables:
        yield paragraph(f"{title}:")
        yield boxed(table)
    yield paragraph(IN_TIME_NOTE, css="note")


TOPICS = (
    Topic(
        "figure 1",
        "Figure 1: the Z-loss",
        "The loss as a function of z, for 1,000 classes, a = 0.1 and b = 10.",
        _figure1,
    ),
    Topic(
        "figure 2",
        "Figure 2: losses on Penn Treebank",
        "Top-k errors and mean reciprocal rank of the best model of every loss, tuned for every score. Squared error "
        "is worst, then the Taylor softmax; sigmoid leads at top-1, the Z-loss from top-5 on.",
        _figure2,
    ),
    Topic(
        "figure 3",
        "Figure 3: a decides which errors are low",
        f"Top-{{1, 5, 10}} error against a, with b = {FIGURE_B:g}. Three curves of different shape, with different "
        "minima.",
        _figure3,
    ),
    Topic(
        "figure 4",
        "Figure 4: trainings with settings for one error each",
        "Validation top-{1, 5, 10, 50} errors of four Z-loss models, each with the a and b that suit one of them. "
        "The best at top-1 is the worst at top-50, and the other way round.",
        _figure4,
    ),
    Topic(
        "figure 5",
        "Figure 5: Z-normalisation of other losses",
        "Top-{1, 10, 50} errors of softmax and sigmoid with and without Z-normalisation, beside the Z-loss. It helps "
        "them a little, and less than the Z-loss gains.",
        _losses(5, "Mean test error with 95 % interval over seeds."),
    ),
    Topic(
        "table 1",
        "Table 1: what an epoch costs",
        "An epoch of One Billion Word with net1, extrapolated from some thousand batches.",
        _table1,
    ),
    Topic(
        "table 2",
        "Table 2: large texts",
        "Final test errors and training times on One Billion Word. With the same network the Z-loss ends slightly "
        "behind hierarchical softmax after a quarter of the time; with a larger one it is ahead at top-1, still in "
        "less time.",
        _table2,
    ),
)


def topic_section(evidence: Evidence, claims: list[Judged], topic: Topic) -> Html:
    """A section of the page; where records are missing, what to run."""
    return section(
        topic.title,
        paragraph(f"In the paper: {topic.shows}", css="note"),
        *_content(evidence, topic),
        _verdicts([one for one in claims if one.claim.about == topic.label]),
        name=topic.name,
    )


def _content(evidence: Evidence, topic: Topic) -> list[str]:
    """All of it, or what to run for it."""
    try:
        return list(topic.content(evidence))
    except NotRunError as error:
        return [_pending(error)]


def _pending(error: NotRunError) -> Html:
    return paragraph(not_run(""), element("code", str(error)), css="pending")


def _verdicts(claims: list[Judged]) -> Html:
    """The claims about one figure or table, each with its verdict first."""
    items = [
        element(
            "li",
            badge(one.finding.verdict, one.finding.verdict),
            f" {one.number}. {one.claim.says}",
        )
        for one in claims
    ]
    return element("ul", *items, css="verdicts")
