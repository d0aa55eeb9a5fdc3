"""Tests of launches that a time limit ends: their findings, and exceptions thrown into threads."""

import threading
from types import SimpleNamespace

from sim.engine.os_thread import throw_into
from sim.engine.watchdog import Watchdog
from sim.errors import OutOfTime


class LateEvent(threading.Event):
    """An event during whose `set` the watchdog throws an exception into the launcher."""

    thrown = False

    def set(self):
        if not self.thrown:
            self.thrown = True
            throw_into(threading.get_ident(), OutOfTime)
        super().set()


def test_an_exception_thrown_at_the_end_of_a_launch_does_not_leave_it():
    facts = dict(activity=1, entered=0, runs_kernel=False, ticking=True, has_errors=False, max_steps=None)
    guard = Watchdog(SimpleNamespace(**facts))
    guard.over = LateEvent()
    with guard:
        pass
    assert guard.over.is_set() and sum(range(1000)) == 499500
