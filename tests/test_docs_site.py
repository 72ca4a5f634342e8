"""The documentation site: it builds without a warning, and a broken link would be one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# `make test` has them. A machine that runs the other tests without an installation may not.
for package in ("myst_nb", "pydata_sphinx_theme", "sphinx_copybutton"):
    pytest.importorskip(package, reason=f"{package} is not installed")

DOCS = Path(__file__).parents[1] / "docs"


def build(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build a site as `make docs-site` does, in a folder of the test."""
    sphinx = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    places = [f"-c{DOCS}", f"-d{folder / 'doctrees'}", str(source), str(folder / "site")]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # the other tests have the other cores
    return subprocess.run([*sphinx, *places], capture_output=True, text=True, env=one_thread)


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


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    """A module's `extra_repr` is left out: it is for `print` alone."""
    reference = "".join(page.read_text("utf-8") for page in sorted((site / "api").glob("*.html")))
    frozen = (DOCS.parent / "tests" / "public_names.txt").read_text("utf-8").splitlines()
    names = {line.partition("(")[0] for line in frozen}
    shown = set(re.findall(r'id="zloss\.([\w.]+)"', reference))
    assert {name for name in names - shown if not name.endswith(".extra_repr")} == set()


def test_a_broken_link_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    (source / "index.md").write_text("# A page\n\nIt [leads](nowhere.md) to nothing.\n", "utf-8")
    built = build(source, tmp_path)
    assert built.returncode != 0
    assert "nowhere.md" in built.stderr
