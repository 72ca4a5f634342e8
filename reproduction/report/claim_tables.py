"""The table of all claims, with verdicts."""

from collections.abc import Iterable

from reproduction.report.claims import JudgedClaim
from reproduction.report.verdicts import Verdict
from zloss_lab.documents.document import Badge, Cell, Table


def claims_table(claims: Iterable[JudgedClaim], role: str = "") -> Table:
    """Return the table of claims."""
    rows = [
        (
            str(one.number),
            Cell(one.finding.verdict, _meaning(one.finding.verdict)),
            one.claim.says,
            one.claim.where,
            one.claim.paper,
            one.finding.ours,
        )
        for one in claims
    ]
    columns = ("", "verdict", "the paper says", "where", "paper", "ours")
    return Table(columns, rows, words=6, role=role)


def verdict_badge(verdict: Verdict, text: str = "") -> Badge:
    """Return a verdict in its colour; the text is its name, where no other is given."""
    return Badge(text or verdict, _meaning(verdict))


def _meaning(verdict: Verdict) -> str:
    """Return the classes of the style sheet for a verdict."""
    return f"verdict {verdict.replace(' ', '-')}"
