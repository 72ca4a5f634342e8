"""Claims about losses, figures 2 and 5: verdicts on made-up records that agree or disagree with the paper."""

import re
from pathlib import Path

import pytest

from reproduction.report.claims import judged_claims
from reproduction.report.comparisons import Standing, compare
from reproduction.report.score_texts import MINUS
from reproduction.report.verdicts import (
    RULES,
    Verdict,
    verdict_of_slightly_worse,
)
from tests.reproduction.report import made_up
from tests.reproduction.report.judging import finding, verdict, with_records


def test_records_that_disagree_do_not(tmp_path: Path) -> None:
    softmax_wins = {"z_loss": "softmax", "softmax": "z_loss"}
    records = [
        line | {"loss": softmax_wins.get(line["loss"], line["loss"])} for line in made_up.tuned(2)
    ]
    evidence = with_records(tmp_path, "figure2", records)
    assert verdict(evidence, "clearly better than log-softmax") is Verdict.NOT_REPRODUCED
    assert verdict(evidence, "lowest top-{5, 10, 20, 50, 100}") is Verdict.NOT_REPRODUCED
    assert verdict(evidence, "slightly worse than log-softmax") is Verdict.BETTER
    assert verdict(evidence, "squared error is the worst") is Verdict.REPRODUCED


def test_differences_within_noise_win_nothing(tmp_path: Path) -> None:
    records = []
    for line in made_up.tuned(2):
        shift = 0.05 * (line["seed"] - 1)
        scores = {score: value + shift for score, value in line["test"]["scores"].items()}
        records.append(made_up.with_scores(line, "test", **scores))
    evidence = with_records(tmp_path, "figure2", records)
    found = finding(evidence, "clearly better than log-softmax").finding
    assert found.verdict is Verdict.NOT_REPRODUCED
    assert "within noise" in found.ours
    assert "needs 5 seeds" in found.ours


def test_one_seed_reproduces_no_comparison(tmp_path: Path) -> None:
    evidence = with_records(tmp_path, "figure2", made_up.tuned(2, seeds=1))
    verdicts = {
        one.finding.verdict for one in judged_claims(evidence) if one.claim.about == "figure 2"
    }
    assert verdicts == {Verdict.PARTLY}
    assert "one seed" in finding(evidence, "second worst").finding.ours


@pytest.mark.parametrize(
    ("points_behind", "seeds", "expected"),
    [
        (1.8, 3, Verdict.REPRODUCED),
        (2.5, 3, Verdict.NOT_REPRODUCED),
        (30.0, 3, Verdict.NOT_REPRODUCED),
        (1.8, 1, Verdict.PARTLY),
        (30.0, 1, Verdict.NOT_REPRODUCED),
    ],
)
def test_slightly_worse_is_up_to_two_points(
    tmp_path: Path, points_behind: float, seeds: int, expected: Verdict
) -> None:
    records = []
    for line in made_up.tuned(2, seeds):
        if line["loss"] in ("softmax", "z_loss"):
            behind = points_behind / 100 if line["loss"] == "z_loss" else 0.0
            top_1 = 0.6 + behind + 0.001 * line["seed"] ** 2
            line = made_up.with_scores(line, "test", **made_up.LEVEL | {"top_1_error": top_1})
        records.append(line)
    assert (
        verdict(with_records(tmp_path, "figure2", records), "slightly worse than log-softmax")
        is expected
    )


def test_slightly_worse_at_some_scores_is_partly() -> None:
    slightly, far = (
        compare([0.6 + behind, 0.601 + behind], [0.6, 0.601], "top_1_error")
        for behind in (0.015, 0.3)
    )
    assert verdict_of_slightly_worse([slightly, far]) is Verdict.PARTLY
    assert verdict_of_slightly_worse([far, far]) is Verdict.NOT_REPRODUCED
    assert any("up to 2 points" in rule for rule in RULES)


def test_a_loss_too_noisy_to_tell_is_not_better() -> None:
    """Within noise is level only where the interval leaves out more than half a point behind."""
    noisy = compare([0.60, 0.70, 0.75], [0.60, 0.62, 0.63], "top_1_error")
    level = compare([0.600, 0.601, 0.602], [0.600, 0.6012, 0.601], "top_1_error")
    ahead = compare([0.50, 0.501, 0.502], [0.600, 0.6012, 0.601], "top_1_error")
    slightly = compare([0.61, 0.611, 0.612], [0.600, 0.6012, 0.601], "top_1_error")
    assert (noisy.standing, level.standing) == (Standing.EVEN, Standing.EVEN)
    assert verdict_of_slightly_worse([noisy]) is Verdict.PARTLY
    assert verdict_of_slightly_worse([level, noisy]) is Verdict.PARTLY
    assert verdict_of_slightly_worse([level, ahead]) is Verdict.BETTER
    assert verdict_of_slightly_worse([level, slightly]) is Verdict.PARTLY
    assert any("half a point" in rule for rule in RULES)


def test_some_scores_of_many_are_partly(tmp_path: Path) -> None:
    records = []
    for line in made_up.tuned(2):
        is_swapped = line["loss"] == "z_loss" and line["tuned_for"] == "top_50_error"
        worse = {score: value + 0.05 for score, value in line["test"]["scores"].items()}
        records.append(made_up.with_scores(line, "test", **worse) if is_swapped else line)
    assert (
        verdict(with_records(tmp_path, "figure2", records), "clearly better than log-softmax")
        is Verdict.PARTLY
    )


def test_a_loss_that_is_missing_leaves_its_claims_open(tmp_path: Path) -> None:
    records = [line for line in made_up.tuned(2) if line["loss"] != "sigmoid"]
    evidence = with_records(tmp_path, "figure2", records)
    assert (
        verdict(evidence, "better than log-softmax at top-{1, 5, 10, 20, 50}.") is Verdict.NOT_RUN
    )
    assert verdict(evidence, "clearly better than log-softmax") is Verdict.REPRODUCED


def test_a_claim_that_holds_in_a_variant_alone_is_partly(tmp_path: Path) -> None:
    """And one of which the variant lacks a loss is judged without it."""
    swapped = {"z_loss": "softmax", "softmax": "z_loss"}
    as_tuned = [
        line | {"loss": swapped.get(line["loss"], line["loss"])} for line in made_up.tuned(2)
    ]
    both = [line for line in made_up.tuned(2) if line["loss"] in swapped]
    with_records(tmp_path, "figure2", as_tuned)
    evidence = with_records(tmp_path, "wide/figure2", both)
    found = finding(evidence, "clearly better than log-softmax").finding
    assert found.verdict is Verdict.PARTLY
    assert re.match(
        rf"as tuned: Z-loss {MINUS} softmax: .*\. with a wider last layer: Z-loss", found.ours
    )
    without = finding(evidence, "lowest top-{5, 10, 20, 50, 100}").finding
    assert without.verdict is Verdict.NOT_REPRODUCED
    assert "wider" not in without.ours
