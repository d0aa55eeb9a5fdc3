"""Tests of the kernel language, feature by feature, on both engines: indices, barriers, warps and statements.

Results are compared with numpy's or Python's.
"""

import math
from collections import namedtuple
from math import sqrt

import numpy as np
import pytest
from numba import cuda, int32
from numba import cuda as gpu
from numba.cuda import blockDim, grid, laneid, threadIdx
from numba.cuda import syncthreads as everyone_is_here

from sim import KernelBug, ThreadError, simulate
from sim.events import SITES, EnabledEvents
from sim.frontend import rebind
from sim.frontend.rebind import Code

FULL = 0xFFFFFFFF
LANES = np.arange(32)
Point = namedtuple("Point", "x y")


# --- indices ------------------------------------------------------------------------------------------------


def test_a_subscript_of_a_tuple_is_no_access():
    """Count the accesses in the rewritten code. A subscript of a tuple remains Python's."""

    def kernel(out):
        pair = (1, 2)
        out[pair[1] - pair[-1]] = pair[0]

    code = Code(kernel, [], EnabledEvents(True, False, False, False), None)
    assert [SITES[number].action for number in code.accessed] == ["store"]
    out = np.zeros(1, np.int32)
    simulate(cuda.jit(kernel))[1, 1](out)
    assert out[0] == 1


def test_geometry(launch):
    @cuda.jit
    def kernel(out):
        x, y, z = cuda.grid(3)
        across, down, deep = cuda.gridsize(3)
        t, b, d, g = cuda.threadIdx, cuda.blockIdx, cuda.blockDim, cuda.gridDim
        out[x, y, z] = (
            (x == b.x * d.x + t.x)
            + (y == b.y * d.y + t.y)
            + (z == b.z * d.z + t.z)
            + (across == d.x * g.x)
            + (down == d.y * g.y)
            + (deep == d.z * g.z)
        )

    out = np.zeros((6, 6, 4), int)
    launch(kernel, (2, 3, 1), (3, 2, 4), out)
    assert (out == 6).all()


@pytest.mark.parametrize("threads", [1, 31, 32, 33, 80])
def test_lanes_of_blocks_of_any_size(launch, threads):
    @cuda.jit
    def kernel(lanes, sizes):
        lanes[cuda.grid(1)] = cuda.laneid
        sizes[cuda.grid(1)] = cuda.warpsize

    lanes, sizes = np.zeros((2, 2 * threads), int)
    launch(kernel, 2, threads, lanes, sizes)
    assert lanes.tolist() == 2 * [i % 32 for i in range(threads)] and set(sizes) == {32}


def test_imported_names_and_other_aliases(launch):
    declare, add = gpu.shared.array, cuda.atomic.add

    @gpu.jit
    def kernel(out):
        tile = declare(40, int32)
        tile[threadIdx.x] = 0
        everyone_is_here()
        add(tile, threadIdx.x, grid(1) + laneid)
        everyone_is_here()
        out[threadIdx.x] = tile[blockDim.x - 1 - gpu.threadIdx.x] * sqrt(4.0)

    out = np.zeros(40, int)
    launch(kernel, 1, 40, out)
    assert out.tolist() == [2 * (i + i % 32) for i in reversed(range(40))]


# --- barriers -----------------------------------------------------------------------------------------------


def test_barriers_that_count(launch):
    @cuda.jit
    def kernel(out):
        i = cuda.threadIdx.x
        out[0, i] = cuda.syncthreads_count(i % 3 == 0)
        out[1, i] = cuda.syncthreads_and(i < 40)
        out[2, i] = cuda.syncthreads_and(i < 39)
        out[3, i] = cuda.syncthreads_or(i == 7)
        out[4, i] = cuda.syncthreads_or(i == 70)

    out = np.zeros((5, 40), int)
    launch(kernel, 1, 40, out)
    assert out.tolist() == [[n] * 40 for n in (14, 1, 0, 1, 0)]


def test_syncwarp_and_fences(launch):
    @cuda.jit
    def kernel(out):
        i = cuda.threadIdx.x
        tile = cuda.shared.array(32, int32)
        tile[i] = i
        cuda.threadfence_block()
        cuda.syncwarp()
        out[i] = tile[31 - i]
        cuda.threadfence()
        cuda.threadfence_system()
        cuda.nanosleep(20)

    out = np.zeros(32, int)
    launch(kernel, 1, 32, out)
    assert out.tolist() == LANES[::-1].tolist()


