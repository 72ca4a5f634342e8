"""The documents, checked: Python blocks run, links lead somewhere, and the places of CONTRIBUTING.md exist.

Blocks of one file run in order and share their names. A block that cannot run here is left out by a comment before it:

    <!-- not run: needs eight GPUs -->
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = {
    str(path.relative_to(ROOT)): path
    for path in (
        *sorted(ROOT.glob("*.md")),
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("src/**/*.md")),
        *sorted(ROOT.glob("lab/*.md")),
    )
}
MOST_WORDS_OF_THE_README = 1500  # generated tables included

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[\w+-]*)[^\n`]*$")
_NOT_RUN = re.compile(r"<!-- not run: \S.* -->")
_LINK = re.compile(
    r"\]\(\s*<?(?P<inline>[^)\s>]+)|^\s*\[[^]]+\]:\s*(?P<reference>\S+)|(?:src|href)=\"(?P<html>[^\"]+)\""
)
_EXTERNAL = re.compile(
    r"[a-z][a-z0-9+.-]*:|#|//"
)  # a scheme, an anchor in the same file, or a host
_PATH = re.compile(r"`([\w.*/-]+(?:/|\.(?:py|md|toml|txt)))`")


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


def table_paths(text: str) -> Iterator[str]:
    """Yield the paths in the tables of a document: names in backticks that end in a slash or in a suffix."""
    for _, line in parse(text)[1]:
        if line.startswith("|"):
            yield from _PATH.findall(line)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_python_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for examples that write files
    text = DOCUMENTS[name].read_text(encoding="utf-8")
    run_python(text, name)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    assert broken_links(DOCUMENTS[name].read_text(encoding="utf-8"), DOCUMENTS[name].parent) == []


def test_the_readme_is_short() -> None:
    assert (
        len(DOCUMENTS["README.md"].read_text(encoding="utf-8").split()) <= MOST_WORDS_OF_THE_README
    )


def test_the_places_in_contributing_exist() -> None:
    paths = list(table_paths(DOCUMENTS["CONTRIBUTING.md"].read_text(encoding="utf-8")))
    assert len(paths) > 30
    assert [path for path in paths if not any(ROOT.glob(path))] == []


def test_the_program_for_several_gpus_runs_in_two_processes(tmp_path: Path) -> None:
    """A document is run as one process above; here its processes have to find and to agree with each other."""
    blocks = parse(DOCUMENTS["docs/guides/several-gpus.md"].read_text(encoding="utf-8"))[0]
    (program,) = [block.code for block in blocks if block.language == "python"]
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [*torchrun, tmp_path / "train.py"], capture_output=True, text=True, env=environment
    )
    assert finished.returncode == 0, finished.stderr
    # Two processes write to one pipe, so that their lines may meet without a line break in between.
    said = re.findall(r"process \d: (256 rows in a step, checksum -?\d+\.\d{6})", finished.stdout)
    assert len(said) == 2, finished.stdout
    assert said[0] == said[1]


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

| room | tests |
|---|---|
| `src/zloss/layers/`, `stats.py` | `tests/**/test_*.py` of `zloss.Head`, `make` |
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


def test_paths_in_tables_are_seen() -> None:
    assert list(table_paths(SAMPLE)) == ["src/zloss/layers/", "stats.py", "tests/**/test_*.py"]
