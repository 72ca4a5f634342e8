"""Pieces of an HTML page that needs nothing but itself: no scripts, no fonts, no pictures from elsewhere.

Everything that comes from outside, records included, is escaped here; pieces that are already HTML are `Html`.
"""

import base64
from collections.abc import Iterable, Iterator
from html import escape
from importlib import resources

from reproduction.report.tables import Row, Table, as_cell


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def markup(text: str) -> Html:
    """Markup as it is, plain text escaped.

    >>> markup("a < b"), markup(Html("<b>a</b>"))
    ('a &lt; b', '<b>a</b>')
    """
    return text if isinstance(text, Html) else Html(escape(text))


def element(tag: str, *content: str, css: str = "", **attributes: str) -> Html:
    """One element.

    >>> element("p", "a < b", css="note")
    '<p class="note">a &lt; b</p>'
    """
    named = ({"class": css} if css else {}) | attributes
    opening = "".join(f' {name}="{escape(value)}"' for name, value in named.items())
    return Html(f"<{tag}{opening}>{''.join(map(markup, content))}</{tag}>")


def paragraph(*content: str, css: str = "") -> Html:
    """A paragraph."""
    return element("p", *content, css=css)


def bullets(lines: Iterable[str]) -> Html:
    """A list; nothing where it would be empty."""
    items = [element("li", line) for line in lines]
    return element("ul", *items) if items else Html("")


def section(title: str, *content: str, name: str) -> Html:
    """A part of the page that links can lead to."""
    return element("section", element("h2", title), *content, id=name)


def figure(svg: bytes, alternative: str, caption: str) -> Html:
    """A picture inside of the page, as an image of its own: names inside of one SVG clash with those of another."""
    data = base64.b64encode(svg).decode()
    image = Html(f'<img alt="{escape(alternative)}" src="data:image/svg+xml;base64,{data}">')
    return element("figure", image, element("figcaption", caption))


def boxed(table: Table, css: str = "") -> Html:
    """A table in a box of its own, which scrolls where the screen is narrow.

    Every cell knows the name of its column, so that a narrow screen may also show rows as cards (class "prose").
    """
    names = [
        element("th", name, scope="col", css=_side(table, place))
        for place, name in enumerate(table.columns)
    ]
    rows = [element("tr", *_cells(table, row)) for row in table.rows]
    body = element("table", element("thead", element("tr", *names)), element("tbody", *rows))
    return element("div", element("div", body, css="scroll", tabindex="0"), css=css)


def _cells(table: Table, row: Row) -> Iterator[Html]:
    for place, cell in enumerate(map(as_cell, row)):
        content = element("span", cell.text, css=cell.kind) if cell.kind else cell.text
        label = {"data-label": table.columns[place]}
        if place == 0:
            yield element("th", content, scope="row", css=_side(table, place), **label)
        else:
            yield element("td", content, css=_side(table, place), **label)


def _side(table: Table, place: int) -> str:
    return "" if place < table.words else "number"


def document(title: str, *content: str) -> str:
    """The whole page."""
    style = resources.files("reproduction.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style></head>\n"
        f"<body><main>\n{chr(10).join(map(markup, content))}\n</main></body></html>\n"
    )
