"""Starts child processes that end together with the command that started them.

This module imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE = 10  # seconds between SIGTERM and SIGKILL
HAS_GROUPS = os.name != "nt"


@contextlib.contextmanager
def end_on_sigterm():
    """Make SIGTERM raise SystemExit within the `with` block, so that `started` can stop its children.

    The handler is restored at the end, because a test runs commands in its own process. A program that
    replaces this one through exec has the default behaviour again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, raise_exit)
    try:
        yield
    finally:
        # `before` is None if the handler was not installed from Python, and cannot be restored then.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def raise_exit(number: int, frame: object) -> None:
    """Exit with the status that shells report for a process killed by this signal."""
    sys.exit(128 + number)


@contextlib.contextmanager
def started(command: list[str], with_terminal: bool = False, **options):
    """Start a command, and stop it with all its descendants if an exception leaves the `with` block.

    Such exceptions include KeyboardInterrupt and the SystemExit raised for SIGTERM. Ctrl-C in a terminal
    reaches only this process, unless the command is started `with_terminal`. Such a command can read from the
    terminal and also receives Ctrl-C.
    """
    grouped = HAS_GROUPS and not with_terminal
    group = {"process_group": 0} if grouped else {}
    child = subprocess.Popen(command, **group, **options)
    try:
        yield child
    except BaseException as reason:
        if with_terminal and isinstance(reason, KeyboardInterrupt):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE)  # The command has received Ctrl-C too and prints its own message.
        end(child, grouped)
        raise


def end(child: subprocess.Popen, grouped: bool) -> None:
    """Stop a child and its descendants with SIGTERM, and after GRACE seconds with SIGKILL."""
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
    """Return a function that signals the child and its current descendants.

    Without psutil, the function signals only the child.
    """
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
