"""Commands of `zloss` in processes of their own that begin at once, and can be disturbed."""

import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.campaign.attack import FellError
from tests.campaign.disturbance import Disturbance

_LIMIT_S = 120.0
_END_S = 10.0
IS_POSSIBLE = sys.platform == "linux"  # other systems have no handle for a process, or no fork
UNDISTURBED = Disturbance()


@dataclass(frozen=True)
class Ending:
    """The end of a command: the exit status or minus the signal, its output, and its operations on files."""

    status: int
    seconds: float
    operations: list[str]
    struck: str  # the operation that was disturbed
    stdout: str
    stderr: str

    def __str__(self) -> str:
        at = f" at {self.struck!r}" if self.struck else ""
        return f"exit status {self.status}{at}, stdout {self.stdout[-300:]!r}, stderr {self.stderr[-2000:]!r}"


class CommandServer:
    """The other side of `command_server.py`."""

    def __init__(self) -> None:
        module = [sys.executable, "-m", "tests.campaign.command_server"]
        self._process = subprocess.Popen(
            [*_own_mounts(), *module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.can_mount = bool(_own_mounts())

    def close(self) -> None:
        """End the server, which may be in the middle of a command."""
        try:
            self._process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def run(
        self, *arguments: object, folder: Path, disturbance: Disturbance = UNDISTURBED
    ) -> Ending:
        """Run `zloss` with these arguments. Operations in the folder count, which is the current one too."""
        reply = self._ask(
            arguments=list(map(str, arguments)),
            folder=str(folder),
            disturbance=asdict(disturbance),
            limit_s=_LIMIT_S,
        )
        if reply["status"] is None:
            raise FellError(f"{arguments} hung for {_LIMIT_S} s with {disturbance}: {reply}")
        return Ending(**reply)

    def mount(self, *arguments: object) -> None:
        """Call `mount` with these arguments, for the commands of this server only."""
        reply = self._ask(mount=["mount", *map(str, arguments)])
        if reply["status"]:
            raise OSError(f"mount {arguments}: {reply['stderr']}")

    def seen(self, path: Path) -> Path:
        """Return the path by which this process finds a file that lies on a disk mounted by the server."""
        return Path(f"/proc/{self._process.pid}/root{path}")

    def unmount(self, path: Path) -> None:
        """Unmount a disk."""
        self._ask(mount=["umount", "--lazy", str(path)])

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply: dict[str, Any] = json.loads(self._process.stdout.readline())
        return reply


@cache
def command_server() -> CommandServer:
    """Return the server of this process, which ends with it."""
    server = CommandServer()
    atexit.register(server.close)
    return server


@cache
def _own_mounts() -> list[str]:
    """Return the beginning of a command line for a process that may mount disks; empty where that is not allowed."""
    if shutil.which("unshare") is None:
        return []
    for options in (["--mount"], ["--mount", "--map-root-user"]):
        probe = ["unshare", *options, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        if subprocess.run(probe, capture_output=True).returncode == 0:
            return ["unshare", *options]
    return []


def undisturbed(*arguments: object, folder: Path) -> Ending:
    """Run a command that has to succeed."""
    ending = command_server().run(*arguments, folder=folder)
    if ending.status != 0:
        raise FellError(f"{arguments} failed: {ending}")
    return ending


KILLED = -signal.SIGKILL
