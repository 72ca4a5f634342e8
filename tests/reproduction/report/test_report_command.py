"""The files of the report, and the command that writes them."""

import re
from pathlib import Path

import pytest

from reproduction.report.evidence import Evidence
from reproduction.report.full_report import write_report
from tests.reproduction.report import made_up
from tests.reproduction.running.command_line import reproduction


def records_of(folder: Path) -> tuple[object, ...]:
    return "--records", folder / "results", "--timings", folder / "timings"


def test_png_files_of_what_is_there(tmp_path: Path, nothing: Evidence) -> None:
    written = write_report(nothing, tmp_path / "page.html", tmp_path / "pictures")
    assert [path.name for path in written] == ["page.html", "figure1.png"]
    assert (tmp_path / "pictures" / "figure1.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_writes_the_page(
    tmp_path: Path, folder: Path, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "r [bold] [" / "x].html"  # no markup, though it looks like some
    assert reproduction("report", "--to", place, *records_of(folder)) == 0
    assert place.read_text() == page
    output = capsys.readouterr().out
    assert output.startswith(f"wrote {place}\n")
    assert re.search(r"\d+ reproduced, 2 better, 2 partly, 1 not reproduced", output)


@pytest.mark.parametrize(("make", "complaint"), [(False, "no records in"), (True, "line 1: ")])
def test_mistakes_are_one_line(
    tmp_path: Path, make: bool, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if make:
        made_up.keep(tmp_path / "results" / "figure3.jsonl", [{"figure": 3}])
    assert reproduction("report", "--to", tmp_path / "r.html", *records_of(tmp_path)) == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert complaint in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("option", ["--records", "--timings"])
def test_a_folder_that_is_named_has_to_exist(
    option: str,
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A mistyped name would otherwise make a page on which nothing is run."""
    monkeypatch.chdir(tmp_path)
    assert reproduction("report", *records_of(folder), option, "nowhere") == 1
    assert capsys.readouterr().err == "error: no records in nowhere: there is no such folder\n"
    assert list(tmp_path.iterdir()) == []
