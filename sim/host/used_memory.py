"""The memory that a launch of a Numba kernel uses: device arrays, and the host arrays that Numba copies."""

import numpy as np
from numba.cuda.args import ArgHint, In, Out
from numba.cuda.cudadrv import driver

from sim.events import GLOBAL, LOAD, STORE
from sim.runtime.footprints import VERBS, Footprint, merged


class LaunchMemory:
    """The memory that a launch uses.

    memory: the Memory of the device.
    device: bounds of the device arrays, as pairs of addresses.
    locked: the copies that Numba makes of page-locked host arrays, before and after the launch, as (LOAD or
        STORE, start, end).
    ranges: the page-locked memory that the launch or these copies access, as pairs of addresses.
    written: the part of `ranges` that may change.
    copies_back: whether Numba copies host arrays back after the launch.
    copies_back_pageable: whether one of them is in pageable memory, for which the host waits.
    """

    def __init__(self, memory):
        self.memory, self.device, self.locked, self.ranges, self.written = memory, [], [], [], []
        self.copies_back = self.copies_back_pageable = False

    def add(self, given, array):
        """Add an argument. `array` is its numpy array, or any other value."""
        if isinstance(array, np.void):
            array = np.asarray(array)
        if not isinstance(array, np.ndarray) or not array.size:
            return
        start, end = np.lib.array_utils.byte_bounds(array)
        is_locked = self.memory.is_page_locked(start)
        value = given.value if isinstance(given, ArgHint) else given
        if driver.is_device_memory(value) or not isinstance(value, (np.ndarray, np.void)):
            self.device.append((start, end))  # tensors count as device memory, too
            if is_locked:
                self.ranges.append((start, end))
                self.written.append((start, end))
            return
        verbs = [LOAD] * (type(given) is not Out) + [STORE] * (not isinstance(given, In))
        self.copies_back |= STORE in verbs
        self.copies_back_pageable |= STORE in verbs and not is_locked
        if is_locked:
            self.locked += [(verb, start, end) for verb in verbs]
            self.ranges.append((start, end))
            self.written += [(start, end)] * (STORE in verbs)

    def estimate(self):
        """Return a Footprint of all device memory that the launch could access."""
        footprint = Footprint()
        for start, end in self.device:
            footprint.add(STORE, start, end - start)
        return footprint


class LaunchFootprint(Footprint):
    """The device memory that a launch accesses, at addresses of the host. As an observer, it translates the
    simulated addresses of each run of the launch.

    bounds: the bounds of the device arrays, as pairs of addresses. The launch does not share other memory
        with other operations.
    """

    def __init__(self, bounds):
        super().__init__()
        self.bounds = merged(np.array(bounds, np.int64).reshape(-1, 2))

    def launch_started(self, context):
        found = [
            (one.base, one.base + one.root.size, one.root.ctypes.data)
            for one in context.space.allocations
            if one.space == "global" and one.root.size
        ]
        self.base, self.end, self.low = np.array(sorted(found) or [(0, 0, 0)], np.int64).T

    def accesses(self, batch):
        at = np.searchsorted(self.base, batch.address, side="right") - 1
        host = batch.address - self.base[at] + self.low[at]
        known = (batch.space == GLOBAL) & (at >= 0) & (batch.address < self.end[at])
        for action in VERBS:
            mine = known & (batch.action == action)
            start = host[mine].astype(np.int64)
            self.add_rows(action, self.shared(np.stack([start, start + batch.size[mine]], 1)))

    def shared(self, rows):
        """Return the rows that lie within the bounds."""
        at = np.searchsorted(self.bounds[:, 0], rows[:, 0], side="right") - 1
        return rows[(at >= 0) & (rows[:, 0] < self.bounds[at, 1])] if len(self.bounds) else rows[:0]


def rows_of(array):
    """Return the ranges of addresses of an array's elements, as rows (start, end)."""
    offsets = np.zeros(1, np.int64)
    for n, stride in zip(array.shape, array.strides):
        offsets = (offsets[:, None] + np.arange(n) * stride).reshape(-1)
    start = offsets + array.__array_interface__["data"][0]
    return merged(np.stack([start, start + array.itemsize], 1))


def footprint_of_copy(to, source):
    """Return the Footprint of a copy between two arrays of the device."""
    footprint = Footprint()
    footprint.add_rows(STORE, rows_of(to))
    footprint.add_rows(LOAD, rows_of(source))
    return footprint
