"""The numbers of README.md are those of the records."""

from benchmarks.tables import ROOT, TABLES, rebuilt


def test_readme_shows_what_the_records_say() -> None:
    text = (ROOT / "README.md").read_text()
    assert all(f"<!-- table: {name} -->" in text for name in TABLES)
    assert rebuilt(text) == text, "run `make docs`"


def test_a_stale_table_is_noticed() -> None:
    stale = "before\n<!-- table: accuracy -->\n| made up | 1e-99 |\n<!-- end -->\nafter"
    new = rebuilt(stale)
    assert "1e-99" not in new
    assert new.startswith("before\n<!-- table: accuracy -->\n| float32 weights after 20,000 steps")
    assert new.endswith("<!-- end -->\nafter")
    assert rebuilt(new) == new
