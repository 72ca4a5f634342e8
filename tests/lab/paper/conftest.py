from pathlib import Path

import pytest

from tests.lab.paper.made_up import keep_all
from zloss.lab.paper.evidence import Evidence
from zloss.lab.paper.records import PaperRecords
from zloss.lab.paper.report import build_report
from zloss.lab.paper.timings import Timings


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
