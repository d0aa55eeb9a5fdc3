"""Tests of the counting observers against manual counts: sectors, bank conflicts, traffic, and collective
operations."""

import copy

import numpy as np
import pytest
from numba import cuda, float32, float64, int8, int32

import sim.context
from example_kernels import tiled_matmul
from sim import simulate
from sim.observers import COUNTERS
from sim.observers.banks import Banks
from sim.observers.branches import Branches
from sim.observers.coalescing import Coalescing
from sim.observers.epochs import EpochCounter
from sim.observers.traffic import Traffic

TOOLS = (Coalescing, Banks, Traffic)


def counters(kernel, grid, block, *arguments, **how):
    """Return the counters of a launch on fibers, after checking that compiled code has the same."""
    compiled = simulate(kernel, observers=TOOLS, engine="native")[grid, block](*copy.deepcopy(arguments))
    found = simulate(kernel, observers=TOOLS, **how)[grid, block](*arguments).counters
    assert compiled.counters == found and compiled.notes[0] == "compiled"
    return found


def line(kernel, number, *launch):
    """Return the counters of one line in `kernel`."""
    return counters(kernel, *launch)["lines"][kernel.__name__, number]


# --- coalescing ---------------------------------------------------------------------------------------------


def read(x, out, stride, offset):
    i = cuda.grid(1)
    value = x[i * stride + offset]
    out[0] = value


@pytest.mark.parametrize(
    "dtype, stride, offset, touched, fewest",
    [
        (np.float32, 1, 0, 4, 4),  # 32 × 4 contiguous bytes
        (np.float32, 1, 1, 5, 4),  # the same bytes shifted by 4
        (np.float32, 1, 8, 4, 4),  # shifted by 32 bytes, which is aligned again
        (np.float32, 2, 0, 8, 4),
        (np.float32, 8, 0, 32, 4),  # each lane needs its own sector
        (np.float32, 64, 0, 32, 4),
        (np.float32, 0, 5, 1, 1),  # all lanes access one element
        (np.float64, 1, 0, 8, 8),
        (np.float64, 1, 2, 9, 8),
        (np.float16, 1, 0, 2, 2),
        (np.int8, 1, 0, 1, 1),
        (np.int8, 1, 16, 2, 1),
        (np.complex128, 1, 0, 16, 16),
    ],
)
def test_sectors_of_one_warp(dtype, stride, offset, touched, fewest):
    x = np.zeros(3000, dtype)
    assert line(read, 3, 1, 32, x, np.zeros(1, dtype), stride, offset) | {"loads": 32} == {
        "loads": 32,
        "load_bytes": 32 * x.itemsize,
        "requests": 1,
        "sectors": touched,
        "fewest_sectors": fewest,
    }


def test_half_a_warp_and_a_ragged_last_warp():
    def copy(x, out):
        i = cuda.grid(1)
        if i < x.shape[0]:
            out[i] = x[i]

    # The 16 lanes access 64 bytes. 40 threads form a warp of 32 lanes (4 sectors) and a warp of 8 lanes (1
    # sector).
    # The counts are the same for loads and stores.
    assert counters(copy, 1, 32, np.zeros(16, np.float32), np.zeros(16, np.float32))["coalescing"] == {
        "requests": 2,
        "sectors": 4,
        "fewest_sectors": 4,
    }
    assert counters(copy, 1, 40, np.zeros(40, np.float32), np.zeros(40, np.float32))["coalescing"] == {
        "requests": 4,
        "sectors": 10,
        "fewest_sectors": 10,
    }


def test_a_transpose_without_a_tile_stores_to_a_sector_per_lane():
    def transpose(a, out):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        out[x, y] = a[y, x]

    a = np.zeros((32, 32), np.float32)
    assert counters(transpose, 1, (32, 32), a, np.empty_like(a))["coalescing"] == {
        "requests": 64,
        "sectors": 32 * 4 + 32 * 32,
        "fewest_sectors": 64 * 4,
    }


