"""Parts of a document as Markdown, for the pages of `docs/`."""

from collections.abc import Iterable
from textwrap import fill

from zloss_lab.documents.document import (
    BEST,
    Badge,
    Block,
    Bullets,
    Cell,
    Code,
    Heading,
    Headlines,
    Inline,
    Link,
    Paragraph,
    Picture,
    Table,
    as_cell,
)

_MARKS = {BEST: "**{}**"}


def markdown_of(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown. Pictures and headlines are for the page alone, and left out.

    >>> sentence = Paragraph(("Run ", Code("make docs"), "."))
    >>> print(markdown_of([sentence, Bullets((("one",), ("two",)))]))
    Run `make docs`.
    <BLANKLINE>
    - one
    - two
    """
    return "\n\n".join(text for block in blocks if (text := _block(block)))


def table_markdown(table: Table) -> str:
    """Return a table as Markdown.

    >>> print(table_markdown(Table(("loss", "top-1"), [("a | b", Cell("71.0", BEST))])))
    | loss | top-1 |
    |---|---:|
    | a \\| b | **71.0** |
    """
    rule = "|" + "".join(
        "---|" if place < table.words else "---:|" for place in range(len(table.columns))
    )
    rows = (_line(_cell(as_cell(cell)) for cell in row) for row in table.rows)
    return "\n".join([_line(table.columns), rule, *rows])


def wrapped(text: str) -> str:
    """Return a paragraph in lines that are as long as the lines of the documents, at most 120 characters."""
    return fill(text, width=120, break_long_words=False, break_on_hyphens=False)


def _block(block: Block) -> str:
    match block:
        case Heading(text):
            return f"### {text}"
        case Paragraph(content):
            return wrapped("".join(map(_inline, content)))
        case Bullets(items):
            return "\n".join(f"- {''.join(map(_inline, item))}" for item in items)
        case Table():
            return table_markdown(block)
        case Picture() | Headlines():
            return ""


def _inline(part: Inline) -> str:
    match part:
        case Code(text):
            return f"`{text}`"
        case Link(text, address):
            return f"[{text}]({address})"
        case Badge(text, _):
            return f"*{text}*"
        case str():
            return part


def _cell(cell: Cell) -> str:
    return _MARKS.get(cell.meaning, "{}").format(cell.text)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
