"""What may stand in the records of the paper, and what mistakes say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reproduction.report.records import PaperRecords, write_results
from tests.reproduction.report import made_up
from zloss_lab.records import read_records

Line = dict[str, Any]
FIRST: dict[str, Callable[[], Line]] = {
    "figure2": lambda: next(made_up.tuned(2)),
    "figure3": lambda: next(made_up.sweep()),
    "figure4": lambda: next(made_up.curves()),
    "figure5": lambda: next(made_up.tuned(5)),
    "table2": lambda: next(line for line in made_up.models() if line["model"] == "Z-loss net1"),
}


def test_everything_is_read(folder: Path) -> None:
    records = PaperRecords.read(folder / "paper")
    assert len(records.figure2) == 6 * 7 * 3
    assert len(records.figure5) == 5 * 7 * 3
    assert records.figure3[0].b == 28.0
    assert records.figure4[0].best("top_1_error") == min(
        point["top_1_error"] for point in records.figure4[0].curve
    )
    constant = [model for model in records.table2 if model.model == "constant"]
    assert {model.budget for model in constant} == {None}


def test_what_is_not_there_is_empty(tmp_path: Path) -> None:
    assert PaperRecords.read(tmp_path) == PaperRecords()


def test_what_else_is_in_a_line_is_left_alone(tmp_path: Path) -> None:
    line = FIRST["figure2"]() | {"remark": "windy"}
    line["test"] = line["test"] | {"perplexity": None, "examples": 82_430}
    write_results(tmp_path, "figure2", [line])
    assert "perplexity" not in PaperRecords.read(tmp_path).figure2[0].test
    assert json.loads((tmp_path / "figure2.jsonl").read_text())["remark"] == "windy"


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("figure2", {"loss": "hinge"}, '"loss" must be one of squared_error'),
        ("figure2", {"loss": "z_softmax"}, '"loss" must be one of squared_error'),
        ("figure2", {"figure": 5}, '"figure" must be 2 in this file, got 5'),
        ("figure2", {"tuned_for": "top_3_error"}, '"tuned_for" must be one of top_1_error'),
        ("figure2", {"seed": None}, '"seed" must be a finite number from 0 on, got None'),
        ("figure2", {"seed": 0.5}, '"seed" must be a whole number'),
        ("figure2", {"trials": True}, '"trials" must be a finite number'),
        ("figure2", {"settings": "lr=1"}, '"settings" must be an object'),
        ("figure2", {"device": 7}, '"device" must be text, got 7'),
        ("figure2", {"test": {"top_1_error": 0.5}}, 'in "test": "top_5_error" must be'),
        ("figure2", {"test": made_up.LEVEL | {"top_1_error": 71.0}}, "not a percentage, got 71.0"),
        (
            "figure2",
            {"test": made_up.LEVEL | {"mrr": float("nan")}},
            'in "test": "mrr" must be a finite number',
        ),
        ("figure3", {"a": -0.1}, '"a" must be a finite number from 0 on'),
        ("figure4", {"curve": []}, '"curve" must be a list of points'),
        ("figure4", {"tuned_for": "mrr"}, '"tuned_for" must be one of top_1_error'),
        (
            "figure4",
            {"curve": [{"epoch": 2.0} | made_up.LEVEL, {"epoch": 1.0} | made_up.LEVEL]},
            "must grow",
        ),
        ("table2", {"model": "Z-loss net3"}, '"model" must be one of constant'),
        ("table2", {"budget": "large"}, '"budget" must be fixed, converged or a number of epochs'),
        (
            "table2",
            {"budget": "0 epochs"},
            '"budget" must be fixed, converged or a number of epochs',
        ),
        (
            "table2",
            {"budget": "1 epochs"},
            '"budget" must be fixed, converged or a number of epochs',
        ),
        ("table2", {"budget": "fixed", "budget_s": None}, '"budget_s" must be a finite number'),
        ("table2", {"train_s": None}, '"train_s" must be a finite number'),
        ("table2", {"alone": "no"}, '"alone" must be true or false'),
    ],
)
def test_a_mistake_names_file_and_line(
    tmp_path: Path, name: str, change: Line, complaint: str
) -> None:
    good = FIRST[name]()
    made_up.keep(tmp_path / f"{name}.jsonl", [good | {"seed": 7}, good | change])
    with pytest.raises(ValueError, match="line 2: ") as error:
        PaperRecords.read(tmp_path)
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
        with pytest.raises(ValueError, match=f'"{key}"'):
            PaperRecords.read(tmp_path)


def test_a_seed_is_there_once(tmp_path: Path) -> None:
    line = FIRST["figure2"]()
    with pytest.raises(
        ValueError, match="figure2, line 2: seed 0 of squared_error, top_1_error is there twice"
    ):
        write_results(tmp_path, "figure2", [line, line])
    assert not list(tmp_path.iterdir())


def test_seeds_of_a_choice_have_one_setting(tmp_path: Path) -> None:
    line = FIRST["figure2"]()
    other = line | {"seed": 1}
    write_results(tmp_path, "figure2", [line, other])
    other["settings"] = line["settings"] | {"training.lr": 0.1}
    with pytest.raises(ValueError, match="different settings"):
        write_results(tmp_path, "figure2", [line, other])


def test_what_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "table2.jsonl").write_text("{")
    with pytest.raises(ValueError, match=r"table2\.jsonl is no file of records"):
        PaperRecords.read(tmp_path)


# ---- what can be compared --------------------------------------------------------------------------------------------


def on_text(line: Line, text: str) -> Line:
    return line | {"settings": line["settings"] | {"corpus": text}}


@pytest.mark.parametrize("name", ["figure2", "figure3", "figure4", "figure5"])
def test_a_figure_is_of_one_text(folder: Path, tmp_path: Path, name: str) -> None:
    *others, one, two, three = read_records(folder / "paper" / f"{name}.jsonl")
    for text in (
        "ptb",
        "wikitext",
    ):  # where the settings of the others name none, it is Penn Treebank
        made_up.keep(
            tmp_path / text / f"{name}.jsonl",
            others + [on_text(seed, text) for seed in (one, two, three)],
        )
    assert PaperRecords.read(tmp_path / "ptb") != PaperRecords()
    told = f"wikitext: {name} has results on several texts, ptb, wikitext, .* folder of their own"
    with pytest.raises(ValueError, match=told):
        PaperRecords.read(tmp_path / "wikitext")


def test_a_sweep_is_of_a_and_b_alone(tmp_path: Path) -> None:
    """What only some of its points name may be what the others have anyway."""
    lines = list(made_up.sweep())
    for key, value in (("network.head.a", 7.0), ("network.context", 6)):
        lines[-1] = lines[-1] | {
            "settings": lines[-1]["settings"] | {key: value},
            "seed": 9,
            "b": 56.0,
        }
        made_up.keep(tmp_path / "figure3.jsonl", lines)
        assert len(PaperRecords.read(tmp_path).figure3) == len(lines)
    lines[-1]["settings"]["training.lr"] = 0.1
    made_up.keep(tmp_path / "figure3.jsonl", lines)
    with pytest.raises(
        ValueError, match=r"figure3 has points that differ in training\.lr, not in a and b alone"
    ):
        PaperRecords.read(tmp_path)


@pytest.mark.parametrize(
    ("budget", "change", "told"),
    [
        (
            "fixed",
            {"budget_s": 3600.0},
            "'fixed' trained for 120 s on .* and trained for 3600 s on",
        ),
        (
            "fixed",
            {"device": "a slower one"},
            "'fixed' trained for 120 s on A device .* for 120 s on a slower one",
        ),
        ("converged", {"device": "a slower one"}, "'converged' on A device .* and on a slower one"),
    ],
)
def test_models_of_a_text_have_one_time_and_device(
    tmp_path: Path, budget: str, change: Line, told: str
) -> None:
    def differs(line: Line) -> bool:
        return (line["corpus"], line["model"], line["budget"]) == ("fil8", "Z-loss net1", budget)

    lines = [line | change if differs(line) else line for line in made_up.models()]
    made_up.keep(tmp_path / "table2.jsonl", lines)
    with pytest.raises(ValueError, match=f"table2 has models of fil8 with the budget {told}"):
        PaperRecords.read(tmp_path)


def test_other_texts_and_the_constant_may_have_another_time_and_device(tmp_path: Path) -> None:
    lines = []
    for line in made_up.models():
        other_text = {"device": "a slower one"} | (
            {"budget_s": 3600.0} if line["budget"] == "fixed" else {}
        )
        is_other = line["corpus"] == "epd48" or line["model"] == "constant"
        lines.append(line | other_text if is_other else line)
    made_up.keep(tmp_path / "table2.jsonl", lines)
    assert len(PaperRecords.read(tmp_path).table2) == len(lines)


def test_models_of_a_text_have_converged_by_one_rule(tmp_path: Path) -> None:
    def with_patience(line: Line, **where: str) -> Line:
        is_there = all(line[key] == value for key, value in where.items())
        return (
            line | {"settings": line["settings"] | {"training.patience": 3}} if is_there else line
        )

    patient = [with_patience(line, corpus="fil8") for line in made_up.models()]
    made_up.keep(tmp_path / "table2.jsonl", patient)
    assert PaperRecords.read(tmp_path).table2, "all models of the text"
    fixed = [with_patience(line, model="Z-loss net1", budget="fixed") for line in made_up.models()]
    made_up.keep(tmp_path / "table2.jsonl", fixed)
    assert PaperRecords.read(tmp_path).table2, "what does not matter there"
    one = [
        with_patience(line, model="Z-loss net1", budget="converged") for line in made_up.models()
    ]
    made_up.keep(tmp_path / "table2.jsonl", one)
    with pytest.raises(
        ValueError, match=r"models of fil8 that converged with different training\.patience, which"
    ):
        PaperRecords.read(tmp_path)


def with_examples(line: Line, examples: int) -> Line:
    return line | {"test": line["test"] | {"examples": examples}}


@pytest.mark.parametrize(
    ("model", "seed"), [("Z-loss net1", 0), ("Z-loss net1", 1), ("constant", 0)]
)
def test_models_of_a_text_are_tested_on_as_many_examples(
    tmp_path: Path, model: str, seed: int
) -> None:
    def differs(line: Line) -> bool:
        return (line["corpus"], line["model"], line["seed"]) == ("fil8", model, seed) and line[
            "budget"
        ] != "converged"

    lines = list(made_up.models())
    same = [with_examples(line, 5_000 if line["corpus"] == "fil8" else 7_000) for line in lines]
    made_up.keep(tmp_path / "table2.jsonl", same)
    assert {one.examples for one in PaperRecords.read(tmp_path).table2} == {5_000, 7_000}
    made_up.keep(
        tmp_path / "table2.jsonl",
        [line if differs(line) else with_examples(line, 5_000) for line in lines],
    )
    assert PaperRecords.read(tmp_path).table2, "those that do not say how many are let through"
    made_up.keep(
        tmp_path / "table2.jsonl",
        [with_examples(line, 30 if differs(line) else 5_000) for line in lines],
    )
    with pytest.raises(
        ValueError,
        match=r"models of fil8 .* tested on 30 and 5,000 examples, which cannot be compared",
    ):
        PaperRecords.read(tmp_path)


def test_how_often_it_was_logged_is_no_setting(tmp_path: Path) -> None:
    line = FIRST["figure2"]()
    other = line | {
        "seed": 1,
        "settings": line["settings"] | {"training.log_every": 7, "training.keep": 1},
    }
    write_results(tmp_path, "figure2", [line, other])
    one, two = PaperRecords.read(tmp_path).figure2
    assert one.settings == two.settings


def test_a_digest_decides_where_both_have_one(tmp_path: Path) -> None:
    line = FIRST["figure2"]() | {"digest": "it"}
    other = line | {"seed": 1, "settings": line["settings"] | {"network.context": 6}}
    write_results(tmp_path, "figure2", [line, other])
    with pytest.raises(ValueError, match="different settings"):
        write_results(tmp_path, "figure2", [line, line | {"seed": 1, "digest": "another"}])
    with pytest.raises(ValueError, match="different settings"):
        write_results(tmp_path, "figure2", [line, other | {"digest": None}])


def test_a_file_may_be_made_anew_choice_by_choice(tmp_path: Path) -> None:
    """Half way through, its old half is of another time: no reason to throw away what was trained."""
    lines = list(made_up.models())
    longer = [
        line | {"budget_s": 3600.0} if line["budget"] == "fixed" else line for line in lines[:4]
    ]
    write_results(tmp_path, "table2", longer + lines[4:])


def test_curves_of_seeds_that_share_no_epoch_are_refused(tmp_path: Path) -> None:
    lines = list(made_up.curves(seeds=2))
    for line in lines:
        line["curve"] = [
            point | {"epoch": point["epoch"] + 0.5 * line["seed"]} for point in line["curve"]
        ]
    made_up.keep(tmp_path / "figure4.jsonl", lines)
    with pytest.raises(ValueError, match="tuned for top_1_error have no epoch in common"):
        PaperRecords.read(tmp_path)
