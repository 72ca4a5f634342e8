"""A document as one HTML page that needs nothing else: no scripts, no fonts, no pictures from elsewhere.

All text is escaped here, because records may come from anywhere.
"""

import base64
from collections.abc import Iterator
from html import escape
from importlib import resources

from zloss_lab.documents.document import (
    Badge,
    Block,
    Bullets,
    Code,
    Document,
    Heading,
    Headline,
    Headlines,
    Inline,
    Link,
    Paragraph,
    Picture,
    Row,
    Section,
    Table,
    as_cell,
)


def html_of(document: Document) -> str:
    """Return the whole page."""
    style = resources.files("zloss_lab.documents").joinpath("page.css").read_text(encoding="utf-8")
    style += document.style
    links = (_element("li", _inline(link)) for link in document.links)
    header = _element(
        "header",
        _element("h1", escape(document.title)),
        *map(_block, document.introduction),
        _element("nav", _element("ul", *links)),
    )
    body = "\n".join([header, *map(_section, document.sections)])
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document.title)}</title>\n<style>\n{style}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _section(section: Section) -> str:
    title = _element("h2", escape(section.title))
    return _element("section", title, *map(_block, section.blocks), id=section.key)


def _block(block: Block) -> str:
    match block:
        case Heading(text):
            return _element("h3", escape(text))
        case Paragraph(content, role):
            return _element("p", *map(_inline, content), css=role)
        case Bullets(items, role):
            lines = (_element("li", *map(_inline, item)) for item in items)
            return _element("ul", *lines, css=role)
        case Table():
            return _table(block)
        case Picture():
            return _picture(block)
        case Headlines(items):
            return _element("div", *map(_headline, items), css="headlines")


def _inline(part: Inline) -> str:
    match part:
        case Code(text):
            return _element("code", escape(text))
        case Link(text, address):
            return _element("a", escape(text), href=address)
        case Badge(text, meaning):
            return _element("span", escape(text), css=meaning)
        case str():
            return escape(part)


def _picture(picture: Picture) -> str:
    """Return the drawing as an image of its own: names inside of one SVG clash with the names inside of another."""
    data = base64.b64encode(picture.svg).decode()
    image = f'<img alt="{escape(picture.alternative)}" src="data:image/svg+xml;base64,{data}">'
    return _element("figure", image, _element("figcaption", escape(picture.caption)))


def _headline(headline: Headline) -> str:
    return _element(
        "div",
        _element("b", escape(headline.number)),
        _element("span", escape(headline.about)),
        _element("span", escape(headline.beside), css="beside"),
        css="headline",
    )


def _table(table: Table) -> str:
    """Return a table in a box that scrolls where the screen is narrow.

    Every cell has the name of its column, so that a narrow screen may also show rows as cards (role "prose").
    """
    names = [
        _element("th", escape(name), scope="col", css=_side(table, place))
        for place, name in enumerate(table.columns)
    ]
    rows = [_element("tr", *_cells(table, row)) for row in table.rows]
    grid = _element("table", _element("thead", _element("tr", *names)), _element("tbody", *rows))
    return _element("div", _element("div", grid, css="scroll", tabindex="0"), css=table.role)


def _cells(table: Table, row: Row) -> Iterator[str]:
    for place, cell in enumerate(map(as_cell, row)):
        text = escape(cell.text)
        content = _element("span", text, css=cell.meaning) if cell.meaning else text
        label = {"data-label": table.columns[place]}
        if place == 0:
            yield _element("th", content, scope="row", css=_side(table, place), **label)
        else:
            yield _element("td", content, css=_side(table, place), **label)


def _side(table: Table, place: int) -> str:
    return "" if place < table.words else "number"


def _element(tag: str, *content: str, css: str = "", **attributes: str) -> str:
    """Return an element around markup.

    >>> _element("p", "one", css="note")
    '<p class="note">one</p>'
    """
    named = ({"class": css} if css else {}) | attributes
    opening = "".join(f' {name}="{escape(value)}"' for name, value in named.items())
    return f"<{tag}{opening}>{''.join(content)}</{tag}>"
