"""Corpus: messages between blocks, which need a fence between the write and the atomic that announces it."""

import numpy as np
from numba import cuda, float32


class MessageWithoutFence:
    """One block sends a message and sets a flag; another block waits for the flag."""

    launch = 2, 1
    findings = {
        ("race-global", "error", "message", ("message[0] = 42", "written"), ("out[0] = message[0]", "read"))
    }

    def arguments():
        return np.zeros(1), np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(message, flag, out):
        if cuda.blockIdx.x == 0:
            message[0] = 42
            cuda.atomic.exch(flag, 0, 1)
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            out[0] = message[0]

    @cuda.jit
    def fixed(message, flag, out):
        if cuda.blockIdx.x == 0:
            message[0] = 42
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            out[0] = message[0]

    def wanted(message, flag, out):
        return {"out": [42]}


class FlagBeforeMessage:
    """The flag is set before the message is written; the fence does not help."""

    launch = 2, 1
    findings = {
        ("race-global", "error", "message", ("message[0] = 42", "written"), ("out[0] = message[0]", "read"))
    }

    def arguments():
        return np.zeros(1), np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(message, flag, out):
        if cuda.blockIdx.x == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
            message[0] = 42
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            out[0] = message[0]

    @cuda.jit
    def fixed(message, flag, out):
        if cuda.blockIdx.x == 0:
            message[0] = 42
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            out[0] = message[0]

    def wanted(message, flag, out):
        return {"out": [42]}


class RelayOfThreeBlocks:
    """Each block waits for the previous one and signals the next. The last block reads a value written by the
    first.

    Each link of the chain needs a fence.
    """

    launch = 3, 2
    findings = {
        ("race-global", "error", "message", ("message[0] = 42", "written"), ("out[0] = message[0]", "read"))
    }

    def arguments():
        return np.zeros(1), np.zeros(3, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(message, flags, out):
        b = cuda.blockIdx.x
        t = cuda.threadIdx.x
        if t == 0 and b > 0:
            while cuda.atomic.add(flags, b - 1, 0) == 0:
                pass
        cuda.syncthreads()
        if t == 1:
            if b == 0:
                message[0] = 42
                cuda.threadfence()
            cuda.atomic.exch(flags, b, 1)
            if b == 2:
                out[0] = message[0]

    @cuda.jit
    def fixed(message, flags, out):
        b = cuda.blockIdx.x
        t = cuda.threadIdx.x
        if t == 0 and b > 0:
            while cuda.atomic.add(flags, b - 1, 0) == 0:
                pass
            cuda.threadfence()
        cuda.syncthreads()
        if t == 1:
            if b == 0:
                message[0] = 42
            cuda.threadfence()
            cuda.atomic.exch(flags, b, 1)
            if b == 2:
                out[0] = message[0]

    def wanted(message, flags, out):
        return {"out": [42]}


class ChainedScan:
    """Prefix sums over blocks in one launch: each block waits for the sum of all previous blocks."""

    launch = 4, 4
    findings = {
        (
            "race-global",
            "error",
            "sums",
            ("before[0] = sums[b - 1]", "read"),
            ("sums[b] = before[0] + own", "written"),
        )
    }

    def arguments():
        return np.arange(16.0), np.zeros(4), np.zeros(4, np.int32), np.zeros(16)

    @cuda.jit
    def buggy(x, sums, ready, out):
        before = cuda.shared.array(1, float32)
        b = cuda.blockIdx.x
        t = cuda.threadIdx.x
        if t == 0:
            before[0] = 0
            if b > 0:
                while cuda.atomic.add(ready, b - 1, 0) == 0:
                    pass
                before[0] = sums[b - 1]
            own = 0.0
            for i in range(4 * b, 4 * b + 4):
                own += x[i]
            sums[b] = before[0] + own
            cuda.atomic.exch(ready, b, 1)
        cuda.syncthreads()
        total = before[0]
        for i in range(4 * b, 4 * b + t + 1):
            total += x[i]
        out[4 * b + t] = total

    @cuda.jit
    def fixed(x, sums, ready, out):
        before = cuda.shared.array(1, float32)
        b = cuda.blockIdx.x
        t = cuda.threadIdx.x
        if t == 0:
            before[0] = 0
            if b > 0:
                while cuda.atomic.add(ready, b - 1, 0) == 0:
                    pass
                cuda.threadfence()
                before[0] = sums[b - 1]
            own = 0.0
            for i in range(4 * b, 4 * b + 4):
                own += x[i]
            sums[b] = before[0] + own
            cuda.threadfence()
            cuda.atomic.exch(ready, b, 1)
        cuda.syncthreads()
        total = before[0]
        for i in range(4 * b, 4 * b + t + 1):
            total += x[i]
        out[4 * b + t] = total

    def wanted(x, sums, ready, out):
        return {"out": np.cumsum(x)}
