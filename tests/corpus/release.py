"""Corpus: control flow that depends on the result of an atomic.

In most cases, a single run under one schedule does not reveal the bug.
"""

import numpy as np
from numba import cuda, float64, int32


class FlagLookedAtOnce:
    """The reader tests the flag once and continues regardless of its value."""

    launch = 2, 1
    findings = {
        ("race-global", "error", "parcel", ("got[0] = parcel[0]", "read"), ("parcel[0] = 7", "written"))
    }

    def arguments():
        return np.zeros(1), np.zeros(1, np.int32), np.zeros(2)

    @cuda.jit
    def buggy(parcel, ready, got):
        if cuda.blockIdx.x == 0:
            parcel[0] = 7
            cuda.threadfence()
            cuda.atomic.exch(ready, 0, 1)
        else:
            got[1] = cuda.atomic.add(ready, 0, 0)
            cuda.threadfence()
            got[0] = parcel[0]

    @cuda.jit
    def fixed(parcel, ready, got):
        if cuda.blockIdx.x == 0:
            parcel[0] = 7
            cuda.threadfence()
            cuda.atomic.exch(ready, 0, 1)
        else:
            while cuda.atomic.add(ready, 0, 0) == 0:
                pass
            cuda.threadfence()
            got[0] = parcel[0]

    def wanted(parcel, ready, got):
        return {"got": [7, 0]}


class FencesOfLanesBeforeSyncwarp:
    """The lanes of a warp publish their elements by fences and a syncwarp, and lane 0 sets the flag. Without
    the fences, only the elements of lane 0 could be published."""

    launch = 2, 32
    findings = {
        (
            "race-global",
            "error",
            "parcel",
            ("got[lane] = parcel[lane]", "read"),
            ("parcel[lane] = 7", "written"),
        )
    }

    def arguments():
        return np.zeros(32), np.zeros(1, np.int32), np.zeros(32)

    @cuda.jit
    def buggy(parcel, ready, got):
        lane = cuda.threadIdx.x
        if cuda.blockIdx.x == 0:
            parcel[lane] = 7
            cuda.syncwarp()
            if lane == 0:
                cuda.atomic.exch(ready, 0, 1)
        else:
            while cuda.atomic.add(ready, 0, 0) == 0:
                pass
            cuda.threadfence()
            got[lane] = parcel[lane]

    @cuda.jit
    def fixed(parcel, ready, got):
        lane = cuda.threadIdx.x
        if cuda.blockIdx.x == 0:
            parcel[lane] = 7
            cuda.threadfence()
            cuda.syncwarp()
            if lane == 0:
                cuda.atomic.exch(ready, 0, 1)
        else:
            while cuda.atomic.add(ready, 0, 0) == 0:
                pass
            cuda.threadfence()
            got[lane] = parcel[lane]

    def wanted(parcel, ready, got):
        return {"got": [7] * 32}


