"""The trace of a launch: its accesses and barriers in order. The observer Trace records it and `sim.viz`
draws it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.device import DeviceSpec
from sim.events import BARRIER, SITES, Index3, Site


@dataclass(frozen=True)
class Event:
    """One event in a Recording: a load, store or atomic by one thread, or a barrier of a whole block.

    For a barrier, thread, array and index are None.
    """

    action: str  # "load", "store", "atomic", "barrier"
    block: Index3
    epoch: int
    thread: int | None  # linear index in the block
    site: Site
    array: str | None = None
    index: tuple[int, ...] | None = None


@dataclass(frozen=True)
class AsyncEvent:
    """One event of an operation of the async proxy, or a wait for a phase of an mbarrier.

    action: "issue", "read" (its source has been read), "end", or "pass" (a warp has waited for a phase).
    operation: the number of the operation, or -1 for a wait.
    thread: the linear index of the thread, or None for an end that no thread causes.
    lane: the memory or the barrier to which the event belongs. Empty for an end that repeats the issue's.
    text: a sentence.
    """

    action: str
    operation: int
    thread: int | None
    lane: str
    text: str


@dataclass(frozen=True)
class RecordedArray:
    """An array in a Recording: name, memory space, shape, and bytes per element."""

    name: str
    space: str
    shape: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True, eq=False)
class Recording:
    """The events of a launch, in order. A sequence of Events, stored as parallel arrays of length n.

    action: LOAD, STORE, ATOMIC or BARRIER.
    block: an index into `blocks`.
    array: an index into `arrays`, or -1 for a barrier.
    element: the flat index of the element.
    address: the byte address.
    cut: the number of events dropped after the recorder was full.
    """

    threads: Index3  # block shape
    spec: DeviceSpec  # limits of the simulated GPU
    blocks: tuple[Index3, ...]
    arrays: tuple[RecordedArray, ...]
    action: np.ndarray
    block: np.ndarray
    epoch: np.ndarray
    thread: np.ndarray
    site: np.ndarray
    array: np.ndarray
    element: np.ndarray
    address: np.ndarray
    cut: int = 0

    def __len__(self) -> int:
        return len(self.action)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle. It contains the Sites themselves, because site numbers are valid only
        in one process."""
        numbers, site = np.unique(self.site, return_inverse=True)
        return {**vars(self), "site": site, "sites": [SITES[number] for number in numbers.tolist()]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state, with this process's site numbers."""
        numbers = np.array([SITES.add(site) for site in state.pop("sites")], np.int64)
        vars(self).update(state, site=numbers[state["site"]])

    def __getitem__(self, position: int) -> Event:
        block, epoch = self.blocks[self.block[position]], int(self.epoch[position])
        site = SITES[int(self.site[position])]
        if self.action[position] == BARRIER:
            return Event("barrier", block, epoch, None, site)
        home = self.arrays[self.array[position]]
        index = tuple(map(int, np.unravel_index(self.element[position], home.shape)))
        return Event(site.kind, block, epoch, int(self.thread[position]), site, home.name, index)
