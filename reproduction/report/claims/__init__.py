"""All claims of the paper, in our words, with their places, their numbers and the checks that judge our results.

- `properties.py`: the loss itself, figure 1
- `speed.py`: table 1
- `losses.py`: Penn Treebank, figures 2 and 5
- `parameters.py`: a and b, figures 3 and 4
- `large_texts.py`: table 2
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from reproduction.report.claims.large_texts import LARGE_TEXT_CLAIMS
from reproduction.report.claims.losses import LOSS_CLAIMS, NORMALISATION_CLAIMS
from reproduction.report.claims.parameters import PARAMETER_CLAIMS
from reproduction.report.claims.properties import PROPERTY_CLAIMS
from reproduction.report.claims.speed import SPEED_CLAIMS
from reproduction.report.evidence import Evidence
from reproduction.report.verdicts import Claim, Finding, Verdict

CLAIMS = (
    *PROPERTY_CLAIMS,
    *SPEED_CLAIMS,
    *LOSS_CLAIMS,
    *PARAMETER_CLAIMS,
    *NORMALISATION_CLAIMS,
    *LARGE_TEXT_CLAIMS,
)


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its number and with the finding of our results."""

    number: int
    claim: Claim
    finding: Finding


def judged_claims(evidence: Evidence) -> list[JudgedClaim]:
    """Return all claims, in order, numbered from 1."""
    return [
        JudgedClaim(number, claim, claim.judge(evidence))
        for number, claim in enumerate(CLAIMS, start=1)
    ]


def verdict_counts(claims: Iterable[JudgedClaim]) -> dict[Verdict, int]:
    """Return the number of claims with each verdict."""
    found = Counter(one.finding.verdict for one in claims)
    return {verdict: found[verdict] for verdict in Verdict}
