"""The numbers of the documents are those of the records."""

from benchmarks.tables import DOCUMENTS, TABLES, rebuilt, stale_documents


def test_documents_show_what_the_records_say() -> None:
    text = "".join(document.read_text() for document in DOCUMENTS)
    assert all(f"<!-- table: {name} -->" in text for name in TABLES)
    assert stale_documents() == {}, "run `make docs`"


def test_a_stale_table_is_noticed() -> None:
    stale = "before\n<!-- table: accuracy -->\n| made up | 1e-99 |\n<!-- end -->\nafter"
    new = rebuilt(stale)
    assert "1e-99" not in new
    assert new.startswith("before\n<!-- table: accuracy -->\n| float32 weights after 20,000 steps")
    assert new.endswith("<!-- end -->\nafter")
    assert rebuilt(new) == new
