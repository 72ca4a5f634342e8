"""The record of `make mutation`, and its table: how many small errors in the code the tests notice."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.markdown_cells import markdown_table
from zloss_lab.records import Recordable, RecordKey, read_records_as

RECORD = Path(__file__).parent / "records" / "mutation.jsonl"


@dataclass(frozen=True, kw_only=True)
class MutationScore(Recordable):
    """The mutants of a module, and which of them no test has noticed."""

    file: str  # from the root of the repository
    mutants: int
    survivors: tuple[str, ...]  # as `function: change`
    commit: str

    @property
    def key(self) -> RecordKey:
        return (self.file,)

    @property
    def killed(self) -> float:
        """The share of mutants that a test has noticed."""
        return 1 - len(self.survivors) / self.mutants


def read_scores() -> list[MutationScore]:
    """Return the recorded scores of all modules."""
    return read_records_as(MutationScore, RECORD)


def recorded_table() -> str:
    """Return the table of the record, for the documentation."""
    scores = read_scores()
    rows = [
        [f"`{one.file}`", f"{one.mutants:,}", f"{one.killed:.1%}", str(len(one.survivors))]
        for one in scores
    ]
    total, survivors = sum(one.mutants for one in scores), sum(len(one.survivors) for one in scores)
    rows.append(["all", f"{total:,}", f"{1 - survivors / total:.1%}", str(survivors)])
    head = ("module", "mutants", "noticed", "not noticed")
    commits = ", ".join(dict.fromkeys(one.commit for one in scores))
    return f"{markdown_table(head, rows)}\n\nMeasured by `make mutation` at commit {commits}."
