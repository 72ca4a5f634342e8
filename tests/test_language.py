"""The language of docstrings and comments: first lines that name something, short sentences, no private dialect.

    python -m pytest tests/test_language.py

names every fault with its file and line. Formulas, code in backticks and doctests are left out. Indented blocks, such
as lists of arguments, may have long sentences. In tests, the docstrings of functions are not read.
"""

import ast
import doctest
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
TREES = ("src", "lab/src", "reproduction", "benchmarks", "examples", "tests")
MOST_WORDS = 25

# A first line begins with a verb or a noun. These words begin a clause or a phrase that hangs on something unsaid.
CLAUSES = """
what who whom whose whoever whatever whether which whichever where wherever when whenever how however why that those
while though although because since if unless so than until as and or but not nor never only also thus
it its they their them he him his she her is are was were has does did once here there
"""
PREPOSITIONS = """
of by in at on with without to for from under over between through before after against beside along within during among
"""
FRAGMENT_OPENERS = frozenset(CLAUSES.split() + PREPOSITIONS.split())
# Words that count something only if a noun follows: "all words", but not "all there are".
COUNTS = "all any both each either few many most neither none one others same several some such"
COUNTING_OPENERS = frozenset(COUNTS.split())
NO_NOUN = FRAGMENT_OPENERS | {"have", "had", "can", "may", "must", "will", "would"}
COUNTED_AFTER_OF = re.compile(r"\w+ of (?!it\b|them\b|what\b|those\b)")

# What nobody says in documentation, and the plain words for it.
DIALECT = {
    r"those of": "repeat the noun: the weights of",
    r"giv(?:e|es|ing|en) way|gave way": "is replaced by",
    r"(?:come|comes|coming|came) to(?! an end)": "is, reaches, amounts to",
    r"what it is|what (?:there|it) is|what is there|what is no\b|what is to be": "name the thing",
    r"what (?:became|becomes|becoming) of": "the result of, the fate of",
    r"told": "say who says what to whom: receives, is called with, is reported",
    r"to be had": "available",
    r"whose own": "with its own",
    r"who(?:m|ever)": "name the person or the code",
    r"(?<!users )(?<!people )(?<!readers )(?<!authors )(?<!someone )(?<!anyone )who": "name the person or the code",
    r"(?<!there )(?:is|are|was|were) no (?!\w+er\b|more\b|less\b|such\b|worse\b)\w+": "is not a",
    r"(?:to|for|of) (?:oneself|itself alone)": "exclusively",
    r"so many(?! \w+ (?:that|as))": "this number of",
    r"but for": "except",
    r"all the same": "nevertheless, or: equal",
    r"(?:know|knows|knew) nothing of": "does not use, does not depend on",
    r"thrice|lest|whence|thereof|aught|wherein|hitherto": "plain words",
    r"(?:is|are|was) at it": "works on it",
    r"hears? of it": "is informed",
}
DIALECT_PATTERNS = [
    (re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), advice)
    for pattern, advice in DIALECT.items()
]

