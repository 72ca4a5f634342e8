"""A document as Markdown, or parts of one, as for the pages of `docs/`."""

import re
from collections.abc import Iterable
from dataclasses import replace
from html import escape
from textwrap import fill

from zloss_lab.documents.document import (
    BEST,
    Badge,
    Block,
    Bullets,
    Cell,
    Code,
    Document,
    Heading,
    Headlines,
    Inline,
    Link,
    Paragraph,
    Picture,
    Table,
    as_cell,
)

# Characters that make markup of a line, except < and &, which HTML escapes.
_MEANT = re.compile(r"[\\`*\[\]]")
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


def document_markdown(document: Document) -> str:
    """Return a whole document as Markdown. Its texts are shown as they are, and none of them is markup.

    A picture is left out, and its caption says so.

    >>> from zloss_lab.documents.document import Section
    >>> part = Section("one", "One", (Paragraph(("a < b", Code("c"))),))
    >>> print(document_markdown(Document("*Title*", (), (), (part,))))
    # \\*Title\\*
    <BLANKLINE>
    ## One
    <BLANKLINE>
    a &lt; b`c`
    """
    parts = [
        f"# {_plain(document.title)}",
        markdown_of(map(_without_markup, document.introduction)),
    ]
    for section in document.sections:
        parts += [f"## {_plain(section.title)}", markdown_of(map(_without_markup, section.blocks))]
    return "\n\n".join(part for part in parts if part)


def _without_markup(block: Block) -> Block:
    """Return a block in which no text is read as Markdown or as HTML."""
    match block:
        case Heading(text):
            return Heading(_plain(text))
        case Paragraph(content, role):
            return Paragraph(tuple(map(_plain_part, content)), role)
        case Bullets(items, role):
            return Bullets(tuple(tuple(map(_plain_part, item)) for item in items), role)
        case Table(columns, rows):
            cells = [
                [replace(cell, text=_plain(cell.text)) for cell in map(as_cell, row)]
                for row in rows
            ]
            return replace(block, columns=list(map(_plain, columns)), rows=cells)
        case Picture(_, _, caption):
            return Paragraph((_plain(f"{caption} The picture is on the HTML page."),))
        case Headlines():
            return block


def _plain_part(part: Inline) -> Inline:
    return _plain(part) if isinstance(part, str) else part


def _plain(text: str) -> str:
    """Return a text whose characters have no meaning in Markdown. Underscores have none inside of words."""
    text = escape(text, quote=False).replace("\n", " ")
    return _MEANT.sub(r"\\\g<0>", text)


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
