"""Pauses Python's garbage collector while a compiler runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_collector() -> Iterator[None]:
    """Pause the garbage collector.

    A compiler creates millions of objects but little garbage, and collecting took up to a fifth of the time
    of a first launch. Afterwards, the new objects are moved to the oldest generation, which Python rarely
    scans.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if not gc.get_freeze_count():  # `unfreeze` would also undo the freeze of another caller.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