def test_grid_barrier_over_many_blocks(launch):
    @cuda.jit
    def kernel(x, y):
        everyone = cuda.cg.this_grid()
        i = cuda.grid(1)
        for _ in range(3):
            x[i] += i
            everyone.sync()
            y[i] = x[x.size - 1 - i]
            everyone.sync()

    x, y = np.zeros((2, 20 * 8), int)
    launch(kernel, 20, 8, x, y)
    assert y.tolist() == [3 * i for i in reversed(range(160))]


# --- warps --------------------------------------------------------------------------------------------------


def test_shuffles(launch):
    @cuda.jit
    def kernel(out):
        i = cuda.threadIdx.x
        out[0, i] = cuda.shfl_sync(FULL, 10 * i, 5)
        out[1, i] = cuda.shfl_up_sync(FULL, 10 * i, 3)
        out[2, i] = cuda.shfl_down_sync(FULL, 10 * i, 3)
        out[3, i] = cuda.shfl_xor_sync(FULL, 10 * i, 6)

    out = np.zeros((4, 32), int)
    launch(kernel, 1, 32, out)
    np.testing.assert_array_equal(
        out // 10,
        [
            0 * LANES + 5,
            np.where(LANES < 3, LANES, LANES - 3),
            np.where(LANES > 28, LANES, LANES + 3),
            LANES ^ 6,
        ],
    )


@pytest.mark.parametrize("dtype", [np.int32, np.uint64, np.float16, np.float32, np.float64])
def test_a_shuffle_keeps_the_type(launch, dtype):
    @cuda.jit
    def kernel(x, out):
        i = cuda.threadIdx.x
        out[i] = cuda.shfl_xor_sync(FULL, x[i], 1)

    x = (LANES * 3 + 1).astype(dtype)
    out = np.zeros_like(x)
    launch(kernel, 1, 32, x, out)
    np.testing.assert_array_equal(out, x[LANES ^ 1])


