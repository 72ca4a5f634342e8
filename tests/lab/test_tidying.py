"""Leftovers of killed processes in a folder of names that may never be written again, such as one of checkpoints."""

import subprocess
import sys
from pathlib import Path

from tests.lab.test_durable import KILLED, names, posix
from zloss_lab import durable


@posix
def test_what_killed_processes_leave_of_any_name_can_be_tidied(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        path = tmp_path / name
        subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (tmp_path / ".partial-c.lock").touch()  # killed just before it would have removed its lock
    (tmp_path / "kept").touch()
    with durable.new_folder(tmp_path / "d"):  # somebody is at work on it
        durable.tidy(tmp_path)
        mine = [name for name in names(tmp_path) if name.startswith(".partial-d")]
        assert names(tmp_path) == sorted(["kept", *mine])
        assert len(mine) == 2
    durable.tidy(tmp_path)
    assert names(tmp_path) == ["d", "kept"]
    durable.tidy(tmp_path / "nowhere")