CODE = re.compile(r"``[^`]*``|`[^`]*`")
QUOTATION = re.compile(r'"[^"\n]*"')
END_OF_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])|(?<=[.!?])\s+(?=`)")
DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|mypy:|ruff:|fmt:|pragma)")


class Text(NamedTuple):
    """A docstring or a comment, and the line that it begins in."""

    line: int
    text: str
    is_docstring: bool


def docstrings(tree: ast.Module, *, modules_only: bool) -> Iterator[Text]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module if modules_only else documented):
            text = ast.get_docstring(node)
            if text:
                yield Text(node.body[0].lineno, without_doctests(text), is_docstring=True)


def without_doctests(text: str) -> str:
    pieces = doctest.DocTestParser().parse(text)
    return "\n".join(piece for piece in pieces if isinstance(piece, str)).strip()


def comments(source: str) -> Iterator[Text]:
    """Yield comments; those in a row, each on a line of its own, are one text."""
    first, last, lines = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or DIRECTIVE.match(token.string):
            continue
        row, alone = token.start[0], not token.line[: token.start[1]].strip()
        if lines and not (alone and row == last + 1):
            yield Text(first, "\n".join(lines), is_docstring=False)
            lines = []
        if not lines:
            first = row
        lines.append(re.sub(r"^#+:? ?", "", token.string))
        last = row if alone else -1
    if lines:
        yield Text(first, "\n".join(lines), is_docstring=False)


def paragraphs(text: str) -> Iterator[str]:
    """Yield the running text, without indented blocks, list items and formulas on lines of their own."""
    for block in re.split(r"\n\s*\n", text):
        lines = list[str]()
        for line in block.splitlines():
            if re.match(r"\s+\S|[-*|] ", line):
                yield " ".join(lines)
                lines = []
            else:
                lines.append(line.strip())
        yield " ".join(lines)


def opener_fault(text: str) -> str | None:
    """Return what is wrong with the first line of a docstring, if anything."""
    first_line = text.splitlines()[0]
    words = re.findall(r"[\w'-]+|`|[.,:;]", CODE.sub("`", first_line))
    opener = words[0].lower()
    if opener in FRAGMENT_OPENERS:
        return f"opens with {words[0]!r}: begin with a verb or a noun"
    if opener == "the":
        words = words[1:]
    if words[0].lower() in COUNTING_OPENERS and not COUNTED_AFTER_OF.match(first_line):
        follower = words[1].lower() if len(words) > 1 else "."
        if follower in NO_NOUN or follower in ".,:;":
            return f"opens with {words[0]!r} and no noun after it"
    if len(opener) == 1 and opener.isalpha() and opener != "a":
        return "says too little: begin with a verb or a noun"
    return None


def sentence_faults(text: str) -> Iterator[str]:
    for paragraph in paragraphs(text):
        for sentence in END_OF_SENTENCE.split(CODE.sub("`", paragraph)):
            words = [word for word in sentence.split() if re.search(r"[A-Za-z]{2}|^[aAI]$", word)]
            if len(words) > MOST_WORDS:
                yield f"{len(words)} words in a sentence: {' '.join(words[:6])} ..."


def dialect_faults(text: str) -> Iterator[str]:
    plain = " ".join(QUOTATION.sub('"', CODE.sub("`", text)).split())
    for pattern, advice in DIALECT_PATTERNS:
        for match in pattern.finditer(plain):
            yield f"{match[0]!r}: {advice}"


def language_faults(source: str, *, modules_only: bool = False) -> list[str]:
    """Return the faults of a Python file, each with its line."""
    found = [*docstrings(ast.parse(source), modules_only=modules_only), *comments(source)]
    faults = list[str]()
    for line, text, is_docstring in sorted(found):
        opener = opener_fault(text) if is_docstring else None
        messages = [*([opener] if opener else []), *sentence_faults(text), *dialect_faults(text)]
        faults += [f"{line}: {message}" for message in messages]
    return faults


def folders() -> list[str]:
    files = (path for tree in TREES for path in (ROOT / tree).rglob("*.py"))
    return sorted({path.parent.relative_to(ROOT).as_posix() for path in files})


@pytest.mark.parametrize("folder", folders())
def test_the_language_is_plain(folder: str) -> None:
    faults = [
        f"{path.relative_to(ROOT).as_posix()}:{fault}"
        for path in sorted((ROOT / folder).glob("*.py"))
        for fault in language_faults(
            path.read_text(encoding="utf-8"), modules_only=folder.split("/")[0] == "tests"
        )
    ]
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize(
    "first_line",
    [
        "Return the scores of all classes.",
        "A batch that waits for its step.",
        "All words of a corpus, with their counts.",
        "All of the scores.",
        "One of several ways to compute a softmax.",
        "The same targets under other numbers.",
        "Whole output layers behind one interface.",
        "`h @ W^T + b`, to be evaluated piecewise.",
        "Refactor.",
    ],
)
def test_a_plain_first_line_is_accepted(first_line: str) -> None:
    assert opener_fault(first_line) is None


@pytest.mark.parametrize(
    "first_line",
    [
        "What a table shows.",
        "Who works on a study.",
        "Whether there is any.",
        "Those with results, in the order of the figure.",
        "How the rows of a matrix are divided.",
        "As records have it.",
        "All that a kernel needs.",
        "All there are.",
        "All of it, or a command.",
        "The same without small gradients.",
        "Where training ends.",
        "That may be larger.",
        "Its name and size.",
        "Of the network.",
        "None where it is not measured.",
        "Others are for autograd.",
        "J.",
    ],
)
def test_a_fragment_is_found(first_line: str) -> None:
    assert opener_fault(first_line)


@pytest.mark.parametrize(
    ("comment", "fault"),
    [
        ("# it takes those of the other layer", "'those of'"),
        ("# old records give way", "'give way'"),
        ("# the scores come to 0.3", "'come to'"),
        ("# as far as it is told", "'told'"),
        ("# there is none to be had", "'to be had'"),
        ("# a row whose own sum is 0", "'whose own'"),
        ("# a target that is no class", "'is no class'"),
        ("# " + "word " * 25 + "end.", "26 words"),
        ("# the first line of a comment, which\n# gives way", "'gives way'"),
        ('"""A head.\n\nIt is known what it is told.\n"""', "'told'"),
        ('"""A head.\n\n    name: whoever reads it\n"""', "'whoever'"),
        ('def f():\n    """What."""', "opens with 'What'"),
    ],
)
def test_a_fault_of_language_is_found(comment: str, fault: str) -> None:
    assert any(fault in message for message in language_faults(comment))


@pytest.mark.parametrize(
    "source",
    [
        "# Users who must have Adam take it. There are no logits, and it is no longer than needed.",
        '# `those of` is code, and "told" is quoted.  # noqa: E501',
        '"""A head.\n\n>>> print("a" * 3)\n' + "word " * 40 + '\n"""',
        '"""A formula.\n\n    ' + "x + " * 40 + 'x\n"""',
        "# " + "`x` " * 40 + "are left out.",
        "# " + "word " * 20 + "end.\n# " + "Word " * 20 + "end.",
        "x = 1  # noqa: E501",
        "def f():\n    x = 'What those of'",
    ],
)
def test_what_is_plain_or_left_out_is_accepted(source: str) -> None:
    assert language_faults(source) == []


def test_the_functions_of_tests_are_not_read() -> None:
    source = '"""A module."""\ndef test_it():\n    """What."""\n'
    assert language_faults(source, modules_only=True) == []
