"""A server that forks `python -m sim run` from a process that has already imported the simulator.

A forked run takes about 1 CPU second less than two new processes, one for the command and one for its
program.

The server reads requests from its standard input, each a line of JSON: [arguments, path of stdout, path of
stderr]. It answers each with the exit status on a line.
"""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

from sim.__main__ import main
from sim.runtime import command, process


class Server:
    """A running server."""

    def __init__(self, folder):
        self.out, self.err = folder / "stdout", folder / "stderr"
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, arguments):
        """Return (exit status, stdout, stderr) of `python -m sim` with these arguments."""
        print(json.dumps([arguments, str(self.out), str(self.err)]), file=self.process.stdin, flush=True)
        status = int(self.process.stdout.readline())
        return status, self.out.read_text(), self.err.read_text()

    def close(self):
        self.process.communicate()


class Forked:
    """A stand-in for subprocess.Popen with the methods that sim.runtime.command calls."""

    def __init__(self, arguments):
        settings, *given = arguments[arguments.index(process.__name__) + 1 :]
        self.pid = fork(lambda: process.main(json.loads(settings), given))

    def wait(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def fork(function):
    """Call the function in a forked process, which ends with the result as its status. Return its id."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        status = function()
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def run(arguments, out, err):
    """Run `python -m sim` in this process, with stdout and stderr redirected to files. Return the exit
    status."""
    for path, flags, number in (
        (os.devnull, os.O_RDONLY, 0),
        (out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 1),
        (err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 2),
    ):
        os.dup2(os.open(path, flags), number)
    command.subprocess = SimpleNamespace(Popen=Forked)
    return main(arguments)


if __name__ == "__main__":
    import sim.native.engine  # noqa: F401 (so that no forked process has to import it)

    for line in sys.stdin:
        pid = fork(lambda: run(*json.loads(line)))  # noqa: B023 (called at once)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
