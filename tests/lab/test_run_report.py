"""The report on runs: complete with whatever runs there are, and a page that needs nothing else."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.lab.command_line import zloss
from tests.lab.pets import pets_corpus
from tests.lab.small_runs import edit_state, experiment
from zloss.heads import HeadConfig
from zloss_lab.checksums import sealed
from zloss_lab.documents.document import Document
from zloss_lab.documents.html import html_of
from zloss_lab.documents.markdown import document_markdown
from zloss_lab.inspection.run_facts import readable_facts
from zloss_lab.inspection.run_report import build_report
from zloss_lab.run_starts import starts_of
from zloss_lab.runs import Run
from zloss_lab.seed_intervals import estimate
from zloss_lab.training import TrainingProgress, fit, resumed

EN_DASH = "\N{EN DASH}"
ODD_NAME = "<script>alert(1)</script> [x](y) `a` |b| \x1b[31m*"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three runs with two seeds and two heads."""
    folder = tmp_path_factory.mktemp("report")
    corpus = pets_corpus(folder)
    hierarchical = {"head": HeadConfig(head="hierarchical"), "output_lr": 0.3}
    options: dict[str, dict[str, Any]] = {
        "z0": {"seed": 0},
        "z1": {"seed": 1},
        "tree": hierarchical,
    }
    for name, chosen in options.items():
        fit(experiment(corpus, validation_examples=50, **chosen), folder / "runs" / name)
    return folder / "runs"


@pytest.fixture
def copies(runs: Path, tmp_path: Path) -> Path:
    """The same runs, to change them."""
    return Path(shutil.copytree(runs, tmp_path / "runs"))


def report_of(*folders: Path, faults: tuple[str, ...] = (), metric: str = "mrr") -> Document:
    facts, more_faults = readable_facts([Run.open(folder) for folder in folders])
    assert not more_faults
    return build_report(facts, faults, metric)


def page_of(*folders: Path) -> str:
    return html_of(report_of(*folders))


def markdown_of(*folders: Path, **options: Any) -> str:
    return document_markdown(report_of(*folders, **options))


