from pathlib import Path

import pytest

from reproduction.report.evidence import Evidence
from reproduction.report.full_report import build_report
from reproduction.report.timings import Timings
from reproduction.results.paper_results import PaperResults
from tests.reproduction.report.made_up import keep_all, read
from zloss_lab.documents.html import html_of


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make records of everything."""
    return keep_all(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="session")
def evidence(folder: Path) -> Evidence:
    return read(folder)


@pytest.fixture(scope="session")
def page(evidence: Evidence) -> str:
    return html_of(build_report(evidence))


@pytest.fixture(scope="session")
def nothing() -> Evidence:
    return Evidence(PaperResults(), Timings({}))
