"""Results that can be compared, and results that cannot."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from reproduction.large_text_models import CONSTANT
from reproduction.results.files import read_in_order, write_results
from reproduction.results.paper_results import PaperResults
from reproduction.results.schema import LargeTextResult
from tests.reproduction.report import made_up
from tests.reproduction.report.made_up import Line

LINES: dict[str, Callable[[], Iterable[Line]]] = {
    "figure2": lambda: made_up.tuned(2),
    "figure3": made_up.sweep,
    "figure4": made_up.curves,
    "figure5": lambda: made_up.tuned(5),
}


def on_text(line: Line, text: str) -> Line:
    return line | {"settings": line["settings"] | {"corpus": text}}


@pytest.mark.parametrize("name", ["figure2", "figure3", "figure4", "figure5"])
def test_a_figure_is_of_one_text(tmp_path: Path, name: str) -> None:
    *others, one, two, three = LINES[name]()
    for text in ("ptb", "wikitext"):  # settings that name no text are of Penn Treebank
        made_up.keep(
            tmp_path / text / f"{name}.jsonl",
            others + [on_text(seed, text) for seed in (one, two, three)],
        )
    assert PaperResults.read(tmp_path / "ptb") != PaperResults()
    complaint = (
        f"wikitext: {name} has results on several texts, ptb, wikitext, .* folder of their own"
    )
    with pytest.raises(ValueError, match=complaint):
        PaperResults.read(tmp_path / "wikitext")


def test_a_sweep_is_of_a_and_b_alone(tmp_path: Path) -> None:
    """A setting that only some points name may have the same value in the others."""
    lines = list(made_up.sweep())
    for key, value in (("network.head.a", 7.0), ("network.context", 6)):
        lines[-1] = lines[-1] | {
            "settings": lines[-1]["settings"] | {key: value},
            "seed": 9,
            "b": 56.0,
        }
        made_up.keep(tmp_path / "figure3.jsonl", lines)
        assert len(PaperResults.read(tmp_path).figure3) == len(lines)
    lines[-1]["settings"]["training.lr"] = 0.1
    made_up.keep(tmp_path / "figure3.jsonl", lines)
    with pytest.raises(
        ValueError, match=r"figure3 has points that differ in training\.lr, not in a and b alone"
    ):
        PaperResults.read(tmp_path)


@pytest.mark.parametrize(
    ("budget", "change", "complaint"),
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
    tmp_path: Path, budget: str, change: Line, complaint: str
) -> None:
    def differs(line: Line) -> bool:
        return (line["corpus"], line["model"], line.get("budget")) == ("fil8", made_up.NET1, budget)

    lines = [line | change if differs(line) else line for line in made_up.models()]
    made_up.keep(tmp_path / "table2.jsonl", lines)
    with pytest.raises(ValueError, match=f"table2 has models of fil8 with the budget {complaint}"):
        PaperResults.read(tmp_path)


def test_other_texts_and_the_constant_may_have_another_time_and_device(tmp_path: Path) -> None:
    lines = []
    for line in made_up.models():
        other_text = {"device": "a slower one"} | (
            {"budget_s": 3600.0} if line.get("budget") == "fixed" else {}
        )
        is_other = line["corpus"] == "epd48" or line["model"] == CONSTANT
        lines.append(line | other_text if is_other else line)
    made_up.keep(tmp_path / "table2.jsonl", lines)
    assert len(PaperResults.read(tmp_path).table2) == len(lines)


def test_models_of_a_text_have_converged_by_one_rule(tmp_path: Path) -> None:
    def with_patience(line: Line, **where: str) -> Line:
        is_there = all(line.get(key) == value for key, value in where.items())
        return (
            line | {"settings": line["settings"] | {"training.patience": 3}} if is_there else line
        )

    patient = [with_patience(line, corpus="fil8") for line in made_up.models()]
    made_up.keep(tmp_path / "table2.jsonl", patient)
    assert PaperResults.read(tmp_path).table2, "all models of the text"
    fixed = [with_patience(line, model=made_up.NET1, budget="fixed") for line in made_up.models()]
    made_up.keep(tmp_path / "table2.jsonl", fixed)
    assert PaperResults.read(tmp_path).table2, "what does not matter there"
    one = [with_patience(line, model=made_up.NET1, budget="converged") for line in made_up.models()]
    made_up.keep(tmp_path / "table2.jsonl", one)
    with pytest.raises(
        ValueError, match=r"models of fil8 that converged with different training\.patience, which"
    ):
        PaperResults.read(tmp_path)


def with_examples(line: Line, examples: int) -> Line:
    return line | {"test": line["test"] | {"examples": examples, "population": examples}}


@pytest.mark.parametrize(("model", "seed"), [(made_up.NET1, 0), (made_up.NET1, 1), (CONSTANT, 0)])
def test_models_of_a_text_are_tested_on_as_many_examples(
    tmp_path: Path, model: str, seed: int
) -> None:
    def differs(line: Line) -> bool:
        is_of_model = (line["corpus"], line["model"], line["seed"]) == ("fil8", model, seed)
        return is_of_model and line.get("budget") != "converged"

    lines = list(made_up.models())
    same = [with_examples(line, 5_000 if line["corpus"] == "fil8" else 7_000) for line in lines]
    made_up.keep(tmp_path / "table2.jsonl", same)
    assert {one.test.examples for one in PaperResults.read(tmp_path).table2} == {5_000, 7_000}
    made_up.keep(
        tmp_path / "table2.jsonl",
        [with_examples(line, 30 if differs(line) else 5_000) for line in lines],
    )
    with pytest.raises(
        ValueError,
        match=r"models of fil8 .* tested on 30 and 5,000 examples, which cannot be compared",
    ):
        PaperResults.read(tmp_path)


def test_a_file_may_be_made_anew_choice_by_choice(tmp_path: Path) -> None:
    """Half way through, its old half is of another time: no reason to throw away what was trained."""
    lines = list(made_up.models())
    longer = [
        line | {"budget_s": 3600.0} if line.get("budget") == "fixed" else line for line in lines[:4]
    ]
    results = [LargeTextResult.from_record(line) for line in longer + lines[4:]]
    write_results(tmp_path, "table2", results)
    assert len(read_in_order(tmp_path, "table2")) == len(lines)


def test_curves_of_seeds_that_share_no_epoch_are_refused(tmp_path: Path) -> None:
    lines = list(made_up.curves(seeds=2))
    for line in lines:
        line["curve"] = [
            point | {"epoch": point["epoch"] + 0.5 * line["seed"]} for point in line["curve"]
        ]
    made_up.keep(tmp_path / "figure4.jsonl", lines)
    with pytest.raises(ValueError, match="tuned for top_1_error have no epoch in common"):
        PaperResults.read(tmp_path)
