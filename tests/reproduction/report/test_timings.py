"""Table 1 from records of the benchmark."""

from pathlib import Path
from typing import Any

import pytest

from reproduction.report.full_report import build_report
from reproduction.report.published import EPOCH_S, convergence_ratio, epoch_ratio
from reproduction.report.timings import Timings
from tests.reproduction.report.made_up import keep, network_step, read, step
from zloss_lab.documents.html import html_of


def test_an_epoch_is_750_000_steps(tmp_path: Path) -> None:
    keep(tmp_path / "output.cuda.jsonl", [step("factored", 0.1, "cuda")])
    assert Timings.read(tmp_path).epoch_s("output", "z_loss", "cuda") == pytest.approx(75.0)


def test_every_loss_is_taken_as_it_runs_fastest(tmp_path: Path) -> None:
    times = {"dense": 9.0, "dense-tf32": 8.0, "cce": 1.0}
    lines = [step("factored", 3.0, "cuda"), step("factored", 0.1, "cuda", launch="graph")]
    lines += [step(entry, time_ms, "cuda") for entry, time_ms in times.items()]
    lines += [
        step("dense-bf16", 0.5, "cuda", classes=10_000),
        step("dense-bf16", 0.5, "cuda", batch=100),
    ]
    keep(tmp_path / "speed.cuda.jsonl", lines)
    timings = Timings.read(tmp_path)
    assert timings.ratio("output", "softmax", "cuda") == pytest.approx(
        80.0
    )  # CCE leaves out gradients: no softmax
    assert timings.ratio("output", "z_loss", "cuda") == 1.0


def test_hierarchical_softmax_is_timed_with_words_as_they_occur(tmp_path: Path) -> None:
    keep(
        tmp_path / "output.cuda.jsonl",
        [
            step("factored", 1.0, "cuda"),
            step("hierarchical", 5.0, "cuda", targets="uniform"),
            step("hierarchical", 6.0, "cuda", targets="zipf"),
        ],
    )
    assert Timings.read(tmp_path).ratio("output", "hierarchical", "cuda") == 6.0


def test_ratios_on_a_cpu_are_those_of_turns(tmp_path: Path) -> None:
    dense = network_step("dense", 500.0, "cpu") | {"ratio_to_factored": 38.5}
    keep(tmp_path / "model.cpu.jsonl", [network_step("factored", 10.0, "cpu"), dense])
    assert Timings.read(tmp_path).ratio("model", "softmax", "cpu") == 38.5


def test_a_step_on_a_cpu_that_took_no_turns_has_no_ratio(tmp_path: Path) -> None:
    alone = {
        key: value
        for key, value in step("dense", 500.0, "cpu").items()
        if key != "ratio_to_factored"
    }
    keep(tmp_path / "timings" / "output.cpu.jsonl", [step("factored", 10.0, "cpu"), alone])
    evidence = read(tmp_path)
    assert evidence.timings.ratio("output", "softmax", "cpu") is None
    assert "zloss bench output --device cpu" in html_of(build_report(evidence))


def test_a_ratio_is_of_one_run(tmp_path: Path) -> None:
    keep(
        tmp_path / "speed.cuda.jsonl",
        [step("factored", 1.0, "cuda"), step("dense", 70.0, "cuda")],
    )
    keep(tmp_path / "output.cuda.jsonl", [step("factored", 0.5, "cuda")])
    timings = Timings.read(tmp_path)
    assert timings.epoch_s("output", "z_loss", "cuda") == pytest.approx(375.0)
    assert timings.ratio("output", "softmax", "cuda") is None


