"""The recording of a launch: its accesses and barriers in their order, as the observer Trace keeps them and
`sim.viz` draws them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.device import DeviceSpec
from sim.events import BARRIER, SITES, Index3, Site


@dataclass(frozen=True)
class Event:
    """One row of a Recording: a load, store or atomic of one thread, or a barrier of a whole block. For a
    barrier, thread, array and index are None."""

    action: str  # "load", "store", "atomic", "barrier"
    block: Index3
    epoch: int
    thread: int | None  # linear index within the block
    site: Site
    array: str | None = None
    index: tuple[int, ...] | None = None


@dataclass(frozen=True)
class RecordedArray:
    """An array of a Recording: its name, memory space, shape, and the bytes of an element."""

    name: str
    space: str
    shape: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True, eq=False)
class Recording:
    """The events of a launch in their order: a sequence of Events, stored as parallel arrays of length n.

    action: LOAD, STORE, ATOMIC or BARRIER.
    block: an index into `blocks`.
    array: an index into `arrays`, or -1 for a barrier.
    element: the flat index of the element within the array's shape.
    address: in bytes.
    cut: the number of events that came after the recorder was full.
    """

    threads: Index3  # of a block
    spec: DeviceSpec  # the launch's
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
        """Return the state for pickle. It contains the Sites, because their numbers are valid in one
        process only."""
        numbers, site = np.unique(self.site, return_inverse=True)
        return {**vars(self), "site": site, "sites": [SITES[number] for number in numbers.tolist()]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state, with the numbers that the Sites have in this process."""
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
