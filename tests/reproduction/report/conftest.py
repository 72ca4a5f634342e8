from pathlib import Path

import pytest

from reproduction.report.evidence import Evidence
from reproduction.report.records import PaperRecords
from reproduction.report.report import build_report
from reproduction.report.timings import Timings
from tests.reproduction.report.made_up import keep_all


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of everything, made up."""
    return keep_all(tmp_path_factory.mktemp("benchmarks"))


@pytest.fixture(scope="session")
def evidence(folder: Path) -> Evidence:
    return Evidence.read(folder)


@pytest.fixture(scope="session")
def page(evidence: Evidence) -> str:
    return build_report(evidence)


@pytest.fixture(scope="session")
def nothing() -> Evidence:
    return Evidence(PaperRecords(), Timings({}))
