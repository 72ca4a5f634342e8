"""The command `zloss bench profile`."""

from pathlib import Path

import pytest
import torch

from tests.lab.bench.bench_command import FIELDS, bench
from zloss_lab.records import read_records


def test_a_profile_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("profile", "--device", "cpu") == 1
    assert "a profile needs a GPU" in capsys.readouterr().err


def test_a_profile_has_the_launches_of_a_step(
    tmp_path: Path, cuda: torch.device, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profile.jsonl"
    sizes = ("--batch", "20,100", "--hidden", 64, "--classes", 100_000)
    assert bench("profile", *sizes, "--output", file) == 0
    records = read_records(file)
    assert [record["batch"] for record in records] == [20, 100]
    for record in records:
        assert record.keys() >= FIELDS
        names = [launch["name"] for launch in record["launches"]]
        assert {"_gather", "_reduce", "_gradient", "apply_step", "product"} <= set(names)
        assert names[-1] == "apply_step"
        assert 0 < record["arithmetic_ms"] < record["time_ms"]
    assert "apply_step" in capsys.readouterr().out
