"""The figures and tables of the paper, one section of the report each: what the paper shows, ours, and the verdicts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from reproduction.paper_figures import FIGURE_3_B
from reproduction.report.claim_tables import verdict_badge
from reproduction.report.claims import JudgedClaim
from reproduction.report.epoch_tables import epochs_notes, epochs_table
from reproduction.report.evidence import VARIANTS, Evidence, NotRunError
from reproduction.report.figures import FIGURES
from reproduction.report.figures.canvas import drawing
from reproduction.report.large_text_tables import (
    all_scores_tables,
    final_tables,
    trainings_by_time,
)
from reproduction.report.loss_tables import loss_blocks, score_blocks
from reproduction.report.parameter_tables import curves_table, sweep_table
from reproduction.report.same_time_tables import SAME_TIME_NOTE, same_time_tables
from zloss_lab.documents.document import (
    Block,
    Bullets,
    Code,
    Heading,
    Paragraph,
    Picture,
    Section,
    bullets,
    paragraph,
)

Content = Callable[[Evidence], Iterator[Block]]


@dataclass(frozen=True)
class Topic:
    """A figure or table of the paper."""

    label: str  # in claims
    title: str
    shows: str  # in the paper
    content: Content

    @property
    def key(self) -> str:
        """The key of the section."""
        return self.label.replace(" ", "-")

    def section(self, evidence: Evidence, claims: Sequence[JudgedClaim]) -> Section:
        """Return the section. Where records are missing, it has the command that makes them."""
        try:
            content = list(self.content(evidence))
        except NotRunError as error:
            content = [_command_to_run(error)]
        verdicts = _verdicts([one for one in claims if one.claim.about == self.label])
        shows = paragraph(f"In the paper: {self.shows}", role="note")
        return Section(self.key, self.title, (shows, *content, verdicts))


def _verdicts(claims: Sequence[JudgedClaim]) -> Bullets:
    """Return the claims about one figure or table, each with its verdict first."""
    items = (
        (verdict_badge(one.finding.verdict), f" {one.number}. {one.claim.says}") for one in claims
    )
    return Bullets(tuple(items), role="verdicts")


def _command_to_run(error: NotRunError) -> Paragraph:
    return paragraph("not run yet: ", Code(str(error)), role="pending")


def _picture(evidence: Evidence, name: str, alternative: str, caption: str) -> Picture:
    return Picture(drawing(FIGURES[name], evidence, "svg"), alternative, caption)


def _figure_1(evidence: Evidence) -> Iterator[Block]:
    yield _picture(
        evidence,
        "figure1",
        "The Z-loss falls from its asymptote on the left to near zero on the right, between the bounds of z",
        "Computed with the loss of the library.",
    )


def _losses(figure: int, caption: str) -> Content:
    """Return the content of figure 2 or 5."""

    def content(evidence: Evidence) -> Iterator[Block]:
        blocks = list(loss_blocks(evidence, figure))  # first: without results nothing can be drawn
        alternative = "Test scores of the losses with intervals; the table below has the numbers"
        yield _picture(evidence, f"figure{figure}", alternative, caption)
        yield from blocks

    return content


def _figure_2(evidence: Evidence) -> Iterator[Block]:
    caption = "Mean test score with 95 % interval over seeds. Arrows lead to means far outside of a panel."
    yield from _losses(2, caption)(evidence)
    for name, variant in VARIANTS.items():
        yield Heading(f"The same settings {variant.title}")
        try:
            changed = evidence.variant(name)
        except NotRunError as error:
            yield _command_to_run(error)
        else:
            yield from score_blocks(changed, 2)


def _figure_3(evidence: Evidence) -> Iterator[Block]:
    sweep = sweep_table(evidence)
    yield _picture(
        evidence,
        "figure3",
        "Three curves of error against a, with their minima marked",
        "Test errors against a; bands are 95 % intervals over seeds, circles the lowest means.",
    )
    yield paragraph(f"Test errors with b = {FIGURE_3_B:g}, in %:")
    yield sweep


def _figure_4(evidence: Evidence) -> Iterator[Block]:
    curves = curves_table(evidence)
    yield _picture(
        evidence,
        "figure4",
        "Four panels of error by epoch, four curves in each; the table below has their minima",
        "Validation errors by epoch, mean over seeds with 95 % bands. Beginnings are cut off. Each model has all "
        "settings of the trial that was best for its error: it is not a and b alone that differ.",
    )
    yield paragraph("The lowest validation error of every curve, in %:")
    yield curves


def _table_1(evidence: Evidence) -> Iterator[Block]:
    yield epochs_table(evidence)
    yield bullets(epochs_notes(evidence))


def _table_2(evidence: Evidence) -> Iterator[Block]:
    yield paragraph(
        "The paper's numbers are of One Billion Word (793,471 classes, on a Titan X); ours are of the texts named "
        "here. Compare models within a column, not columns."
    )
    if trainings_by_time(evidence):
        yield _picture(
            evidence,
            "table2",
            "Test errors of the models against the time of training, for every text; the tables below have the numbers",
            "Mean test error with 95 % interval over seeds, against the time of training: a point for each table "
            "below. Every point is a training of its own, with learning rates for its length.",
        )
    yield from _same_time(evidence)
    for title, table in final_tables(evidence):
        yield Heading(title)
        yield table
    yield Heading("All scores")
    for title, table, note in all_scores_tables(evidence):
        yield paragraph(f"{title}; test errors in %:")
        yield table
        if note:
            yield paragraph(note)


def _same_time(evidence: Evidence) -> Iterator[Block]:
    try:
        tables = list(same_time_tables(evidence))
    except NotRunError:  # the other tables have the command to run
        return
    yield Heading("The Z-loss in the time of a softmax")
    for title, table in tables:
        yield paragraph(f"{title}:")
        yield table
    yield paragraph(SAME_TIME_NOTE, role="note")


TOPICS = (
    Topic(
        "figure 1",
        "Figure 1: the Z-loss",
        "The loss as a function of z, for 1,000 classes, a = 0.1 and b = 10.",
        _figure_1,
    ),
    Topic(
        "figure 2",
        "Figure 2: losses on Penn Treebank",
        "Top-k errors and mean reciprocal rank of the best model of every loss, tuned for every score. Squared error "
        "is worst, then the Taylor softmax; sigmoid leads at top-1, the Z-loss from top-5 on.",
        _figure_2,
    ),
    Topic(
        "figure 3",
        "Figure 3: a decides which errors are low",
        f"Top-{{1, 5, 10}} error against a, with b = {FIGURE_3_B:g}. Three curves of different shape, with different "
        "minima.",
        _figure_3,
    ),
    Topic(
        "figure 4",
        "Figure 4: trainings with settings for one error each",
        "Validation top-{1, 5, 10, 50} errors of four Z-loss models, each with the a and b that suit one of them. "
        "The best at top-1 is the worst at top-50, and the other way round.",
        _figure_4,
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
        _table_1,
    ),
    Topic(
        "table 2",
        "Table 2: large texts",
        "Final test errors and training times on One Billion Word. With the same network, the Z-loss ends slightly "
        "behind hierarchical softmax, after a quarter of the time. With a larger network it is ahead at top-1, still "
        "in less time.",
        _table_2,
    ),
)
