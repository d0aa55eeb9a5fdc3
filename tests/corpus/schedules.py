"""Corpus: bugs that only a few schedules expose, and that the first dozen seeds usually miss."""

import numpy as np
from numba import cuda


class TicketNotAwaited:
    """One block takes a ticket for the lock, but does not wait for its turn."""

    launch = 4, 1
    findings = {
        ("race-global", "error", "total", ("total[0] += 1", "read"), ("total[0] += 1", "written")),
        ("race-global", "error", "total", ("total[0] += 1", "written")),
    }

    def arguments():
        return np.zeros(2, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(lock, total):
        mine = cuda.atomic.add(lock, 0, 1)
        while cuda.atomic.add(lock, 1, 0) < mine:
            if cuda.blockIdx.x == 2:
                break
        cuda.threadfence()
        total[0] += 1
        cuda.threadfence()
        cuda.atomic.add(lock, 1, 1)

    @cuda.jit
    def fixed(lock, total):
        mine = cuda.atomic.add(lock, 0, 1)
        while cuda.atomic.add(lock, 1, 0) < mine:
            pass
        cuda.threadfence()
        total[0] += 1
        cuda.threadfence()
        cuda.atomic.add(lock, 1, 1)

    def wanted(lock, total):
        return {"total": [4]}


class WaitsForALimitedTime:
    """One block polls the flag a hundred times and then reads the message regardless."""

    launch = 2, 1
    findings = {
        ("race-global", "error", "message", ("message[0] = 7", "written"), ("out[0] = message[0]", "read"))
    }

    def arguments():
        return np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)

    @cuda.jit
    def buggy(flag, message, out):
        if cuda.blockIdx.x == 0:
            message[0] = 7
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            for _ in range(100):
                if cuda.atomic.add(flag, 0, 0) == 1:
                    break
            out[0] = message[0]

    @cuda.jit
    def fixed(flag, message, out):
        if cuda.blockIdx.x == 0:
            message[0] = 7
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            for _ in range(100):
                if cuda.atomic.add(flag, 0, 0) == 1:
                    out[0] = message[0]
                    break

    def wanted(flag, message, out):
        return {"message": [7]}


class LockThatGivesUp:
    """A block that has tried eight times to take the lock continues without it."""

    launch = 8, 32
    findings = {
        ("race-global", "error", "total", ("total[0] += 1", "read"), ("total[0] += 1", "written")),
        ("race-global", "error", "total", ("total[0] += 1", "written")),
    }

    def arguments():
        return np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(lock, total):
        if cuda.threadIdx.x == 0:
            tries = 0
            while cuda.atomic.cas(lock, 0, 0, 1) != 0 and tries < 8:
                tries += 1
            cuda.threadfence()
            total[0] += 1
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)

    @cuda.jit
    def fixed(lock, total):
        if cuda.threadIdx.x == 0:
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            cuda.threadfence()
            total[0] += 1
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)

    def wanted(lock, total):
        return {"total": [8]}
