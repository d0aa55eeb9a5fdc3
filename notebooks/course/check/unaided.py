"""Refuses launches and recorded results inside answers that should come from reading or calculating."""

import sys
from contextlib import contextmanager
from unittest.mock import patch

from course.check.harness import fail
from sim.launch import Simulation

WATCHED = []  # holds the hint of the answer that runs now
HOOKED = []  # audit hooks cannot be removed, so there is only one


@contextmanager
def without_records(hint):
    """Reject an answer that opens a JSON file while it runs."""
    if not HOOKED:
        HOOKED.append(refuse_json)
        sys.addaudithook(refuse_json)
    WATCHED.append(hint)
    try:
        yield
    finally:
        WATCHED.pop()


def refuse_json(event, arguments):
    if WATCHED and event == "open" and str(arguments[0]).endswith(".json"):
        fail("the answer reads a recorded result from a file", hint=WATCHED[-1])


@contextmanager
def without_launches(hint):
    """Reject an answer that launches a kernel in the simulator while it runs."""

    def refuse(self, configuration):
        fail("the answer launches a kernel", hint=hint)

    with patch.object(Simulation, "__getitem__", refuse):
        yield
