"""The documentation site: it builds without a warning, a broken link would be one, and nothing is missing."""

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
    """Build a site as `make docs-site` does, in a folder of the test, but without executing notebooks."""
    sphinx = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    sphinx += ["-D", "nb_execution_mode=off"]  # tests/test_tutorials.py executes each of them once
    places = [f"-c{DOCS}", f"-d{folder / 'doctrees'}", str(source), str(folder / "site")]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # the other tests have the other cores
    return subprocess.run([*sphinx, *places], capture_output=True, text=True, env=one_thread)


def test_the_site_is_complete(tmp_path: Path) -> None:
    """One test of everything, because every test would build the site for itself."""
    built = build(DOCS, tmp_path)
    assert built.returncode == 0, built.stderr
    site = tmp_path / "site"
    assert missing_pages(site) == []
    assert (site / "mathematics.html").read_text("utf-8").count("<math") > 100
    assert 'src="_images/cost-and-quality.svg"' in (site / "index.html").read_text("utf-8")
    assert missing_names(site) == set()


def missing_pages(site: Path) -> list[str]:
    """Return the documents that have no page."""
    pages = [path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")]
    assert len(pages) > 30
    return [page for page in pages if not (site / page).exists()]


def missing_names(site: Path) -> set[str]:
    """Return the public names that the reference lacks. A module's `extra_repr` is for `print` alone."""
    frozen = (DOCS.parent / "tests" / "public_names.txt").read_text("utf-8").splitlines()
    names = {line.partition("(")[0] for line in frozen}
    reference = "".join(page.read_text("utf-8") for page in (site / "api").glob("*.html"))
    shown = set(re.findall(r'id="zloss\.([\w.]+)"', reference))
    return {name for name in names - shown if not name.endswith(".extra_repr")}


def test_a_broken_link_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    (source / "index.md").write_text("# A page\n\nIt [leads](nowhere.md) to nothing.\n", "utf-8")
    built = build(source, tmp_path)
    assert built.returncode != 0
    assert "nowhere.md" in built.stderr
