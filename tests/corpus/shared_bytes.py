"""Corpus: views of the same bytes of shared memory, and threads that share a word."""

import numpy as np
from numba import cuda, float32, float64, int32, int64, uint8
from numba.types import float16


class DynamicArraysOverlap:
    """Every dynamic shared array starts at the first byte, so a second one must be a slice after the
    first."""

    launch = 1, 8, 0, 64
    findings = {
        ("race-shared", "error", "values", ("places[7 - t] = t", "written"), ("values[t] = x[t]", "written"))
    }

    def arguments():
        return np.arange(8.0, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        values = cuda.shared.array(0, float32)
        places = cuda.shared.array(0, int32)
        t = cuda.threadIdx.x
        values[t] = x[t]
        places[7 - t] = t
        cuda.syncthreads()
        out[t] = 10 * values[t] + places[t]

    @cuda.jit
    def fixed(x, out):
        values = cuda.shared.array(0, float32)
        places = cuda.shared.array(0, int32)[8:]
        t = cuda.threadIdx.x
        values[t] = x[t]
        places[7 - t] = t
        cuda.syncthreads()
        out[t] = 10 * values[t] + places[t]

    def wanted(x, out):
        return {"out": 10 * x + np.arange(8)[::-1]}


class HalvesOfOneWord:
    """Two float16 share four bytes. Writing different halves is not a race; writing the same half is."""

    launch = 1, 8
    findings = {("race-shared", "error", "tile", ("tile[t // 2 * 2] = x[t]", "written"))}

    def arguments():
        return np.arange(8.0, dtype=np.float16), np.zeros(8, np.float16)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(8, float16)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        cuda.syncthreads()
        tile[t // 2 * 2] = x[t]
        cuda.syncthreads()
        out[t] = tile[t]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(8, float16)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        cuda.syncthreads()
        tile[t ^ 1] = x[t]
        cuda.syncthreads()
        out[t] = tile[t]

    def wanted(x, out):
        return {"out": x[np.arange(8) ^ 1]}


class WordsMadeOfBytes:
    """Four threads write a byte each, and one thread reads the word that they form."""

    launch = 1, 16, 0, 16
    findings = {
        (
            "race-shared",
            "error",
            "single",
            ("out[t // 4] = words[t // 4]", "read"),
            ("single[t] = x[t]", "written"),
        )
    }

    def arguments():
        return np.arange(16, dtype=np.uint8), np.zeros(4, np.int32)

    @cuda.jit
    def buggy(x, out):
        single = cuda.shared.array(0, uint8)
        words = cuda.shared.array(0, int32)
        t = cuda.threadIdx.x
        single[t] = x[t]
        if t % 4 == 0:
            out[t // 4] = words[t // 4]

    @cuda.jit
    def fixed(x, out):
        single = cuda.shared.array(0, uint8)
        words = cuda.shared.array(0, int32)
        t = cuda.threadIdx.x
        single[t] = x[t]
        cuda.syncthreads()
        if t % 4 == 0:
            out[t // 4] = words[t // 4]

    def wanted(x, out):
        return {"out": x.view(np.int32)}


class BitsOfOneWord:
    """Bits cannot be written individually: `|=` reads and writes the whole word."""

    launch = 1, 16
    findings = {
        ("race-shared", "error", "mask", ("mask[0] |= 1 << t", "read"), ("mask[0] |= 1 << t", "written")),
        ("race-shared", "error", "mask", ("mask[0] |= 1 << t", "written")),
    }

    def arguments():
        return np.arange(16.0) % 3, np.zeros(1, np.int32)

    @cuda.jit
    def buggy(x, out):
        mask = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        if t == 0:
            mask[0] = 0
        cuda.syncthreads()
        if x[t] > 0:
            mask[0] |= 1 << t
        cuda.syncthreads()
        if t == 0:
            out[0] = mask[0]

    @cuda.jit
    def fixed(x, out):
        mask = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        if t == 0:
            mask[0] = 0
        cuda.syncthreads()
        if x[t] > 0:
            cuda.atomic.or_(mask, 0, 1 << t)
        cuda.syncthreads()
        if t == 0:
            out[0] = mask[0]

    def wanted(x, out):
        return {"out": [sum(1 << i for i in range(16) if i % 3)]}


class AtomicsOfTwoWidths:
    """An atomic on eight bytes is not atomic with respect to an atomic on four of them."""

    launch = 1, 8, 0, 64
    findings = {
        (
            "race-shared",
            "error",
            "wide",
            ("cuda.atomic.add(narrow, 0, float32(1))", "changed"),
            ("cuda.atomic.add(wide, 0, 1.0)", "changed"),
        )
    }

    def arguments():
        return (np.zeros(2, np.int64),)

    @cuda.jit
    def buggy(out):
        wide = cuda.shared.array(0, float64)
        narrow = cuda.shared.array(0, float32)
        t = cuda.threadIdx.x
        if t == 0:
            wide[0] = 0
        cuda.syncthreads()
        if t % 2:
            cuda.atomic.add(wide, 0, 1.0)
        else:
            cuda.atomic.add(narrow, 0, float32(1))
        cuda.syncthreads()
        if t == 0:
            out[0] = int(wide[0])

    @cuda.jit
    def fixed(out):
        wide = cuda.shared.array(0, float64)
        narrow = cuda.shared.array(0, float32)[2:]
        t = cuda.threadIdx.x
        if t == 0:
            wide[0] = 0
            narrow[0] = 0
        cuda.syncthreads()
        if t % 2:
            cuda.atomic.add(wide, 0, 1.0)
        else:
            cuda.atomic.add(narrow, 0, float32(1))
        cuda.syncthreads()
        if t == 0:
            out[0] = int(wide[0])
            out[1] = int(narrow[0])

    def wanted(out):
        return {"out": [4, 4]}


class TicketsBesideATotal:
    """Atomics of 32 and 64 bits change the same bytes, and threads use the results of the narrow ones."""

    launch = 1, 8, 0, 16
    findings = {
        (
            "race-shared",
            "error",
            "total",
            ("cuda.atomic.add(total, 0, 1)", "changed"),
            ("out[cuda.atomic.add(ticket, 0, 1)] = t", "changed"),
        )
    }

    def arguments():
        return (np.full(32, -1, np.int64),)

    @cuda.jit
    def buggy(out):
        total = cuda.shared.array(0, int64)
        ticket = cuda.shared.array(0, int32)
        t = cuda.threadIdx.x
        if t == 0:
            total[0] = 0
            ticket[0] = 0
        cuda.syncthreads()
        out[cuda.atomic.add(ticket, 0, 1)] = t
        cuda.atomic.add(total, 0, 1)

    @cuda.jit
    def fixed(out):
        total = cuda.shared.array(0, int64)
        ticket = cuda.shared.array(0, int32)[2:]
        t = cuda.threadIdx.x
        if t == 0:
            total[0] = 0
            ticket[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(total, 0, 1)
        cuda.atomic.add(ticket, 0, 1)
        cuda.syncthreads()
        out[t] = total[0] + ticket[0]

    def wanted(out):
        return {"out": [16] * 8 + [-1] * 24}