def rows_of(text: str, heading: str) -> dict[str, list[str]]:
    """Return the rows of the table in a section of Markdown, by their first cell."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


def test_the_page_needs_nothing_else(runs: Path) -> None:
    page = page_of(*sorted(runs.iterdir()))
    assert "<script" not in page
    assert set(re.findall(r'src="([^:]*):', page)) == {"data"}
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', page))
    assert "url(" not in page
    assert "@import" not in page
    assert page.count("<img") == 2  # by seconds and by epochs
    for key in re.findall(r'href="#([^"]*)"', page):
        assert f'id="{key}"' in page


def test_scores_are_those_of_the_best_validations(runs: Path) -> None:
    text = markdown_of(runs / "tree", runs / "z0")
    table = rows_of(text, "Scores")
    for name in ("tree", "z0"):
        run = Run.open(runs / name)
        best = next(one for one in run.metrics() if one["step"] == run.best_step and "mrr" in one)
        cell = table[name][table["run"].index("top 1 error")].strip("*")
        score, _, width = cell.partition(" ± ")
        assert float(score.rstrip("%")) == pytest.approx(100 * best["top_1_error"], rel=0.05)
        assert float(width.rstrip("%")) == pytest.approx(
            100 * best["top_1_error_half_width"], rel=0.05
        )
    assert table["z0"][table["run"].index("perplexity")] == EN_DASH
    differing = rows_of(text, "Settings that differ")
    assert differing["network.head.head"] == ["hierarchical", "factored"]
    assert differing["training.output_lr"] == ["0.3", "0.05"]
    assert "training.batch_size" not in differing
    assert rows_of(text, "Settings of all runs")["training.batch_size"] == ["20"]


def test_after_equal_time_no_run_had_more(copies: Path) -> None:
    """The slow run is compared at the time of the fast one."""
    for name, pace in (("z0", 1.0), ("tree", 3.0)):
        run = Run.open(copies / name)
        lines = [{**one, "seconds": pace * one["step"]} for one in run.metrics()]
        shutil.rmtree(run.folder / "checkpoints")  # their marks are of the old lines
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (run.folder / "metrics.jsonl").write_text(text)
    text = markdown_of(copies / "tree", copies / "z0", metric="mrr")
    assert "within 60.0 seconds, the time of z0 up to its last" in " ".join(text.split())
    table = rows_of(text, "By seconds of training")
    assert table["tree"][-1] == "60.00"  # a third of its steps
    assert float(table["z0"][-1]) in (20.0, 40.0, 60.0)


def test_seeds_are_averaged_where_nothing_else_differs(runs: Path) -> None:
    table = rows_of(markdown_of(runs / "z0", runs / "z1", runs / "tree"), "Means over seeds")
    values = []
    for name in ("z0", "z1"):
        run = Run.open(runs / name)
        values += [
            one["mean_rank"]
            for one in run.metrics()
            if one["step"] == run.best_step and "mrr" in one
        ]
    mean = estimate(values)
    shown = table["z0, z1"][table["runs"].index("mean rank")]
    assert mean.half_width is not None
    assert table["z0, z1"][0] == "2"
    assert table["tree"][0] == "1"
    assert mean.half_width is not None
    assert float(shown.partition(" ± ")[2]) == pytest.approx(mean.half_width, rel=0.05)
    assert "One seed is a hint" in markdown_of(runs / "z0", runs / "tree")


def test_what_is_incomplete_is_said(copies: Path, tmp_path: Path) -> None:
    """A run without its metrics, one that was stopped, and one that has only begun."""
    config = resumed(copies / "z0")
    (copies / "z0" / "metrics.jsonl").unlink()

    def stop(progress: TrainingProgress) -> None:
        if progress.step == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(config, copies / "stopped", watch=stop)
    shutil.copytree(copies / "stopped", copies / "begun")
    shutil.rmtree(copies / "begun" / "checkpoints")
    (copies / "begun" / "metrics.jsonl").unlink()
    for starts in (copies / "z1", copies / "begun"):
        (starts / "starts.jsonl").unlink()
    names = ("z0", "z1", "stopped", "begun")
    text = " ".join(
        markdown_of(*(copies / name for name in names), faults=("x is no run",)).split()
    )
    for said in (
        "z0 has no validation yet.",
        "stopped: not ended at step 30; go on with zloss train --resume.",
        "begun: no checkpoint yet;",
        "Left out: x is no run.",
        f"| z1 | {EN_DASH} | not noted: an earlier version |",
        "Not drawn, without mrr or seconds: z0, begun.",
    ):
        assert said in text, said


def test_scores_of_different_words_and_machines_are_not_compared(copies: Path) -> None:
    edit_state(Run.open(copies / "z1"), lambda state: state.update(vocabulary="0" * 64))
    assert "different vocabularies" in markdown_of(copies / "z0", copies / "z1")
    assert "different machines" not in markdown_of(copies / "z0", copies / "z1")
    lines = (copies / "z1" / "starts.jsonl").read_text().splitlines()
    start = {**json.loads(lines[0]), "device": "another <b>machine</b>"}
    del start["checksum"]
    (copies / "z1" / "starts.jsonl").write_text(json.dumps(sealed(start)) + "\n")
    assert "different machines" in markdown_of(copies / "z0", copies / "z1")
    assert "another &lt;b&gt;machine&lt;/b&gt;" in page_of(copies / "z0", copies / "z1")


def test_names_are_text(copies: Path) -> None:
    folder = copies / ODD_NAME.replace("/", "\N{DIVISION SLASH}")
    (copies / "z0").rename(folder)
    page, text = page_of(folder, copies / "z1"), markdown_of(folder, copies / "z1")
    for shown in (page, text):
        assert "<script" not in shown
        assert "\x1b" not in shown
        assert "&lt;script&gt;" in shown
    assert r"\[x\](y)" in text
    assert r"\|b\|" in text


def test_the_command(
    copies: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert zloss("report", "runs") == 0
    assert capsys.readouterr().out == "wrote runs.html\n"
    assert (tmp_path / "runs.html").read_text().startswith("<!DOCTYPE html>")
    assert zloss("report", "runs/z0", "nowhere", "--to", "one.md", "--metric", "mrr") == 1
    assert capsys.readouterr().err == "left out: there are no runs in nowhere\n"
    assert (tmp_path / "one.md").read_text().startswith("# The run z0\n")
    for arguments, message in (
        (("runs", "--to", "a.pdf"), "a report is .html or .md: name a.pdf so"),
        (("runs", "--metric", "mmr"), "unknown score: 'mmr'; did you mean 'mrr'"),
        (("nowhere",), "no runs in nowhere"),
    ):
        assert zloss("report", *arguments) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "a.pdf").exists()
    with (copies / "z1" / "starts.jsonl").open("a") as file:
        file.write('{"step": 3}\n')
    assert zloss("report", "runs", "--to", "two.html") == 1
    error = capsys.readouterr().err
    assert "z1/starts.jsonl, line 2: it has no checksum: delete the line" in error
    assert "Left out: runs/z1/starts.jsonl" in (tmp_path / "two.html").read_text()


def test_each_start_is_noted(copies: Path) -> None:
    config = resumed(copies / "z0")

    def stop(progress: TrainingProgress) -> None:
        if progress.step == 30:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fit(config, copies / "new", watch=stop)
    fit(config, copies / "new", resume=True)
    fit(config, copies / "new", resume=True)  # nothing is left to train
    assert [start.step for start in starts_of(copies / "new")] == [0, 20]
    assert starts_of(copies / "new")[0].versions.keys() >= {"python", "torch", "zloss"}
    with (copies / "new" / "starts.jsonl").open("a") as file:
        file.write('{"step": 30, "dev')  # a process that was killed while it wrote
    assert len(starts_of(copies / "new")) == 2
