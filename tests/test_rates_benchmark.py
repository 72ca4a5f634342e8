"""The benchmark of learning rates: it reads the files of its tasks, and measures a case."""

import io
import lzma
import tarfile
from pathlib import Path

import pytest
import torch

from benchmarks.rate_tasks import read_task
from benchmarks.rates import CASES, RELATIVE_RATES, RateCase, measure, recorded_table
from zloss_lab.records import provenance

ARCHIVES = {
    "sessions/diginetica.tar.xz": {
        "diginetica/train_sessions.txt": "7 8 9\n8 7\n",
        "diginetica/test_examples.txt": "7 8\t9\n5\t8\n9 5 8\t7\n",
    },
    "multilabel/citeulike-t.tar.xz": {
        "citeulike-t/mult.dat": "2 3:1 0:4\n1 1:1\n1 2:9\n",
        "citeulike-t/tag-item.dat": "2 0 1\n1 0\n",
    },
}
TEXTS = {"ptb/ptb.train.txt": "a b c d e\nf a b\n", "ptb/ptb.valid.txt": "a b c\nx b a\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, files in ARCHIVES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with tarfile.open(tmp_path / name, "w:xz") as archive:
            for path, text in files.items():
                member = tarfile.TarInfo(path)
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    for name, text in TEXTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "fil8").mkdir()
    words = " ".join(f"w{number % 50}" for number in range(100_100))
    (tmp_path / "fil8/fil8.xz").write_bytes(lzma.compress(words.encode()))
    return tmp_path


def test_sessions(folder: Path) -> None:
    task = read_task("diginetica", folder)
    assert task.classes == 3
    x, target = task.validation
    # The items 7, 8 and 9 are the classes 0, 1 and 2; an example whose items are all unknown is left out.
    found = {tuple(row) for row in torch.cat([x, target[:, None]], dim=1).tolist()}
    assert found == {(0, 0, 0, 1, 2, 2), (0, 0, 0, 3, 2, 0)}
    below, width = task.inputs()
    assert below(x).shape == (2, width)


def test_tags(folder: Path) -> None:
    task = read_task("citeulike-t", folder)
    assert task.classes == 2
    x, target = task.validation
    tags = {tuple(sorted(row[row >= 0].tolist())) for row in target}
    assert tags == {(0, 1), (0,)}, "the third document has no tag"
    assert x.shape == (2, 100)


@pytest.mark.parametrize(("name", "classes"), [("ptb", 7), ("fil8", 50)])
def test_texts(name: str, classes: int, folder: Path) -> None:
    task = read_task(name, folder)
    assert task.classes == classes
    x, target = task.draw(4, torch.Generator().manual_seed(0))
    assert x.shape == (4, 5)
    assert int(target.max()) < classes


def test_a_case_is_measured(folder: Path) -> None:
    case = RateCase(part="checked", task="zipf-50", hidden=8, batch=16, steps=40)
    record = measure(case, read_task("zipf-50", folder), 0.5, provenance(torch.device("cpu")))
    assert record.key == ("checked", "zipf-50", 8, 16, 0.5)
    assert record.lr > 0
    assert 0 < record.top_10_error < record.top_1_error < 98


def test_every_case_has_a_row_with_the_default() -> None:
    assert all(1.0 in rates for rates in RELATIVE_RATES.values())
    assert len(recorded_table().splitlines()) == len(CASES) + 5, "with the head and the note"
