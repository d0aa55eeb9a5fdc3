"""Comparison of the simulator with a GPU.

Each kernel runs on the GPU and on both engines, and every element must agree bit for bit. Kernels whose
result depends on the order of threads are excluded. Floating-point arithmetic is exact here: products and
sums of small integers, or libdevice functions that round once (otherwise, compiled code fuses a * b + c).
"""

import math

import numpy as np
import pytest
from numba import cuda, float32, int8, int32, int64, uint32, uint64
from numba.cuda import libdevice

from example_kernels import grid_wide
from sim import simulate

TABLE = np.arange(10, dtype=np.float32) ** 2
INTEGERS = np.array(
    [0, 1, -1, 2, -2, 7, -7, 31, 33, 64, 2**31 - 1, -(2**31), 2**40 + 3, -(2**40), 2**63 - 1, -(2**63)]
)
FLOATS = np.array(
    [0, -0.0, 1, -1.5, 2.5, 3.5, -2.5, 1e10, -1e10, 1e20, -1e20, np.inf, -np.inf, np.nan, 0.1, 1e-40]
)


@cuda.jit
def integer_operators(x, out):
    i = cuda.grid(1)
    a = x[i]
    for j in range(16):
        b = x[j]
        out[i, j, 0], out[i, j, 1], out[i, j, 2] = a + b, a - b, a * b
        out[i, j, 3], out[i, j, 4] = a & b, a ^ b
        out[i, j, 5], out[i, j, 6] = a << (b & 63), a >> (b & 63)
        out[i, j, 7], out[i, j, 8] = min(a, b), max(a, b)
        if b > 0:
            out[i, j, 9], out[i, j, 10] = a // b, a % b


@cuda.jit
def division_by_zero(x, out):
    i = cuda.grid(1)
    zero = x[0]
    out[i, 0, 0], out[i, 0, 1] = x[i] // zero, x[i] % zero


@cuda.jit
def shifts_too_far(x, out):
    i = cuda.grid(1)
    for j in range(16):
        out[i, j, 0], out[i, j, 1] = x[i] << x[j], x[i] >> x[j]
        out[i, j, 2] = x[i]
        out[i, j, 2] <<= x[j]
        a = x[i]
        a >>= x[j]
        out[i, j, 3] = a


@cuda.jit
def bits_64(x, out):
    i = cuda.grid(1)
    out[i, 0, 0], out[i, 0, 1], out[i, 0, 2], out[i, 0, 3] = (
        cuda.popc(x[i]),
        cuda.clz(x[i]),
        cuda.ffs(x[i]),
        cuda.brev(uint64(x[i])),
    )


@cuda.jit
def conversions(x, out):
    i = cuda.grid(1)
    a = x[i]
    out[i, 0, 0], out[i, 0, 1], out[i, 0, 2], out[i, 0, 3] = (
        int8(a),
        int32(a),
        uint32(a),
        uint32(a) * uint32(a),
    )
    out[i, 0, 4], out[i, 0, 5] = int32(a) * int32(a), a < uint32(7)


@cuda.jit
def float_to_int(x, out):
    i = cuda.grid(1)
    out[i, 0], out[i, 1], out[i, 2] = int(x[i]), int64(float32(x[i])), int32(x[i])
    out[i, 3] = round(x[i]) if abs(x[i]) < 1e9 else 0


@cuda.jit
def float_operators(x, out):
    i = cuda.grid(1)
    a = x[i]
    for j in range(16):
        b = x[j]
        out[i, j, 0], out[i, j, 1], out[i, j, 2], out[i, j, 3] = a + b, a - b, a * b, a / b
        out[i, j, 4], out[i, j, 5] = min(a, b), max(a, b)
        out[i, j, 6], out[i, j, 7] = float32(a) * 0.1, float32(a) / 3
        out[i, j, 8], out[i, j, 9] = (
            libdevice.fmul_rn(float32(a), float32(b)),
            libdevice.fadd_rn(float32(a), float32(b)),
        )
        out[i, j, 10], out[i, j, 11] = a < b, a == b
    out[i, 0, 12], out[i, 0, 13], out[i, 0, 14] = math.floor(a), abs(a), math.copysign(2.0, a)
    out[i, 0, 15] = math.fabs(a)


