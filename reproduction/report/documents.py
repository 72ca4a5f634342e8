"""The main tables of the report as markdown, for `docs/results.md`: `benchmarks/tables.py` puts them there."""

from collections.abc import Callable
from pathlib import Path

from reproduction.report.claims import judged
from reproduction.report.evidence import VARIANTS, Evidence, NotRunError
from reproduction.report.final_scores import all_scores_tables, equal_time_table, final_tables
from reproduction.report.in_time import IN_TIME_NOTE, in_time_tables
from reproduction.report.loss_checks import NAMES
from reproduction.report.results import (
    DIFFERENCES_NOTE,
    claims_table,
    close_calls,
    curves_table,
    differences_table,
    epochs_notes,
    epochs_table,
    not_run,
    scores_table,
    sweep_table,
)
from reproduction.report.tables import Table
from zloss.heads.config import SPHERICAL


def _claims_markdown(evidence: Evidence) -> str:
    return claims_table(judged(evidence)).to_markdown()


def _epochs_markdown(evidence: Evidence) -> str:
    return "\n\n".join([epochs_table(evidence).to_markdown(), " ".join(epochs_notes(evidence))])


def _losses_markdown(figure: int) -> Callable[[Evidence], str]:
    def render(evidence: Evidence) -> str:
        parts = [
            scores_table(evidence, figure).to_markdown(),
            differences_table(evidence, figure).to_markdown(),
            DIFFERENCES_NOTE,
            close_calls(evidence, figure),
        ]
        return "\n\n".join(filter(None, parts))

    return render


def _main_markdown(evidence: Evidence) -> str:
    """Softmax and what a factored layer can train, at a few scores."""
    whole = scores_table(evidence, 2)
    columns = [
        whole.columns.index(name)
        for name in ("test error, %", "top-1", "top-10", "top-100", "MRR", "seeds")
    ]
    names = {NAMES[loss] for loss in ("softmax", *SPHERICAL)}
    rows = [[row[column] for column in columns] for row in reversed(whole.rows) if row[0] in names]
    return Table([whole.columns[column] for column in columns], rows).to_markdown()


def _variant_markdown(name: str) -> Callable[[Evidence], str]:
    def render(evidence: Evidence) -> str:
        changed = evidence.variant(name)
        return "\n\n".join(
            [scores_table(changed, 2).to_markdown(), differences_table(changed, 2).to_markdown()]
        )

    return render


def _models_markdown(evidence: Evidence) -> str:
    return "\n\n".join(_titled(title, table) for title, table in final_tables(evidence))


def _models_scores_markdown(evidence: Evidence) -> str:
    parts = [(_titled(title, table), note) for title, table, note in all_scores_tables(evidence)]
    return "\n\n".join(text for part in parts for text in part if text)


def _in_time_markdown(*, with_fixed: bool) -> Callable[[Evidence], str]:
    def render(evidence: Evidence) -> str:
        tables = in_time_tables(evidence, with_fixed=with_fixed)
        return "\n\n".join([*(_titled(title, table) for title, table in tables), IN_TIME_NOTE])

    return render


def _titled(title: str, table: Table) -> str:
    return f"{title}:\n\n{table.to_markdown()}"


_DOCUMENT: dict[str, Callable[[Evidence], str]] = {
    "paper_claims": _claims_markdown,
    "paper_epochs": _epochs_markdown,
    "paper_losses": _losses_markdown(2),
    "paper_losses_main": _main_markdown,
    **{f"paper_losses_{name}": _variant_markdown(name) for name in VARIANTS},
    "paper_sweep": lambda evidence: sweep_table(evidence).to_markdown(),
    "paper_curves": lambda evidence: curves_table(evidence).to_markdown(),
    "paper_normalised": _losses_markdown(5),
    "paper_models": _models_markdown,
    "paper_models_scores": _models_scores_markdown,
    "paper_in_time": _in_time_markdown(with_fixed=True),
    "paper_in_time_longer": _in_time_markdown(with_fixed=False),
    "paper_equal_time": lambda evidence: equal_time_table(evidence).to_markdown(),
}
MARKDOWN_TABLES = tuple(_DOCUMENT)


def markdown(name: str, folder: Path) -> str:
    """A table of `docs/results.md`, or what to run for it."""
    try:
        return _DOCUMENT[name](Evidence.read(folder))
    except NotRunError as error:
        return f"{not_run(f'`{error}`')}."
