"""Tests of features that kernels of public projects use, on every engine. Each test names its project, if
any."""

import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from numba import cuda, float32, int32
from numba.cuda.random import xoroshiro128p_dtype, xoroshiro128p_normal_float64, xoroshiro128p_uniform_float32

from sim import ThreadError, simulate

RECORD = np.dtype([("a", "f8"), ("b", "i4")])
ENGINES = ["fibers", "threads", "native"]
FULL = 0xFFFFFFFF


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


def launched(engine, kernel, block, *arguments):
    report = simulate(kernel, engine=engine, on_finding="report")[1, block](*arguments)
    return [(finding.kind, finding.severity) for finding in report.findings]


# --- variables ----------------------------------------------------------------------------------------------


def test_a_variable_that_not_every_path_assigns_is_0_and_a_warning(engine):
    @cuda.jit
    def kernel(x, out):
        i = cuda.threadIdx.x
        if i < 2:
            v = x[i]
        w = cuda.shfl_down_sync(FULL, v, 1)
        if i < 2:
            out[i] = v + w

    x, out = np.array([3.0, 4.0] + 30 * [9.0]), np.full(4, -1.0)
    report = simulate(kernel, engine=engine, on_finding="report")[1, 32](x, out)
    assert out.tolist() == [7, 4, -1, -1]
    (finding,) = report.findings
    assert f"\n  at {__file__}:{kernel.py_func.__code__.co_firstlineno + 5}\n" in finding.message.replace(
        "at tests", f"at {os.getcwd()}/tests"
    )
    assert (
        re.sub(r"\n  at .*", "", finding.message)
        == """warning: unassigned-variable: the variable v is read, but this thread has not assigned a value to it · block 0 · thread 2
  read by thread 2 of block 0  kernel line 5  w = cuda.shfl_down_sync(FULL, v, 1)
  Numba gives such a variable the value 0 where Python would raise an error.
  Likely fix: assign v before the branches: 0, or the value that it should have.
  → unassigned-variable"""
    )


def test_a_launch_on_arrays_without_elements_has_nothing_to_write(engine):
    """Launch on arrays without elements, as sgkit does: dask determines a result's type with such arrays."""

    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i]

    report = simulate(kernel, engine=engine)[1, 32](np.zeros(0), np.zeros(0))
    assert not report.findings and not any(note.startswith("interpreted") for note in report.notes)


def test_variables_that_every_path_to_a_read_assigns(engine):
    @cuda.jit
    def kernel(x, out):
        i = cuda.threadIdx.x
        if i % 2:
            v = x[i]
        elif i > 40:
            return
        else:
            v = 2.0
        for k in range(3):
            if k == 0:
                first = v
            first += 1.0
        while True:
            last = first
            if last > 0:
                break
        if last > 0:
            big = 1.0
        if last > 0:
            last += big
        out[i] = last

    x, out = np.arange(8.0), np.zeros(8)
    assert launched(engine, kernel, 8, x, out) == []
    assert out.tolist() == [6, 5, 6, 7, 6, 9, 6, 11]


def test_an_augmented_variable_without_a_value(engine):
    @cuda.jit
    def kernel(x, out):
        for k in range(x.size):
            if x[k] > 1:
                total = x[k]
            else:
                total += 1.0
        out[0] = total

    x, out = np.array([0.5, 0.5, 7.0, 0.5]), np.zeros(1)
    assert launched(engine, kernel, 1, x, out) == [("unassigned-variable", "warning")] and out[0] == 8


def test_annotations_of_variables(engine):
    @cuda.jit
    def kernel(x, out):
        row: np.ndarray = x[0]
        i: int
        i = cuda.threadIdx.x
        out[i] = row[i]

    x, out = np.arange(8.0).reshape(2, 4), np.zeros(4)
    assert launched(engine, kernel, 4, x, out) == [] and out.tolist() == [0, 1, 2, 3]


def test_a_final_return(engine):
    @cuda.jit
    def kernel(x):
        x[0] = cuda.threadIdx.x
        return

    assert launched(engine, kernel, 4, np.zeros(2)) == [("race-global", "error")]


