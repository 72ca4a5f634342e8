"""The language of the documents: short sentences and plain words, by the rules for docstrings.

    python -m pytest tests/test_document_language.py

names every fault with its file and line. Code, formulas, tables and quotations are left out.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_docs import parse
from tests.test_language import dialect_faults, sentence_faults

ROOT = Path(__file__).parents[1]
SEVERAL_PAGES = ("docs/guides/*.md", "docs/api/*.md", "docs/tutorials/*.md")
CHECKED = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/index.md",
    "docs/getting-started.md",
    *sorted(
        path.relative_to(ROOT).as_posix() for pages in SEVERAL_PAGES for path in ROOT.glob(pages)
    ),
    "docs/decisions.md",
    "docs/lab.md",
    "docs/mathematics.md",
    "docs/results.md",
    "docs/speed.md",
    "docs/testing.md",
    "docs/words.md",
    "lab/README.md",
    "src/zloss/layers/README.md",
)
LONGEST_LINE = 120

_GENERATED = re.compile(r"<!-- table: \w+ -->.*?<!-- end -->", re.DOTALL)
_FORMULA_BLOCK = re.compile(r"^\$\$$.*?^\$\$$", re.DOTALL | re.MULTILINE)
_NOT_PROSE = re.compile(r"\||<!--|    |\$\$")  # tables, comments, code without a fence, formulas
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s+")
_MARKUP = (
    (re.compile(r"\{[\w:]+\}(?=`)"), ""),  # roles of MyST
    (re.compile(r"\$[^$]+\$"), "`x`"),
    (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),  # links, of which the text is read
    (re.compile(r"\*\*|(?<!\w)\*|\*(?!\w)"), ""),  # bold and italic
)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph, list item and heading of a document as one line, with the number of its first line."""
    text = _without(_FORMULA_BLOCK, _without(_GENERATED, text))
    first, lines = 0, list[str]()
    is_in_list = False
    for number, line in [*parse(text)[1], (0, "")]:
        is_item, is_heading = _ITEM.match(line), line.startswith("#")
        if is_item or is_heading or not line.strip():
            if lines:
                yield first, plain(" ".join(lines))
            lines = []
        if is_item or (line.strip() and not line.startswith(" ")):
            is_in_list = bool(is_item)
        if not line.strip() or (_NOT_PROSE.match(line) and not (is_in_list and line[0] == " ")):
            continue
        if not lines:
            first = number
        lines.append(_ITEM.sub("", line, count=1).strip("# "))


def _without(block: re.Pattern[str], text: str) -> str:
    """Return a text with empty lines in place of some blocks."""
    return block.sub(lambda found: "\n" * found[0].count("\n"), text)


def plain(paragraph: str) -> str:
    """Return a paragraph without its markup."""
    for pattern, replacement in _MARKUP:
        paragraph = pattern.sub(replacement, paragraph)
    return paragraph


def document_faults(text: str) -> list[str]:
    """Return the faults of a document, each with its line."""
    return [
        f"{line}: {message}"
        for line, paragraph in paragraphs(text)
        for message in (*sentence_faults(paragraph), *dialect_faults(paragraph))
    ]


@pytest.mark.parametrize("name", CHECKED)
def test_the_language_of_a_document_is_plain(name: str) -> None:
    faults = document_faults((ROOT / name).read_text(encoding="utf-8"))
    assert not faults, "\n" + "\n".join(f"{name}:{fault}" for fault in faults)


@pytest.mark.parametrize("name", CHECKED)
def test_lines_of_a_document_fit_a_screen(name: str) -> None:
    """Rows of tables are left out, because a row cannot be broken."""
    text = _without(_GENERATED, (ROOT / name).read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > LONGEST_LINE] == []


LONG = "Word " + "word " * 24 + "end."


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (LONG, "1: 26 words"),
        (f"# Title\n\nFirst.\n{LONG}", "3: 26 words"),
        (f"- short\n- {LONG}", "2: 26 words"),
        (f"- first\n  {LONG}", "1: 27 words"),
        (f"**Bold.** {LONG}", "1: 26 words"),
        (f"[A link](that/leads.md) to {LONG}", "1: 29 words"),
        (f"```python\nx = 1\n```\n\n{LONG}", "5: 26 words"),
        ("<!-- table: speed -->\n| x |\n<!-- end -->\n\nIt gives\nway.", "5: 'gives way'"),
        ("The *scores* of {py:class}`~zloss.ZLoss` come to 3.", "1: 'come to'"),
    ],
)
def test_a_fault_is_found(text: str, fault: str) -> None:
    assert [fault in found for found in document_faults(text)] == [True]


@pytest.mark.parametrize(
    "text",
    [
        f"| {LONG} |",
        f"<!-- {LONG} -->",
        f"Run this:\n\n    {LONG}\n",
        f"```text\n{LONG}\n```",
        f"$$\n{LONG}\n$$",
        f"<!-- table: speed -->\n{LONG}\n<!-- end -->",
        "A formula $" + "x + " * 40 + "x$ is one word.",
        'It says "who is told" and `those of`.',
        "word " * 20 + "end. **Bold.** " + "Word " * 20 + "end.",
        "# " + "word " * 14 + "\n\n" + "word " * 14 + "\n- " + "word " * 14,
    ],
)
def test_what_is_plain_or_left_out_is_accepted(text: str) -> None:
    assert document_faults(text) == []
