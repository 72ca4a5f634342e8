"""Claims about large texts, table 2: verdicts on made-up records."""

import re
from pathlib import Path

import pytest

from reproduction.report.claims import judged_claims
from reproduction.report.evidence import Evidence
from reproduction.report.large_text_tables import final_tables
from reproduction.report.methods import statements
from reproduction.report.verdicts import (
    Verdict,
    combined,
)
from tests.reproduction.report import made_up
from tests.reproduction.report.judging import finding, verdict, with_records
from tests.reproduction.report.made_up import Line


@pytest.mark.parametrize(
    ("train_s", "expected"), [(399.0, Verdict.REPRODUCED), (401.0, Verdict.PARTLY)]
)
def test_the_larger_network_must_be_faster_too(
    tmp_path: Path, train_s: float, expected: Verdict
) -> None:
    """Hierarchical softmax takes 400 s."""
    lines = [
        line | {"train_s": train_s}
        if (line["model"], line.get("budget")) == (made_up.NET2, "converged")
        else line
        for line in made_up.models()
    ]
    assert verdict(with_records(tmp_path, "table2", lines), "in less time") is expected


@pytest.mark.parametrize(
    ("top_1", "seeds", "train_s", "expected"),
    [
        ((0.73, 0.0), 2, 100.0, Verdict.NOT_REPRODUCED),  # worse in less time is not partly true
        ((0.73, 0.0), 1, 100.0, Verdict.NOT_REPRODUCED),
        ((0.715, 0.02), 2, 100.0, Verdict.PARTLY),  # within noise
        ((0.715, 0.02), 2, 500.0, Verdict.NOT_REPRODUCED),
        ((0.71, 0.0), 1, 100.0, Verdict.PARTLY),
        ((0.71, 0.0), 2, 100.0, Verdict.REPRODUCED),
    ],
)
def test_less_time_counts_where_the_error_is_not_worse(
    tmp_path: Path, top_1: tuple[float, float], seeds: int, train_s: float, expected: Verdict
) -> None:
    """Hierarchical softmax has 0.72 after 400 s."""
    lines = list(made_up.models(seeds))
    for line in lines:
        if (line["model"], line.get("budget")) == (made_up.NET2, "converged"):
            error = top_1[0] + top_1[1] * line["seed"]
            line |= made_up.with_scores(line, "test", top_1_error=error) | {"train_s": train_s}
    assert verdict(with_records(tmp_path, "table2", lines), "in less time") is expected


def test_noise_at_top_20_is_not_better(tmp_path: Path) -> None:
    lines = list(made_up.models(3))
    for line in lines:
        if line["model"] == made_up.NET2:
            line |= made_up.with_scores(line, "test", top_20_error=0.37 + 0.1 * line["seed"])
    found = finding(with_records(tmp_path, "table2", lines), "behind at top-20").finding
    assert found.verdict is Verdict.PARTLY
    assert "within noise" in found.ours


def test_the_network_that_validates_better_is_compared(evidence: Evidence) -> None:
    """Though the other one has the lower test error."""
    for corpus in ("fil8", "epd48"):
        net1, net2 = (
            evidence.trainings(corpus, model, "fixed")[0].test
            for model in (made_up.NET1, made_up.NET2)
        )
        assert net2["top_1_error"] < net1["top_1_error"]
    found = finding(evidence, "In a fixed time").finding
    assert found.ours.count("after 2 min, Z-loss net1") == 2


def test_claims_about_large_texts_look_at_every_text(tmp_path: Path) -> None:
    records = []
    for line in made_up.models():
        if (
            line["corpus"] == "epd48"
            and line["model"] == made_up.HIERARCHICAL
            and line.get("budget") == "converged"
        ):
            line["train_s"] = 95.0
        records.append(line)
    evidence = with_records(tmp_path, "table2", records)
    found = finding(evidence, "converges more than 4 times faster").finding
    assert found.verdict is Verdict.PARTLY
    assert "epd48: 1" in found.ours
    assert "fil8: 4.21" in found.ours


def test_a_text_without_the_models_does_not_count(tmp_path: Path) -> None:
    records = [
        line
        for line in made_up.models()
        if not (line["corpus"] == "epd48" and line["model"] == made_up.HIERARCHICAL)
    ]
    found = finding(with_records(tmp_path, "table2", records), "ends slightly better").finding
    assert found.verdict is Verdict.REPRODUCED
    assert "epd48" not in found.ours


def for_epochs(line: Line, number: int, top_1: float) -> Line:
    changed = made_up.with_scores(line, "test", top_1_error=top_1)
    return changed | {"budget": f"{number}_epochs", "epochs": number}


def test_epochs_decide_where_not_all_have_converged(tmp_path: Path) -> None:
    """The most that all of the models were trained for: others may have had more."""
    converged = [line for line in made_up.models(3) if line.get("budget") == "converged"]
    records = [
        line for line in converged if (line["corpus"], line["model"]) != ("epd48", made_up.NET2)
    ]
    errors = {
        made_up.HIERARCHICAL: (0.76, 0.74),
        made_up.NET2: (0.70, 0.75),
        made_up.NET1: (0.77, 0.72),
    }
    for line in converged:
        if line["corpus"] == "epd48" and line["model"] in errors:
            for number, error in zip((2, 10), errors[line["model"]], strict=True):
                records.append(for_epochs(line, number, error + 1e-5 * line["seed"]))
        if (line["corpus"], line["model"]) == ("epd48", made_up.NET1):
            records.append(for_epochs(line, 20, 0.71))
    evidence = with_records(tmp_path, "table2", records)
    found = finding(evidence, "in less time").finding
    assert found.verdict is Verdict.PARTLY, "behind after 10 epochs"
    assert re.search(r"^fil8: .*epd48, 10 epochs: .* top-1 \+1\.00", found.ours)
    assert "epochs" not in finding(evidence, "ends slightly better").finding.ours, (
        "these have converged on both"
    )


