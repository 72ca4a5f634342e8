"""Claims about speed, table 1: verdicts on made-up timings."""

from pathlib import Path

import pytest

from reproduction.report.evidence import Evidence
from reproduction.report.verdicts import (
    Verdict,
    ratio_finding,
)
from tests.reproduction.report import made_up
from tests.reproduction.report.judging import finding, verdict


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (44.0, Verdict.BETTER),
        (36.0, Verdict.REPRODUCED),
        (35.9, Verdict.PARTLY),
        (20.0, Verdict.PARTLY),
        (19.9, Verdict.NOT_REPRODUCED),
    ],
)
def test_speed_ups_are_judged_by_the_paper_s(ours: float, expected: Verdict) -> None:
    assert ratio_finding(ours, 40.0).verdict is expected


def test_table_1_of_the_made_up_records(evidence: Evidence) -> None:
    assert finding(evidence, "about 40 times").finding.ours == "40.5\N{MULTIPLICATION SIGN}"
    assert verdict(evidence, "does not depend on the number of classes") is Verdict.REPRODUCED
    assert verdict(evidence, "lead of the Z-loss grows") is Verdict.REPRODUCED
    assert verdict(evidence, "On a CPU, the output layer") is Verdict.NOT_REPRODUCED


@pytest.mark.parametrize(
    ("growth", "expected"), [(1.4, Verdict.NOT_REPRODUCED), (1.6, Verdict.REPRODUCED)]
)
def test_a_lead_that_grows_grows_by_half(tmp_path: Path, growth: float, expected: Verdict) -> None:
    times = {("factored", 10_000): 1.0, ("factored", 793_471): 1.0}
    times |= {
        ("hierarchical", 10_000): 5.0,
        ("hierarchical", 793_471): 5.0 * growth,
    }
    steps = [
        made_up.step(entry, time_ms, "cuda", classes=classes)
        for (entry, classes), time_ms in times.items()
    ]
    made_up.keep(tmp_path / "timings" / "output.cuda.jsonl", steps)
    assert verdict(made_up.read(tmp_path), "lead of the Z-loss grows") is expected
