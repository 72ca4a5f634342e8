"""No code is run from a file or from a text: SECURITY.md promises it, and this test reads all code for it."""

from collections import Counter
from pathlib import Path

import pytest

from tests.supply_chain.dangerous_calls import dangerous_calls
from tests.test_docs import DOCUMENTS, parse

ROOT = Path(__file__).parents[2]
TREES = ("src", "lab", "reproduction", "benchmarks", "examples", "tests", "docs")

# What may stand there, how often, and why it is harmless. An entry that is not needed any more fails.
OWN_MODULE = "the names are constants of our own code, never text from a file or a user"
OWN_CODE = "it changes our own code, to see whether the tests notice"
OWN_BYTES = "the test reads what it has written itself"
OWN_PROGRAMS = "it runs the programs that stand in the tests themselves"
ERROR_NAME = "torch.load refuses code with an error that has its name there"
ALLOWED: dict[tuple[str, str], tuple[int, str]] = {
    ("examples/next_item.py", "pickle"): (1, ERROR_NAME),
    ("examples/tagger.py", "pickle"): (1, ERROR_NAME),
    ("lab/src/zloss_lab/corpora/reading.py", "importlib.import_module"): (1, OWN_MODULE),
    ("src/zloss/kernels/__init__.py", "importlib.import_module"): (1, OWN_MODULE),
    ("tests/campaign/discovery.py", "importlib.import_module"): (1, OWN_MODULE),
    ("tests/first_hour/warm_terminal.py", "compile"): (1, OWN_PROGRAMS),
    ("tests/first_hour/warm_terminal.py", "exec"): (1, OWN_PROGRAMS),
    ("tests/heads/test_adaptive.py", "torch.load"): (1, OWN_BYTES),
    ("tests/heads/test_state.py", "pickle"): (1, OWN_BYTES),
    ("tests/integrations/test_guide.py", "compile"): (1, OWN_PROGRAMS),
    ("tests/integrations/test_guide.py", "exec"): (1, OWN_PROGRAMS),
    ("tests/layers/test_copies.py", "pickle"): (1, OWN_BYTES),
    ("tests/layers/test_foreign_writes.py", "pickle"): (1, OWN_BYTES),
    ("tests/layers/test_mark.py", "pickle"): (1, OWN_BYTES),
    ("tests/layers/test_tied.py", "torch.load"): (1, OWN_BYTES),
    ("tests/layers/test_tied.py", "weights_only=False"): (1, OWN_BYTES),
    ("tests/mutation/patching.py", "compile"): (2, OWN_CODE),
    ("tests/mutation/patching.py", "eval"): (1, OWN_CODE),
    ("tests/mutation/patching.py", "exec"): (1, OWN_CODE),
    ("tests/reproduction/running/large_texts/test_at_once.py", "pickle"): (1, OWN_BYTES),
    ("tests/test_docs.py", "exec"): (1, "it runs the examples of our own documents"),
    ("tests/test_docs.py", "compile"): (1, "it runs the examples of our own documents"),
    ("tests/processes.py", "torch.load"): (1, OWN_BYTES),
    ("tests/test_whole_optimizer.py", "pickle"): (1, OWN_BYTES),
}


def python_code() -> dict[str, str]:
    """The source code of all modules, and the Python blocks of all documents."""
    files = [
        ROOT / "conftest.py",
        *(path for tree in TREES for path in (ROOT / tree).rglob("*.py")),
    ]
    code = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for path in files
        if not path.is_relative_to(ROOT / "docs/_build")
    }
    for name, path in DOCUMENTS.items():
        blocks = [one for one in parse(path.read_text("utf-8"))[0] if one.language == "python"]
        for block in blocks:
            code[f"{name}:{block.line}"] = block.code
    return code


def test_nothing_dangerous_is_called() -> None:
    found = Counter[tuple[str, str]]()
    for file, source in python_code().items():
        found.update((file, fault.partition(": ")[2]) for fault in dangerous_calls(source))
    assert found == {place: count for place, (count, _) in ALLOWED.items()}


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import pickle", "pickle"),
        ("from pickle import loads", "pickle"),
        ("import joblib.memory as j", "joblib.memory"),
        ("import torch\ntorch.load(f)", "torch.load"),
        ("from torch import load\nload(f)", "torch.load"),
        ("import torch as t\nt.load(f, weights_only=False)", "torch.load"),
        ("import torch as t\nt.load(f, weights_only=w)", "torch.load"),
        ("import numpy as np\nnp.load(f)", "numpy.load"),
        ("import yaml\nyaml.load(f)", "yaml.load"),
        ("import yaml\nread = yaml.load", "yaml.load"),
        ("eval(text)", "eval"),
        ("exec(text)", "exec"),
        ("import os\nos.system('ls')", "os.system"),
        ("from os import popen as p\np('ls')", "os.popen"),
        ("import subprocess\nsubprocess.run('ls', shell=True)", "shell=True"),
        ("run('ls', shell=flag)", "shell=True"),
        ("f(allow_pickle=True)", "allow_pickle=True"),
        ("import importlib\nimportlib.import_module(name)", "importlib.import_module"),
    ],
)
def test_what_is_dangerous_is_seen(source: str, fault: str) -> None:
    assert fault in {found.partition(": ")[2] for found in dangerous_calls(source)}


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.load(f, weights_only=True)",
        "import torch\ntorch.compile(f)",
        "import re\nre.compile('a')",
        "model.eval()",
        "import subprocess\nsubprocess.run(['ls'], shell=False)",
        "import importlib\nimportlib.import_module('zloss')",
        "import json\njson.load(f)",
        "layer.load(f)",
    ],
)
def test_what_is_harmless_is_accepted(source: str) -> None:
    assert dangerous_calls(source) == []
