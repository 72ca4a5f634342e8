"""The examples on little data: they learn, read files, and explain wrong options."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an example import the files in its own folder, as Python does for a program."""
    monkeypatch.syspath_prepend(EXAMPLES)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HEADS = [[], ["--head", "sampled", "--loss", "softmax"]]


@pytest.mark.parametrize("head", HEADS)
def test_what_follows_is_found(head: list[str]) -> None:
    """One of three items of 200 follows nine times in ten. The 20 most popular items are right two times in ten."""
    options = ["--items", "200", "--epochs", "4", "--width", "32", "--batch", "20"]
    assert load("next_item").main(options + head) > 0.25


@pytest.mark.parametrize("head", HEADS)
def test_tags_are_found(head: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--made-up-tags",
        "300",
        "--made-up-texts",
        "3000",
        "--epochs",
        "3",
        "--width",
        "64",
        "--batch",
        "20",
    ]
    found = load("tagger").main(options + head)
    popular = float(capsys.readouterr().out.split("most popular tags: ")[1].split("%")[0]) / 100
    assert found > 1.4 * popular


def test_items_have_any_names(tmp_path: Path) -> None:
    sessions, examples = tmp_path / "sessions", tmp_path / "examples"
    sessions.write_text("tea milk sugar\ntea milk\nlone\nmilk tea\n")
    examples.write_text("tea\tmilk\nwine milk\ttea\ntea\twine\nwine\tmilk\n")  # wine is unknown
    trained, tested, items = load("next_item").read(sessions, examples)
    assert items == 4
    assert trained == [[0, 1, 2], [0, 1], [1, 0]]
    assert tested == [([0], 1), ([1], 0)]
    load("next_item").main(
        ["--sessions", str(sessions), "--examples", str(examples), "--k", "2", "--epochs", "1"]
    )


def test_texts_without_words_or_tags_are_left_out(tmp_path: Path) -> None:
    texts, tags = tmp_path / "texts", tmp_path / "tags"
    texts.write_text("2 7:1 3:4\n0\n1 5:2\n1 1:1\n")
    tags.write_text("2 0 2\n0\n2 0 1\n")
    found, words, number = load("tagger").read(texts, tags)
    assert (words, number) == (8, 3)
    assert [[part.tolist() for part in text] for text in found] == [
        [[7, 3], [1, 4], [0, 2]],
        [[5], [2], [0]],
    ]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("next_item", ["--sessions", "nowhere"], "belong together"),
        (
            "next_item",
            ["--sessions", "nowhere", "--examples", "nowhere"],
            "there is no file nowhere",
        ),
        ("next_item", ["--head", "nonesuch"], "unknown head: 'nonesuch'"),
        ("next_item", ["--items", "0"], "must be 1 at least"),
        ("tagger", ["--loss", "softmax"], "factored"),
        ("tagger", ["--tags", "nowhere"], "belong together"),
        ("tagger", ["--texts", "nowhere", "--tags", "nowhere"], "there is no file nowhere"),
    ],
)
def test_wrong_options(
    name: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        load(name).main(options)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "files"), [("next_item", ("sessions", "examples")), ("tagger", ("texts", "tags"))]
)
def test_files_of_another_kind(name: str, files: tuple[str, str], tmp_path: Path) -> None:
    options = []
    for file in files:
        (tmp_path / file).write_text("1 7\nneither tab nor number\n")
        options += [f"--{file}", str(tmp_path / file)]
    with pytest.raises(SystemExit, match="is not as --help has it"):
        load(name).main(options)
