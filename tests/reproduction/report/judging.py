"""Verdicts of the report on made-up records."""

from collections.abc import Iterable
from pathlib import Path

from reproduction.report.claims import JudgedClaim, judged_claims
from reproduction.report.evidence import Evidence
from reproduction.report.verdicts import Verdict
from tests.reproduction.report import made_up
from tests.reproduction.report.made_up import Line


def finding(evidence: Evidence, says: str) -> JudgedClaim:
    """Return the one claim that says so."""
    [found] = [one for one in judged_claims(evidence) if says in one.claim.says]
    return found


def verdict(evidence: Evidence, says: str) -> Verdict:
    return finding(evidence, says).finding.verdict


def with_records(folder: Path, name: str, records: Iterable[Line]) -> Evidence:
    """Replace the records of a figure or table, and read the folder."""
    made_up.keep(folder / "results" / f"{name}.jsonl", records)
    return made_up.read(folder)