@cuda.jit
def fused(x, out):
    i = cuda.grid(1)
    for j in range(16):
        out[i, j, 0] = cuda.fma(x[i], x[j], x[(i + j) % 16])
        out[i, j, 1] = cuda.fma(float32(x[i]), float32(x[j]), float32(x[(i + j) % 16]))


@cuda.jit
def warp_wide(out):
    lane = cuda.threadIdx.x
    full = 0xFFFFFFFF
    out[lane, 0], out[lane, 1] = cuda.shfl_sync(full, lane * lane, 5), cuda.shfl_up_sync(full, lane, 3)
    out[lane, 2], out[lane, 3] = cuda.shfl_down_sync(full, lane, 7), cuda.shfl_xor_sync(full, lane, 16)
    out[lane, 4], out[lane, 5] = cuda.ballot_sync(full, lane % 3 == 0), cuda.ballot_sync(full, True)
    out[lane, 6], out[lane, 7] = cuda.all_sync(full, lane < 32), cuda.any_sync(full, lane == 33)
    out[lane, 8], out[lane, 9] = cuda.match_any_sync(full, lane % 4), cuda.eq_sync(full, lane < 5)
    mask, same = cuda.match_all_sync(full, lane // 32)
    out[lane, 10], out[lane, 11] = mask, same
    out[lane, 12], out[lane, 13] = cuda.lanemask_lt(), cuda.laneid
    out[lane, 14] = cuda.popc(cuda.ballot_sync(full, lane >= 8))
    if lane < 8:
        out[lane, 15] = cuda.shfl_xor_sync(0xFF, lane, 1)


@cuda.jit
def block_wide(out):
    shared = cuda.shared.array((2, 32), int32)
    dynamic, halves = cuda.shared.array(0, float32), cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    shared[0, t] = t * t
    dynamic[t] = t / 2
    cuda.syncthreads()
    shared[1, t] = shared[0, 31 - t]
    out[t, 0], out[t, 1] = shared[0, (t + 1) % 32], halves[(t + 5) % 32]
    out[t, 2], out[t, 3] = cuda.syncthreads_count(t % 3), cuda.syncthreads_and(int(t < 32))
    out[t, 4] = cuda.syncthreads_or(int(t == 40))
    out[t, 5], out[t, 6] = shared[1, (t + 2) % 32], cuda.blockDim.x * cuda.gridDim.x
    local = cuda.local.array(4, float32)
    for i in range(4):
        local[i] = TABLE[(t + i) % 10]
    out[t, 7] = local[t % 4]
    out[t, -1] = TABLE[3]


@cuda.jit
def atomics(cells, unsigned, floats):
    i = cuda.grid(1)
    cuda.atomic.add(cells, 0, i)
    cuda.atomic.sub(cells, 1, i)
    cuda.atomic.max(cells, 2, i * 7 % 64)
    cuda.atomic.min(cells, 3, -i)
    cuda.atomic.and_(cells, 4, ~(1 << (i % 16)))
    cuda.atomic.or_(cells, 5, 1 << (i % 16))
    cuda.atomic.xor(cells, 6, i)
    cuda.atomic.cas(cells, 7, 0, 5)
    cuda.atomic.inc(unsigned, 0, 9)
    cuda.atomic.dec(unsigned, 1, 9)
    cuda.atomic.add(unsigned, 2, 4_000_000_000)
    cuda.atomic.exch(unsigned, 3, 77)
    cuda.atomic.add(floats, 0, float32(i))
    cuda.atomic.max(floats, 1, float32(i))
    cuda.atomic.nanmax(floats, 2, float32(i))
    cuda.atomic.nanmin(floats, 3, float32(-i))


@cuda.jit
def narrow_operands(small, unsigned, words, out):
    i = cuda.grid(1)
    a, b, c = small[i], unsigned[i], words[i]
    out[i, 0], out[i, 1], out[i, 2], out[i, 3] = -a, -b, -c, abs(a)
    out[i, 4], out[i, 5], out[i, 6], out[i, 7] = ~a, ~b, ~c, +b
    out[i, 8], out[i, 9], out[i, 10] = a - b, b - c, c + c
    out[i, 11], out[i, 12], out[i, 13] = a < b, b << 7, c >> a


@cuda.jit
def two_floats(x, out):
    """Compute with NaN, infinities and signed zeros. copysign makes the sign visible."""
    i = cuda.grid(1)
    for j in range(16):
        a, b = float32(x[i]), float32(x[j])
        out[i, j, 0], out[i, j, 1] = math.copysign(1.0, min(a, b)), math.copysign(1.0, max(a, b))
        out[i, j, 2], out[i, j, 3] = min(a, b, a), max(a, b, a)
        out[i, j, 4] = math.fmod(a, b)


@cuda.jit
def tiled_matmul(a, b, c):
    """Compute c = a b with float32 products and sums that round once each."""
    left, right = cuda.shared.array((8, 8), float32), cuda.shared.array((8, 8), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    total = float32(0)
    for start in range(0, a.shape[1], 8):
        left[y, x], right[y, x] = a[row, start + x], b[start + y, column]
        cuda.syncthreads()
        for k in range(8):
            total = libdevice.fadd_rn(total, libdevice.fmul_rn(left[y, k], right[k, x]))
        cuda.syncthreads()
    c[row, column] = total


@cuda.jit
def normalized(x, out):
    """Divide each row by its sum, computed by shuffles, and shift it."""
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    total = x[row, lane]
    for step in range(5):
        total = libdevice.fadd_rn(total, cuda.shfl_xor_sync(0xFFFFFFFF, total, 1 << step))
    out[row, lane] = libdevice.fadd_rn(
        libdevice.fdiv_rn(x[row, lane], total), libdevice.fmul_rn(x[row, 31 - lane], total)
    )


def out(*shape, dtype=np.int64):
    return np.zeros(shape, dtype)


def random(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


CASES = [
    (integer_operators, (1, 16), (INTEGERS, out(16, 16, 11))),
    (division_by_zero, (1, 16), (INTEGERS, out(16, 1, 2))),
    (shifts_too_far, (1, 16), (INTEGERS, out(16, 16, 4))),
    (bits_64, (1, 16), (INTEGERS, out(16, 1, 4, dtype=np.uint64))),
    (conversions, (1, 16), (INTEGERS, out(16, 1, 6))),
    (float_to_int, (1, 16), (FLOATS, out(16, 4))),
    (float_operators, (1, 16), (FLOATS, out(16, 16, 16, dtype=np.float64))),
    (fused, (1, 16), (FLOATS, out(16, 16, 2, dtype=np.float64))),
    (warp_wide, (1, 32), (out(32, 16),)),
    (block_wide, (1, 32, 0, 128), (out(32, 9),)),
    (
        atomics,
        (4, 64),
        (out(8, dtype=np.int32), out(4, dtype=np.uint32), np.array([0, -5, np.nan, np.nan], np.float32)),
    ),
    (grid_wide, (4, 16), (out(64), out(64))),
    (
        narrow_operands,
        (1, 16),
        (INTEGERS.astype(np.int8), INTEGERS.astype(np.uint8), INTEGERS.astype(np.uint32), out(16, 14)),
    ),
    (two_floats, (1, 16), (FLOATS, out(16, 16, 5, dtype=np.float64))),
    (tiled_matmul, ((4, 3), (8, 8)), (random(24, 64), random(64, 32), out(24, 32, dtype=np.float32))),
    (normalized, (50, 32), (random(50, 32), out(50, 32, dtype=np.float32))),
]


def simulated(kernel, configuration, arguments, engine):
    """Return (arrays after the launch, Report)."""
    copies = [argument.copy() for argument in arguments]
    return copies, simulate(kernel, engine=engine, on_finding="report")[configuration](*copies)


each = pytest.mark.parametrize(
    "kernel, configuration, arguments", CASES, ids=lambda value: getattr(value, "__name__", "")
)


@pytest.mark.parametrize(
    "kernel, configuration, arguments",
    [pytest.param(*case, marks=pytest.mark.nightly if place % 2 else []) for place, case in enumerate(CASES)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_both_engines_find_no_error_and_give_the_same(kernel, configuration, arguments):
    (wanted, by_fibers), (got, by_native) = (
        simulated(kernel, configuration, arguments, engine) for engine in ("fibers", "native")
    )
    assert by_fibers.errors == () and by_native.errors == ()
    for one, other in zip(wanted, got):
        np.testing.assert_array_equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["fibers", "native"])
@each
def test_the_same_on_a_gpu(kernel, configuration, arguments, engine):
    on_device = [cuda.to_device(argument) for argument in arguments]
    kernel[configuration](*on_device)
    for wanted, got in zip(
        [array.copy_to_host() for array in on_device], simulated(kernel, configuration, arguments, engine)[0]
    ):
        np.testing.assert_array_equal(got, wanted)
