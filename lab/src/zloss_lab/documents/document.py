"""A document: sections of paragraphs, lists, tables and pictures, without any markup.

`html.py` renders it as a page, and `markdown.py` renders it, or parts of it, as Markdown.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# The meaning of a cell or badge: each is a class of the style sheet, and some have marks in Markdown.
BEST, MISSING = "best", "missing"  # the best of a column; a result that is not there
WON, LOST, EVEN = "won", "lost", "even"  # differences


@dataclass(frozen=True)
class Code:
    """A command or a name of a program."""

    text: str


@dataclass(frozen=True)
class Link:
    """A text that leads to an address, or to a section where the address begins with #."""

    text: str
    address: str


@dataclass(frozen=True)
class Badge:
    """A short text with a colour, by its meaning."""

    text: str
    meaning: str


Inline = str | Code | Link | Badge


@dataclass(frozen=True)
class Heading:
    """The title of a part of a section."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    content: tuple[Inline, ...]
    role: str = ""  # a class of the style sheet, such as "note"


@dataclass(frozen=True)
class Bullets:
    """A list; each item is running text."""

    items: tuple[tuple[Inline, ...], ...]
    role: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell of a table whose text has a meaning beside it."""

    text: str
    meaning: str = ""


Row = Sequence[Cell | str]


@dataclass(frozen=True)
class Table:
    """Names of columns and rows of cells; the first `words` columns are text, the others numbers."""

    columns: Sequence[str]
    rows: Sequence[Row]
    words: int = 1
    role: str = ""


@dataclass(frozen=True)
class Picture:
    """A drawing as SVG."""

    svg: bytes
    alternative: str  # for people who cannot see it
    caption: str


@dataclass(frozen=True)
class Headline:
    """A number that sums up a part of the report, with a number to compare it with."""

    number: str
    about: str
    beside: str


@dataclass(frozen=True)
class Headlines:
    """Numbers that sum up the report, side by side."""

    items: tuple[Headline, ...]


Block = Heading | Paragraph | Bullets | Table | Picture | Headlines


@dataclass(frozen=True)
class Section:
    """A part of the document that links can lead to, by its key."""

    key: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """A title, an introduction and sections."""

    title: str
    introduction: tuple[Block, ...]
    links: tuple[Link, ...]  # to sections
    sections: tuple[Section, ...]
    style: str = ""  # rules of CSS for roles that only this document has


def paragraph(*content: Inline, role: str = "") -> Paragraph:
    """Return a paragraph of these parts."""
    return Paragraph(content, role)


def bullets(lines: Iterable[str], role: str = "") -> Bullets:
    """Return a list of plain lines."""
    return Bullets(tuple((line,) for line in lines), role)


def as_cell(cell: Cell | str) -> Cell:
    """Return the cell, or a cell without a meaning where it is plain text."""
    return cell if isinstance(cell, Cell) else Cell(cell)