class FailedSwapAsRelease:
    """A failed compare-and-swap writes nothing, so it publishes nothing. The count only shows which threads
    have started."""

    launch = 2, 1
    findings = {
        ("race-global", "error", "parcel", ("got[0] = parcel[0]", "read"), ("parcel[0] = 7", "written"))
    }

    def arguments():
        return np.zeros(1), np.ones(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(parcel, state, got):
        if cuda.blockIdx.x == 0:
            parcel[0] = 7
            cuda.threadfence()
            cuda.atomic.cas(state, 0, 0, 2)
        else:
            while cuda.atomic.cas(state, 0, 5, 6) == 0:
                pass
            cuda.threadfence()
            got[0] = parcel[0]

    @cuda.jit
    def fixed(parcel, state, got):
        if cuda.blockIdx.x == 0:
            parcel[0] = 7
            cuda.threadfence()
            cuda.atomic.cas(state, 0, 1, 2)
        else:
            while cuda.atomic.cas(state, 0, 5, 6) != 2:
                pass
            cuda.threadfence()
            got[0] = parcel[0]

    def wanted(parcel, state, got):
        return {"got": [7]}


class BarrierOfAtomicsOneTooEarly:
    """A barrier between blocks, built from atomics, opens one arrival too early."""

    launch = 5, 1
    findings = {
        (
            "race-global",
            "error",
            "half",
            ("half[b] = x[b] / 2", "written"),
            ("out[b] = half[(b + 2) % 5]", "read"),
        )
    }

    def arguments():
        return np.arange(5.0), np.zeros(5), np.zeros(1, np.int32), np.zeros(5)

    @cuda.jit
    def buggy(x, half, came, out):
        b = cuda.blockIdx.x
        half[b] = x[b] / 2
        cuda.threadfence()
        cuda.atomic.add(came, 0, 1)
        while cuda.atomic.add(came, 0, 0) < cuda.gridDim.x - 1:
            pass
        cuda.threadfence()
        out[b] = half[(b + 2) % 5]

    @cuda.jit
    def fixed(x, half, came, out):
        b = cuda.blockIdx.x
        half[b] = x[b] / 2
        cuda.threadfence()
        cuda.atomic.add(came, 0, 1)
        while cuda.atomic.add(came, 0, 0) < cuda.gridDim.x:
            pass
        cuda.threadfence()
        out[b] = half[(b + 2) % 5]

    def wanted(x, half, came, out):
        return {"out": [1, 1.5, 2, 0, 0.5]}


class BarrierOfAtomicsUsedTwice:
    """A counting barrier is reused without a new target, so it is already open the second time."""

    launch = 4, 1
    findings = {
        ("race-global", "error", "a", ("a[b] += b + step", "written"), ("out[b] += a[(b + 1) % 4]", "read"))
    }

    def arguments():
        return np.zeros(4), np.zeros(4), np.zeros(1, np.int32)

    @cuda.jit
    def buggy(a, out, came):
        b = cuda.blockIdx.x
        for step in range(2):
            a[b] += b + step
            cuda.threadfence()
            cuda.atomic.add(came, 0, 1)
            while cuda.atomic.add(came, 0, 0) < 4:
                pass
            cuda.threadfence()
            out[b] += a[(b + 1) % 4]
            cuda.threadfence()
            cuda.atomic.add(came, 0, 1)
            while cuda.atomic.add(came, 0, 0) < 8:
                pass

    @cuda.jit
    def fixed(a, out, came):
        b = cuda.blockIdx.x
        for step in range(2):
            a[b] += b + step
            cuda.threadfence()
            cuda.atomic.add(came, 0, 1)
            while cuda.atomic.add(came, 0, 0) < 8 * step + 4:
                pass
            cuda.threadfence()
            out[b] += a[(b + 1) % 4]
            cuda.threadfence()
            cuda.atomic.add(came, 0, 1)
            while cuda.atomic.add(came, 0, 0) < 8 * step + 8:
                pass

    def wanted(a, out, came):
        return {"out": [4, 7, 10, 1]}


class LockOfEvenBlocks:
    """Even blocks take the lock. Odd blocks wait until it is free, and then write without it."""

    launch = 2, 1
    findings = {
        ("race-global", "error", "sum_", ("sum_[0] += 1", "read"), ("sum_[0] += 4", "written")),
        ("race-global", "error", "sum_", ("sum_[0] += 1", "written"), ("sum_[0] += 4", "read")),
        ("race-global", "error", "sum_", ("sum_[0] += 1", "written"), ("sum_[0] += 4", "written")),
    }

    def arguments():
        return np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(lock, sum_):
        if cuda.blockIdx.x % 2 == 0:
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            cuda.threadfence()
            sum_[0] += 1
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)
        else:
            while cuda.atomic.add(lock, 0, 0) != 0:
                pass
            cuda.threadfence()
            sum_[0] += 4

    @cuda.jit
    def fixed(lock, sum_):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        sum_[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    def wanted(lock, sum_):
        return {"sum_": [2]}


class TriedLockTakenForGranted:
    """A thread tries to take the lock once and ignores the result."""

    launch = 3, 1
    findings = {
        (
            "race-global",
            "error",
            "best",
            ("best[0] = max(best[0], cuda.blockIdx.x)", "read"),
            ("best[0] = max(best[0], cuda.blockIdx.x)", "written"),
        ),
        ("race-global", "error", "best", ("best[0] = max(best[0], cuda.blockIdx.x)", "written")),
    }

    def arguments():
        return np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(lock, best):
        cuda.atomic.cas(lock, 0, 0, 1)
        cuda.threadfence()
        best[0] = max(best[0], cuda.blockIdx.x)
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    @cuda.jit
    def fixed(lock, best):
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        best[0] = max(best[0], cuda.blockIdx.x)
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    def wanted(lock, best):
        return {"best": [2]}


class SecondPartBehindTheFlag:
    """One of the two parts of a message is stored after the flag."""

    launch = 2, 1
    findings = {
        (
            "race-global",
            "error",
            "parts",
            ("got[0] = parts[0] + parts[1]", "read"),
            ("parts[1] = 2", "written"),
        )
    }

    def arguments():
        return np.zeros(2), np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(parts, ready, got):
        if cuda.blockIdx.x == 0:
            parts[0] = 1
            cuda.threadfence()
            cuda.atomic.exch(ready, 0, 1)
            parts[1] = 2
            cuda.threadfence()
        else:
            while cuda.atomic.add(ready, 0, 0) == 0:
                pass
            cuda.threadfence()
            got[0] = parts[0] + parts[1]

    @cuda.jit
    def fixed(parts, ready, got):
        if cuda.blockIdx.x == 0:
            parts[0] = 1
            parts[1] = 2
            cuda.threadfence()
            cuda.atomic.exch(ready, 0, 1)
        else:
            while cuda.atomic.add(ready, 0, 0) == 0:
                pass
            cuda.threadfence()
            got[0] = parts[0] + parts[1]

    def wanted(parts, ready, got):
        return {"got": [3]}


class CountOfPartsThatComesTooSoon:
    """The writer increments a counter after each part. The reader waits for the first part and reads both."""

    launch = 2, 1
    findings = {
        (
            "race-global",
            "error",
            "parts",
            ("got[0] = parts[0] + parts[1]", "read"),
            ("parts[k] = k + 1", "written"),
        )
    }

    def arguments():
        return np.zeros(2), np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(parts, done, got):
        if cuda.blockIdx.x == 0:
            for k in range(2):
                parts[k] = k + 1
                cuda.threadfence()
                cuda.atomic.add(done, 0, 1)
        else:
            while cuda.atomic.add(done, 0, 0) < 1:
                pass
            cuda.threadfence()
            got[0] = parts[0] + parts[1]

    @cuda.jit
    def fixed(parts, done, got):
        if cuda.blockIdx.x == 0:
            for k in range(2):
                parts[k] = k + 1
                cuda.threadfence()
                cuda.atomic.add(done, 0, 1)
        else:
            while cuda.atomic.add(done, 0, 0) < 2:
                pass
            cuda.threadfence()
            got[0] = parts[0] + parts[1]

    def wanted(parts, done, got):
        return {"got": [3]}


class TicketComparedWithTooFew:
    """The block with the second-to-last ticket acts as if all blocks had arrived."""

    launch = 4, 1
    findings = {
        (
            "race-global",
            "error",
            "partial",
            ("out[0] += partial[i]", "read"),
            ("partial[b] = 2 * x[b]", "written"),
        )
    }

    def arguments():
        return np.ones(4), np.zeros(4), np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(x, partial, tickets, out):
        b = cuda.blockIdx.x
        partial[b] = 2 * x[b]
        cuda.threadfence()
        if cuda.atomic.add(tickets, 0, 1) == cuda.gridDim.x - 2:
            cuda.threadfence()
            for i in range(4):
                out[0] += partial[i]

    @cuda.jit
    def fixed(x, partial, tickets, out):
        b = cuda.blockIdx.x
        partial[b] = 2 * x[b]
        cuda.threadfence()
        if cuda.atomic.add(tickets, 0, 1) == cuda.gridDim.x - 1:
            cuda.threadfence()
            for i in range(4):
                out[0] += partial[i]

    def wanted(x, partial, tickets, out):
        return {"out": [8]}


class RingOfOneSlotTooFew:
    """One block fills a ring of two slots and another empties it; the writer runs one slot ahead of the
    reader's releases."""

    launch = 2, 1
    findings = {
        (
            "race-global",
            "error",
            "ring",
            ("out[k] = ring[k % 2]", "read"),
            ("ring[k % 2] = 10 * k", "written"),
        )
    }

    def arguments():
        return np.zeros(2), np.zeros(2, np.int32), np.zeros(6)

    @cuda.jit
    def buggy(ring, counts, out):
        for k in range(6):
            if cuda.blockIdx.x == 0:
                while k - cuda.atomic.add(counts, 1, 0) > 2:
                    pass
                cuda.threadfence()
                ring[k % 2] = 10 * k
                cuda.threadfence()
                cuda.atomic.add(counts, 0, 1)
            else:
                while cuda.atomic.add(counts, 0, 0) <= k:
                    pass
                cuda.threadfence()
                out[k] = ring[k % 2]
                cuda.threadfence()
                cuda.atomic.add(counts, 1, 1)

    @cuda.jit
    def fixed(ring, counts, out):
        for k in range(6):
            if cuda.blockIdx.x == 0:
                while k - cuda.atomic.add(counts, 1, 0) > 1:
                    pass
                cuda.threadfence()
                ring[k % 2] = 10 * k
                cuda.threadfence()
                cuda.atomic.add(counts, 0, 1)
            else:
                while cuda.atomic.add(counts, 0, 0) <= k:
                    pass
                cuda.threadfence()
                out[k] = ring[k % 2]
                cuda.threadfence()
                cuda.atomic.add(counts, 1, 1)

    def wanted(ring, counts, out):
        return {"out": [0, 10, 20, 30, 40, 50]}


class LookBackAtAPartThatIsNotThere:
    """Decoupled look-back: a block adds up the sums of the previous blocks, but must first wait until their
    state marks them as available."""

    launch = 4, 1
    findings = {("race-global", "error", "own", ("before += own[at]", "read"), ("own[b] = x[b]", "written"))}

    def arguments():
        return np.arange(1.0, 5.0), np.zeros(4), np.zeros(4), np.zeros(4, np.int32), np.zeros(4)

    @cuda.jit
    def buggy(x, own, total, state, out):
        b = cuda.blockIdx.x
        own[b] = x[b]
        cuda.threadfence()
        cuda.atomic.max(state, b, 1)
        before, at = 0.0, b - 1
        while at >= 0:
            seen = cuda.atomic.max(state, at, 0)
            cuda.threadfence()
            if seen == 2:
                before += total[at]
                at = -1
            else:
                before += own[at]
                at -= 1
        total[b] = before + x[b]
        cuda.threadfence()
        cuda.atomic.max(state, b, 2)
        out[b] = before + x[b]

    @cuda.jit
    def fixed(x, own, total, state, out):
        b = cuda.blockIdx.x
        own[b] = x[b]
        cuda.threadfence()
        cuda.atomic.max(state, b, 1)
        before, at = 0.0, b - 1
        while at >= 0:
            seen = cuda.atomic.max(state, at, 0)
            cuda.threadfence()
            if seen == 2:
                before += total[at]
                at = -1
            elif seen == 1:
                before += own[at]
                at -= 1
        total[b] = before + x[b]
        cuda.threadfence()
        cuda.atomic.max(state, b, 2)
        out[b] = before + x[b]

    def wanted(x, own, total, state, out):
        return {"out": np.cumsum(x)}


class LastBlockWithoutTheReset:
    """The last block resets the counter, as in the programming guide. No other block may reset it."""

    launch = 4, 2
    findings = {
        (
            "race-global",
            "error",
            "tickets",
            ("if cuda.atomic.inc(tickets, 0, 100) == 3:", "changed"),
            ("tickets[0] = 0", "written"),
        )
    }

    def arguments():
        return np.ones(8), np.zeros(4), np.zeros(1, np.uint32), np.zeros(1)

    @cuda.jit
    def buggy(x, partial, tickets, out):
        if cuda.threadIdx.x == 0:
            b = cuda.blockIdx.x
            partial[b] = x[2 * b] + x[2 * b + 1]
            cuda.threadfence()
            if cuda.atomic.inc(tickets, 0, 100) == 3:
                for i in range(4):
                    out[0] += partial[i]
            if b == 3:
                tickets[0] = 0

    @cuda.jit
    def fixed(x, partial, tickets, out):
        if cuda.threadIdx.x == 0:
            b = cuda.blockIdx.x
            partial[b] = x[2 * b] + x[2 * b + 1]
            cuda.threadfence()
            if cuda.atomic.inc(tickets, 0, 100) == 3:
                for i in range(4):
                    out[0] += partial[i]
                tickets[0] = 0

    def wanted(x, partial, tickets, out):
        return {"out": [8], "tickets": [0]}


class ResetBehindTheBarrier:
    """Another thread of the last block resets the counter.

    After the barrier that identifies the last block this is correct. Before that barrier, it is a race.
    """

    launch = 3, 4
    findings = {
        (
            "race-global",
            "error",
            "tickets",
            ("last[0] = cuda.atomic.add(tickets, 0, 1)", "changed"),
            ("tickets[0] = 0", "written"),
        )
    }

    def arguments():
        return np.ones(3), np.zeros(3), np.zeros(1, np.int32), np.zeros(4)

    @cuda.jit
    def buggy(x, partial, tickets, out):
        last = cuda.shared.array(1, int32)
        t, b = cuda.threadIdx.x, cuda.blockIdx.x
        if t == 0:
            partial[b] = 3 * x[b]
            cuda.threadfence()
            last[0] = cuda.atomic.add(tickets, 0, 1)
        if t == 1 and b == 2:
            tickets[0] = 0
        cuda.syncthreads()
        if last[0] == 2:
            out[t] = partial[0] + partial[1] + partial[2]

    @cuda.jit
    def fixed(x, partial, tickets, out):
        last = cuda.shared.array(1, int32)
        t, b = cuda.threadIdx.x, cuda.blockIdx.x
        if t == 0:
            partial[b] = 3 * x[b]
            cuda.threadfence()
            last[0] = cuda.atomic.add(tickets, 0, 1)
        cuda.syncthreads()
        if last[0] == 2:
            out[t] = partial[0] + partial[1] + partial[2]
            if t == 1:
                tickets[0] = 0

    def wanted(x, partial, tickets, out):
        return {"out": [9, 9, 9, 9]}


class FirstComeWritesTheHeader:
    """The first thread to arrive writes the header; the others must wait until it is written."""

    launch = 3, 1
    findings = {
        (
            "race-global",
            "error",
            "header",
            ("header[0] = 5", "written"),
            ("out[cuda.blockIdx.x] = header[0]", "read"),
        )
    }

    def arguments():
        return np.zeros(1), np.zeros(2, np.int32), np.zeros(3)

    @cuda.jit
    def buggy(header, gate, out):
        if cuda.atomic.cas(gate, 0, 0, 1) == 0:
            header[0] = 5
            cuda.threadfence()
            cuda.atomic.exch(gate, 1, 1)
        cuda.threadfence()
        out[cuda.blockIdx.x] = header[0]

    @cuda.jit
    def fixed(header, gate, out):
        if cuda.atomic.cas(gate, 0, 0, 1) == 0:
            header[0] = 5
            cuda.threadfence()
            cuda.atomic.exch(gate, 1, 1)
        while cuda.atomic.add(gate, 1, 0) == 0:
            pass
        cuda.threadfence()
        out[cuda.blockIdx.x] = header[0]

    def wanted(header, gate, out):
        return {"out": [5, 5, 5]}


class WarpsHandOver:
    """Producer and consumer are warps of one block, with the flag in shared memory."""

    launch = 1, 64
    findings = {("race-shared", "error", "box", ("box[0] = 4", "written"), ("out[0] = box[0]", "read"))}

    def arguments():
        return (np.zeros(32),)

    @cuda.jit
    def buggy(out):
        box = cuda.shared.array(1, float64)
        flag = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        if t == 0:
            flag[0] = 0
        cuda.syncthreads()
        if t == 32:
            cuda.atomic.exch(flag, 0, 1)
            box[0] = 4
            cuda.threadfence_block()
        elif t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence_block()
            out[0] = box[0]

    @cuda.jit
    def fixed(out):
        box = cuda.shared.array(1, float64)
        flag = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        if t == 0:
            flag[0] = 0
        cuda.syncthreads()
        if t == 32:
            box[0] = 4
            cuda.threadfence_block()
            cuda.atomic.exch(flag, 0, 1)
        elif t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence_block()
            out[0] = box[0]

    def wanted(out):
        return {"out": [4] + 31 * [0]}
