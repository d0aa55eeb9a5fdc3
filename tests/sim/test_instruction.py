"""Tests of warp instructions: an instruction that a package outside sim adds, on all engines, and Numba's
instructions, which must have Numba's types."""

import numpy as np
import pytest
from numba import cuda
from numba.cuda import types
from numpy import float32, int8, int32

from numba_types import numba_types
from sim import simulate
from sim.isa import GIVEN, Like, instruction
from sim.isa.warp import OF_NUMBA

ENGINES = ("fibers", "threads", "native")


# --- an instruction of another package: a matrix product of small integers ----------------------------------


def dot(a, b, row, column):
    total = 0
    for k in range(4):
        total += a[4 * row + k] * b[8 * k + column]
    return total


@instruction(
    source=(
        "in the manner of PTX ISA mma.sync: D = A B with A 8 x 4 and B 4 x 8, an element of each per lane,"
        " two of D"
    )
)
def product_8x8x4(lanes, a: int8, b: int8, *, left: int32, right: int32):
    for lane in range(32):
        row, column = lane // 4, 2 * (lane % 4)
        left[lane], right[lane] = dot(a, b, row, column), dot(a, b, row, column + 1)


@cuda.jit
def multiply(x, y, out):
    t = cuda.threadIdx.x
    left, right = product_8x8x4(x[t], y[t])
    out[t // 4, 2 * (t % 4)] = left
    out[t // 4, 2 * (t % 4) + 1] = right + product_8x8x4(x[t], y[t])[1]


@cuda.jit
def multiply_without_lane_5(x, y, out):
    t = cuda.threadIdx.x
    if t != 5:
        left, right = product_8x8x4(x[t], y[t])
        out[t // 4, 2 * (t % 4)] = left + right


@cuda.jit
def multiply_apart(x, y, out):
    t = cuda.threadIdx.x
    if t < 16:
        left, right = product_8x8x4(x[t], y[t])
    else:
        right, left = product_8x8x4(x[t], y[t])
    out[t // 4, 2 * (t % 4)] = left + right


def small_integers(*seeds):
    return [np.random.default_rng(seed).integers(-128, 128, 32).astype(np.int8) for seed in seeds]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_matrix_product(engine):
    x, y = small_integers(0, 1)
    out = np.zeros((8, 8), np.int32)
    report = simulate(multiply, engine=engine)[1, 32](x, y, out)
    product = x.reshape(8, 4).astype(np.int32) @ y.reshape(4, 8).astype(np.int32)
    product[:, 1::2] *= 2
    assert np.array_equal(out, product)
    assert report.notes == (("compiled",) if engine == "native" else ())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "kernel, threads, says",
    [
        (
            multiply_without_lane_5,
            32,
            "lane 5 of warp 0 takes no part in product_8x8x4, which all 32 lanes must reach",
        ),
        (
            multiply,
            16,
            (
                "lanes 16, 17, 18 and 13 more of warp 0 take no part in product_8x8x4, which all 32 lanes"
                " must reach"
            ),
        ),
        (
            multiply_apart,
            32,
            "16 lanes of warp 0 wait in product_8x8x4 for lanes 16, 17, 18 and 13 more, which never arrive",
        ),
    ],
)
def test_a_missing_lane_is_a_finding(engine, kernel, threads, says):
    report = simulate(kernel, engine=engine, on_finding="report")[1, threads](
        *small_integers(0, 1), np.zeros((8, 8), np.int32)
    )
    assert {finding.kind for finding in report.errors} == {"warp-divergence"}
    assert report.errors[0].message.startswith(f"warp-divergence: {says}")


# --- registration of a function -----------------------------------------------------------------------------


def test_it_is_called_in_a_kernel_only():
    with pytest.raises(
        TypeError,
        match=(
            "^product_8x8x4 is an instruction of the simulated GPU: only a kernel that is simulated can"
            " call it$"
        ),
    ):
        product_8x8x4(1, 2)


def test_names_are_taken_once():
    def shfl_sync(lanes, value, *, result: int32):
        pass

    with pytest.raises(
        ValueError, match="^sim.isa.warp already defines an instruction shfl_sync; give this one another name"
    ):
        instruction(source="here")(shfl_sync)


def test_results_have_types():
    def untyped(lanes, value, *, result):
        pass

    def mistyped(lanes, value, *, result: Like("values")):
        pass

    for semantics in (untyped, mistyped):
        with pytest.raises(
            ValueError,
            match=(
                r"^result result of \w+ has no type; wanted a dtype such as numpy.int32, or Like one of its"
                r" operands \(value\)$"
            ),
        ):
            instruction(source="here")(semantics)


def stand_in(mask, value):
    raise NotImplementedError("a Numba CUDA intrinsic, say")


@instruction(mask=GIVEN, replaces=stand_in, reads=lambda lane, value: 31 - lane, source="here")
def mirrored(lanes, value, *, result: Like("value")):
    for lane in range(32):
        result[lane] = value[31 - lane]


@pytest.mark.parametrize("engine", ENGINES)
def test_it_replaces_what_runs_on_a_gpu(engine):
    def kernel(x):
        x[cuda.threadIdx.x] = stand_in(0xFFFFFFFF, x[cuda.threadIdx.x])

    x = np.arange(32, dtype=float32)
    simulate(kernel, engine=engine)[1, 32](x)
    assert np.array_equal(x, np.arange(32)[::-1])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_device_function_can_have_the_name_of_an_instruction(engine):
    @cuda.jit(device=True)
    def mirrored(t):
        return 31 - t

    def kernel(x):
        x[cuda.threadIdx.x] = mirrored(cuda.threadIdx.x)

    x = np.zeros(32, np.int32)
    simulate(kernel, engine=engine)[1, 32](x)
    assert np.array_equal(x, np.arange(32)[::-1])


@instruction(mask=GIVEN, reads=lambda lane, value: 31 - lane, source="here")
def mirrored_sum(lanes, value, *, result: Like("value")):
    for lane in range(32):
        result[lane] = value[lane] + value[31 - lane]


@instruction(mask=GIVEN, reads=lambda lane, value: 31 - lane, source="here")
def mirrored_where_zero(lanes, value, *, result: Like("value")):
    for lane in range(32):
        result[lane] = value[lane] if value[lane] else value[31 - lane]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_instruction_that_reads_a_lane_and_computes(engine):
    def kernel(x, out):
        t = cuda.threadIdx.x
        out[0, t], out[1, t] = mirrored_sum(0xFFFFFFFF, x[t]), mirrored_where_zero(0xFFFFFFFF, x[t])

    x, out = np.arange(32, dtype=float32) % 9, np.zeros((2, 32), float32)
    simulate(kernel, engine=engine)[1, 32](x, out)
    assert np.array_equal(out, [x + x[::-1], np.where(x != 0, x, x[::-1])])


def test_reading_from_a_lane_that_is_not_there():
    def kernel(x):
        if cuda.threadIdx.x < 31:
            x[cuda.threadIdx.x] = stand_in(0x7FFFFFFF, x[cuda.threadIdx.x])

    messages = [
        simulate(kernel, engine=engine, on_finding="report")[1, 32](np.zeros(32, float32)).findings[0].message
        for engine in ENGINES
    ]
    assert len(set(messages)) == 1 and messages[0].startswith(
        "warp-divergence: lane 0 reads from lane 31 in mirrored, and lane 31 takes no part"
    )


# --- Numba's warp instructions ------------------------------------------------------------------------------


@cuda.jit
def all_of_numba(x, out):
    t = cuda.threadIdx.x
    v, full = x[t], 0xFFFFFFFF
    out[0, t], out[1, t] = cuda.shfl_sync(full, v, t // 2), cuda.shfl_up_sync(full, v, 3)
    out[2, t], out[3, t] = cuda.shfl_down_sync(full, v, t % 5), cuda.shfl_xor_sync(full, v, 21)
    out[4, t], out[5, t], out[6, t] = (
        cuda.all_sync(full, v == v),
        cuda.any_sync(full, v > 0),
        cuda.eq_sync(full, v > 0),
    )
    out[7, t], out[8, t] = cuda.ballot_sync(full, v > 0), cuda.match_any_sync(full, v)
    out[9, t], same = cuda.match_all_sync(full, v)
    wide = 2**40
    wide = cuda.ballot_sync(full, t >= 31)
    cuda.syncwarp()
    out[10, t], out[11, t] = same, wide


@pytest.mark.parametrize(
    "kind",
    [
        "float32",
        *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("int8", "uint32", "int64", "float64")),
    ],
)
def test_interpreted_and_compiled(kind):
    awkward = (
        [0, 1, 2, 127, np.nan, -0.0, np.inf, -1]
        if "float" in kind
        else [0, 1, 2, 3, np.iinfo(kind).max, np.iinfo(kind).min, 7, 1]
    )
    x, results = (
        np.array(awkward * 4).astype(kind) if "float" in kind else np.array([awkward * 4], kind)[0],
        [],
    )
    for engine in ENGINES:
        out = np.zeros((12, 32))
        simulate(all_of_numba, engine=engine)[1, 32](x, out)
        results.append(out)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    assert set(results[0][11]) == {-(2.0**31)}


def one_variable_per_instruction(x):
    full, value = 0xFFFFFFFF, x[0]
    shfl_sync = cuda.shfl_sync(full, value, 1)
    shfl_up_sync = cuda.shfl_up_sync(full, value, 1)
    shfl_down_sync = cuda.shfl_down_sync(full, value, 1)
    shfl_xor_sync = cuda.shfl_xor_sync(full, value, 1)
    all_sync = cuda.all_sync(full, value > 0)
    any_sync = cuda.any_sync(full, value > 0)
    eq_sync = cuda.eq_sync(full, value > 0)
    ballot_sync = cuda.ballot_sync(full, value > 0)
    match_any_sync = cuda.match_any_sync(full, value)
    activemask = cuda.activemask()
    same, alike = cuda.match_all_sync(full, value)


@pytest.mark.parametrize("kind", ["int32", "int64", "float32", "float64"])
def test_types_are_those_of_numba(kind):
    array = getattr(types, kind)[::1]
    found = {name: dtype for name, _, dtype in numba_types(one_variable_per_instruction, [array])}
    entries = [entry for entry in OF_NUMBA if entry.results]
    wanted = {
        name if name in ("same", "alike") else entry.name: np.dtype(
            kind if isinstance(result, Like) else result
        )
        for entry in entries
        for name, result in entry.results.items()
    }
    assert {name: found[name] for name in wanted} == wanted