@cuda.jit(device=True)
def writes(x):
    cuda.syncthreads()
    x[cuda.threadIdx.x] = 1


maybe, never = writes, None


@pytest.mark.filterwarnings("error::SyntaxWarning")  # This line is generated, so it is not the user's.
def test_a_function_or_none(engine):
    @cuda.jit
    def kernel(x):
        if maybe != None and never == None:  # noqa: E711
            maybe(x)
        if maybe is not None and never is not None:
            never(x)

    x = np.zeros(4)
    assert launched(engine, kernel, 4, x) == [] and x.tolist() == [1, 1, 1, 1]


def test_range_of_a_float(engine):
    @cuda.jit
    def kernel(x, out):
        for i in range(max(2, math.ceil(x[0]))):
            out[i] = 1

    out = np.zeros(8)
    assert launched(engine, kernel, 1, np.array([3.5]), out) == [] and out.sum() == 4


# --- arrays -------------------------------------------------------------------------------------------------


def test_zip_with_a_shorter_array_reads_no_element_behind_it(engine):
    @cuda.jit
    def kernel(out, strides):
        index = cuda.local.array(4, int32)
        index[0] = index[1] = cuda.threadIdx.x
        for a, b in zip(index, strides):
            out[cuda.threadIdx.x] += a * b

    out = np.zeros(3)
    assert launched(engine, kernel, 3, out, np.array([10, 1], np.int32)) == [] and out.tolist() == [0, 11, 22]


def test_slices_are_stored_to(engine):
    @cuda.jit
    def kernel(x, out):
        t = cuda.threadIdx.x
        c = cuda.local.array(4, float32)
        c[:] = 0.5
        c[1:3] = x[t, 0:2]
        out[t, :4] = c[:]
        out[t, 4:] = t
        for k in range(4):
            out[t, 4 + k] += c[k]

    x, out = np.arange(6.0).reshape(3, 2), np.zeros((3, 8))
    x.flags.writeable = False
    assert launched(engine, kernel, 3, x, out) == []
    for t in range(3):
        c = [0.5, x[t, 0], x[t, 1], 0.5]
        assert out[t].tolist() == [*c, *(t + number for number in c)]


def test_a_slice_is_stored_to_by_two_threads(engine):
    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x : cuda.threadIdx.x + 2] = cuda.threadIdx.x

    assert launched(engine, kernel, 3, np.zeros(4)) == [("race-global", "error")]


def test_a_literal_index_from_the_end_is_meant(engine):
    @cuda.jit
    def kernel(x, out):
        out[cuda.threadIdx.x, -1] = x[-1] + x[-x.size]
        out[cuda.threadIdx.x, -2] += x[cuda.threadIdx.x - 1]

    def within(x, out):
        out[cuda.threadIdx.x, -1] = x[-2]

    def outside(x, out):
        out[cuda.threadIdx.x, -1] = x[-5]

    x, out = np.arange(4.0), np.zeros((4, 2))
    assert launched(engine, kernel, 4, x, out) == [("negative-index", "warning")] * 2
    assert out.tolist() == [[3, 3], [0, 3], [1, 3], [2, 3]]
    assert launched(engine, within, 4, x, out) == [] and out[:, 1].tolist() == 4 * [2]
    assert launched(engine, outside, 4, x, out) == [("out-of-bounds", "error")]


def test_real_and_imaginary_parts_of_arrays(engine):
    """Use real and imaginary parts of arrays, as FBPIC does to deposit charge."""

    @cuda.jit
    def kernel(z, out):
        t = cuda.threadIdx.x
        cuda.atomic.add(z.real, 0, 1.0)
        cuda.atomic.add(z.imag, (0,), 2.0)
        z.imag[1 + t] = t
        out[t] = z.imag[1 + t] + z[1 + t].real + z.real[1 + t] + out.real[t]

    z, out = np.full(5, 3 + 0j), np.ones(4)
    assert launched(engine, kernel, 4, z, out) == []
    assert z.tolist() == [7 + 8j, 3, 3 + 1j, 3 + 2j, 3 + 3j] and out.tolist() == [7, 8, 9, 10]


