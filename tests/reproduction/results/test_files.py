"""Files of results: seeds and settings of a choice, and files that have a mistake."""

from pathlib import Path

import pytest

from reproduction.results.files import read_in_order, write_results
from reproduction.results.paper_results import PaperResults
from reproduction.results.schema import TunedResult
from tests.reproduction.report.made_up import Line
from tests.reproduction.results.first_lines import FIRST
from zloss_lab.records import read_records

COMMITTED = sorted((Path(__file__).parents[3] / "reproduction" / "records").rglob("*.jsonl"))


def results_of(*lines: Line) -> list[TunedResult]:
    return [TunedResult.from_record(line) for line in lines]


def test_a_seed_is_there_once(tmp_path: Path) -> None:
    line = FIRST["figure2"]()
    with pytest.raises(
        ValueError, match="figure2, line 2: seed 0 of squared_error, top_1_error is there twice"
    ):
        write_results(tmp_path, "figure2", results_of(line, line))
    assert not list(tmp_path.iterdir())


def test_seeds_of_a_choice_have_one_setting(tmp_path: Path) -> None:
    line = FIRST["figure2"]()
    other = line | {"seed": 1}
    write_results(tmp_path, "figure2", results_of(line, other))
    other["settings"] = line["settings"] | {"training.lr": 0.1}
    with pytest.raises(ValueError, match="different settings"):
        write_results(tmp_path, "figure2", results_of(line, other))


def test_what_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "table2.jsonl").write_text("{")
    with pytest.raises(ValueError, match=r"table2\.jsonl is no file of records"):
        PaperResults.read(tmp_path)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_committed_records_are_what_would_be_written(path: Path) -> None:
    results = read_in_order(path.parent, path.stem)
    assert [result.to_record() for result in results] == read_records(path)
    assert len({result.key for result in results}) == len(results)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_how_often_it_was_logged_is_no_setting(path: Path) -> None:
    for result in read_in_order(path.parent, path.stem):
        assert result.settings.keys().isdisjoint(
            f"training.{name}" for name in ("log_every", "checkpoint_every", "keep", "graph")
        )


def test_a_digest_decides_where_both_have_one(tmp_path: Path) -> None:
    line = FIRST["figure2"]() | {"digest": "it"}
    other = line | {"seed": 1, "settings": line["settings"] | {"network.context": 6}}
    write_results(tmp_path, "figure2", results_of(line, other))
    with pytest.raises(ValueError, match="different settings"):
        write_results(
            tmp_path, "figure2", results_of(line, line | {"seed": 1, "digest": "another"})
        )
    with pytest.raises(ValueError, match="different settings"):
        write_results(tmp_path, "figure2", results_of(line, other | {"digest": None}))
