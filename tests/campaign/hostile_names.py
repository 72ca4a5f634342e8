"""Names of files that programs get wrong: too long, of other systems, with codes for terminals, or leading away."""

import os
import random
from pathlib import Path

_ODD = [
    "a\nb",
    "a\rb",
    "a\tb",
    "\x1b[2J\x1b[31mred",
    "\x07",
    "\u202egnp.exe",  # read from right to left
    "e\u0301",  # the same letter in two ways
    "\u00e9",
    "\u2028",
    "\ufeffa",
    "\U0001f600",
    os.fsdecode(b"\xff\xfe"),  # no UTF-8
    "-rf",
    "--help",
    "~",
    "*",
    "$HOME",
    "$(touch x)",
    "[red]a[bold]",
    ":cat:",
    "a ",
    " a",
    "a.",
    "CON",
    "nul.txt",
    ".partial-a",
    ".partial-a.lock",
    ".partial-a-0123456789abcdef",
    "a" * 255,
    "\u00e9" * 127,
    "a" * 200,
    "a" * 201,
    "A",
    "a",
]


def odd_name(chance: random.Random) -> str:
    """Return the name of a file that may be made in a folder, and may be hard to write down."""
    if chance.random() < 0.7:
        return chance.choice(_ODD)
    allowed = [number for number in range(1, 256) if number != ord("/")]
    name = bytes(chance.choices(allowed, k=chance.choice([1, 2, 5, 30, 255])))
    return "x" if name in (b".", b"..") else os.fsdecode(name)


def hostile_name(chance: random.Random, folder: Path) -> str:
    """Return a name for the inside of an archive, which may lead out of it."""
    inner = odd_name(chance)
    return chance.choice(
        [
            inner,
            f"../{inner}",
            f"a/../../{inner}",
            "../outside/secret",
            "..",
            ".",
            "",
            "/",
            "//",
            f"//{inner}",
            str(folder / "outside" / "secret"),
            f"{folder}/outside/{inner}",
            f"..\\{inner}",
            f"C:\\{inner}",
            f"C:{inner}",
            f"\\\\server\\share\\{inner}",
            "a:hidden",
            "a/./b.txt",
            "a//b.txt",
            "./a",
            "a/",
            f"{inner}/{inner}",
            "/".join("d" * 10 for _ in range(chance.choice([5, 30, 500]))),
            "a\0b",
            "b" * 5000,
        ]
    )
