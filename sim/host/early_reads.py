"""Search for the poison of pending copies in the variables of a failed test."""

import numpy as np

from sim.events import INTEGER_POISON

MOST_BYTES = 1 << 20  # larger arrays are not searched
LEAST_BYTES = 4  # shorter values can equal the poison by chance


def poisoned_variables(traceback):
    """Return the names of variables with poison in the frames of a traceback, innermost first."""
    found = {}
    while traceback is not None:
        for name, value in reversed(traceback.tb_frame.f_locals.items()):
            if is_poisoned(value):
                found[name] = None
        traceback = traceback.tb_next
    return list(found)[::-1]


def is_poisoned(value):
    """Return whether a number consists of poison bytes, or an element of an array does."""
    if isinstance(value, float) or type(value) is int and abs(value) < 1 << 63:
        return any(value == poison for poison in poison_numbers())
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.hasobject:
        return False
    if value.nbytes > MOST_BYTES or value.dtype.itemsize < LEAST_BYTES:
        return False
    rows = np.frombuffer(value.tobytes(), np.uint8).reshape(-1, value.dtype.itemsize)
    return bool((rows == INTEGER_POISON).all(1).any())


def poison_numbers():
    """Return the numbers that consist of poison bytes."""
    types = "i4 i8 u4 u8 f4 f8".split()
    return [np.full(np.dtype(t).itemsize, INTEGER_POISON, np.uint8).view(t)[0].item() for t in types]
