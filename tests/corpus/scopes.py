"""Corpus: the scope of fences and atomics."""

import numpy as np
from numba import cuda, float64, int32


class FenceOfTheBlockBeforeATicket:
    """threadfence_block only orders for its own block, but other blocks read the ticket."""

    launch = 3, 1
    findings = {
        (
            "race-global",
            "error",
            "part",
            ("out[0] = part[0] + part[1] + part[2]", "read"),
            ("part[b] = x[b]", "written"),
        )
    }

    def arguments():
        return np.ones(3), np.zeros(3), np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(x, part, tickets, out):
        b = cuda.blockIdx.x
        part[b] = x[b]
        cuda.threadfence_block()
        if cuda.atomic.add(tickets, 0, 1) == 2:
            out[0] = part[0] + part[1] + part[2]

    @cuda.jit
    def fixed(x, part, tickets, out):
        b = cuda.blockIdx.x
        part[b] = x[b]
        cuda.threadfence_system()
        if cuda.atomic.add(tickets, 0, 1) == 2:
            out[0] = part[0] + part[1] + part[2]

    def wanted(x, part, tickets, out):
        return {"out": [3]}


class LockWithFencesOfTheBlock:
    """Blocks share a lock whose fences only reach one block."""

    launch = 3, 1
    findings = {
        ("race-global", "error", "count", ("count[0] += 2", "read"), ("count[0] += 2", "written")),
        ("race-global", "error", "count", ("count[0] += 2", "written")),
    }

    def arguments():
        return np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(lock, count):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence_block()
        count[0] += 2
        cuda.threadfence_block()
        cuda.atomic.exch(lock, 0, 0)

    @cuda.jit
    def fixed(lock, count):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        count[0] += 2
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    def wanted(lock, count):
        return {"count": [6]}


class SharedTicketBetweenBlocks:
    """The ticket is in shared memory, so each block has a separate one."""

    launch = 2, 1
    findings = {
        ("race-global", "error", "parcel", ("out[0] = parcel[0]", "read"), ("parcel[0] = 3", "written"))
    }

    def arguments():
        return np.zeros(1), np.zeros(1, np.int32), np.zeros(2)

    @cuda.jit
    def buggy(parcel, flag, out):
        mine = cuda.shared.array(1, int32)
        mine[0] = 0
        if cuda.blockIdx.x == 0:
            parcel[0] = 3
            cuda.threadfence()
            cuda.atomic.add(mine, 0, 1)
        else:
            cuda.atomic.add(mine, 0, 1)
            cuda.threadfence()
            out[0] = parcel[0]

    @cuda.jit
    def fixed(parcel, flag, out):
        mine = cuda.shared.array(1, int32)
        mine[0] = 0
        if cuda.blockIdx.x == 0:
            parcel[0] = 3
            cuda.threadfence()
            cuda.atomic.add(flag, 0, 1)
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                cuda.atomic.add(mine, 0, 1)
            cuda.threadfence()
            out[0] = parcel[0]

    def wanted(parcel, flag, out):
        return {"out": [3, 0]}


class RelayThroughABlockFence:
    """Block 0 signals a thread of block 1 with a grid-wide fence. That thread signals another block with a
    fence that does not reach it."""

    launch = 3, 1
    findings = {
        ("race-global", "error", "parcel", ("out[0] = parcel[0]", "read"), ("parcel[0] = 9", "written"))
    }

    def arguments():
        return np.zeros(1), np.zeros(3, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(parcel, flags, out):
        b = cuda.blockIdx.x
        if b == 0:
            parcel[0] = 9
            cuda.threadfence()
        else:
            while cuda.atomic.add(flags, b - 1, 0) == 0:
                pass
            cuda.threadfence_block()
        cuda.atomic.exch(flags, b, 1)
        if b == 2:
            out[0] = parcel[0]

    @cuda.jit
    def fixed(parcel, flags, out):
        b = cuda.blockIdx.x
        if b == 0:
            parcel[0] = 9
            cuda.threadfence()
        else:
            while cuda.atomic.add(flags, b - 1, 0) == 0:
                pass
            cuda.threadfence()
        cuda.atomic.exch(flags, b, 1)
        if b == 2:
            out[0] = parcel[0]

    def wanted(parcel, flags, out):
        return {"out": [9]}


class SharedLockOfABlock:
    """A lock in shared memory excludes threads of the same block, but the sum belongs to the whole grid."""

    launch = 2, 2
    findings = {
        ("race-global", "error", "total", ("total[0] += 1", "read"), ("total[0] += 1", "written")),
        ("race-global", "error", "total", ("total[0] += 1", "written")),
    }

    def arguments():
        return np.zeros(1), np.zeros(1, np.int32)

    @cuda.jit
    def buggy(total, glock):
        lock = cuda.shared.array(1, int32)
        if cuda.threadIdx.x == 0:
            lock[0] = 0
        cuda.syncthreads()
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    @cuda.jit
    def fixed(total, glock):
        lock = cuda.shared.array(1, int32)
        part = cuda.shared.array(1, float64)
        if cuda.threadIdx.x == 0:
            lock[0] = 0
            part[0] = 0
        cuda.syncthreads()
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence_block()
        part[0] += 1
        cuda.threadfence_block()
        cuda.atomic.exch(lock, 0, 0)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(total, 0, part[0])

    def wanted(total, glock):
        return {"total": [4]}
