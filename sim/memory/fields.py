"""The byte ranges of the numbers in an array that the host reads: its elements, or the fields of its
structures."""

import numpy as np


def number_ranges(dtype, offset=0):
    """Yield (first byte, end) for each number in an element of a dtype. Padding and raw bytes do not count as
    numbers."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        for i in range(int(np.prod(shape))):
            yield from number_ranges(base, offset + i * base.itemsize)
    elif dtype.fields is not None:
        for field, at, *_ in dtype.fields.values():
            yield from number_ranges(field, offset + at)
    elif dtype.kind in "iufcb":
        yield offset, offset + dtype.itemsize


def hides_number(dtype, begin, missing):
    """Return whether the unwritten bytes in an array include all bytes of some number.

    The padding of a structure contains no number, unless the host views the structure as an array of numbers.

    begin: the offset of the first byte in the array.
    missing: a mask of the unwritten bytes.
    """
    ranges = list(number_ranges(dtype))
    for start in range(begin // dtype.itemsize * dtype.itemsize, begin + len(missing), dtype.itemsize):
        for first, end in ranges:
            low, high = start + first - begin, start + end - begin
            if 0 <= low and high <= len(missing) and missing[low:high].all():
                return True
    return False
