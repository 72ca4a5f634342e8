"""The documentation site: it builds without a warning, and a broken link would be one."""

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def build(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build a site as `make docs-site` does, in a folder of the test."""
    sphinx = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    places = ["-c", DOCS, "-d", folder / "doctrees", source, folder / "site"]
    return subprocess.run([*sphinx, *places], capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site once; this executes the tutorials."""
    folder = tmp_path_factory.mktemp("docs")
    built = build(DOCS, folder)
    assert built.returncode == 0, built.stderr
    return folder / "site"


def test_every_page_is_built(site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")}
    assert len(pages) > 30
    assert [page for page in pages if not (site / f"{page}.html").exists()] == []


def test_formulas_and_pictures_are_rendered(site: Path) -> None:
    assert (site / "mathematics.html").read_text("utf-8").count("<math") > 100
    assert 'src="_images/cost-and-quality.svg"' in (site / "index.html").read_text("utf-8")


def test_the_reference_shows_docstrings(site: Path) -> None:
    page = (site / "api/layers.html").read_text("utf-8")
    assert 'id="zloss.FactoredLinear.to_linear"' in page


def test_a_broken_link_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    (source / "index.md").write_text("# A page\n\nIt [leads](nowhere.md) to nothing.\n", "utf-8")
    built = build(source, tmp_path)
    assert built.returncode != 0
    assert "nowhere.md" in built.stderr
