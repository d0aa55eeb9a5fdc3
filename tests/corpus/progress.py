"""Corpus: loops that never end. `max_steps` keeps the detection fast."""

import numpy as np
from numba import cuda

from sim import DeviceSpec


class FlagWithoutAtomics:
    """Each thread sets its flag and waits for the other's. A compiler may hoist the plain load out of the
    loop."""

    launch = 1, 2
    options = {"max_steps": 500}
    hangs = True
    findings = {("no-progress", "error", None, ("while flags[1 - t] == 0:", "loops"))}

    def arguments():
        return np.zeros(2, np.int32), np.zeros(2, np.int32)

    @cuda.jit
    def buggy(flags, out):
        t = cuda.threadIdx.x
        flags[t] = 1
        while flags[1 - t] == 0:
            pass
        out[t] = 1

    @cuda.jit
    def fixed(flags, out):
        t = cuda.threadIdx.x
        cuda.atomic.exch(flags, t, 1)
        while cuda.atomic.add(flags, 1 - t, 0) == 0:
            pass
        out[t] = 1

    def wanted(flags, out):
        return {"out": [1, 1]}


class LockNeverReleased:
    """The first owner never releases the lock."""

    launch = 4, 1
    options = {"max_steps": 500}
    hangs = True
    findings = {("no-progress", "error", None, ("while cuda.atomic.cas(lock, 0, 0, 1) != 0:", "loops"))}

    def arguments():
        return np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += 1

    @cuda.jit
    def fixed(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    def wanted(lock, total):
        return {"total": [4]}


class ReleasedToTheWrongValue:
    """The lock is free when it is 0, but its owner releases it by adding 1, which leaves it at 2."""

    launch = 4, 1
    options = {"max_steps": 500}
    hangs = True
    findings = {("no-progress", "error", None, ("while cuda.atomic.cas(lock, 0, 0, 1) != 0:", "loops"))}

    def arguments():
        return np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += 1
        cuda.threadfence()
        cuda.atomic.add(lock, 0, 1)

    @cuda.jit
    def fixed(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += 1
        cuda.threadfence()
        cuda.atomic.sub(lock, 0, 1)

    def wanted(lock, total):
        return {"total": [4]}


class LockTakenTwice:
    """A thread that already owns the lock waits for itself."""

    launch = 1, 1
    options = {"max_steps": 500}
    hangs = True
    findings = {
        (
            "no-progress",
            "error",
            None,
            (
                "while cuda.atomic.cas(lock, 0, 0, 1) != 0:  # takes the lock again for the second addition",
                "loops",
            ),
        )
    }

    def arguments():
        return np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        total[0] += 1
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:  # takes the lock again for the second addition
            pass
        total[0] += 1
        cuda.atomic.exch(lock, 0, 0)

    @cuda.jit
    def fixed(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        total[0] += 1
        total[0] += 1
        cuda.atomic.exch(lock, 0, 0)

    def wanted(lock, total):
        return {"total": [2]}


class LoopWithoutAStep:
    """A stride loop never advances."""

    launch = 1, 4
    options = {"max_steps": 500}
    hangs = True
    findings = {("no-progress", "error", None, ("while i < x.shape[0]:", "loops"))}

    def arguments():
        return (np.arange(8.0),)

    @cuda.jit
    def buggy(x):
        i = cuda.grid(1)
        while i < x.shape[0]:
            x[i] *= 2

    @cuda.jit
    def fixed(x):
        i = cuda.grid(1)
        while i < x.shape[0]:
            x[i] *= 2
            i += cuda.gridsize(1)

    def wanted(x):
        return {"x": 2 * x}


class SearchThatStopsNarrowing:
    """A binary search does not move its lower end when two elements are left."""

    launch = 1, 8
    options = {"max_steps": 500}
    hangs = True
    findings = {("no-progress", "error", None, ("while low < high:", "loops"))}

    def arguments():
        return np.arange(0, 16, 2), np.arange(8) * 2, np.zeros(8, np.int64)

    @cuda.jit
    def buggy(table, x, out):
        i = cuda.grid(1)
        low, high = 0, table.shape[0]
        while low < high:
            middle = (low + high) // 2
            if table[middle] < x[i]:
                low = middle
            else:
                high = middle
        out[i] = low

    @cuda.jit
    def fixed(table, x, out):
        i = cuda.grid(1)
        low, high = 0, table.shape[0]
        while low < high:
            middle = (low + high) // 2
            if table[middle] < x[i]:
                low = middle + 1
            else:
                high = middle
        out[i] = low

    def wanted(table, x, out):
        return {"out": np.searchsorted(table, x)}


class CountdownPastZero:
    """A countdown in steps of two from an odd number never equals zero."""

    launch = 1, 4
    options = {"max_steps": 500}
    hangs = True
    findings = {("no-progress", "error", None, ("while left != 0:", "loops"))}

    def arguments():
        return np.array([2, 5, 4, 7]), np.zeros(4, np.int64)

    @cuda.jit
    def buggy(x, rounds):
        i = cuda.grid(1)
        left = x[i]
        while left != 0:
            left -= 2
            rounds[i] += 1

    @cuda.jit
    def fixed(x, rounds):
        i = cuda.grid(1)
        left = x[i]
        while left > 0:
            left -= 2
            rounds[i] += 1

    def wanted(x, rounds):
        return {"rounds": -(-x // 2)}


class BlocksWaitForBlocksToCome:
    """A barrier between blocks is built from atomics. Waiting blocks leave no room for the blocks they wait
    for."""

    launch = 4, 1
    fixed_launch = 2, 1
    options = {"max_steps": 500, "spec": DeviceSpec(multiprocessors=1, blocks_per_multiprocessor=2)}
    hangs = True
    findings = {
        ("no-progress", "error", None, ("while cuda.atomic.add(arrived, 0, 0) < cuda.gridDim.x:", "loops"))
    }

    def arguments():
        return np.zeros(1, np.int32), np.zeros(4, np.int32)

    @cuda.jit
    def buggy(arrived, out):
        cuda.atomic.add(arrived, 0, 1)
        while cuda.atomic.add(arrived, 0, 0) < cuda.gridDim.x:
            pass
        out[cuda.blockIdx.x] = 1

    @cuda.jit
    def fixed(arrived, out):
        cuda.atomic.add(arrived, 0, 1)
        while cuda.atomic.add(arrived, 0, 0) < cuda.gridDim.x:
            pass
        out[cuda.blockIdx.x] = 1

    def wanted(arrived, out):
        return {"out": [1, 1, 0, 0]}


class WaitingForMoreThanCome:
    """One thread per block reports, but all wait for as many reports as there are threads."""

    launch = 2, 4
    options = {"max_steps": 500}
    hangs = True
    findings = {
        ("no-progress", "error", None, ("while cuda.atomic.add(arrived, 0, 0) < cuda.gridsize(1):", "loops"))
    }

    def arguments():
        return np.zeros(1, np.int32), np.zeros(8, np.int32)

    @cuda.jit
    def buggy(arrived, out):
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(arrived, 0, 1)
        while cuda.atomic.add(arrived, 0, 0) < cuda.gridsize(1):
            pass
        out[cuda.grid(1)] = 1

    @cuda.jit
    def fixed(arrived, out):
        cuda.atomic.add(arrived, 0, 1)
        while cuda.atomic.add(arrived, 0, 0) < cuda.gridsize(1):
            pass
        out[cuda.grid(1)] = 1

    def wanted(arrived, out):
        return {"out": np.ones(8)}
