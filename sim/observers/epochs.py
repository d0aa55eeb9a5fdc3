"""epochs: the base class of counters that process whole epochs. An epoch is the time between two successive
barriers of a block."""

from typing import TYPE_CHECKING, Any

import numpy as np

from sim.events import GLOBAL, LOCAL, Batch, Column, Index3, Observer

if TYPE_CHECKING:
    from sim.context import Context


class EpochCounter(Observer):
    """A counter of warp requests that processes accesses epoch by epoch. Bulk copies and wgmma access memory
    without a request of a warp, so they are not counted.

    A subclass overrides `space`, the memory space whose accesses are counted, and `epochs`.

    There are counters for the launch (`counters[title]`) and for each source line: the number of requests,
    and the further `names`. Counts are summed, except for the names in `worst`, which keep the maximum.
    `report.by_line()` shows one column per name, or the `columns` of the class if it defines them.
    """

    checks = False
    title: str
    names: tuple[str, ...]
    worst: tuple[str, ...] = ()
    space = GLOBAL
    # The number of accesses per call of `epochs`. It is large enough for numpy to be efficient, and small
    # enough for the CPU's cache.
    lump = 1 << 14
    local = property(lambda self: self.space == LOCAL)

    def __init_subclass__(cls) -> None:
        if "columns" not in vars(cls) and "names" in vars(cls):
            cls.columns = tuple(Column(name, (name,)) for name in cls.names)

    def __init__(self) -> None:
        self.open: dict[Index3, list[tuple[np.ndarray, ...]]] = {}
        self.closed: list[tuple[np.ndarray, ...]] = []
        self.number, self.buffered = 0, 0
        self.sites: dict[int, list[int]] = {}  # site -> its counts, in the order of `names`

    def launch_started(self, context: "Context") -> None:
        self.spec, self.async_segments = context.spec, context.async_segments
        self.lanes = -(-context.spec.max_threads_per_block // context.spec.warp_size) * context.spec.warp_size

    def accesses(self, batch: Batch) -> None:
        mine = batch.space == self.space
        if self.async_segments:
            mine &= ~np.isin(batch.segment, [*self.async_segments])
        if mine.all():
            self.keep(batch.block, batch.thread, batch.site, batch.address, batch.size)
        elif mine.any():
            columns = batch.thread, batch.site, batch.address, batch.size
            self.keep(batch.block, *(column[mine] for column in columns))

    def keep(self, block: Index3, *columns: np.ndarray) -> None:
        self.open.setdefault(block, []).append(columns)

    def barrier_opened(self, block: Index3, epoch: int) -> None:
        self.close(block)

    def block_ended(self, block: Index3, epoch: int) -> None:
        self.close(block)

    def close(self, block: Index3) -> None:
        """Close the current epoch of a block. Add an offset to its thread numbers, so that they differ from
        the thread numbers of other closed epochs. One call of `epochs` can then count several epochs."""
        batches = self.open.pop(block, ())
        for thread, *columns in batches:
            # An offset that is a multiple of the warp size keeps the lanes of a warp together.
            self.closed.append((thread + self.number * self.lanes, *columns))
            self.buffered += len(thread)
        self.number += bool(batches)
        if self.buffered > self.lump:
            self.count_closed()

    def count_closed(self) -> None:
        if self.closed:
            lane, site, *columns = map(np.concatenate, zip(*self.closed))
            self.epochs(lane.astype(np.int64, copy=False), site.astype(np.int64, copy=False), *columns)
        self.closed, self.number, self.buffered = [], 0, 0

    def epochs(self, lane: np.ndarray, site: np.ndarray, *columns: np.ndarray) -> None:
        """Count the events of several epochs. For accesses, the columns are the address and the size.

        The events of each lane are in program order. The number of each warp's first lane is a multiple of
        the warp size. Lane numbers of different epochs are disjoint.
        """

    def count(self, site: np.ndarray, request: np.ndarray, *columns: np.ndarray) -> None:
        """Add requests to the counters of their sites.

        site, request: arrays of equal length, with the site of each access and the number of its request.
        columns: arrays with one entry per request, with the counts for all names except the first.
        """
        # All accesses of a request have the same site, so it does not matter which of them sets the request's
        # site.
        site_of = np.empty(int(request.max()) + 1, np.int64)
        site_of[request] = site
        for number in np.unique(site_of).tolist():
            mine = site_of == number
            here = [self.total(*pair) for pair in zip(self.names, [mine, *(c[mine] for c in columns)])]
            before = self.sites.get(number, here)
            self.sites[number] = here if before is here else [*map(self.total, self.names, zip(before, here))]

    def total(self, name: str, numbers: Any) -> int:
        return int((np.max if name in self.worst else np.sum)(numbers))

    def launch_finished(self, context: "Context") -> None:
        for block in list(self.open):
            self.close(block)
        self.count_closed()
        launch = context.counters[self.title] = dict.fromkeys(self.names, 0)
        for site, counted in self.sites.items():
            for counters in (context.line(site), launch):
                for name, number in zip(self.names, counted):
                    counters[name] = self.total(name, (counters.get(name, 0), number))