def test_what_could_not_run_does_not_count(tmp_path: Path) -> None:
    missing = step("dense", 1.0, "cuda") | {"time_ms": None, "missing": "no memory"}
    keep(tmp_path / "output.cuda.jsonl", [step("factored", 1.0, "cuda"), missing])
    assert Timings.read(tmp_path).ratio("output", "softmax", "cuda") is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"time_ms": "fast"}, "time_ms must be float or none, got 'fast'"),
        ({"time_ms": 0.0}, "time_ms must be a number above 0, got 0.0"),
        ({"classes": None}, "classes must be int, got None"),
        ({"classes": -1}, "classes must be a number above 0, got -1"),
        ({"ratio_to_factored": [1]}, "ratio_to_factored must be float or none, got [1]"),
        ({"entry": 7}, "entry must be str, got 7"),
        ({"versions": None}, "versions must be a table of str, got None"),
    ],
)
def test_half_a_record_is_named(change: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    keep(
        tmp_path / "output.cuda.jsonl",
        [step("factored", 1.0, "cuda"), step("factored", 1.0, "cuda") | change],
    )
    with pytest.raises(ValueError, match=r"line 2 of .*output\.cuda\.jsonl: ") as error:
        Timings.read(tmp_path)
    assert complaint in str(error.value)


def test_a_line_without_a_time_is_refused(tmp_path: Path) -> None:
    line = network_step("factored", 1.0, "cuda")
    for lacking in ("entry", "classes", "time_ms", "device", "versions", "commit"):
        keep(
            tmp_path / "model.cpu.jsonl",
            [{name: value for name, value in line.items() if name != lacking}],
        )
        with pytest.raises(
            ValueError, match=rf"line 1 of .*model\.cpu\.jsonl: missing key: '{lacking}'"
        ):
            Timings.read(tmp_path)


def test_growth_is_over_the_widest_range(tmp_path: Path) -> None:
    keep(
        tmp_path / "scaling.cuda.jsonl",
        [
            step("factored", 1.0, "cuda", classes=10**4),
            step("factored", 1.1, "cuda", classes=10**7),
        ],
    )
    keep(
        tmp_path / "output.cuda.jsonl",
        [step("factored", 1.0, "cuda", classes=10**4), step("factored", 9.0, "cuda")],
    )
    growth = Timings.read(tmp_path).growth("z_loss", "cuda")
    assert growth is not None
    assert (growth.few, growth.many) == (10**4, 10**7)
    assert growth.factor == pytest.approx(1.1)
    assert Timings.read(tmp_path).growth("hierarchical", "cuda") is None


def test_growth_is_not_from_one_kind_of_targets_to_another(tmp_path: Path) -> None:
    uniform = {10**4: 5.0, 10**6: 15.0}
    lines = [
        step("hierarchical", time_ms, "cuda", classes=classes, targets="uniform")
        for classes, time_ms in uniform.items()
    ]
    lines.append(step("hierarchical", 6.0, "cuda", classes=10**6, targets="zipf"))
    keep(tmp_path / "output.cuda.jsonl", lines)
    growth = Timings.read(tmp_path).growth("hierarchical", "cuda")
    assert growth is not None
    assert growth.factor == pytest.approx(3.0)


def test_runs_of_growth_are_among_those_that_count(tmp_path: Path) -> None:
    few, many = (
        step("factored", 1.0, "cuda", classes=10**4),
        step("factored", 1.1, "cuda", classes=10**7),
    )
    keep(tmp_path / "scaling.cuda.jsonl", [line | {"commit": "of scaling"} for line in (few, many)])
    keep(
        tmp_path / "output.cuda.jsonl",
        [few, step("factored", 1.0, "cuda") | {"commit": "of output"}],
    )
    assert [record.commit for record in Timings.read(tmp_path).used()] == [
        few["commit"],
        "of scaling",
    ]


def test_the_paper_s_ratios_are_those_it_tells() -> None:
    """About 40 times and more than 4 times for the whole model; the others follow from table 1."""
    assert epoch_ratio("model", "softmax", "cuda") == pytest.approx(38.9, abs=0.1)
    assert epoch_ratio("model", "hierarchical", "cuda") == pytest.approx(4.35, abs=0.01)
    assert epoch_ratio("output", "softmax", "cuda") == pytest.approx(85.9, abs=0.1)
    assert epoch_ratio("output", "hierarchical", "cuda") == pytest.approx(8.77, abs=0.01)
    assert epoch_ratio("output", "softmax", "cpu") == pytest.approx(192.7, abs=0.1)
    assert epoch_ratio("model", "softmax", "cpu") == pytest.approx(10.47, abs=0.01)
    assert epoch_ratio("model", "hierarchical", "cpu") is None
    assert convergence_ratio() == pytest.approx(4.21, abs=0.01)
    assert len(EPOCH_S) == 10
