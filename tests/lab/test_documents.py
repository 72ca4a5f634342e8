"""A document as HTML and as Markdown."""

import pytest

from zloss_lab.documents.document import (
    BEST,
    Badge,
    Block,
    Bullets,
    Cell,
    Code,
    Document,
    Heading,
    Headline,
    Headlines,
    Link,
    Picture,
    Section,
    Table,
    bullets,
    paragraph,
)
from zloss_lab.documents.html import html_of
from zloss_lab.documents.markdown import markdown_of

PICTURE = Picture(b"<svg/>", 'a "picture"', "caption")
BLOCKS: list[tuple[Block, str, str]] = [
    (Heading("a < b"), "<h3>a &lt; b</h3>", "### a < b"),
    (
        paragraph("see ", Code("a < b"), Link("there", "#part"), role="note"),
        '<p class="note">see <code>a &lt; b</code><a href="#part">there</a></p>',
        "see `a < b`[there](#part)",
    ),
    (
        Bullets(((Badge("won", "verdict better"), " 1"),), role="counts"),
        '<ul class="counts"><li><span class="verdict better">won</span> 1</li></ul>',
        "- *won* 1",
    ),
    (bullets(["one", "two"]), "<ul><li>one</li><li>two</li></ul>", "- one\n- two"),
    (
        Headlines((Headline("2", "about", "beside"),)),
        '<div class="headlines"><div class="headline"><b>2</b><span>about</span>'
        '<span class="beside">beside</span></div></div>',
        "",
    ),
    (
        PICTURE,
        '<figure><img alt="a &quot;picture&quot;" src="data:image/svg+xml;base64,PHN2Zy8+">'
        "<figcaption>caption</figcaption></figure>",
        "",
    ),
    (
        Table(("loss", "top-1"), [("a", Cell("71.0", BEST))], role="prose"),
        '<div class="prose"><div class="scroll" tabindex="0"><table><thead><tr>'
        '<th scope="col">loss</th><th class="number" scope="col">top-1</th></tr></thead>'
        '<tbody><tr><th scope="row" data-label="loss">a</th>'
        '<td class="number" data-label="top-1"><span class="best">71.0</span></td></tr></tbody>'
        "</table></div></div>",
        "| loss | top-1 |\n|---|---:|\n| a | **71.0** |",
    ),
]


@pytest.mark.parametrize(("block", "html", "markdown"), BLOCKS)
def test_every_block_has_both_forms(block: Block, html: str, markdown: str) -> None:
    section = Section("key", "A title", (block,))
    page = html_of(Document("Title", (), (), (section,)))
    assert f'<section id="key"><h2>A title</h2>{html}</section>' in page
    assert markdown_of([block]) == markdown


def test_long_paragraphs_of_markdown_are_wrapped() -> None:
    lines = markdown_of([paragraph("word " * 60), paragraph("end")]).splitlines()
    assert max(map(len, lines)) <= 120
    assert " ".join(lines[:-2]).split() == ["word"] * 60
    assert lines[-2:] == ["", "end"]
