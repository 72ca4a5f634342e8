"""Learning rates that are tried, and the one that is taken."""

import json
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.spawn import spawn

from tests.reproduction.running.command_line import run, typed
from tests.reproduction.running.small import flags, lines, results
from zloss_lab.records import read_records
from zloss_lab.training import Experiment


def test_the_rate_that_validates_best_is_taken(
    table2: list[object], tmp_path: Path, fitted: list[Experiment], opened: list[str]
) -> None:
    """Before the test split is opened; and what was taken stays."""
    asked = [
        *table2,
        *typed("--budget 0.5 --rates 1e-9,0.3,1e30 --try-for 0.2 --models z_loss_net1"),
    ]
    asked += flags("training.score=mean_rank")  # in which some steps make a difference
    assert run(*asked, "--seeds", 1) == 0
    assert [experiment.training.lr for experiment in fitted] == [1e-9, 0.3, 1e30, 0.3]
    assert [experiment.training.seconds for experiment in fitted] == [0.2, 0.2, 0.2, 0.5]
    assert fitted[0].training.output_lr == pytest.approx(1e-9 * 60)
    assert opened[-1] == "test"
    assert "test" not in opened[: 2 * len(fitted)]
    assert opened.count("test") == 1
    assert results(tmp_path / "records")["z_loss_net1"][0].settings["training.lr"] == 0.3
    assert lines(tmp_path / "records", "table2")[0]["rates_tried"] == [
        1e-9,
        0.3,
        1e30,
    ]
    assert not (tmp_path / "runs").exists(), "none is needed any longer"
    fitted.clear()
    assert run(*asked, "--seeds", 2) == 0
    assert [(experiment.training.lr, experiment.training.seed) for experiment in fitted] == [
        (0.3, 1)
    ]


@pytest.mark.parametrize(("digest", "tried"), [("of another preset", 2), (None, 0)])
def test_the_rate_of_a_stale_record_is_not_taken(
    digest: str | None, tried: int, table2: list[object], tmp_path: Path, fitted: list[Experiment]
) -> None:
    """Its settings are the same, but a preset has changed since; early records have no digest, and count."""
    asked = [
        *table2,
        *typed("--budget 0.1 --rates 0.1,0.2 --try-for 0.1 --models z_loss_net1"),
    ]
    assert run(*asked, "--seeds", 1) == 0
    path = tmp_path / "records" / "table2.jsonl"
    path.write_text(json.dumps(read_records(path)[0] | {"digest": digest}) + "\n")
    fitted.clear()
    assert run(*asked, "--seeds", 2) == 0
    assert [experiment.training.seed for experiment in fitted] == [0] * tried + (
        [0, 1] if tried else [1]
    )


def test_records_name_only_the_rates_that_were_tried(
    table2: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second seed takes the rate of the first."""
    asked = [*table2, "--models", "z_loss_net1", "--budget", 0.1, "--try-for", 0.1]
    assert run(*asked, "--seeds", 1, "--rates", "0.1,0.2") == 0
    (line,) = lines(tmp_path / "records", "table2")
    assert run(*asked, "--seeds", 2, "--rates", f"0.05,{line['settings']['training.lr']}") == 0
    assert "no others are tried" in capsys.readouterr().out
    assert [line["rates_tried"] for line in lines(tmp_path / "records", "table2")] == [
        [0.1, 0.2]
    ] * 2


def _seed_in_a_process(rank: int, arguments: list[object]) -> None:
    torch.set_num_threads(1)
    code = run(*arguments, "--first-seed", rank)
    assert code == 0, f"exit code {code}"


def test_two_commands_try_rates_at_once(table2: list[object], tmp_path: Path) -> None:
    settings = flags(
        "training.validate_every=20", "training.stop_after=1", "training.lr_factor=0.1"
    )
    asked = [
        *table2,
        *typed("--models z_loss_net1 --seeds 1"),
        *settings,
        *typed("--converged --shared-device"),
    ]
    spawn(
        _seed_in_a_process, args=([*asked, "--rates", "0.3,0.1,0.2", "--try-for", 0.4],), nprocs=2
    )
    found = results(tmp_path / "records")["z_loss_net1"]
    assert sorted(one.seed for one in found) == [0, 1]
    assert len({one.settings["training.lr"] for one in found}) == 1
    assert not list((tmp_path / "records").glob("*.replaced.jsonl"))
    assert not list((tmp_path / "runs").glob("*")), "none is needed any longer"
