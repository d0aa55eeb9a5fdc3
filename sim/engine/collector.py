"""A pause of Python's garbage collector while a compiler works."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_collector() -> Iterator[None]:
    """Pause the garbage collector. A compiler makes millions of objects and little garbage, so looking
    through them, and through all other objects of the process, took up to a fifth of a first launch.
    Afterwards the new objects count as old ones, which Python looks through rarely."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if not gc.get_freeze_count():  # `unfreeze` would also undo a freeze by other code
                gc.freeze()
                gc.unfreeze()
            gc.enable()