def test_verdicts_on_several_texts_combine() -> None:
    assert combined([Verdict.BETTER, Verdict.BETTER]) is Verdict.BETTER
    assert combined([Verdict.BETTER, Verdict.REPRODUCED], of_speed=True) is Verdict.REPRODUCED
    assert combined([Verdict.BETTER, Verdict.REPRODUCED]) is Verdict.PARTLY
    assert combined([Verdict.REPRODUCED, Verdict.NOT_REPRODUCED]) is Verdict.PARTLY


def test_one_seed_decides_nothing(tmp_path: Path) -> None:
    """But for what is computed, and for the speed of a step."""
    found = judged_claims(made_up.read(made_up.keep_all(tmp_path, seeds=1)))
    trained = [one for one in found if one.claim.about not in ("figure 1", "table 1")]
    assert len(trained) == 21
    assert {one.finding.verdict for one in trained} <= {Verdict.PARTLY, Verdict.NOT_REPRODUCED}


@pytest.mark.parametrize(("seeds", "expected"), [(1, Verdict.PARTLY), (2, Verdict.BETTER)])
def test_one_seed_ahead_is_not_better(tmp_path: Path, seeds: int, expected: Verdict) -> None:
    lines = list(made_up.models(seeds))
    for line in lines:
        if line["model"] == made_up.NET2:
            line |= made_up.with_scores(line, "test", top_20_error=0.3)
    assert verdict(with_records(tmp_path, "table2", lines), "behind at top-20") is expected


def on_a_shared_device(line: Line) -> Line:
    """As slow as other work made it."""
    return line | {"is_alone": False, "train_s": 1e6}


def test_who_shared_the_device_has_the_pace_of_who_did_not(tmp_path: Path) -> None:
    """Of the longest training alone: the one until convergence, not the one of 120 s."""
    lines = [
        on_a_shared_device(line) if (line["seed"], line.get("budget")) == (1, "converged") else line
        for line in made_up.models()
    ]
    before, after = (with_records(tmp_path, "table2", each) for each in (made_up.models(), lines))
    for model in (made_up.HIERARCHICAL, made_up.NET2):
        times = [
            [evidence.train_s(one) for one in evidence.trainings("fil8", model, "converged")]
            for evidence in (before, after)
        ]
        assert times[0] == pytest.approx(times[1], rel=1e-12)
    tables = [dict(final_tables(evidence)) for evidence in (before, after)]
    title = "fil8, 213,271 classes, trained until converged"
    shown, about = (
        next(row for row in table[title].rows if row[0] == "H-softmax net1") for table in tables
    )
    assert about == [f"about {cell}" if cell == "6.67 min" else cell for cell in shown]
    assert "shared the device" not in " ".join(statements(before))
    assert (
        f"{sum(not line.get('is_alone', True) for line in lines)} trainings shared the device"
        in " ".join(statements(after))
    )


def test_who_was_never_alone_has_the_pace_of_its_kind(tmp_path: Path) -> None:
    """What a model is tuned for does not change what a step costs; its network does."""
    lines = list(made_up.models())
    shared = [
        on_a_shared_device(
            line
            | {"model": made_up.NET1_TOP_10, "budget": "2_epochs", "budget_s": None, "epochs": 2.0}
        )
        for line in lines
        if (line["model"], line.get("budget")) == (made_up.NET1, "converged")
    ]
    alone = [line for line in lines if line["model"] in (made_up.NET1, made_up.NET2)]
    evidence = with_records(tmp_path, "table2", [*alone, *shared])
    pace = max((line["train_s"], line["epochs"]) for line in alone if line["network"] == "net1")
    found = evidence.trainings("fil8", made_up.NET1_TOP_10, "2_epochs")
    assert [evidence.train_s(one) for one in found] == pytest.approx(
        [2 * pace[0] / pace[1]] * len(found), rel=1e-12
    )
    strangers = [line for line in alone if line["network"] == "net2"]
    evidence = with_records(tmp_path, "table2", [*strangers, *shared])
    found = evidence.trainings("fil8", made_up.NET1_TOP_10, "2_epochs")
    assert {evidence.train_s(one) for one in found} == {None}


def test_without_a_pace_there_is_no_time(tmp_path: Path) -> None:
    lines = [
        on_a_shared_device(line) for line in made_up.models() if line.get("budget") == "converged"
    ]
    evidence = with_records(tmp_path, "table2", lines)
    assert (
        finding(evidence, "converges more than 4 times faster").finding.verdict is Verdict.NOT_RUN
    )
    assert verdict(evidence, "ends slightly better") is not Verdict.NOT_RUN
    rows = dict(final_tables(evidence))["fil8, 213,271 classes, trained until converged"].rows
    assert [row[6] for row in rows] == [""] * len(rows)
