"""A table of the splits of a prepared corpus."""

from rich.markup import escape
from rich.table import Table

from zloss_lab.corpora.corpus import Corpus


def corpus_table(corpus: Corpus) -> Table:
    """Return a table with the size of the vocabulary and the words of every split."""
    # The name may come from somebody else, and codes for the terminal could change what the user sees.
    name = "".join(one if one.isprintable() else "\ufffd" for one in corpus.name)
    title = f"{escape(name)}: {len(corpus.vocabulary):,} words in the vocabulary"
    table = Table("split", title=title, min_width=50)
    table.add_column("words", justify="right")
    for name, split in corpus.manifest["splits"].items():
        table.add_row(name, f"{split['words']:,}")
    return table
