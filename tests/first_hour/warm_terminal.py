"""A terminal that has imported everything, and forks a process for each command: `python warm_terminal.py`.

It runs in the environment of a newcomer, and imports nothing of this checkout. An import of torch takes seconds, and a
fork takes milliseconds. A request is a JSON object on a line of the standard input, with the words of a command or a
Python program. The reply is one on a line of the standard output.
"""

import json
import os
import sys
import tempfile
import traceback
from typing import IO

import matplotlib
import matplotlib.backends.backend_agg
import matplotlib.backends.backend_svg
import safetensors.torch  # noqa: F401
import torch
import torch.utils.tensorboard

import zloss  # noqa: F401
from zloss_lab import cli


def main() -> None:
    """Answer requests until the standard input ends."""
    torch.set_num_threads(1)  # threads would not exist in a forked process
    matplotlib.use("agg")
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = os.fork()
            if not process:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                become(**request)
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            texts = [read(file) for file in (out, err)]
        print(json.dumps([status, *texts]), flush=True)


def become(command: list[str], program: str) -> None:
    """Run a command, or a Python program if there is one, and end this process."""
    status = 0
    try:
        if program:
            exec(compile(program, "mine.py", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = command
            cli.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def read(file: IO[bytes]) -> str:
    """Return what a process has written to a file."""
    file.seek(0)
    return file.read().decode()


if __name__ == "__main__":
    main()
