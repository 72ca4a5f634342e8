"""The schema of the records: faults of lines, and the messages about them."""

import json
from pathlib import Path

import pytest

from reproduction.large_text_models import CONSTANT
from reproduction.results.files import KINDS, read_in_order, write_results
from reproduction.results.paper_results import PaperResults
from reproduction.results.schema import LargeTextResult, SplitScores
from tests.reproduction.report import made_up
from tests.reproduction.report.made_up import Line
from tests.reproduction.results.first_lines import FIRST
from zloss_lab.confidence_intervals import HalfWidths
from zloss_lab.evaluation import Evaluation


def test_everything_is_read(tmp_path: Path) -> None:
    results = PaperResults.read(made_up.keep_all(tmp_path) / "results")
    assert len(results.figure2) == 6 * 7 * 3
    assert len(results.figure5) == 5 * 7 * 3
    assert results.figure3[0].b == 28.0
    assert results.figure4[0].best("top_1_error") == min(
        point.valid["top_1_error"] for point in results.figure4[0].curve
    )
    constant = [one for one in results.table2 if one.model == CONSTANT]
    assert {one.budget for one in constant} == {None}


@pytest.mark.parametrize("name", FIRST)
def test_a_result_is_the_same_after_a_file(tmp_path: Path, name: str) -> None:
    result = KINDS[name].from_record(FIRST[name]())
    write_results(tmp_path, name, [result])
    assert read_in_order(tmp_path, name) == [result]


def test_files_that_are_missing_are_empty(tmp_path: Path) -> None:
    assert PaperResults.read(tmp_path) == PaperResults()


def test_a_line_has_no_unknown_keys_but_any_scores(tmp_path: Path) -> None:
    line = made_up.with_scores(FIRST["figure2"](), "test", mean_rank=7.5)
    made_up.keep(tmp_path / "figure2.jsonl", [line])
    (result,) = PaperResults.read(tmp_path).figure2
    assert result.test["mean_rank"] == 7.5
    write_results(tmp_path, "figure2", [result])
    assert json.loads((tmp_path / "figure2.jsonl").read_text())["test"] == line["test"]
    made_up.keep(tmp_path / "figure2.jsonl", [line | {"remark": "windy"}])
    with pytest.raises(ValueError, match=r"figure2\.jsonl, line 1: unknown key: 'remark'"):
        PaperResults.read(tmp_path)


def test_scores_of_an_evaluation_have_six_digits_and_are_finite() -> None:
    errors = dict.fromkeys((1, 5, 10, 20, 50, 100), 0.123456789)
    evaluation = Evaluation(
        top_k_error=errors,
        mean_reciprocal_rank=0.25,
        mean_rank=float("inf"),
        perplexity=None,
        examples=10,
        population=20,
        half_widths=HalfWidths(
            top_k_error=errors, mean_reciprocal_rank=0.5, mean_rank=1.5, perplexity=None
        ),
    )
    scores = SplitScores.of(evaluation)
    assert scores["top_5_error"] == 0.123457
    assert "mean_rank" not in scores.scores
    assert "perplexity" not in scores.scores
    assert scores.half_widths["top_100_error"] == 0.123457
    assert scores.half_widths["mean_rank"] == 1.5
    assert (scores.examples, scores.population) == (10, 20)


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("figure2", {"loss": "hinge"}, '"loss" must be one of squared_error'),
        ("figure2", {"loss": "z_softmax"}, '"loss" must be one of squared_error'),
        ("figure2", {"figure": 5}, '"figure" must be 2 in this file, got 5'),
        ("figure2", {"tuned_for": "top_3_error"}, '"tuned_for" must be one of top_1_error'),
        ("figure2", {"seed": None}, "seed must be int, got None"),
        ("figure2", {"seed": 0.5}, "seed must be int, got 0.5"),
        ("figure2", {"seed": -1}, '"seed" must be a finite number from 0 on, got -1'),
        ("figure2", {"trials": True}, "trials must be int, got True"),
        ("figure2", {"settings": "lr=1"}, "settings must be a table"),
        ("figure2", {"device": 7}, "device must be str, got 7"),
        ("figure2", {"test": made_up.split({"top_1_error": 0.5})}, '[test] "top_5_error" must be'),
        (
            "figure2",
            {"test": made_up.split(made_up.LEVEL | {"top_1_error": 71.0})},
            "not a percentage, got 71.0",
        ),
        (
            "figure2",
            {"test": made_up.split(made_up.LEVEL | {"mrr": float("nan")})},
            "NaN is no JSON: numbers are finite",
        ),
        ("figure3", {"a": -0.1}, '"a" must be a finite number from 0 on'),
        ("figure4", {"curve": []}, '"curve" must be a list of points'),
        ("figure4", {"tuned_for": "mrr"}, '"tuned_for" must be one of top_1_error'),
        (
            "figure4",
            {
                "curve": [
                    {"epoch": 2.0, "valid": made_up.split(made_up.LEVEL)},
                    {"epoch": 1.0, "valid": made_up.split(made_up.LEVEL)},
                ]
            },
            "must grow",
        ),
        ("table2", {"model": "z_loss_net3"}, '"model" must be one of constant'),
        ("table2", {"budget": "large"}, '"budget" must be fixed, converged or a number of epochs'),
        ("table2", {"budget": "0_epochs"}, '"budget" must be fixed, converged or a number of'),
        ("table2", {"budget": "1_epochs"}, '"budget" must be fixed, converged or a number of'),
        ("table2", {"budget": "fixed", "budget_s": None}, '"budget_s" must be a finite number'),
        ("table2", {"train_s": None}, '"train_s" must be a finite number'),
        ("table2", {"is_alone": "no"}, "is_alone must be bool"),
    ],
)
def test_a_mistake_names_file_and_line(
    tmp_path: Path, name: str, change: Line, complaint: str
) -> None:
    good = FIRST[name]()
    made_up.keep(tmp_path / f"{name}.jsonl", [good | {"seed": 7}, good | change])
    with pytest.raises(ValueError, match=r"line 2\b") as error:
        PaperResults.read(tmp_path)
    assert complaint in str(error.value)
    assert f"{name}.jsonl" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", FIRST)
def test_a_line_without_a_key_is_refused(tmp_path: Path, name: str) -> None:
    line = FIRST[name]()
    for key in line.keys() - {"budget_s"}:
        made_up.keep(
            tmp_path / f"{name}.jsonl", [{other: line[other] for other in line if other != key}]
        )
        with pytest.raises(ValueError, match=rf"""["']{key}["']"""):
            PaperResults.read(tmp_path)


@pytest.mark.parametrize("key", ["scores", "examples", "population"])
def test_scores_without_a_key_are_refused(tmp_path: Path, key: str) -> None:
    line = FIRST["table2"]()
    del line["test"][key]
    made_up.keep(tmp_path / "table2.jsonl", [line])
    with pytest.raises(ValueError, match=f"line 1: .*{key}"):
        PaperResults.read(tmp_path)


def test_every_field_is_written() -> None:
    """A reader of the file need not know the defaults."""
    constant = next(line for line in made_up.models() if line["model"] == CONSTANT)
    assert LargeTextResult.from_record(constant).to_record()["budget"] is None
