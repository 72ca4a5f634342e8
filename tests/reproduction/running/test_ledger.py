"""Files of records: records that stay, and records that are replaced."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from torch.multiprocessing.spawn import spawn

from reproduction.results.paper_results import PaperResults
from reproduction.results.schema import TunedResult
from reproduction.running.chosen import Chosen
from reproduction.running.ledger import Ledger
from tests.lab.sidebyside.small_trials import trial
from tests.reproduction.report import made_up
from zloss_lab.durable import require_writable
from zloss_lab.records import read_records

CHOICE = ("z_loss", "mrr")


def result(seed: int, **changes: Any) -> TunedResult:
    first = next(line for line in made_up.tuned(2) if (line["loss"], line["tuned_for"]) == CHOICE)
    changed = {"seed": seed, "settings": {"training.lr": 0.1}, "digest": None, **changes}
    return TunedResult.from_record(first | changed)


def replaced(ledger: Ledger) -> list[TunedResult]:
    return [TunedResult.from_record(line) for line in read_records(ledger.replaced)]


def test_records_are_found_by_choice_settings_and_seed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "records", "figure2")
    assert ledger.find(CHOICE, {"training.lr": 0.1}, 0) is None
    ledger.add([result(0), result(1)])
    assert ledger.find(CHOICE, {"training.lr": 0.1}, 1) == result(1)
    assert ledger.find(CHOICE, {"training.lr": 0.1}, 2) is None
    assert ledger.find(CHOICE, {"training.lr": 0.2}, 1) is None
    assert ledger.find(("z_loss", "top_1_error"), {"training.lr": 0.1}, 1) is None


def test_a_record_that_is_made_again_replaces_the_old_one(tmp_path: Path) -> None:
    """The same seed, or the same choice with other settings; nothing else."""
    ledger = Ledger(tmp_path, "figure2")
    ledger.add([result(0), result(1), result(0, tuned_for="top_1_error")])
    ledger.add([result(1, trials=77)])
    assert [(line.seed, line.trials) for line in ledger.results()] == [(0, 60), (0, 60), (1, 77)]
    ledger.add([result(0, settings={"training.lr": 0.2})])
    assert [
        (line.tuned_for, line.seed, line.settings["training.lr"]) for line in ledger.results()
    ] == [
        ("top_1_error", 0, 0.1),
        ("mrr", 0, 0.2),
    ]


def test_stale_records_are_dropped(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "figure2")
    ledger.add([result(0), result(1)])
    before = ledger.path.stat().st_mtime_ns
    ledger.drop(lambda _: False)
    assert ledger.path.stat().st_mtime_ns == before
    ledger.drop(lambda one: one.seed == 0)
    assert [line.seed for line in ledger.results()] == [1]


def test_replaced_records_are_kept(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "figure2")
    ledger.add([result(0), result(1)])
    assert not ledger.replaced.exists()
    assert ledger.count_others(CHOICE, {"training.lr": 0.1}) == 0
    assert ledger.count_others(CHOICE, {"training.lr": 0.2}) == 2
    ledger.add([result(0, settings={"training.lr": 0.2})])
    assert replaced(ledger) == [result(0), result(1)]
    ledger.drop(lambda _: True)
    assert replaced(ledger) == [
        result(0),
        result(1),
        result(0, settings={"training.lr": 0.2}),
    ]
    assert PaperResults.read(tmp_path) == PaperResults()


def test_how_often_it_was_logged_makes_no_other_record(corpus: Path, tmp_path: Path) -> None:
    """Neither with a digest nor with an early record, which has none."""
    keys = ["training.lr", "training.log_every", "training.checkpoint_every"]
    often_logged = Chosen.of(trial(corpus, log_every=5, checkpoint_every=9), keys)
    seldom_logged = Chosen.of(trial(corpus), keys)
    assert often_logged.settings == seldom_logged.settings
    assert often_logged.digest == seldom_logged.digest
    ledger, settings = Ledger(tmp_path, "figure2"), {"training.lr": 0.1}
    early = result(0, settings=settings)
    ledger.add([early])
    assert ledger.find(CHOICE, settings, 0, digest="new") == early
    assert ledger.add([result(1, digest="new")]) == 0
    assert [line.seed for line in ledger.results()] == [0, 1]


def test_a_digest_decides_where_both_have_one(tmp_path: Path) -> None:
    """What was set to the value that it has anyway is no other setting."""
    ledger = Ledger(tmp_path, "figure2")
    ledger.add([result(0, digest="it")])
    more = {"training.lr": 0.1, "network.context": 6}
    assert ledger.find(CHOICE, more, 0, digest="it") is not None
    assert ledger.find(CHOICE, more, 0) is None
    assert ledger.add([result(1, digest="it", settings=more)]) == 0


def test_a_wrong_record_is_never_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "figure2")
    ledger.add([result(0)])
    with pytest.raises(ValueError, match=r'"trials" must be a finite number'):
        ledger.add([dataclasses.replace(result(1), trials=-1)])
    assert [line.seed for line in ledger.results()] == [0]
    ledger.path.write_text("no JSON\n")
    with pytest.raises(ValueError, match=r"figure2.jsonl is no file of records"):
        ledger.add([result(1)])
    assert ledger.path.read_text() == "no JSON\n"
    ledger.path.write_text('{"figure": 3}\n')
    with pytest.raises(
        ValueError,
        match=r'figure2\.jsonl, line 1: "figure" must be 2 .*: restore or delete the line$',
    ):
        ledger.add([result(1)])


def _add_many(rank: int, folder: Path) -> None:
    for seed in range(10):
        Ledger(folder, "figure2").add([result(2 * seed + rank)])


def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    spawn(_add_many, args=(tmp_path,), nprocs=2)
    assert sorted(line.seed for line in Ledger(tmp_path, "figure2").results()) == list(range(20))


def test_replaced_records_are_counted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "figure2")
    assert ledger.add([result(0), result(1)]) == 0
    assert ledger.add([result(0)]) == 0, "made again with the same settings"
    assert ledger.add([result(0, settings={"training.lr": 0.2})]) == 2


def test_a_folder_that_cannot_be_written_to_is_found_out_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        require_writable(tmp_path / "file" / "records")
    require_writable(tmp_path / "new" / "records")
    assert not (tmp_path / "new").exists(), "nothing is left"


def test_a_preset_that_has_changed_makes_other_records(tmp_path: Path) -> None:
    """Early records, which do not say what was not set, are taken for the same."""
    ledger, settings = Ledger(tmp_path, "figure2"), {"training.lr": 0.1}
    ledger.add([result(0), result(1, digest="old")])
    assert ledger.find(CHOICE, settings, 0, digest="new") == result(0)
    assert ledger.find(CHOICE, settings, 1, digest="old") is not None
    assert ledger.find(CHOICE, settings, 1, digest="new") is None
    assert ledger.add([result(2, digest="new")]) == 1
    assert [line.seed for line in ledger.results()] == [0, 2]
