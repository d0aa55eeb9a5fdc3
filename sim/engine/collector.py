"""Pauses Python's garbage collector while a compiler runs, and slows it down while threads run."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Whether another caller is known to have frozen objects. Counting a million frozen objects takes 0.08 s, so
# once a count is above 0, the objects are not counted again.
is_frozen = False


@contextmanager
def pause_collector() -> Iterator[None]:
    """Pause the garbage collector.

    A compiler creates millions of objects but little garbage, and the collector took up to a fifth of the
    time of a first launch. Afterwards, the new objects are moved to the oldest generation, which Python
    rarely scans.
    """
    global is_frozen
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            is_frozen = is_frozen or gc.get_freeze_count() > 0
            if not is_frozen:  # `unfreeze` would also undo the freeze of another caller.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


# New objects between two collections while threads run; Python's default is 700.
OBJECTS_BETWEEN_COLLECTIONS = 100_000


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Let the garbage collector run more rarely.

    The fibers of a launch all exist until it ends, and each collection visits them. With Python's default,
    16,384 fibers cost a fifth of the CPU time of a launch.
    """
    least, *others = gc.get_threshold()
    if least:  # 0 means that the collector is off
        gc.set_threshold(max(least, OBJECTS_BETWEEN_COLLECTIONS), *others)
    try:
        yield
    finally:
        gc.set_threshold(least, *others)
