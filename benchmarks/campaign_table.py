"""The record of the campaign of attacks, and the table of it in the documents."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.markdown_cells import markdown_table
from zloss_lab.documents.markdown import wrapped
from zloss_lab.records import Recordable, RecordKey, read_records_as, write_records

RECORDS = Path(__file__).parent / "records"


@dataclass(frozen=True, kw_only=True)
class AttackRecord(Recordable):
    """The attempts of one attack in its last campaign."""

    attack: str
    title: str
    device: str  # cpu or cuda
    seed: int  # of the campaign
    tried: int
    held: int
    fell: int
    seconds: float  # of all attempts together
    provenance: dict[str, Any]

    @property
    def key(self) -> RecordKey:
        return (self.attack, self.device)


def merge_records(path: Path, new: Iterable[AttackRecord]) -> None:
    """Write records to a file. An attack that was not run now keeps its older record."""
    old = read_records_as(AttackRecord, path) if path.exists() else []
    merged = {record.key: record for record in (*old, *new)}
    write_records(path, [merged[key] for key in sorted(merged)])


def recorded_table(folder: Path = RECORDS) -> str:
    """Return the table of the records, for the documentation."""
    found = [
        one
        for path in sorted(folder.glob("campaign.*.jsonl"))
        for one in read_records_as(AttackRecord, path)
    ]
    rows = [
        [
            one.title,
            "CPU" if one.device == "cpu" else "GPU",
            *(f"{number:,}" for number in (one.tried, one.held, one.fell)),
            f"{one.seconds / 60:,.0f}",
        ]
        for one in found
    ]
    places = dict.fromkeys(
        f"{one.provenance['device']} with torch {one.provenance['versions']['torch']}, "
        f"commit {one.provenance['commit']}"
        for one in found
    )
    columns = ["attack", "device", "attempts", "held", "fell", "minutes"]
    return f"{markdown_table(columns, rows)}\n\n{wrapped('Run on ' + '; '.join(places) + '.')}"
