"""Tests of the native engine on Python and CUDA features beyond arithmetic.

Examples are constant arguments, loops over arrays, enumerations, vectors and lambdas. Results equal those on
fibers.
"""

import enum
import linecache
import math
import operator
import runpy

import numpy as np
import pytest
from numba import cuda, float32, float64, int32
from numba.core import compiler

from sim import ThreadError, simulate
from sim.native.codegen.launch_state import MAX_UNSET
from sim.native.split.program import lower_kernel
from sim.observers import DEFAULT, Trace


class Mode(enum.IntEnum):
    ADD = 1
    DOUBLE = 2


add = operator.add
twice = cuda.jit(device=True)(lambda value: value * 2)


@cuda.jit(device=True)
def through_shared(x, count, dtype, initial=(0, 0.5), change=twice):
    tile = cuda.shared.array(count, dtype)
    t = cuda.threadIdx.x
    tile[t] = initial[1] + x[t]
    cuda.syncthreads()
    return change(tile[count - 1 - t])


def constant_arguments(x, out):
    out[cuda.threadIdx.x] = through_shared(x, 8, float32)


def two_shapes_of_one_declaration(x, out):
    first = through_shared(x, 8, float32)
    cuda.syncthreads()
    out[cuda.threadIdx.x] = first + through_shared(x, 9, float64)