def test_the_kth_execution_of_each_lane_is_one_request():
    def loop(x):
        t = cuda.threadIdx.x
        for k in range(t + 1):
            x[t] = k

    # Lane t runs t + 1 iterations, so the 32 - k lanes k to 31 are active in iteration k.
    sectors = sum(-(-32 // 8) - k // 8 for k in range(32))
    assert counters(loop, 1, 32, np.zeros(32, np.float32))["coalescing"] == {
        "requests": 32,
        "sectors": sectors,
        "fewest_sectors": sum(-(-(32 - k) // 8) for k in range(32)),
    }


def test_a_barrier_ends_what_lanes_do_together():
    def apart(x):
        t = cuda.threadIdx.x
        for turn in range(2):
            if t % 2 == turn:
                x[t] = 1
            cuda.syncthreads()

    def together(x):
        t = cuda.threadIdx.x
        for turn in range(2):
            if t % 2 == turn:
                x[t] = 1

    x = np.zeros(32, np.float32)
    assert counters(apart, 1, 32, x)["coalescing"] == {"requests": 2, "sectors": 8, "fewest_sectors": 4}
    assert counters(together, 1, 32, x)["coalescing"] == {"requests": 1, "sectors": 4, "fewest_sectors": 4}


# --- banks --------------------------------------------------------------------------------------------------


def shared_read(dtype, stride):
    @cuda.jit
    def kernel(out):
        s = cuda.shared.array(1056, dtype)
        t = cuda.threadIdx.x
        out[0] = s[t * stride]

    return kernel


@pytest.mark.parametrize(
    "dtype, stride, turns, fewest, ways",
    [
        (float32, 1, 1, 1, 1),
        (float32, 0, 1, 1, 1),  # All lanes read one word, which is a broadcast.
        (float32, 2, 2, 1, 2),
        (float32, 3, 1, 1, 1),  # Odd strides use every bank.
        (float32, 8, 8, 1, 8),
        (float32, 32, 32, 1, 32),
        (float32, 33, 1, 1, 1),
        (int8, 1, 1, 1, 1),  # Four lanes share a word.
        (int8, 4, 1, 1, 1),
        (float64, 1, 2, 2, 1),  # These accesses are served per half warp.
        (float64, 0, 2, 2, 1),
        (float64, 2, 4, 2, 2),  # Lanes i and i + 8 of a half warp use banks 4i and 4i + 1.
        (float64, 16, 32, 2, 16),
        (float64, 17, 2, 2, 1),
    ],
)
def test_turns_of_one_warp(dtype, stride, turns, fewest, ways):
    banks = counters(shared_read(dtype, stride), 1, 32, np.zeros(1))["banks"]
    assert banks == {"shared_requests": 1, "wavefronts": turns, "fewest_wavefronts": fewest, "ways": ways}


@pytest.mark.parametrize("cells, ways", [(1, 32), (2, 16), (32, 1)])
def test_atomics_on_one_word_take_turns(cells, ways):
    def histogram(out):
        s = cuda.shared.array(32, int32)
        cuda.atomic.add(s, cuda.threadIdx.x % cells, 1)

    assert counters(histogram, 1, 32, np.zeros(1))["banks"] == {
        "shared_requests": 1,
        "wavefronts": ways,
        "fewest_wavefronts": 1,
        "ways": ways,
    }


@pytest.mark.parametrize("width, turns, ways", [(32, 32, 32), (33, 1, 1)])
def test_a_padded_tile_has_no_conflict(width, turns, ways):
    @cuda.jit
    def transpose(a, out):
        tile = cuda.shared.array((32, width), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        tile[y, x] = a[y, x]
        cuda.syncthreads()
        out[y, x] = tile[x, y]

    a = np.arange(1024, dtype=np.float32).reshape(32, 32)
    found = counters(transpose, 1, (32, 32), a, np.empty_like(a))
    assert found["coalescing"] == {"requests": 64, "sectors": 256, "fewest_sectors": 256}
    assert found["banks"] == {
        "shared_requests": 64,
        "wavefronts": 32 + 32 * turns,
        "fewest_wavefronts": 64,
        "ways": ways,
    }
    assert (
        found["lines"]["transpose", 6]["wavefronts"] == 32 * turns
        and found["lines"]["transpose", 4]["ways"] == 1
    )


# --- traffic, and a whole kernel ----------------------------------------------------------------------------

TILE = 16
matmul = tiled_matmul(TILE)


def matmul_counters(**how):
    a, b = np.ones((2, 32, 32), np.float32)
    return counters(matmul, (2, 2), (TILE, TILE), a, b, np.empty_like(a), **how)


def test_matmul():
    found = matmul_counters()
    # There are 4 blocks of 8 warps, and 2 tiles. A warp covers two rows of a tile, 64 bytes each, which are
    # 4 sectors at any position.
    assert found["coalescing"] == {"requests": 4 * 8 * (2 * 2 + 1), "sectors": 640, "fewest_sectors": 640}
    # Each tile needs 2 stores and 16 × 2 loads. Two rows of 16 words use both halves of the banks, or one row is
    # broadcast.
    assert found["banks"] == {
        "shared_requests": 4 * 8 * 2 * (2 + 32),
        "wavefronts": 2176,
        "fewest_wavefronts": 2176,
        "ways": 1,
    }
    assert (found["loads"], found["stores"], found["atomics"]) == (1024 * 2 * (2 + 32), 1024 * (2 * 2 + 1), 0)
    assert found["memory"] == {
        "global": {"loads": 4096, "load_bytes": 16384, "stores": 1024, "store_bytes": 4096},
        "shared": {"stores": 4096, "store_bytes": 16384, "loads": 65536, "load_bytes": 262144},
    }
    assert found["arrays"]["shared", "tile_a"] == {
        "stores": 2048,
        "store_bytes": 8192,
        "loads": 32768,
        "load_bytes": 131072,
    }
    assert found["arrays"]["global", "c"] == {"stores": 1024, "store_bytes": 4096}
    assert (
        found["together"] == {"syncthreads": 16}
        and found["barriers"] == 16
        and found["lines"]["matmul", 10]["syncthreads"] == 8
    )


def test_counts_depend_on_neither_seed_nor_engine_nor_how_the_log_is_cut(monkeypatch):
    wanted = matmul_counters()
    assert matmul_counters(seed=7) == wanted and matmul_counters(engine="threads") == wanted
    monkeypatch.setattr(sim.context, "FLUSH_AT", 100)
    monkeypatch.setattr(EpochCounter, "lump", 1)
    assert matmul_counters() == wanted


def test_what_lanes_do_together_is_counted_by_name_and_line():
    def warp_sum(x, out):
        value = x[cuda.grid(1)]
        for offset in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        cuda.syncwarp()
        if cuda.laneid == 0:
            cuda.atomic.add(out, 0, value)

    found = counters(warp_sum, 2, 64, np.ones(128, np.float32), np.zeros(1, np.float32))
    assert found["together"] == {"shfl_down_sync": 4 * 5, "syncwarp": 4} and found["lines"][
        "warp_sum", 4
    ] == {"shfl_down_sync": 20}
    assert found["atomics"] == 4 and found["arrays"]["global", "out"] == {"atomics": 4, "atomic_bytes": 16}


@pytest.mark.parametrize("engine", ("fibers", "threads", "native"))
def test_divergent_branches(engine):
    def kernel(x):
        t = cuda.threadIdx.x
        if t < 48:
            x[t] = 1 if t % 32 == 0 else 2
        cuda.syncthreads()
        step = 16
        while step:
            if t < step:
                x[t] += x[t + step]
            cuda.syncthreads()
            step //= 2

    # 64 threads are 2 warps. Line 3: warp 1 diverges. Line 4: both warps diverge. Line 7: all lanes agree on
    # 6 tests. Line 8: warp 0 diverges 5 times, and warp 1 never.
    report = simulate(kernel, observers=(Branches,), engine=engine, seed=3)[1, 64](np.zeros(64))
    assert report.counters["branching"] == {"branches": 2 + 2 + 12 + 10, "divergent": 1 + 2 + 0 + 5}
    assert {line: tuple(counted.values()) for (_, line), counted in report.counters["lines"].items()} == {
        3: (2, 1),
        4: (2, 2),
        7: (12, 0),
        8: (10, 5),
    }
    assert (
        report.counters["branching"]
        == simulate(kernel, observers=(*TOOLS, Branches))[1, 64](np.zeros(64)).counters["branching"]
    )


def test_local_and_constant_memory_have_their_own_rows():
    table = np.arange(4.0)

    def kernel(out):
        mine = cuda.local.array(4, float64)
        t = cuda.threadIdx.x
        for i in range(4):
            mine[i] = table[i]
        out[t] = mine[3]

    found = counters(kernel, 1, 8, np.zeros(8))
    assert found["memory"] == {
        "const": {"loads": 32, "load_bytes": 256},
        "local": {"stores": 32, "store_bytes": 256, "loads": 8, "load_bytes": 64},
        "global": {"stores": 8, "store_bytes": 64},
    }
    assert found["coalescing"]["requests"] == 1 and found["banks"]["shared_requests"] == 0


def test_without_the_tools_nothing_is_counted():
    assert set(simulate(read)[1, 1](np.zeros(1), np.zeros(1), 1, 0).counters) == {
        "threads",
        "blocks",
        "barriers",
    }


def of_fields(out, records):
    i = cuda.threadIdx.x
    out[i] = records[i].size + records[i].T + records.shape[0]


def of_attributes(out, records):
    i = cuda.threadIdx.x
    out[i] = records[i].x + records.size


@pytest.mark.parametrize("kernel, loads", [(of_fields, 64), (of_attributes, 32)])
def test_fields_called_as_attributes_of_arrays_are_counted(kernel, loads):
    """Call fields as attributes of arrays. The native engine once treated them as attributes of the array
    itself."""
    records = np.zeros(32, [("size", "f4"), ("T", "i4"), ("x", "f8")])
    reports = [simulate(kernel, engine=engine, observers=COUNTERS)[1, 32](np.zeros(32), records)
               for engine in ("fibers", "native")]  # fmt: skip
    assert reports[0].counters == reports[1].counters
    assert reports[0].counters["loads"] == loads
