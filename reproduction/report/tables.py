"""Table: rows of text. It renders itself as markdown; `page.py` makes HTML of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """Text that is more than plain: `kind` is a class of the style sheet."""

    text: str
    kind: str = ""


Row = Sequence[Cell | str]

BEST, MISSING = "best", "missing"  # of its column; a record
_MARKDOWN = {BEST: "**{}**"}


@dataclass(frozen=True)
class Table:
    """Names of columns and rows of cells; the first `words` columns are text, the others numbers."""

    columns: Sequence[str]
    rows: Sequence[Row]
    words: int = 1

    def to_markdown(self) -> str:
        """For a document.

        >>> print(Table(("loss", "top-1"), [("a | b", Cell("71.0", BEST))]).to_markdown())
        | loss | top-1 |
        |---|---:|
        | a \\| b | **71.0** |
        """
        rule = "|" + "".join(
            "---|" if place < self.words else "---:|" for place in range(len(self.columns))
        )
        return "\n".join(
            [_line(self.columns), rule, *(_line(map(_markdown, row)) for row in self.rows)]
        )


def as_cell(cell: Cell | str) -> Cell:
    """Plain text is a cell too."""
    return cell if isinstance(cell, Cell) else Cell(cell)


def _markdown(cell: Cell | str) -> str:
    cell = as_cell(cell)
    return _MARKDOWN.get(cell.kind, "{}").format(cell.text)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
