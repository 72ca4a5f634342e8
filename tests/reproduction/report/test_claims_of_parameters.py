"""Claims about a and b, figures 3 and 4: verdicts on made-up records."""

import math
import re
from pathlib import Path

import pytest

from reproduction.paper_figures import CURVE_ERRORS
from reproduction.report.evidence import Evidence
from reproduction.report.score_texts import MINUS
from reproduction.report.verdicts import (
    Verdict,
)
from tests.reproduction.report import made_up
from tests.reproduction.report.judging import finding, verdict, with_records
from tests.reproduction.report.made_up import Line


def test_two_minima_of_three_are_partly(evidence: Evidence) -> None:
    found = finding(evidence, "minima at different a").finding
    assert found.verdict is Verdict.PARTLY
    places = "best a on validation: 0.025 for top-1, 0.1 for top-5, 0.1 for top-10"
    assert found.ours == f"{places}; 2 of 3 pairs beyond noise"
    assert verdict(evidence, "The higher a") is Verdict.REPRODUCED
    assert verdict(evidence, "a matters more than b") is Verdict.REPRODUCED


def test_minima_differ_where_either_error_has_lost_something(tmp_path: Path) -> None:
    """Top-5 loses a point at the best a of top-1; the other way round nothing is lost."""
    records = []
    for line in made_up.sweep():
        noise = 0.0001 * line["seed"]
        place = {"top_1_error": 0.05, "top_5_error": 0.2, "top_10_error": 0.2}
        valid = {score: 0.5 + abs(line["a"] - best) for score, best in place.items()}
        test = dict.fromkeys(place, 0.5 + noise)
        test["top_5_error"] += 0.01 if line["a"] == 0.05 else 0.0
        changed = {
            "valid": made_up.split(made_up.LEVEL | valid),
            "test": made_up.split(made_up.LEVEL | test),
        }
        records.append(line | changed)
    found = finding(with_records(tmp_path, "figure3", records), "minima at different a").finding
    assert found.ours.endswith("1 of 3 pairs beyond noise")


def test_the_sweep_is_of_the_b_of_the_figure(tmp_path: Path, evidence: Evidence) -> None:
    """Whatever the scores at other b are."""
    lower = made_up.split({score: value / 2 for score, value in made_up.LEVEL.items()})
    lines = [
        line if line["b"] == 28.0 else line | {"valid": lower, "test": lower}
        for line in made_up.sweep()
    ]
    other = with_records(tmp_path, "figure3", lines)
    for says in ("minima at different a", "The higher a"):
        assert finding(other, says).finding == finding(evidence, says).finding


def test_the_best_a_must_not_fall_with_k(tmp_path: Path) -> None:
    mirrored = {0.025: 0.4, 0.05: 0.2, 0.1: 0.1, 0.2: 0.05, 0.4: 0.025}
    evidence = with_records(
        tmp_path, "figure3", [line | {"a": mirrored[line["a"]]} for line in made_up.sweep()]
    )
    assert verdict(evidence, "The higher a") is Verdict.NOT_REPRODUCED


def test_without_other_b_that_claim_stays_open(tmp_path: Path) -> None:
    evidence = with_records(
        tmp_path, "figure3", [line for line in made_up.sweep() if line["b"] == 28.0]
    )
    found = finding(evidence, "a matters more than b").finding
    assert found.verdict is Verdict.NOT_RUN
    assert found.ours == "python -m reproduction run figure3 --b 14,56"
    assert verdict(evidence, "minima at different a") is Verdict.PARTLY


def test_a_and_b_are_compared_over_the_same_factors(tmp_path: Path) -> None:
    """From half to double where both sweeps meet, b moves the error by 1 point and a by 1.75; far off, a does nothing.

    The double of a is off the grid, on the straight line between two of its places.
    """

    def line(a: float, b: float, seed: int) -> Line:
        by_a = 0.02 * min(max(math.log2(a / 0.1), -1), 1) / 2
        error = 0.5 + by_a + 0.01 * math.log2(b / 28.0) / 2 + 0.0001 * (seed - 1) * (1 + (b > 28.0))
        scores = made_up.split(dict.fromkeys(made_up.LEVEL, error))
        settings = {"settings": made_up.SETTINGS, "valid": scores, "test": scores}
        return {"figure": 3, "a": a, "b": b, "seed": seed} | settings | made_up.PROVENANCE

    near = [(0.1 * 2**power, 28.0) for power in (-1, 0, 0.5, 1.5)] + [
        (0.1, b) for b in (14.0, 56.0)
    ]
    far = [(0.1 * 2**power, 28.0) for power in (-8, -7, -6, 5, 6, 7)]
    says, found = "a matters more than b", []
    for places in (near, near + far):
        lines = [line(a, b, seed) for a, b in places for seed in range(3)]
        found.append(finding(with_records(tmp_path, "figure3", lines), says).finding)
    assert found[0] == found[1]
    assert found[0].verdict is Verdict.REPRODUCED
    window = "from 0.5 to 2 times a = 0.1 and b = 28, points that the error moves"
    assert found[0].ours.startswith(f"{window}: top-1 1.75 by a, 1.00 by b; top-5 1.75 by a")
    assert f"b {MINUS} a: top-1 {MINUS}0.75 ±" in found[0].ours