def test_real_parts_of_one_element_by_several_threads(engine):
    @cuda.jit
    def kernel(z):
        z.real[cuda.threadIdx.x // 2] = cuda.threadIdx.x

    assert launched(engine, kernel, 4, np.zeros(5, complex)) == [("race-global", "error")]


def test_shapes_and_dtypes_of_declared_arrays(engine):
    @cuda.jit
    def kernel(x, out):
        n = 2 * 4
        m = 9
        s = cuda.shared.array((n, m), float32)
        y = cuda.local.array(n, dtype=x.dtype)
        t = cuda.threadIdx.x
        s[t, m - 1] = x[t]
        y[t] = x[t] / 3
        out[t] = s[t, m - 1] + y[t] * 3 - x[t] + y.itemsize

    x, out = np.arange(8, dtype=np.float32), np.zeros(8)
    assert launched(engine, kernel, 8, x, out) == [] and np.allclose(out, x + 4)


def test_functions_of_numpy_take_numbers(engine):
    def whole(x, out):
        np.add(x, 1, out)

    def each(x, n, out):
        out[0], out[1] = np.add(x[0], 1), n[0].item() + 1
        out[2] = 1 + np.isscalar(x[0]) + 2 * np.isscalar(x)

    x, n, out = np.ones(2), np.full(1, 2**31 - 1, np.int32), np.zeros(3)
    with pytest.raises(ThreadError, match=r"np.add takes numbers .* x is an array.*np.add\(x\[i\], x\[i\]\)"):
        launched(engine, whole, 1, x, out)
    assert launched(engine, each, 1, x, n, out) == [] and out.tolist() == [2, 2**31, 2]


# --- records ------------------------------------------------------------------------------------------------


def test_columns_and_fields_of_records(engine):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        x.a[t] = t
        x["b"][t] = 2 * t
        x[t].a += 1
        x[t]["b"] += 1
        particle = x[t]
        particle.a *= 2
        particle["b"] -= 3
        y[t] = particle.a + x["a"][t] + x[t].b

    x, y = np.zeros(4, RECORD), np.zeros(4)
    assert launched(engine, kernel, 4, x, y) == []
    assert (
        x["a"].tolist() == [2, 4, 6, 8] and x["b"].tolist() == [-2, 0, 2, 4] and y.tolist() == [2, 8, 14, 20]
    )


def test_two_threads_at_one_field_and_at_two(engine):
    def one(x):
        x[0]["a"] = cuda.threadIdx.x

    def two(x):
        if cuda.threadIdx.x == 0:
            x[0].a = 1
        else:
            x[0].b = 2

    x = np.zeros(3, RECORD)
    assert launched(engine, one, 2, x) == [("race-global", "error")]
    assert launched(engine, two, 2, x) == [] and x[0].tolist() == (1, 2)


def test_a_record_is_an_argument_and_changes_in_place(engine):
    # Here fields are used as attributes of arrays.
    record = np.dtype([("size", "f8"), ("T", "i4"), ("data", "i4")])

    def own(r, x):
        t = cuda.threadIdx.x
        if t == 0:
            r.size += 2
            r["T"] = r.data + 7
            x[3] = r
        x[t].size = t

    def shared(r, x):
        r.T = cuda.threadIdx.x

    records, x = np.ones(2, record), np.zeros(4, record)
    assert launched(engine, own, 3, records[1], x) == []
    assert records.tolist() == [(1, 1, 1), (3, 8, 1)] and x.tolist()[2:] == [(2, 0, 0), (3, 8, 1)]
    assert launched(engine, shared, 2, records[1], x) == [("race-global", "error")]


# --- random numbers -----------------------------------------------------------------------------------------


def states(n):
    states = np.zeros(n, xoroshiro128p_dtype)
    cuda.random.init_xoroshiro128p_states_cpu(states, 7, 0)
    return states


def test_random_numbers(engine):
    @cuda.jit
    def kernel(states, out):
        i = cuda.grid(1)
        out[i, 0] = xoroshiro128p_uniform_float32(states, i)
        out[i, 1] = xoroshiro128p_normal_float64(states, i)
        out[i, 2] = cuda.random.xoroshiro128p_uniform_float64(states, i)
        out[i, 3] = cuda.random.xoroshiro128p_normal_float32(states, i)

    mine, theirs, out = states(4), states(4), np.zeros((4, 4))
    assert launched(engine, kernel, 4, mine, out) == []
    for i in range(4):
        wanted = [
            f(theirs, i)
            for f in (
                xoroshiro128p_uniform_float32,
                xoroshiro128p_normal_float64,
                cuda.random.xoroshiro128p_uniform_float64,
                cuda.random.xoroshiro128p_normal_float32,
            )
        ]
        np.testing.assert_allclose(out[i], wanted, rtol=1e-6)
    assert (mine == theirs).all()


def test_states_of_random_numbers_made_by_a_kernel(engine):
    @cuda.jit
    def kernel(states):
        i = cuda.grid(1)
        cuda.random.init_xoroshiro128p_state(states, i, 5)
        for _ in range(i):
            cuda.random.xoroshiro128p_jump(states, i)

    mine, theirs = np.zeros(3, xoroshiro128p_dtype), np.zeros(3, xoroshiro128p_dtype)
    assert launched(engine, kernel, 3, mine) == []
    cuda.random.init_xoroshiro128p_states_cpu(theirs, 5, 0)
    assert (mine == theirs).all()


# --- Numba's own simulator ----------------------------------------------------------------------------------

WITH_CUDASIM = """
import math
import numpy as np
from numba import cuda, float32
from sim import simulate

@cuda.jit(device=True)
def twice(x):
    return 2 * x

@cuda.jit
def kernel(x, out, count):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = twice(x[t])
    cuda.syncthreads()
    out[cuda.grid(1)] = s[31 - t] + cuda.laneid + math.sqrt(4.0) + cuda.shfl_xor_sync(0xFFFFFFFF, t, 1)
    cuda.atomic.add(count, 0, 1)

x, out, count = np.arange(32, dtype=np.float32), np.zeros(32), np.zeros(1, np.int32)
assert not simulate(kernel, engine="{engine}")[1, 32](x, out, count).findings
lanes = np.arange(32)
assert (out == 2 * x[::-1] + lanes + 2 + (lanes ^ 1)).all() and count[0] == 32
print(type(kernel).__name__)
"""


def test_kernels_of_numbas_own_simulator(engine, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WITH_CUDASIM.format(engine=engine))
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "FakeCUDAKernel\n", done.stderr


# --- calls and loops ----------------------------------------------------------------------------------------


@cuda.jit(device=True)
def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)


@cuda.jit(device=True)
def weighted(a, b, c):
    return a + 10 * b + 100 * c


def test_recursion_and_starred_arguments(engine):
    @cuda.jit
    def kernel(pair, out):
        here = (cuda.threadIdx.x, 2)
        out[cuda.threadIdx.x] = factorial(4) + weighted(1, *pair) + weighted(0, *here)

    out = np.zeros(3)
    assert launched(engine, kernel, 3, (3, 4), out) == [] and out.tolist() == [
        24 + 431 + 10 * t + 200 for t in range(3)
    ]


def test_an_else_of_a_loop_with_barriers(engine):
    @cuda.jit
    def kernel(x, out, last):
        t = cuda.threadIdx.x
        for i in range(4):
            if i == last:
                break
            cuda.syncthreads()
            out[t] += x[t] + i
        else:
            cuda.syncthreads()
            out[t] += 100
        k = 0
        while k < last:
            cuda.syncthreads()
            k += 1
        else:
            out[t] += 1000

    for last, wanted in ((2, 1001), (9, 1106)):
        out = np.zeros(4)
        assert launched(engine, kernel, 4, np.zeros(4), out, last) == [] and out.tolist() == [wanted] * 4
