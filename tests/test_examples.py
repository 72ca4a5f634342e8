"""The examples, each copied into an empty folder: they learn, read files, save, and explain mistakes."""

import doctest
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.loaded_examples import EXAMPLES, copied

NAMES = ("next_item", "tagger")
HEADS = [[], ["--head", "sampled"], ["--head", "dense"], ["--head", "hierarchical"]]


@pytest.fixture
def next_item(tmp_path: Path) -> ModuleType:
    return copied("next_item", tmp_path)


@pytest.fixture
def tagger(tmp_path: Path) -> ModuleType:
    return copied("tagger", tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_runs_with_zloss_alone(name: str, tmp_path: Path) -> None:
    """Its help comes out of an empty folder, where neither the lab nor NumPy nor anything else of ours is imported."""
    program = tmp_path / f"{name}.py"
    program.write_text((EXAMPLES / f"{name}.py").read_text())
    refuses = (
        "import sys; sys.modules |= dict.fromkeys(['numpy', 'zloss_lab', 'safetensors', 'rich']);"
        f"import runpy; sys.argv = ['{name}.py', '--help'];"
        f"runpy.run_path('{name}.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", refuses], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--save FILE" in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_are_right(name: str, tmp_path: Path) -> None:
    results = doctest.testmod(copied(name, tmp_path), extraglobs={"torch": torch})
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("head", HEADS[:2])
def test_what_follows_is_found(
    head: list[str], next_item: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of three items of 100 follows nine times in ten. The 20 most popular items are right four times in ten."""
    options = ["--items", "100", "--epochs", "8", "--width", "32", "--batch", "20", *head]
    assert next_item.main(options)["recall@20"] > 0.55
    shown = capsys.readouterr().out
    for baseline in next_item.BASELINES:
        assert f"{baseline}: recall@1 " in shown


@pytest.mark.parametrize("head", HEADS[:2])
def test_tags_are_found(
    head: list[str], tagger: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--made-up-tags", "200", "--epochs", "8", "--width", "32", "--batch", "20", *head]
    found = tagger.main(options)["P@5"]
    popular = float(capsys.readouterr().out.split("P@5 ")[1].split("%")[0]) / 100
    assert found > 1.4 * popular


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_has_the_same_scores(name: str, head: list[str], tmp_path: Path) -> None:
    program, model = copied(name, tmp_path), str(tmp_path / "model.pt")
    sizes = {"next_item": ["--items", "50"], "tagger": ["--made-up-tags", "40"]}[name]
    training = ["--epochs", "1", "--width", "8", "--batch", "10"]
    scores = program.main([*sizes, *training, *head, "--save", model])
    assert program.main([*sizes, "--load", model]) == scores


def test_a_saved_model_is_used_for_newer_files(next_item: ModuleType, tmp_path: Path) -> None:
    clicks, newer, model = tmp_path / "clicks.csv", tmp_path / "newer.csv", str(tmp_path / "m.pt")
    clicks.write_text("session,item\n" + "".join(f"{n // 3},i{n % 3}\n" for n in range(90)))
    newer.write_text("item,session\nnew,1\ni0,2\ni1,2\n,3\n".replace(",3\n", "i1,3\nnew,3\n"))
    next_item.main(["--sessions", str(clicks), "--epochs", "1", "--width", "8", "--save", model])
    scores = next_item.main(["--examples", str(newer), "--load", model])
    # One of two examples has an unknown item, which nobody can find. There are three items only.
    assert scores["recall@5"] == 0.5


@pytest.mark.parametrize("name", NAMES)
def test_a_file_with_code_is_refused(name: str, tmp_path: Path) -> None:
    program, model = copied(name, tmp_path), tmp_path / "model.pt"
    torch.save({"settings": print}, model)
    with pytest.raises(SystemExit, match="is not a model that --save has written"):
        program.main(["--load", str(model)])
    for content in (b"", b"neither", b"PK\x03\x04"):
        model.write_bytes(content)
        with pytest.raises(SystemExit, match="is not a model that --save has written"):
            program.main(["--load", str(model)])
    torch.save({"settings": {}}, model)
    with pytest.raises(SystemExit, match="is not a model that --save has written"):
        program.main(["--load", str(model)])


def test_clicks_are_put_in_order(next_item: ModuleType, tmp_path: Path) -> None:
    clicks = tmp_path / "clicks.csv"
    clicks.write_text(
        "item,when,who,shop\nb,2021-01-02,ann,x\nz,2021-01-05,bob,x\n\na,2021-01-01,ann,x\n"
        '"c, d",2021-01-03,ann,x\n'
    )
    columns = next_item.Columns("who", "item", "when")
    assert next_item.read_clicks(clicks, columns) == [["a", "b", "c, d"], ["z"]]
    clicks.write_text("\ufeffsession,item,time\n1,a,9\n2,b,8.5\n1,c,7e0\n")  # as Excel writes it
    assert next_item.read_clicks(clicks, next_item.Columns()) == [["b"], ["c", "a"]]
    clicks.write_text("session,item\n1,a\n2,b\n1,c\n")  # without times: the order of the file
    assert next_item.read_clicks(clicks, next_item.Columns()) == [["b"], ["a", "c"]]


def test_texts_of_sessions(next_item: ModuleType, tmp_path: Path) -> None:
    sessions, examples = tmp_path / "sessions", tmp_path / "examples"
    sessions.write_text("tea milk sugar\ntea milk\nlone\nmilk tea\n")
    examples.write_text("tea\tmilk\nwine milk\ttea\ntea\twine\nwine\tmilk\n")  # wine is unknown
    data = next_item.read(sessions, examples, next_item.Columns(), [])
    assert data.sessions == [[0, 1, 2], [0, 1], [3], [1, 0]]
    assert data.names == ["tea", "milk", "sugar", "lone"]
    assert data.examples == [([0], 1), ([1], 0)]
    assert data.unknown == 2
    assert next_item.scores_of(torch.tensor([1, 1]), data.unknown)["recall@1"] == 0.5
    options = ["--sessions", str(sessions), "--examples", str(examples), "--epochs", "1"]
    next_item.main([*options, "--width", "8"])


def test_three_formats_of_texts(tagger: ModuleType, tmp_path: Path) -> None:
    expected = [(Counter({"a": 2, "b": 1}), ["x", "y z"]), (Counter({"c": 1}), ["x"])]
    jsonl, table = tmp_path / "texts.jsonl", tmp_path / "texts.csv"
    rows = [{"text": "A b, a!", "tags": ["x", "y z"]}, {"more": 1, "text": "C", "tags": ["x"]}]
    jsonl.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    table.write_text('n,labels,text\n1,x; y z,"A b,\na!"\n2,x;,C\n')
    assert tagger.read(jsonl, None, tagger.Columns()) == expected
    assert tagger.read(table, None, tagger.Columns(tags="labels")) == expected
    texts, tags = tmp_path / "mult.dat", tmp_path / "tags.dat"
    texts.write_text("2 7:2 3:1\n0\n1 5:1\n")
    tags.write_text("2 0 2\n0\n1 0\n")
    found = tagger.read(texts, tags, tagger.Columns())
    assert found == [
        (Counter({"7": 2, "3": 1}), ["0", "2"]),
        (Counter(), []),
        (Counter("5"), ["0"]),
    ]
    numbers = tagger.numbered(found, ["3", "7"], ["0"])  # the word 5 and the tag 2 are unknown
    assert [[part.tolist() for part in text] for text in numbers] == [[[1, 0], [2, 1], [0]]]


WRONG_CLICKS = {
    "": "line 1 has no column 'session' but []: name it with --session-column",
    "user,item\n": "line 1 has no column 'session' but ['user', 'item']",
    "session,item\n1,a\n1\n": "line 3 has 1 fields, and the header has 2",
    "session,item\n1,a\n ,b\n": "line 3 has an empty 'session'",
    "session,item\n1,\n": "line 2 has an empty 'item'",
    "session,item,time\n1,a,noon\n": "line 2: 'noon' is neither a number nor a date",
    "session,item,time\n1,a,nan\n": "line 2: a time must be finite, got 'nan'",
    'session,item\n1,"a\n': "unexpected end of data",
    "session,item\n1,a\n2,b\n": "has no session of two items",
}
WRONG_TEXTS = {
    ".jsonl": {
        "no\n": "line 1 is no JSON",
        '{"text": "a", "tags": []}\n\n[]\n': "line 3 must be an object with a text 'text'",
        '{"text": "a", "tags": "b"}\n': "and a list of texts 'tags'",
        '{"text": "a", "tags": [1]}\n': "and a list of texts 'tags'",
        '{"text": "a", "tags": ["b"]}\n': "too few texts",
    },
    ".csv": {
        "text\n": "line 1 has no column 'tags' but ['text']",
        "text,tags\na\n": "line 2 has 1 fields, and the header has 2",
    },
    ".txt": {"": "must end in .jsonl or .csv"},
}


@pytest.mark.parametrize(("content", "message"), WRONG_CLICKS.items())
def test_wrong_clicks(content: str, message: str, next_item: ModuleType, tmp_path: Path) -> None:
    clicks = tmp_path / "clicks.csv"
    clicks.write_text(content)
    assert message in refusal(next_item, ["--sessions", str(clicks)], clicks)


@pytest.mark.parametrize(
    ("ending", "content", "message"),
    [(ending, *case) for ending, cases in WRONG_TEXTS.items() for case in cases.items()],
)
def test_wrong_texts(
    ending: str, content: str, message: str, tagger: ModuleType, tmp_path: Path
) -> None:
    texts = tmp_path / f"texts{ending}"
    texts.write_text(content)
    assert message in refusal(tagger, ["--texts", str(texts)], texts)


@pytest.mark.parametrize(
    ("texts", "tags", "message"),
    [
        ("2 1:1\n", "", "mult.dat, line 1, must be N and N pairs"),
        ("1 1:one\n", "", "mult.dat, line 1, must be N and N pairs"),
        ("1 1:1\n", "1 0\n2 0\n", "tags.dat, line 2, must be N and N numbers"),
        ("1 1:1\n", "1 7\n", "tags.dat, line 1, names text 7, and there are 1"),
    ],
)
def test_wrong_numbers(
    texts: str, tags: str, message: str, tagger: ModuleType, tmp_path: Path
) -> None:
    files = tmp_path / "mult.dat", tmp_path / "tags.dat"
    for file, content in zip(files, (texts, tags), strict=True):
        file.write_text(content)
    options = ["--texts", str(files[0]), "--tags", str(files[1])]
    assert message in refusal(tagger, options, files[0])


def test_wrong_examples(next_item: ModuleType, tmp_path: Path) -> None:
    sessions, examples = tmp_path / "sessions.txt", tmp_path / "examples.txt"
    sessions.write_text("a b\n")
    options = ["--sessions", str(sessions), "--examples", str(examples)]
    examples.write_text("a\tb\na b\n")
    expected = "line 2 must be a session, a tab and one item, got 'a b'"
    assert expected in refusal(next_item, options, examples)
    examples.write_text("a\tc\n")
    assert "no example with a known item after" in refusal(next_item, options, examples)


def refusal(program: ModuleType, options: list[str], file: Path) -> str:
    """Return the message that ends a program: one line that begins with the name of the file."""
    with pytest.raises(SystemExit) as end:
        program.main(options)
    message = str(end.value)
    assert message.startswith(str(file))
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("next_item", ["--examples", "EXISTS"], "--examples needs --sessions"),
        ("next_item", ["--sessions", "nowhere"], "there is no file nowhere"),
        ("next_item", ["--load", "EXISTS", "--save", "x"], "give one of them"),
        ("next_item", ["--head", "nonesuch"], "unknown head: 'nonesuch'"),
        ("next_item", ["--items", "0"], "must be 1 at least"),
        ("next_item", ["--lr", "0"], "must be above 0, got 0"),
        ("next_item", ["--dropout", "1"], "must be from 0 to below 1, got 1"),
        ("next_item", ["--save", "no/folder/model.pt"], "there is no folder"),
        ("next_item", ["--head", "sampled", "--a", "1"], "unknown option of head 'sampled'"),
        ("tagger", ["--loss", "softmax"], "factored"),
        ("tagger", ["--tags", "EXISTS"], "give --texts"),
        ("tagger", ["--test", "EXISTS"], "--test needs --texts"),
        ("tagger", ["--load", "EXISTS", "--save", "x"], "give one of them"),
        ("tagger", ["--texts", "nowhere"], "there is no file nowhere"),
    ],
)
def test_wrong_options(
    name: str,
    options: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = copied(name, tmp_path)
    given = [str(tmp_path / f"{name}.py") if one == "EXISTS" else one for one in options]
    with pytest.raises(SystemExit):
        program.main(given)
    assert message in capsys.readouterr().err