def test_what_is_found_does_not_depend_on_the_order_of_records(
    tmp_path: Path, evidence: Evidence
) -> None:
    """The order of training does not matter, because the records of a seed alone say how much it moves."""
    lines = sorted(
        made_up.sweep(), key=lambda line: line["seed"] if line["a"] == 0.05 else -line["seed"]
    )
    shuffled = with_records(tmp_path, "figure3", lines)
    for says in ("a matters more than b", "minima at different a"):
        assert finding(shuffled, says).finding == finding(evidence, says).finding


def test_what_a_moves_within_noise_of_b_does_not_count(tmp_path: Path) -> None:
    lines = []
    for line in made_up.sweep():
        noisy = {
            score: value + 0.1 * (line["a"] == 0.025) * line["seed"]
            for score, value in line["test"]["scores"].items()
        }
        lines.append(made_up.with_scores(line, "test", **noisy))
    found = finding(with_records(tmp_path, "figure3", lines), "a matters more than b").finding
    assert found.verdict is Verdict.NOT_REPRODUCED
    assert "within noise" in found.ours


def test_a_single_a_says_nothing_about_a(tmp_path: Path) -> None:
    evidence = with_records(
        tmp_path, "figure3", [line for line in made_up.sweep() if line["a"] == 0.1]
    )
    found = finding(evidence, "a matters more than b").finding
    assert (found.verdict, found.ours) == (Verdict.NOT_RUN, "python -m reproduction run figure3")


def alike(line: Line) -> Line:
    """With the model for top-10 that of top-5."""
    if line["tuned_for"] != "top_10_error":
        return line
    [twin] = [
        one
        for one in made_up.curves()
        if (one["tuned_for"], one["seed"]) == ("top_5_error", line["seed"])
    ]
    return twin | {"tuned_for": "top_10_error"}


def test_models_with_the_same_settings_count_once(tmp_path: Path, evidence: Evidence) -> None:
    twins = with_records(tmp_path, "figure4", map(alike, made_up.curves()))
    for records, number in ((evidence, 4), (twins, 3)):
        opposite = finding(records, "the worst at top-50").finding
        assert opposite.verdict is Verdict.REPRODUCED
        assert (
            f"tuned for top-1: number {number} of {number} models that differ at top-50"
            in opposite.ours
        )
        assert (
            f"worst of {number} models that differ"
            in finding(records, "a and b fit the loss").finding.ours
        )
        assert (
            f"among {number} models that differ"
            in finding(records, "first iterations").finding.ours
        )


def test_all_models_alike_are_no_opposites(tmp_path: Path) -> None:
    first = [line for line in made_up.curves() if line["tuned_for"] == "top_1_error"]
    lines = [line | {"tuned_for": score} for score in CURVE_ERRORS for line in first]
    evidence = with_records(tmp_path, "figure4", lines)
    assert verdict(evidence, "the worst at top-50") is Verdict.NOT_REPRODUCED
    assert verdict(evidence, "a and b fit the loss") is Verdict.NOT_REPRODUCED


def test_the_worst_is_clearly_behind_the_next_worst(tmp_path: Path) -> None:
    """Not behind the best alone: here the two worst are within noise of each other."""
    worst = {line["seed"]: line for line in made_up.curves() if line["tuned_for"] == "top_1_error"}
    records = []
    for line in made_up.curves():
        if line["tuned_for"] == "top_10_error":
            pairs = zip(line["curve"], worst[line["seed"]]["curve"], strict=True)
            line["curve"] = [
                made_up.with_scores(
                    own, "valid", top_50_error=other["valid"]["scores"]["top_50_error"] - 0.0002
                )
                for own, other in pairs
            ]
        records.append(line)
    found = finding(with_records(tmp_path, "figure4", records), "the worst at top-50").finding
    assert found.verdict is Verdict.PARTLY
    assert (
        f"number 4 of 4 models that differ at top-50; it {MINUS} next worst: top-50 +0.02 ±"
        in found.ours
    )
    assert "within noise" in found.ours


def test_ends_that_are_not_opposite(tmp_path: Path) -> None:
    other_way = {"top_1_error": "top_5_error", "top_10_error": "top_50_error"}
    other_way |= {new: old for old, new in other_way.items()}
    records = [
        line | {"tuned_for": other_way.get(line["tuned_for"], line["tuned_for"])}
        for line in made_up.curves()
    ]
    evidence = with_records(tmp_path, "figure4", records)
    assert verdict(evidence, "the worst at top-50") is Verdict.NOT_REPRODUCED
    found = finding(evidence, "a and b fit the loss").finding
    assert found.verdict is Verdict.PARTLY
    assert "all settings, not a and b alone" in found.ours


def test_choosing_early_costs_what_is_lost_in_the_end(tmp_path: Path) -> None:
    """A model that leads at first and stalls is chosen, and costs its distance to the best."""
    records = []
    for line in made_up.curves():
        if line["tuned_for"] == "top_50_error":
            flat = made_up.split({score: level + 0.03 for score, level in made_up.LEVEL.items()})
            line["curve"] = [{"epoch": point["epoch"], "valid": flat} for point in line["curve"]]
        records.append(line)
    found = finding(with_records(tmp_path, "figure4", records), "first iterations").finding
    assert found.verdict is Verdict.NOT_REPRODUCED
    lost = [float(number) for number in re.findall(r"([\d.]+) at top", found.ours)]
    assert lost == pytest.approx([2.4, 2.4, 2.4, 1.8], abs=0.15)
