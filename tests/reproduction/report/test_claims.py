"""Claims as a whole, and the rules that verdicts share."""

import re

from reproduction.report.claims import CLAIMS, judged_claims, verdict_counts
from reproduction.report.evidence import Evidence
from reproduction.report.topics import TOPICS
from reproduction.report.verdicts import (
    Verdict,
)
from tests.reproduction.report.judging import finding


def test_every_claim_is_shown_somewhere() -> None:
    assert {claim.about for claim in CLAIMS} == {topic.label for topic in TOPICS}
    assert len({claim.says for claim in CLAIMS}) == len(CLAIMS)
    assert all(
        re.search(r"abstract|introduction|section|figure|table|discussion|conclusion", c.where)
        for c in CLAIMS
    )


def test_without_records_only_what_can_be_computed_is_judged(nothing: Evidence) -> None:
    found = judged_claims(nothing)
    assert {one.claim.about for one in found if one.finding.verdict is not Verdict.NOT_RUN} == {
        "figure 1"
    }
    assert {one.finding.verdict for one in found if one.claim.about == "figure 1"} == {
        Verdict.REPRODUCED
    }
    assert finding(nothing, "second worst").finding.ours == "python -m reproduction run figure2"
    assert (
        finding(nothing, "ends slightly better").finding.ours
        == "python -m reproduction run table2 --corpus FOLDER --converged"
    )
    fixed = finding(nothing, "In a fixed time").finding.ours
    assert fixed == "python -m reproduction run table2 --corpus FOLDER --budget SECONDS"
    assert (
        finding(nothing, "over 4 times").finding.ours
        == "zloss bench model --networks net1 --device cuda"
    )


def test_records_that_agree_reproduce(evidence: Evidence) -> None:
    found = judged_claims(evidence)
    about = {one.claim.about for one in found}
    agreeing = about - {"table 1", "figure 3", "figure 5"}
    assert {one.finding.verdict for one in found if one.claim.about in agreeing} == {
        Verdict.REPRODUCED
    }
    assert sum(verdict_counts(found).values()) == len(found) == len(CLAIMS)