@cuda.jit(device=True)
def counted_down(x, count):
    tile = cuda.shared.array(8, float32)
    tile[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    cuda.syncthreads()
    total = float32(0)
    while count > 0:
        count -= 1
        total += tile[count]
    return total


def an_argument_that_is_assigned(x, out):
    out[cuda.threadIdx.x] = counted_down(x, 4)


def constant_variable(x, out):
    size = 8
    tile = cuda.shared.array((size,), int32)
    tile[cuda.threadIdx.x] = x[cuda.threadIdx.x]
    cuda.syncthreads()
    out[cuda.threadIdx.x] = tile[size - 1 - cuda.threadIdx.x]


def loops_over_arrays(x, out):
    t = cuda.threadIdx.x
    for value in x[t:]:
        out[t] += value
    for position, (one, other) in enumerate(zip(x[2:], x), 1):
        out[t] += position * one * other
    for side in out.shape:
        out[t] += side


def loop_with_barriers(x, out):
    items = x
    for value in items:
        out[cuda.threadIdx.x] += value
        cuda.syncthreads()
        x[cuda.threadIdx.x] = 0
        cuda.syncthreads()


def enumerations(x, out):
    t = cuda.threadIdx.x
    mode = Mode.ADD if t % 2 else Mode["DOUBLE"]
    out[t] = add(x[t], 1) if mode == Mode.ADD else twice(x[t])


def shapes(x, out):
    square, t = x.reshape(2, -1), cuda.threadIdx.x
    if t < 4:
        out.reshape(4, 2)[t, 0] = square[1, t]


def numbers(x, out):
    t = cuda.threadIdx.x
    fraction, whole = math.modf(x[t] * 0.7)
    out[t] = (
        math.remainder(x[t], 0.7)
        + 10 * fraction
        + 100 * whole
        + round(float32(x[t] * 0.137), 2)
        + int32(x[t]).bit_count()
    )


def vectors(x, out):
    t = cuda.threadIdx.x
    pair = cuda.float32x2(x[t], 2)
    four = cuda.float4(pair, cuda.int2(3.7, t))
    out[t] = four.x + 10 * four.y + 100 * four.z + 1000 * four.w


KERNELS = [
    constant_arguments,
    two_shapes_of_one_declaration,
    an_argument_that_is_assigned,
    constant_variable,
    loops_over_arrays,
    loop_with_barriers,
    enumerations,
    shapes,
    numbers,
    vectors,
]


def launched(kernel, engine, observers=DEFAULT):
    x, out = np.arange(1.0, 9.0), np.zeros(8)
    report = simulate(kernel, engine=engine, observers=observers)[1, 8](x, out)
    return report, out


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_is_compiled(kernel):
    # Fibers know the types of its arguments, but not that 8 and 9 are different shapes.
    if kernel is two_shapes_of_one_declaration:
        wanted = 2 * (0.5 + np.arange(8.0, 0, -1)) + 2 * np.array([np.nan, *(0.5 + np.arange(8.0, 1, -1))])
        return np.testing.assert_array_equal(launched(kernel, "native", ())[1][1:], wanted[1:])
    (report, got), (_, wanted) = launched(kernel, "native"), launched(kernel, "fibers")
    assert report.notes == ("compiled",) and np.any(got)
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


@pytest.mark.parametrize(
    "kernel",
    [kernel for kernel in KERNELS if kernel is not two_shapes_of_one_declaration],
    ids=lambda kernel: kernel.__name__,
)
def test_traced(kernel):
    (ours, got), (report, wanted) = (launched(kernel, engine, [Trace]) for engine in ("native", "fibers"))
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
    assert sorted((e.action, e.thread, e.array, e.index, e.site.line) for e in ours.trace) == sorted(
        (e.action, e.thread, e.array, e.index, e.site.line) for e in report.trace
    )


ROWS = """
@cuda.jit
def kernel(x, out):
    tile = cuda.shared.array(8, float64)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    row = out[{index}]
    cuda.syncthreads()
    row[0] += tile[7 - t]
"""
INDICES = [
    "max(t, 0)",
    "min(t, 7)",
    "t % 8",
    "t**1",
    "int(t)",
    "int32(t)",
    "int(math.ceil(t))",
    "cuda.popc((1 << t) - 1)",
]


@pytest.mark.parametrize("index", INDICES)
def test_a_row_lives_across_a_barrier(index):
    """Use a row across a barrier, with an index that an arbitrary numeric function returns."""
    names, name = {"cuda": cuda, "float64": float64, "int32": int32, "math": math}, f"<row {index}>"
    text = ROWS.format(index=index)
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    exec(compile(text, name, "exec"), names)
    x, out = np.arange(8.0), np.zeros((8, 1))
    report = simulate(names["kernel"], engine="native")[1, 8](x, out)
    assert report.notes == ("compiled",) and out[:, 0].tolist() == x[::-1].tolist()


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_row_stays_where_memory_said(engine):
    """Load the index of a row from memory, overwrite that element, and only then use the row."""

    @cuda.jit
    def kernel(x, order, out):
        t = cuda.threadIdx.x
        row = out[order[t]]
        cuda.syncthreads()
        order[t] = t
        cuda.syncthreads()
        row[0] += x[t]

    x, out = np.arange(8.0), np.zeros((8, 1))
    simulate(kernel, engine=engine)[1, 8](x, np.arange(8)[::-1].copy(), out)
    assert out[:, 0].tolist() == x[::-1].tolist()


def keyword_arguments(x, out):
    i = cuda.grid(ndim=1)
    if cuda.gridsize(ndim=1) == 8:
        out[i] = cuda.selp(x[i] > 2, b=1, a=2)


def called_on_the_spot(x, out):
    i = cuda.threadIdx.x
    out[i] = (lambda value: value * 2)(x[i]) + type(i)(0.5)


def unassigned(x, out):
    for i in range(x.shape[0] - 8):
        last = 5
    out[cuda.threadIdx.x] = last


def called_as_compiled_text_calls(x, out):
    """Use a local name that equals one in the generated code. Lowering once searched forever for a
    replacement."""
    all_done = isa_one = x[cuda.threadIdx.x]
    out[cuda.threadIdx.x] = all_done + isa_one + 1


def whole_arrays(x, out):
    x.flat[3] = 5
    y = cuda.local.array(2, np.int8)
    y.fill(100)
    same = x[:1].item() == x.transpose()[7] and np.sum(x) == 12 and y.sum() == 200 and y.mean() == 100
    found = x.argmax() == 3 and x.argmin() == 0 and x.any() and x.all() and len(x.flat) == 8
    out[cuda.threadIdx.x] = x.sum() + x.prod() + x.mean() + 4 * x.var() if same and found else 0


def types_of_numbers(x, out):
    """Compare types as Numba does: a float32 is not a float (a float64), and an int32 is not an int."""
    i = cuda.threadIdx.x
    ones = isinstance(x.shape[0], int) and isinstance(x[i], (int, np.float32)) and isinstance((i, i), tuple)
    out[i] = ones and not (isinstance(x[i], float) or isinstance(i, int) or isinstance(i > 2, int))


def lanes_by_name(x, out):
    i = cuda.threadIdx.x
    up = cuda.shfl_up_sync(0xFF, i, delta=0) + cuda.shfl_down_sync(mask=0xFF, value=i, delta=0)
    one = cuda.shfl_sync(mask=0xFF, value=1, src_lane=3) + cuda.shfl_xor_sync(0xFF, 0, lane_mask=1)
    out[i] = one + up - 2 * i


def bytes_between_elements(x, out):
    column = cuda.shared.array((8, 4), np.float64)[:, 1]
    out[cuda.threadIdx.x] = column.strides[0] + x[::2].strides[0] + x.strides[0]


CASES = [(keyword_arguments, 1), (called_on_the_spot, 2), (unassigned, 0), (called_as_compiled_text_calls, 3)]
CASES += [(whole_arrays, 25.5), (types_of_numbers, 1), (lanes_by_name, 1), (bytes_between_elements, 44)]


@pytest.mark.parametrize("kernel, wanted", CASES)
def test_as_fibers_do(kernel, wanted):
    """Run a kernel that cannot be compiled. It is interpreted, and an unassigned variable is 0."""
    x, out = np.ones(8, np.float32), np.full(8, np.nan, np.float32)
    simulate(kernel, engine="native", on_finding="report")[1, 8](x, out)
    assert (out == wanted).all()


def extremes(x, out):
    i = cuda.threadIdx.x
    out[i] = min(x[i], 3, i + 0.5) + 10 * max(i, 2, -1) + 100 * min(i, int32(3), 5) + 1000 * max(x[i], i, 2.5)


def test_extremes_of_several_numbers(monkeypatch):
    """Check `min` and `max` of three numbers of mixed types, and that Numba compiles only the grid function."""
    compiled, compile_extra = [], compiler.compile_extra
    monkeypatch.setattr(
        compiler,
        "compile_extra",
        lambda *given, **named: compiled.append(given[2].__name__) or compile_extra(*given, **named),
    )
    found = []
    for engine in ("fibers", "native"):
        out = np.zeros(8)
        report = simulate(extremes, engine=engine)[1, 8](np.arange(8, dtype=np.float32) ** 2 / 4 - 1, out)
        found.append(out.tolist())
    assert report.notes == ("compiled",) and found[0] == found[1]
    assert not [name for name in compiled if not name.endswith("_grid")]


def test_only_so_many_reads_are_asked_whether_they_were_assigned(tmp_path):
    """Assign more variables conditionally than there are is-set flags. The next flag once overwrote an
    unrelated word."""
    lines = [f"    if x[0] > {i}:\n        v{i} = 1.0\n    x[0] += v{i}\n" for i in range(MAX_UNSET + 6)]
    (tmp_path / "many.py").write_text("def kernel(x):\n" + "".join(lines))
    kernel = runpy.run_path(str(tmp_path / "many.py"))["kernel"]
    assert len(lower_kernel(kernel).module.unset) == MAX_UNSET


def test_an_atomic_takes_no_keywords():
    """Call an atomic with keyword arguments, which Numba rejects too. Compiled code once ignored their
    names."""

    def kernel(x, out):
        cuda.atomic.add(out, val=2, idx=1)

    with pytest.raises(ThreadError, match="keyword"):
        simulate(kernel, engine="native")[1, 1](np.ones(8), np.zeros(8))


@cuda.jit
def unsigned_range(bounds, out):
    for i in range(bounds[0], bounds[1]):
        out[0] += -i
    last = bounds[0]
    for i in range(bounds[1]):
        last = i
    out[last] = 7


@cuda.jit
def unsigned_range_around_a_barrier(bounds, out):
    for i in range(bounds[1]):
        cuda.syncthreads()
        out[0] += -i


@pytest.mark.parametrize("dtype", [np.uint64, np.uint32, np.int64, np.int32])
def test_the_loop_variable_of_an_unsigned_range_is_unsigned(dtype):
    # -1 - 2 of uint64 is 2^64 - 1 + 2^64 - 2, rounded to float64
    sums = -3.0 if dtype in (np.int64, np.int32) else 2.0**65
    bounds = np.array([0, 3], dtype)
    for kernel, wanted in ((unsigned_range, [sums, 0, 7]), (unsigned_range_around_a_barrier, [sums, 0, 0])):
        for engine in ("fibers", "native"):
            out = np.zeros(3)
            report = simulate(kernel, engine=engine)[1, 1](bounds, out)
            assert out.tolist() == wanted, (engine, kernel.__name__)
        compiled = kernel is unsigned_range or sums < 0
        assert report.notes[0].startswith("compiled" if compiled else "interpreted: Numba cannot type it")


@cuda.jit
def starred_target(x, out):
    i = cuda.grid(1)
    first, *others = (x[i], i, 3)
    out[i] = first + others[1]


@cuda.jit
def starred_target_and_barrier(x, out):
    i = cuda.grid(1)
    first, *others = (x[i], i, 3)
    cuda.syncthreads()
    out[i] = first + others[1]


@cuda.jit
def keyword_only_parameter(x, out):
    def add(a, *, b=3):
        return a + b

    i = cuda.grid(1)
    out[i] = add(x[i])


@pytest.mark.parametrize("kernel", [starred_target, starred_target_and_barrier, keyword_only_parameter])
def test_bytecode_that_numba_does_not_know_is_interpreted(kernel):
    out = np.zeros(4)
    report = simulate(kernel, engine="native")[1, 4](np.arange(4.0), out)
    assert out.tolist() == [3, 4, 5, 6]
    assert report.notes[0].startswith("interpreted: Numba cannot type it: ")


@cuda.jit
def overflowing_index(x, out):
    i = cuda.grid(1)
    out[i] = x[i * 6148914691236517206]  # 2**64 + 2 if i is 3; negative if i is 2


@cuda.jit
def overflowing_hash(x, out):
    h = x[cuda.grid(1)] * 0x3F58476D1CE4E5B9
    h = (h ^ (h >> 30)) * 0x14D049BB133111EB
    out[cuda.grid(1)] = h >> 31


def test_integers_wrap_around():
    # With Numba's own arithmetic, LLVM removes the bounds check, and the process ends with SIGSEGV.
    outcomes = []
    for engine in ("fibers", "native"):
        x, out, hashed = np.arange(8), np.zeros(8, np.int64), np.zeros(8, np.int64)
        findings = simulate(overflowing_index, engine=engine, on_finding="report")[1, 4](x, out).findings
        simulate(overflowing_hash, engine=engine)[1, 8](x, hashed)
        outcomes.append(([finding.message for finding in findings], hashed.tolist()))
        assert out[0] == 0 and out[3] == 2
        assert {finding.kind for finding in findings} == {"out-of-bounds"}
    assert outcomes[0] == outcomes[1]


def scaled_by(scale):
    @cuda.jit(device=True)
    def f(value):
        return value * scale

    return f


doubled, tripled = scaled_by(2), scaled_by(3)


def named_like_a_parameter(f, out):
    out[cuda.threadIdx.x] = doubled(f[cuda.threadIdx.x]) + 3


def named_like_a_variable(x, out):
    f = x[cuda.threadIdx.x]
    out[cuda.threadIdx.x] = tripled(f) - doubled(f) + f + 3


@pytest.mark.parametrize("kernel", [named_like_a_parameter, named_like_a_variable])
def test_a_device_function_with_the_name_of_a_variable(kernel):
    out = np.zeros(4)
    report = simulate(kernel, engine="native")[1, 4](np.arange(4.0), out)
    assert out.tolist() == [3, 5, 7, 9] and report.notes == ("compiled",)


def named_like_generated_code(state, threads, kernel):
    i = cuda.grid(1)
    old = state[0]
    state[0] = old + 1
    threads[i] = old
    kernel[i] += 1


def test_parameters_may_have_names_that_generated_code_uses():
    """Launch a race. The checks, and the values that a second run starts from, depend on the arrays' names."""
    outcomes = []
    for engine in ("fibers", "native"):
        state, threads, counts = np.zeros((3, 80), np.int32)
        launch = simulate(named_like_generated_code, engine=engine, on_finding="report")[2, 40]
        findings = launch(state, threads, counts).findings
        outcomes.append((str(findings), state.tolist(), counts.tolist()))
        assert {finding.kind for finding in findings} == {"race-global"}
        assert counts.tolist() == [1] * 80
    assert outcomes[0] == outcomes[1]
