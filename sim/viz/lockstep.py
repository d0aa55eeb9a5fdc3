"""Groups the accesses in a Recording as a warp would issue them: all lanes together, by the number of
accesses since the last barrier."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.events import BARRIER, Index3, index_text
from sim.nouns import plural
from sim.recording import Recording
from sim.viz import VERBS, ranges


@dataclass(frozen=True)
class Request:
    """The k-th execution of a site by a warp since the last barrier. `rows` holds its accesses, one per
    active lane."""

    epoch: int
    time: int  # number of accesses since the barrier by the lane that has made the most
    warp: int
    rows: np.ndarray


def block_number(recording: Recording, block: int | Index3 | None) -> int:
    """Return the position of `block` in `recording.blocks`.

    block: (x, y, z), x, or None for the lowest block.
    """
    if not recording.blocks:
        raise ValueError("the trace is empty: the kernel accessed no array")
    if block is None:
        block = min(recording.blocks, key=lambda index: index[::-1])
    wanted = (*(block if isinstance(block, tuple) else (block,)), 0, 0)[:3]
    if wanted not in recording.blocks:
        raise ValueError(
            f"block {wanted} is not in the trace, which holds {plural(len(recording.blocks), 'block')}, the"
            f" first {recording.blocks[0]}; Trace(blocks=[...]) records the blocks that you name"
        )
    return recording.blocks.index(wanted)


def times(recording: Recording, rows: np.ndarray) -> np.ndarray:
    """Return, for each access in `rows`, the number of earlier accesses by the same thread. All rows belong
    to one block and epoch."""
    # A stable sort keeps each thread's accesses in program order.
    order = np.argsort(recording.thread[rows], kind="stable")
    threads = recording.thread[rows][order]
    starts = np.flatnonzero(np.diff(threads, prepend=-1))
    result = np.empty(len(rows), np.int64)
    result[order] = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
    return result


def epochs(recording: Recording, number: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (epoch, rows of its accesses) for each epoch of a block, in order."""
    rows = np.flatnonzero((recording.block == number) & (recording.action != BARRIER))
    for epoch in np.unique(recording.epoch[recording.block == number]).tolist():
        yield epoch, rows[recording.epoch[rows] == epoch]


def requests(recording: Recording, number: int) -> Iterator[Request]:
    """Yield the requests of a block's warps, in the order in which warps in lockstep would issue them."""
    size = recording.spec.warp_size
    for epoch, rows in epochs(recording, number):
        if not len(rows):
            continue
        order, request = recording.spec.requests(recording.thread[rows], recording.site[rows])
        time = times(recording, rows)[order]
        parts = np.split(np.argsort(request, kind="stable"), np.cumsum(np.bincount(request))[:-1])
        warps = recording.thread[rows[order]] // size
        made = [Request(epoch, int(time[p].max()), int(warps[p[0]]), rows[order[p]]) for p in parts]
        yield from sorted(made, key=lambda r: (r.time, r.warp))


def sentence(recording: Recording, request: Request) -> str:
    """Return a description of a request: "... threads 0-31 load x   kernel line 5  source text"."""
    first = recording[request.rows[0]]
    threads = recording.thread[request.rows].tolist()
    who = f"thread{'s' * (len(threads) > 1)} {ranges(threads)} {VERBS[first.action][len(threads) == 1]}"
    return (
        f"block {index_text(first.block)}, epoch {request.epoch}: {who} {first.array}   {first.site.function}"
        f" line {first.site.line}  {first.site.source}"
    )
