"""Checks of one copy: its direction, unwritten bytes, and whether its source and destination overlap."""

import numpy as np

from sim.runtime.footprints import first_common, merged
from sim.runtime.memory import DEVICE, SYMBOL, WORD, is_mapped

PADDING_LIMIT = 8  # bytes; the largest alignment of a C++ type without vectors
LARGE = 1024  # bytes


def report_reversed(device, destination, source, to_device, name):
    """Report a copy if both of its pointers contradict its direction. Return whether they do.

    An example is cudaMemcpyHostToDevice with a source on the device and a destination on the host.

    to_device: True for the direction from the host to the device, False for the opposite direction.
    """
    memory = device.memory
    sides = {"destination": destination, "source": source}
    host, other = ("destination", "source") if to_device else ("source", "destination")
    buffer = memory.find(sides[other])
    if buffer is None or buffer.kind not in (DEVICE, SYMBOL):
        return False
    if memory.find(sides[host]) or not is_mapped(sides[host]):
        return False
    verdict = f"the {other} of {name} is {buffer}, and the {host} is on the host"
    fix = "name the opposite direction, or exchange the two pointers"
    device.report("copy-direction", "error", verdict, fix)
    return True


def report_rows_beyond(device, rows, nbytes, name):
    """Report rows that lie beyond the allocation in which the first row begins. Return whether there are such
    rows.

    rows: the rows of a copy, each as (destination, source).
    nbytes: the size of each row.
    """
    for role, starts in zip(("destination", "source"), zip(*rows)):
        buffer = device.memory.find(starts[0])
        beyond = max(starts) + nbytes - buffer.end if buffer else 0
        if beyond > 0:
            accessed = f"rows up to byte {buffer.end - buffer.base + beyond:,}"
            fix = "pass a number of rows and pitches with which all rows lie within the allocation"
            report_beyond(device, buffer, role, name, accessed, beyond, fix)
            return True
    return False


def report_beyond(device, buffer, role, name, accessed, beyond, fix):
    """Report a copy that accesses memory beyond a buffer.

    accessed: the bytes or rows that it accesses, as a noun.
    beyond: the number of bytes beyond the buffer.
    """
    verdict = f"{name} accesses {accessed} of its {role}, {buffer}: {beyond:,} bytes too many"
    device.report("copy-out-of-bounds", "error", verdict, fix)


def report_unwritten(device, origin, source, nbytes, name):
    """Report unwritten bytes that a copy passes to the host. Return whether there are such bytes.

    Gaps that may be the padding of a structure are not reported.
    """
    if origin is None or origin.unwritten is None or not nbytes:
        return False
    start = source - origin.base
    gaps = find_gaps(origin.unwritten[start : start + nbytes]) + start
    reported = gaps[~may_be_padding(gaps, nbytes)]
    if not reported.size:
        return False
    count = int((gaps[:, 1] - gaps[:, 0]).sum())
    verdict = (
        f"{name} copies {count:,} of {nbytes:,} bytes that nothing has written, the first at byte"
        f" {reported[0, 0]:,} of {origin}"
    )
    fix = "check the grid and the bound of the kernel that fills it, or copy only the bytes that it fills"
    device.report("uninitialized-copy", "warning", verdict, fix)
    return True


def find_gaps(unwritten):
    """Return the runs of unwritten bytes, each as a row (first, end)."""
    # A list of the unwritten bytes would use 8 times the memory of the buffer.
    bounds = np.concatenate([[0], np.flatnonzero(unwritten[1:] != unwritten[:-1]) + 1, [unwritten.size]])
    bounds = bounds[0 if unwritten[0] else 1 :]  # runs of written and unwritten bytes alternate
    return bounds[: len(bounds) // 2 * 2].reshape(-1, 2)


def may_be_padding(gaps, nbytes):
    """Return for each gap whether it may be the padding of a structure.

    Padding of at least a word is not at the start of an allocation, and ends at an address that is a multiple
    of PADDING_LIMIT. A copy of LARGE bytes or more with a single gap is treated as an array without padding.
    A gap smaller than a word may consist of written bytes that happen to have the fill value.

    gaps: rows (first, end), as offsets in the allocation.
    """
    sizes = gaps[:, 1] - gaps[:, 0]
    fits = (sizes < PADDING_LIMIT) & (gaps[:, 0] > 0) & (gaps[:, 1] % PADDING_LIMIT == 0)
    return (sizes < WORD) | fits & (len(gaps) > 1 or nbytes < LARGE)


def report_overlap(device, pieces, nbytes, name):
    """Report a copy whose source and destination share bytes. A copy of memory to itself is not reported.

    CUDA Runtime API, "Memory Management": the memory areas of a copy may not overlap.

    pieces: the pieces of the copy, each as (destination, source).
    nbytes: the size of each piece.
    name: the name of the copy.
    """
    starts = np.array(pieces, np.int64)
    if (starts[:, 0] == starts[:, 1]).all():
        return
    written, read = (merged(np.stack([start, start + nbytes], 1)) for start in starts.T)
    address = first_common(written, read)
    if address is None:
        return
    buffer = device.memory.find(address)
    where = f"byte {address - buffer.base:,} of {buffer}" if buffer else f"{address:#x} in memory of the host"
    verdict = f"the source and the destination of {name} overlap, from {where}"
    fix = "copy to another buffer first, or let a kernel read all of the bytes before it writes any of them"
    device.report("copy-overlap", "error", verdict, fix)
