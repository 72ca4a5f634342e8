"""The documents, checked: every Python block runs, every link leads somewhere, the file tree is that of the project.

Blocks of one file run in order and share their names. A block that cannot run here is left out by a comment before it:

    <!-- not run: needs eight GPUs -->
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = {
    str(path.relative_to(ROOT)): path
    for path in (
        ROOT / "README.md",
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("src/**/*.md")),
    )
}
TREE_ROOT = "src/zloss/"

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[\w+-]*)[^\n`]*$")
_NOT_RUN = re.compile(r"<!-- not run: \S.* -->")
_LINK = re.compile(
    r"\]\(\s*<?(?P<inline>[^)\s>]+)|^\s*\[[^]]+\]:\s*(?P<reference>\S+)|(?:src|href)=\"(?P<html>[^\"]+)\""
)
_EXTERNAL = re.compile(
    r"[a-z][a-z0-9+.-]*:|#|//"
)  # a scheme, an anchor in the same file, or a host
_BRANCHES = " \t\u2502\u251c\u2514\u2500|`+-"  # what may stand before a name in a drawn tree


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    language: str
    code: str
    line: int  # of its first line of code, from 1
    runs: bool  # no comment says otherwise


def parse(text: str) -> tuple[list[Block], list[tuple[int, str]]]:
    """The fenced blocks of a document, and its other lines with their numbers."""
    blocks: list[Block] = []
    prose: list[tuple[int, str]] = []
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if not (opening := _FENCE.match(line)):
            prose.append((number, line))
            continue
        code = []
        for _, inner in lines:
            if inner.strip().startswith(opening["fence"]) and not inner.strip(" `~"):
                break
            code.append(inner.removeprefix(opening["indent"]))
        else:
            raise ValueError(f"the code block of line {number} does not end")
        before = next((before for _, before in reversed(prose) if before.strip()), "")
        blocks.append(
            Block(
                opening["language"],
                "\n".join(code),
                number + 1,
                not _NOT_RUN.fullmatch(before.strip()),
            )
        )
    return blocks, prose


def run_python(text: str, name: str) -> int:
    """Run the Python blocks of a document; returns how many."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    blocks = [block for block in parse(text)[0] if block.language == "python" and block.runs]
    for block in blocks:
        # Blank lines in front, so that a traceback gives the line of the document.
        exec(compile("\n" * (block.line - 1) + block.code, name, "exec"), namespace)
    return len(blocks)


def broken_links(text: str, folder: Path) -> list[str]:
    """The relative links that lead to no file, as `line: target`."""
    return [
        f"{number}: {target}"
        for number, line in parse(text)[1]
        for match in _LINK.finditer(re.sub(r"`[^`]*`", "", line))
        for target in (match["inline"] or match["reference"] or match["html"],)
        if not _EXTERNAL.match(target) and not (folder / target.partition("#")[0]).exists()
    ]


def tree_paths(text: str) -> Iterator[str]:
    """The paths in the file tree of a document: one a line, indented under its folder, with a remark after spaces."""
    for block in parse(text)[0]:
        if not block.code.startswith(TREE_ROOT):
            continue
        folders: list[tuple[int, str]] = []
        for line in filter(str.strip, block.code.splitlines()):
            entry = line.lstrip(_BRANCHES)
            indent, name = len(line) - len(entry), entry.split()[0]
            while folders and folders[-1][0] >= indent:
                folders.pop()
            path = (folders[-1][1] if folders else "") + name
            yield path
            if name.endswith("/"):
                folders.append((indent, path))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_python_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for examples that write files
    text = DOCUMENTS[name].read_text(encoding="utf-8")
    run_python(text, name)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    assert broken_links(DOCUMENTS[name].read_text(encoding="utf-8"), DOCUMENTS[name].parent) == []


def test_file_tree_of_the_readme() -> None:
    paths = list(tree_paths(DOCUMENTS["README.md"].read_text(encoding="utf-8")))
    assert [path for path in paths if not (ROOT / path).exists()] == []


SAMPLE = """\
See [there](here.md#part), [not](missing.md), ![plot](missing.png), [web](https://a.org), [top](#sample), `[a](b)`.

```python
x = 1
```

<!-- not run: needs a machine that nobody has -->

```python
x = 2
```

1. In a list:

   ```python
   y = x + 1
   ```

```text
[no](link.md)
```

[reference]: nowhere.md
<img src="gone.svg">

```
src/zloss/             the library
\u251c\u2500\u2500 layers/
\u2502   \u2514\u2500\u2500 dense.py     a remark
\u2514\u2500\u2500 stats.py
tests/
  test_docs.py
```
"""


def test_blocks_are_found() -> None:
    blocks = [
        (block.code, block.line, block.runs)
        for block in parse(SAMPLE)[0]
        if block.language == "python"
    ]
    assert blocks == [("x = 1", 4, True), ("x = 2", 10, False), ("y = x + 1", 16, True)]
    with pytest.raises(ValueError, match="line 1 does not end"):
        parse("```python\nx = 1")


def test_blocks_share_their_names() -> None:
    assert run_python(SAMPLE + "```python\nassert (x, y) == (1, 2)\n```\n", "sample") == 3


def test_a_failing_block_gives_its_line() -> None:
    with pytest.raises(ZeroDivisionError) as failure:
        run_python("Text.\n\n```python\nx = 1\nx / 0\n```\n", "sample.md")
    assert (failure.traceback[-1].path, failure.traceback[-1].lineno + 1) == ("sample.md", 5)


def test_broken_links_are_seen(tmp_path: Path) -> None:
    (tmp_path / "here.md").touch()
    assert broken_links(SAMPLE, tmp_path) == [
        "1: missing.md",
        "1: missing.png",
        "23: nowhere.md",
        "24: gone.svg",
    ]


def test_trees_are_read() -> None:
    assert list(tree_paths(SAMPLE)) == [
        "src/zloss/",
        "src/zloss/layers/",
        "src/zloss/layers/dense.py",
        "src/zloss/stats.py",
        "tests/",
        "tests/test_docs.py",
    ]
