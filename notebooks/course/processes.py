"""Child processes that end when the command that started them is told to end. Standard library only."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE = 10  # seconds that processes get to end by themselves before they are killed
HAS_GROUPS = os.name != "nt"


def end_on_sigterm() -> None:
    """From now on SIGTERM raises SystemExit in this process, so that `started` can end what it has started. A
    process that is replaced (exec) has the system's own reaction again."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, raise_exit)


def raise_exit(number: int, frame: object) -> None:
    """Exit with the status by which shells name a signal."""
    sys.exit(128 + number)


@contextlib.contextmanager
def started(command: list[str], with_terminal: bool = False, **options):
    """Start a command; if an exception (an interrupt, SIGTERM) leaves the `with` block, end the command and
    all processes that it has started.

    Ctrl-C in a terminal reaches this process alone, unless the command is started `with_terminal`: then it
    can read from there, and gets Ctrl-C too.
    """
    grouped = HAS_GROUPS and not with_terminal
    group = {"process_group": 0} if grouped else {}
    child = subprocess.Popen(command, **group, **options)
    try:
        yield child
    except BaseException as reason:
        if with_terminal and isinstance(reason, KeyboardInterrupt):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE)  # it has words of its own for that
        end(child, grouped)
        raise


def end(child: subprocess.Popen, grouped: bool) -> None:
    """End a child and its descendants: by SIGTERM, and what is left after GRACE seconds by SIGKILL."""
    send = group_of(child) if grouped else family_of(child)
    send(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE)
    send(getattr(signal, "SIGKILL", signal.SIGTERM))
    child.wait()


def group_of(child: subprocess.Popen):
    """Return a function that sends a signal to the child's process group."""

    def send(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)

    return send


def family_of(child: subprocess.Popen):
    """Return a function that sends a signal to the child and to the descendants that it has now; to the child
    alone where psutil is missing."""
    try:
        import psutil
    except ImportError:
        return child.send_signal
    try:
        parent = psutil.Process(child.pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []

    def send(number: int) -> None:
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    return send