def test_votes_and_masks(launch):
    @cuda.jit
    def kernel(out):
        i = cuda.threadIdx.x
        out[0, i] = cuda.all_sync(FULL, i < 32)
        out[1, i] = cuda.all_sync(FULL, i < 31)
        out[2, i] = cuda.any_sync(FULL, i == 9)
        out[3, i] = cuda.any_sync(FULL, i == 90)
        out[4, i] = cuda.eq_sync(FULL, i == 90)
        out[5, i] = cuda.eq_sync(FULL, i == 9)
        out[6, i] = cuda.ballot_sync(FULL, i % 2 == 0)
        out[7, i] = cuda.popc(cuda.ballot_sync(FULL, True))
        out[8, i] = cuda.match_any_sync(FULL, i % 4)
        out[9, i], out[10, i] = cuda.match_all_sync(FULL, i // 32)
        out[11, i], out[12, i] = cuda.match_all_sync(FULL, i // 31)
        out[13, i] = cuda.activemask()
        out[14, i] = cuda.lanemask_lt()

    out = np.zeros((15, 32), int)
    launch(kernel, 1, 32, out)
    constant = [1, 0, 1, 0, 1, 0, 0x55555555, 32]
    assert out[:8].tolist() == [[n] * 32 for n in constant]
    np.testing.assert_array_equal(out[8] & FULL, 0x11111111 << LANES % 4)
    assert out[9:14, 0].tolist() == [-1, 1, 0, 0, FULL] and (out[9:14] == out[9:14, :1]).all()
    np.testing.assert_array_equal(out[14], (1 << LANES) - 1)


def test_a_part_of_a_warp(launch):
    @cuda.jit
    def kernel(out):
        i = cuda.threadIdx.x
        if i < 8:
            value = cuda.shfl_down_sync(0xFF, i, 1)
            if i < 7:  # lane 7 receives an undefined value, because lane 8 is not in the mask
                out[i] = value
        elif i % 2:
            out[i] = cuda.ballot_sync(0xAAAAAA00, i > 15)

    out = np.zeros(32, int)
    launch(kernel, 1, 32, out)
    assert out[:7].tolist() == [1, 2, 3, 4, 5, 6, 7] and set(out[9::2] & FULL) == {0xAAAA0000}


def test_a_mask_that_omits_the_caller(launch):
    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x] = cuda.ballot_sync(0x1, True)

    with pytest.raises(KernelBug, match="lane 1 passes a mask that does not contain this lane, 0x00000001"):
        launch(kernel, 1, 2, np.zeros(2, int))


# --- the language -------------------------------------------------------------------------------------------


def test_loops_that_end_early(launch):
    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i >= x.size:
            return
        steps, n = 0, x[i]
        while True:
            if n == 1:
                break
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        for k in range(100):
            if k * k < steps:
                continue
            out[i] = 1000 * k + steps
            break
        else:
            out[i] = -1

    x = np.arange(1, 28)
    out = np.zeros(27, int)
    launch(kernel, 2, 16, x, out)

    def collatz(n):
        return 0 if n == 1 else 1 + collatz(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert out.tolist() == [1000 * math.ceil(math.sqrt(s)) + s for s in map(collatz, x.tolist())]


def test_augmented_assignment_to_elements_and_names(launch):
    @cuda.jit
    def kernel(x, out):
        i = cuda.threadIdx.x
        a = x[i]
        a += 3
        a *= 2
        a -= 1
        a //= 3
        a %= 7
        a <<= 2
        a >>= 1
        a |= 1
        a ^= 6
        a &= 15
        a **= 2
        out[i, i % 2] += a
        out[i, i % 2] *= 2
        out[i, i % 2] /= 4

    def plain(a):
        return ((((((2 * (a + 3) - 1) // 3 % 7) << 2) >> 1 | 1) ^ 6) & 15) ** 2

    x, out = np.arange(-8, 8), np.ones((16, 2))
    launch(kernel, 1, 16, x, out)
    assert out[np.arange(16), np.arange(16) % 2].tolist() == [(1 + plain(a)) / 2 for a in range(-8, 8)]


def test_tuples_and_iteration(launch):
    @cuda.jit
    def kernel(point, pair, out):
        a, (b, c) = 1, pair
        a, b = b, a
        out[0], out[1], out[2] = a, b, c
        out[3], out[4] = point.x, point[1]
        for i, value in enumerate(pair):
            out[5 + i] = value + i
        total = 0
        for left, right in zip(pair, (10, 20)):
            total += left * right
        out[7], out[8], out[9] = total, len(pair), max(pair[0], pair[1], 7)
        out[10] = sum(pair)

    out = np.zeros(11, int)
    launch(kernel, 1, 1, Point(2, 3), (5, 6), out)
    assert out.tolist() == [5, 1, 6, 2, 3, 5, 7, 170, 2, 7, 11]


@cuda.jit(device=True)
def clipped(value, low=0, high=10):
    return low if value < low else high if value > high else value


@cuda.jit(device=True)
def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)


def plain_helper(x):
    return x + 1


def test_device_functions(launch):
    offset = 100

    @cuda.jit(device=True)
    def inner(x):
        return plain_device(x) + offset

    plain_device = cuda.jit(device=True)(plain_helper)

    @cuda.jit
    def kernel(out):
        i = cuda.threadIdx.x
        out[i] = inner(clipped(i, high=3)) + clipped(i - 2) + factorial(4)

    out = np.zeros(6, int)
    launch(kernel, 1, 6, out)
    assert out.tolist() == [min(i, 3) + 101 + max(i - 2, 0) + 24 for i in range(6)]


def test_a_plain_function_is_a_kernel_and_the_jitted_one_stays_itself(launch):
    def kernel(out):
        out[cuda.threadIdx.x] = 2

    jitted = cuda.jit(kernel)
    first, second = np.zeros((2, 4), int)
    launch(kernel, 1, 4, first)
    launch(jitted, 1, 4, second)
    assert (
        first.tolist() == second.tolist() == [2, 2, 2, 2]
        and jitted.py_func is kernel
        and not jitted.overloads
    )


def test_a_shuffle_takes_one_number_not_an_array():
    def kernel(x):
        state = cuda.local.array(2, np.float32)
        cuda.shfl_xor_sync(0xFFFFFFFF, state, 1)

    with pytest.raises(
        ThreadError,
        match=r"shfl_xor_sync exchanges one number between lanes, got <local array state float32\[2\]>",
    ):
        simulate(kernel)[1, 32](np.zeros(1))


def size():
    """Have the name of an attribute that the kernel of the next test reads."""


def test_the_name_of_an_attribute_is_not_that_of_a_global_function():
    def kernel(x):
        if cuda.grid(1) < x.size:
            x[cuda.grid(1)] = 1

    simulate(kernel, engine="fibers")[1, 32](np.zeros(20))
    assert kernel in rebind.CODES and size not in rebind.CODES
