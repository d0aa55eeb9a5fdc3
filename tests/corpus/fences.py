"""Corpus: tickets and locks, which need a fence between the write and the atomic that publishes it."""

import numpy as np
from numba import cuda, float32


class LastBlockWithoutFence:
    """The last block adds up the sums of all blocks. Without a fence, it may see the ticket before the
    sums."""

    launch = 3, 4
    findings = {
        (
            "race-global",
            "error",
            "partial",
            ("out[0] = partial[0] + partial[1] + partial[2]", "read"),
            ("partial[cuda.blockIdx.x] = total", "written"),
        )
    }

    def arguments():
        return np.arange(12.0), np.zeros(3), np.zeros(1, np.int64), np.zeros(1)

    @cuda.jit
    def buggy(x, partial, tickets, out):
        last = cuda.shared.array(1, float32)
        t = cuda.threadIdx.x
        if t == 0:
            total = 0.0
            for i in range(4):
                total += x[cuda.blockIdx.x * 4 + i]
            partial[cuda.blockIdx.x] = total
            last[0] = cuda.atomic.add(tickets, 0, 1)
        cuda.syncthreads()
        if last[0] == 2 and t == 0:
            out[0] = partial[0] + partial[1] + partial[2]

    @cuda.jit
    def fixed(x, partial, tickets, out):
        last = cuda.shared.array(1, float32)
        t = cuda.threadIdx.x
        if t == 0:
            total = 0.0
            for i in range(4):
                total += x[cuda.blockIdx.x * 4 + i]
            partial[cuda.blockIdx.x] = total
            cuda.threadfence()
            last[0] = cuda.atomic.add(tickets, 0, 1)
        cuda.syncthreads()
        if last[0] == 2 and t == 0:
            out[0] = partial[0] + partial[1] + partial[2]

    def wanted(x, partial, tickets, out):
        return {"out": [x.sum()]}


class FenceOfOneThread:
    """All threads of a block write, but only one of them fences and takes the ticket.

    Without a barrier before it, the fence covers only that thread's writes.
    """

    launch = 3, 4
    findings = {
        (
            "race-global",
            "error",
            "squares",
            ("out[t] = squares[t] + squares[t + 4] + squares[t + 8]", "read"),
            ("squares[i] = x[i] * x[i]", "written"),
        )
    }

    def arguments():
        return np.arange(12.0), np.zeros(12), np.zeros(1, np.int64), np.zeros(4)

    @cuda.jit
    def buggy(x, squares, tickets, out):
        last = cuda.shared.array(1, float32)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        squares[i] = x[i] * x[i]
        if t == 0:
            cuda.threadfence()
            last[0] = cuda.atomic.add(tickets, 0, 1)
        cuda.syncthreads()
        if last[0] == 2:
            out[t] = squares[t] + squares[t + 4] + squares[t + 8]

    @cuda.jit
    def fixed(x, squares, tickets, out):
        last = cuda.shared.array(1, float32)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        squares[i] = x[i] * x[i]
        cuda.syncthreads()
        if t == 0:
            cuda.threadfence()
            last[0] = cuda.atomic.add(tickets, 0, 1)
        cuda.syncthreads()
        if last[0] == 2:
            out[t] = squares[t] + squares[t + 4] + squares[t + 8]

    def wanted(x, squares, tickets, out):
        return {"out": (x**2).reshape(3, 4).sum(0)}


class FencesBehindTheTicket:
    """Every thread must fence its writes before the barrier that precedes the ticket, and not after the
    ticket."""

    launch = 3, 4
    findings = {
        (
            "race-global",
            "error",
            "squares",
            ("out[t] = squares[t] + squares[t + 4] + squares[t + 8]", "read"),
            ("squares[i] = x[i] * x[i]", "written"),
        )
    }

    def arguments():
        return np.arange(12.0), np.zeros(12), np.zeros(1, np.int64), np.zeros(4)

    @cuda.jit
    def buggy(x, squares, tickets, out):
        last = cuda.shared.array(1, float32)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        squares[i] = x[i] * x[i]
        cuda.syncthreads()
        if t == 0:
            last[0] = cuda.atomic.add(tickets, 0, 1)
        cuda.syncthreads()
        cuda.threadfence()
        if last[0] == 2:
            out[t] = squares[t] + squares[t + 4] + squares[t + 8]

    @cuda.jit
    def fixed(x, squares, tickets, out):
        last = cuda.shared.array(1, float32)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        squares[i] = x[i] * x[i]
        cuda.threadfence()
        cuda.syncthreads()
        if t == 0:
            last[0] = cuda.atomic.add(tickets, 0, 1)
        cuda.syncthreads()
        if last[0] == 2:
            out[t] = squares[t] + squares[t + 4] + squares[t + 8]

    def wanted(x, squares, tickets, out):
        return {"out": (x**2).reshape(3, 4).sum(0)}


class SpinLockWithoutFence:
    """A lock excludes other threads, but only fences make the writes visible to its next owner."""

    launch = 4, 1
    findings = {
        ("race-global", "error", "total", ("total[0] += 1", "read"), ("total[0] += 1", "written")),
        ("race-global", "error", "total", ("total[0] += 1", "written")),
    }

    def arguments():
        return np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        total[0] += 1
        cuda.atomic.exch(lock, 0, 0)

    @cuda.jit
    def fixed(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    def wanted(lock, total):
        return {"total": [4], "lock": [0]}


class SpinLockFencedTooLate:
    """The fence belongs before the release of the lock."""

    launch = 4, 1
    findings = {
        ("race-global", "error", "total", ("total[0] += 1", "read"), ("total[0] += 1", "written")),
        ("race-global", "error", "total", ("total[0] += 1", "written")),
    }

    def arguments():
        return np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        total[0] += 1
        cuda.atomic.exch(lock, 0, 0)
        cuda.threadfence()

    @cuda.jit
    def fixed(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    def wanted(lock, total):
        return {"total": [4], "lock": [0]}


class ReleasedByAStore:
    """A lock is released by a plain store, which races with the atomics of the other threads."""

    launch = 4, 1
    findings = {
        ("race-global", "error", "lock", ("lock[0] = 0", "written")),
        (
            "race-global",
            "error",
            "lock",
            ("lock[0] = 0", "written"),
            ("while cuda.atomic.cas(lock, 0, 0, 1) != 0:", "changed"),
        ),
    }

    def arguments():
        return np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.atomic.add(total, 0, 1.0)
        lock[0] = 0

    @cuda.jit
    def fixed(lock, total):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.atomic.add(total, 0, 1.0)
        cuda.atomic.exch(lock, 0, 0)

    def wanted(lock, total):
        return {"total": [4], "lock": [0]}
