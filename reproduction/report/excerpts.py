"""The main tables of the report as Markdown, for `docs/results.md`: `benchmarks/tables.py` puts them there."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from reproduction.paper_figures import LOSS_TITLES
from reproduction.report.claim_tables import claims_table
from reproduction.report.claims import judged_claims
from reproduction.report.epoch_tables import epochs_notes, epochs_table
from reproduction.report.evidence import VARIANTS, Evidence, NotRunError
from reproduction.report.large_text_tables import all_scores_tables, equal_time_table, final_tables
from reproduction.report.loss_tables import loss_blocks, score_blocks, scores_table
from reproduction.report.parameter_tables import curves_table, sweep_table
from reproduction.report.same_time_tables import SAME_TIME_NOTE, same_time_tables
from zloss.heads.config import SPHERICAL
from zloss_lab.documents.document import Block, Code, Table, paragraph
from zloss_lab.documents.markdown import markdown_of

Excerpt = Callable[[Evidence], Iterable[Block]]


def _claims(evidence: Evidence) -> Iterator[Block]:
    yield claims_table(judged_claims(evidence))


def _epochs(evidence: Evidence) -> Iterator[Block]:
    yield epochs_table(evidence)
    yield paragraph(" ".join(epochs_notes(evidence)))


def _main_losses(evidence: Evidence) -> Iterator[Block]:
    """Yield softmax and the losses that a factored layer can train, at a few scores."""
    whole = scores_table(evidence, 2)
    names = ("test error, %", "top-1", "top-10", "top-100", "MRR", "seeds")
    places = [whole.columns.index(name) for name in names]
    titles = {LOSS_TITLES[loss] for loss in ("softmax", *SPHERICAL)}
    rows = [[row[place] for place in places] for row in reversed(whole.rows) if row[0] in titles]
    yield Table(names, rows)


def _variant(name: str) -> Excerpt:
    return lambda evidence: score_blocks(evidence.variant(name), 2)


def _models(evidence: Evidence) -> Iterator[Block]:
    for title, table in final_tables(evidence):
        yield from _titled(title, table)


def _models_scores(evidence: Evidence) -> Iterator[Block]:
    for title, table, note in all_scores_tables(evidence):
        yield from _titled(title, table)
        yield paragraph(note)


def _same_time(*, with_fixed: bool) -> Excerpt:
    def excerpt(evidence: Evidence) -> Iterator[Block]:
        for title, table in same_time_tables(evidence, with_fixed=with_fixed):
            yield from _titled(title, table)
        yield paragraph(SAME_TIME_NOTE)

    return excerpt


def _titled(title: str, table: Table) -> tuple[Block, Block]:
    return paragraph(f"{title}:"), table


EXCERPTS: dict[str, Excerpt] = {
    "paper_claims": _claims,
    "paper_epochs": _epochs,
    "paper_losses": partial(loss_blocks, figure=2),
    "paper_losses_main": _main_losses,
    **{f"paper_losses_{name}": _variant(name) for name in VARIANTS},
    "paper_sweep": lambda evidence: [sweep_table(evidence)],
    "paper_curves": lambda evidence: [curves_table(evidence)],
    "paper_normalised": partial(loss_blocks, figure=5),
    "paper_models": _models,
    "paper_models_scores": _models_scores,
    "paper_in_time": _same_time(with_fixed=True),
    "paper_in_time_longer": _same_time(with_fixed=False),
    "paper_equal_time": lambda evidence: [equal_time_table(evidence)],
}


def excerpt_markdown(name: str, evidence: Evidence) -> str:
    """Return a part of `docs/results.md`, or the command that makes its records."""
    try:
        return markdown_of(list(EXCERPTS[name](evidence)))
    except NotRunError as error:
        return markdown_of([paragraph("not run yet: ", Code(str(error)), ".")])
