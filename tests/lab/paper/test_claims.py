"""Verdicts: what made-up records that agree or disagree with the paper lead to."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.paper import made_up
from zloss.lab.paper.claims import CLAIMS, Judged, counts, judged
from zloss.lab.paper.evidence import Evidence
from zloss.lab.paper.topics import TOPICS
from zloss.lab.paper.verdicts import Verdict, combined, ratio_finding


def verdict(evidence: Evidence, says: str) -> Verdict:
    """Of the one claim that says so."""
    return finding(evidence, says).finding.verdict


def finding(evidence: Evidence, says: str) -> Judged:
    [found] = [one for one in judged(evidence) if says in one.claim.says]
    return found


def with_records(folder: Path, name: str, records: Iterable[dict[str, Any]]) -> Evidence:
    made_up.keep(folder / "paper" / f"{name}.jsonl", records)
    return Evidence.read(folder)


def test_every_claim_is_shown_somewhere() -> None:
    assert {claim.about for claim in CLAIMS} == {topic.label for topic in TOPICS}
    assert len({claim.says for claim in CLAIMS}) == len(CLAIMS)
    assert all(re.search(r"abstract|introduction|section|figure|table|discussion|conclusion", c.where) for c in CLAIMS)


def test_without_records_only_what_can_be_computed_is_judged(nothing: Evidence) -> None:
    found = judged(nothing)
    assert {one.claim.about for one in found if one.finding.verdict is not Verdict.NOT_RUN} == {"figure 1"}
    assert {one.finding.verdict for one in found if one.claim.about == "figure 1"} == {Verdict.REPRODUCED}
    assert finding(nothing, "second worst").finding.ours == "zloss paper figure2"
    assert finding(nothing, "over 4 times").finding.ours == "zloss bench model --networks net1 --device cuda"


def test_records_that_agree_reproduce(evidence: Evidence) -> None:
    found = judged(evidence)
    about = {one.claim.about for one in found}
    agreeing = about - {"table 1", "figure 3", "figure 5"}
    assert {one.finding.verdict for one in found if one.claim.about in agreeing} == {Verdict.REPRODUCED}
    assert sum(counts(found).values()) == len(found) == len(CLAIMS)


def test_records_that_disagree_do_not(tmp_path: Path) -> None:
    softmax_wins = {"z_loss": "softmax", "softmax": "z_loss"}
    records = [line | {"loss": softmax_wins.get(line["loss"], line["loss"])} for line in made_up.tuned(2)]
    evidence = with_records(tmp_path, "figure2", records)
    assert verdict(evidence, "clearly better than log-softmax") is Verdict.NOT_REPRODUCED
    assert verdict(evidence, "lowest top-{5, 10, 20, 50, 100}") is Verdict.NOT_REPRODUCED
    assert verdict(evidence, "slightly worse than log-softmax") is Verdict.BETTER
    assert verdict(evidence, "squared error is the worst") is Verdict.REPRODUCED


def test_differences_within_noise_win_nothing(tmp_path: Path) -> None:
    records = []
    for line in made_up.tuned(2):
        shift = 0.05 * (line["seed"] - 1)
        records.append(line | {"test": {score: value + shift for score, value in line["test"].items()}})
    evidence = with_records(tmp_path, "figure2", records)
    found = finding(evidence, "clearly better than log-softmax").finding
    assert found.verdict is Verdict.NOT_REPRODUCED
    assert "within noise" in found.ours
    assert "needs 5 seeds" in found.ours


def test_one_seed_reproduces_no_comparison(tmp_path: Path) -> None:
    evidence = with_records(tmp_path, "figure2", made_up.tuned(2, seeds=1))
    verdicts = {one.finding.verdict for one in judged(evidence) if one.claim.about == "figure 2"}
    assert verdicts == {Verdict.PARTLY}
    assert "one seed" in finding(evidence, "second worst").finding.ours


def test_some_scores_of_many_are_partly(tmp_path: Path) -> None:
    records = []
    for line in made_up.tuned(2):
        is_swapped = line["loss"] == "z_loss" and line["tuned_for"] == "top_50_error"
        worse = {score: value + 0.05 for score, value in line["test"].items()}
        records.append(line | {"test": worse} if is_swapped else line)
    assert verdict(with_records(tmp_path, "figure2", records), "clearly better than log-softmax") is Verdict.PARTLY


def test_a_loss_that_is_missing_leaves_its_claims_open(tmp_path: Path) -> None:
    records = [line for line in made_up.tuned(2) if line["loss"] != "sigmoid"]
    evidence = with_records(tmp_path, "figure2", records)
    assert verdict(evidence, "better than log-softmax at top-{1, 5, 10, 20, 50}.") is Verdict.NOT_RUN
    assert verdict(evidence, "clearly better than log-softmax") is Verdict.REPRODUCED


# ---- a and b ---------------------------------------------------------------------------------------------------------


def test_two_minima_of_three_are_partly(evidence: Evidence) -> None:
    found = finding(evidence, "minima at different a").finding
    assert found.verdict is Verdict.PARTLY
    assert found.ours == "best a: 0.05 for top-1, 0.2 for top-5, 0.2 for top-10; 2 of 3 pairs beyond noise"
    assert verdict(evidence, "The higher a") is Verdict.REPRODUCED
    assert verdict(evidence, "a matters more than b") is Verdict.REPRODUCED


def test_the_best_a_must_not_fall_with_k(tmp_path: Path) -> None:
    mirrored = {0.025: 0.4, 0.05: 0.2, 0.1: 0.1, 0.2: 0.05, 0.4: 0.025}
    evidence = with_records(tmp_path, "figure3", [line | {"a": mirrored[line["a"]]} for line in made_up.sweep()])
    assert verdict(evidence, "The higher a") is Verdict.NOT_REPRODUCED


def test_without_other_b_that_claim_stays_open(tmp_path: Path) -> None:
    evidence = with_records(tmp_path, "figure3", [line for line in made_up.sweep() if line["b"] == 28.0])
    found = finding(evidence, "a matters more than b").finding
    assert found.verdict is Verdict.NOT_RUN
    assert "other values of b" in found.ours
    assert verdict(evidence, "minima at different a") is Verdict.PARTLY


def test_ends_that_are_not_opposite(tmp_path: Path) -> None:
    other_way = {"top_1_error": "top_5_error", "top_10_error": "top_50_error"}
    other_way |= {new: old for old, new in other_way.items()}
    records = [line | {"tuned_for": other_way.get(line["tuned_for"], line["tuned_for"])} for line in made_up.curves()]
    evidence = with_records(tmp_path, "figure4", records)
    assert verdict(evidence, "the worst at top-50") is Verdict.NOT_REPRODUCED
    assert verdict(evidence, "a and b fit the loss") is Verdict.PARTLY


def test_choosing_early_costs_what_is_lost_in_the_end(tmp_path: Path) -> None:
    """A model that leads at first and stalls is chosen, and costs its distance to the best."""
    records = []
    for line in made_up.curves():
        if line["tuned_for"] == "top_50_error":
            flat = {score: level + 0.03 for score, level in made_up.LEVEL.items()}
            line["curve"] = [{"epoch": point["epoch"], **flat} for point in line["curve"]]
        records.append(line)
    found = finding(with_records(tmp_path, "figure4", records), "first iterations").finding
    assert found.verdict is Verdict.NOT_REPRODUCED
    lost = [float(number) for number in re.findall(r"([\d.]+) at top", found.ours)]
    assert lost == pytest.approx([2.4, 2.4, 2.4, 1.8], abs=0.15)


# ---- speed and large texts -------------------------------------------------------------------------------------------


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


def test_claims_about_large_texts_look_at_every_text(tmp_path: Path) -> None:
    records = []
    for line in made_up.models():
        if line["corpus"] == "epd48" and line["model"] == "H-softmax net1" and line["budget"] == "converged":
            line["train_s"] = 95.0
        records.append(line)
    evidence = with_records(tmp_path, "table2", records)
    found = finding(evidence, "converges more than 4 times faster").finding
    assert found.verdict is Verdict.PARTLY
    assert "epd48: 1" in found.ours
    assert "fil8: 4.21" in found.ours


def test_a_text_without_the_models_does_not_count(tmp_path: Path) -> None:
    records = [line for line in made_up.models() if not (line["corpus"] == "epd48" and "H-" in line["model"])]
    found = finding(with_records(tmp_path, "table2", records), "ends slightly better").finding
    assert found.verdict is Verdict.REPRODUCED
    assert "epd48" not in found.ours


def test_verdicts_on_several_texts_combine() -> None:
    assert combined([Verdict.BETTER, Verdict.BETTER]) is Verdict.BETTER
    assert combined([Verdict.BETTER, Verdict.REPRODUCED]) is Verdict.REPRODUCED
    assert combined([Verdict.REPRODUCED, Verdict.NOT_REPRODUCED]) is Verdict.PARTLY


def test_one_seed_decides_nothing(tmp_path: Path) -> None:
    """But for what is computed, and for speed."""
    found = judged(Evidence.read(made_up.keep_all(tmp_path, seeds=1)))
    about_scores = [one for one in found if one.claim.about in ("figure 2", "figure 3", "figure 4", "figure 5")]
    assert len(about_scores) == 16
    assert {one.finding.verdict for one in about_scores} <= {Verdict.PARTLY, Verdict.NOT_REPRODUCED}
