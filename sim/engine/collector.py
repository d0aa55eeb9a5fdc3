"""Python's garbage collector waits where many objects are made that stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_collector() -> Iterator[None]:
    """A compiler makes millions of objects and little garbage. Looking through them, and through all that the
    process has, took up to a fifth of a first launch; they are old objects then."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if not gc.get_freeze_count():  # else `unfreeze` would undo what somebody else has asked for
                gc.freeze()
                gc.unfreeze()
            gc.enable()
