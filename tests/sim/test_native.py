"""Tests of the native engine.

Results equal those on fibers, the report shows how a launch ran, and kernels that cannot be compiled are
reported with the reason.
"""

import functools
import gc
import math
import os
import shutil
import subprocess
import sys
import textwrap
import time
import types
import warnings

import numpy as np
import pytest
from numba import cuda, float32, float64, int32, uint8
from numba.cuda import libdevice

from example_kernels import endless_barriers, endless_spin, endless_with_loads, grid_wide, tiled_matmul
from sim import KernelBug, LaunchError, ThreadError, empty, simulate
from sim.engine import collector
from sim.native import source
from sim.native.codegen import cache
from sim.observers import COUNTERS, DEFAULT, Trace
from sim.private_files import MAX_UNUSED_SECONDS

FULL = 0xFFFFFFFF
TILE = 4
matmul = tiled_matmul(TILE)
WEIGHTS = np.array([0.25, 0.5, 0.25], np.float32)


@cuda.jit(device=True)
def warp_total(value):
    step = 16
    while step > 0:
        value += cuda.shfl_down_sync(FULL, value, step)
        step //= 2
    return value


@cuda.jit
def block_totals(x, out):
    partial = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    total = warp_total(x[i] if i < x.shape[0] else float32(0))
    if t % 32 == 0:
        partial[t // 32] = total
    cuda.syncthreads()
    if t < 32:
        total = warp_total(partial[t] if t < cuda.blockDim.x // 32 else float32(0))
    if t == 0:
        out[cuda.blockIdx.x] = total


@cuda.jit
def histogram(x, bins):
    counts = cuda.shared.array(8, int32)
    t = cuda.threadIdx.x
    if t < 8:
        counts[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):
        cuda.atomic.add(counts, x[i], 1)
    cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(bins, t, counts[t])


@cuda.jit
def smoothed(x, out):
    i = cuda.grid(1)
    held = cuda.local.array(3, float32)
    if i < out.shape[0]:
        for k in range(3):
            held[k] = x[i + k]
        total = float32(0)
        for k in range(3):
            total += held[k] * WEIGHTS[k]
        out[i] = total


@cuda.jit
def votes(x, out):
    i = cuda.grid(1)
    positive = x[i] > 0
    out[i, 0] = cuda.ballot_sync(FULL, positive)
    out[i, 1] = cuda.any_sync(FULL, positive) + 2 * cuda.all_sync(FULL, positive)
    out[i, 2] = cuda.match_any_sync(FULL, x[i])
    out[i, 3] = cuda.syncthreads_count(positive)
    out[i, 4] = cuda.popc(cuda.activemask())


@cuda.jit
def in_branches(x, out):
    t = cuda.threadIdx.x
    if x[t] > 0:
        out[t] = cuda.shfl_xor_sync(cuda.activemask(), x[t], 0)
    else:
        out[t] = -x[t]


@cuda.jit
def last_block(x, sums, out, tickets):
    last = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        sums[cuda.blockIdx.x] = x[cuda.blockIdx.x]
        cuda.threadfence()
        last[0] = cuda.atomic.add(tickets, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0] and cuda.threadIdx.x == 0:
        total = 0.0
        for block in range(cuda.gridDim.x):
            total += sums[block]
        out[0] = total


def random(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


# name: kernel, launch, arguments, and whether it is compiled
CASES = {
    "matmul": (
        matmul,
        ((2, 2), (TILE, TILE)),
        (random(8, 8), random(8, 8), np.zeros((8, 8), np.float32)),
        True,
    ),
    "shuffles in an inlined function": (block_totals, (2, 96), (random(150), np.zeros(2, np.float32)), True),
    "atomics": (histogram, (3, 32), (np.arange(200) % 8, np.zeros(8, np.int64)), True),
    "local and constant arrays": (smoothed, (2, 8), (random(16), np.zeros(14, np.float32)), True),
    "votes": (votes, (2, 64), (np.round(random(128)), np.zeros((128, 5), np.int64)), True),
    "a barrier of the grid": (grid_wide, (4, 8), (np.zeros(32), np.zeros(32)), True),
    "warps that diverge": (in_branches, (1, 32), (random(32), np.zeros(32, np.float32)), True),
    "fences": (
        last_block,
        (5, 4),
        (random(5).astype(float), np.zeros(5), np.zeros(1), np.zeros(1, np.int64)),
        False,
    ),
}


def launched(name, **options):
    kernel, launch, arguments, _ = CASES[name]
    arguments = [argument.copy() for argument in arguments]
    return simulate(kernel, **options)[launch](*arguments), arguments


# Each kind of launch has separate machine code. A CI run launches all kernels as checked launches.
BARE = pytest.param((), id="bare", marks=pytest.mark.nightly)
SOME = [
    pytest.param(name, marks=[pytest.mark.nightly] if place % 4 else []) for place, name in enumerate(CASES)
]


@pytest.mark.parametrize("observers", [pytest.param(DEFAULT, id="checked"), BARE])
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_fibers(name, observers):
    report, got = launched(name, engine="native", observers=observers)
    _, wanted = launched(name)
    assert report.findings == () and report.engine == "native"
    assert report.notes[0].startswith("compiled") == CASES[name][-1]
    for one, other in zip(got, wanted):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def by_thread(trace):
    """Return the events of a trace grouped by thread, because engines order blocks and threads
    differently."""
    events = [(e.action, e.block, e.epoch, e.thread, e.array, e.index, e.site.line) for e in trace]
    return sorted(events, key=lambda event: (event[1:3], event[3] is None, event[3]))


@pytest.mark.parametrize("name", SOME)
def test_counters_and_traces_are_those_of_fibers(name):
    ours, wanted = (
        launched(name, engine=engine, observers=[*DEFAULT, *COUNTERS, Trace], seed=3)[0]
        for engine in ("native", "fibers")
    )
    assert ours.counters == wanted.counters
    assert by_thread(ours.trace) == by_thread(wanted.trace)


@pytest.mark.parametrize("name", SOME)
def test_what_compiled_code_counts_is_what_fibers_count(name):
    ours, wanted = (
        launched(name, engine=engine, observers=[*DEFAULT, *COUNTERS])[0] for engine in ("native", "fibers")
    )
    # Counters need the access log, which compiled code with grid barriers does not write.
    assert ours.notes[0].startswith("compiled") == (CASES[name][-1] and name != "a barrier of the grid")
    assert ours.counters == wanted.counters


def rows_kept(x, records, out):
    t = cuda.threadIdx.x
    row, mine = x[t], out[t]
    cuda.syncthreads()
    mine[3] = row[2] + x[3, t]
    for value in row:
        mine[0] += value


def records_copied(x, records, out):
    records[cuda.threadIdx.x] = records[cuda.threadIdx.x + 4]


@pytest.mark.parametrize("kernel, note", [(rows_kept, "compiled"), (records_copied, "interpreted")])
def test_accesses_of_rows_and_records_are_counted_as_fibers_count_them(kernel, note):
    """Count accesses to rows and records.

    Rows once did not live across a barrier while accesses were counted, and half of the record accesses were
    missing.
    """
    counters = []
    for engine in ("native", "fibers"):
        x, out = np.arange(16, dtype=np.float32).reshape(4, 4), np.zeros((4, 4), np.float32)
        records = np.zeros(8, [("a", np.float32), ("b", np.int32)])
        report = simulate(kernel, engine=engine, observers=COUNTERS)[1, 4](x, records, out)
        assert engine != "native" or report.notes[0].startswith(note)
        counters.append(report.counters)
    assert counters[0] == counters[1]


def from_the_end(x, out):
    t, both = cuda.threadIdx.x, (2, x)
    row = both[-1][-1]
    if t == 0:
        out[-1] = row[-2] + x.reshape(2, 8)[0, -1] + x.shape[-1] + both[-2]


def test_literal_indices_below_0_are_no_alarm():
    """Use a single negative literal index, which once caused a false alarm and a fall-back to fibers."""
    x, out = np.arange(16, dtype=np.float32).reshape(4, 4), np.zeros(2, np.float32)
    assert simulate(from_the_end, engine="native")[1, 4](x, out).notes == ("compiled",)
    assert out.tolist() == [0, 14 + 7 + 4 + 2]


SPILLED = 5


def test_a_kernel_may_use_the_names_that_compiled_text_has_of_itself():
    """Use names of the generated code in a kernel.

    SPILLED once had another value, a function called `recursive` ended the launch, and other names fell back
    to fibers.
    """

    @cuda.jit(device=True)
    def recursive(n):
        return n if n < 1 else recursive(n - 1) + 2

    @cuda.jit(device=True)
    def named_1(n):
        return n + 1

    @cuda.jit(device=True)
    def named_block(n):
        return n + 1

    @cuda.jit
    def named(x, out):
        spill_buffer, load_int64 = cuda.threadIdx.x, 3
        total = named_1(spill_buffer) + load_int64
        for i in range(x[spill_buffer]):
            total += i
        total_of = out
        cuda.syncthreads()
        total_of[spill_buffer] = total + SPILLED + recursive(spill_buffer) + named_block(spill_buffer)

    x, out = np.arange(4), np.zeros(4, np.int64)
    assert simulate(named, engine="native")[1, 4](x, out).notes == ("compiled",)
    assert out.tolist() == [4 * t + t * (t - 1) // 2 + 10 for t in range(4)]


def test_clean_kernels_raise_no_alarm():
    """Run correct kernels, which must not raise an alarm, because an alarm costs a second, slow run."""
    assert {name: launched(name, engine="native")[0].notes for name in list(CASES)[:5]} == dict.fromkeys(
        list(CASES)[:5], ("compiled",)
    )


def racy(x, out):
    s = cuda.shared.array(8, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    out[t] = s[7 - t] + x[t + 1]


def test_a_report_of_bugs_reads_the_same():
    messages = [
        [
            finding.message
            for finding in simulate(racy, engine=engine, on_finding="report")[1, 8](
                np.ones(8, np.float32), np.zeros(8)
            ).findings
        ]
        for engine in ("fibers", "native")
    ]
    assert len(messages[0]) == 2 and messages[0] == messages[1]


def test_arguments_are_restored_before_a_launch_is_explained():
    def kernel(x, out):
        i = cuda.grid(1)
        x[i] += 1
        out[i] = x[i]
        out[0] = 0

    x = np.arange(4.0)
    report = simulate(kernel, engine="native", on_finding="report")[1, 4](x, np.zeros(4))
    assert report.notes == ("compiled, then explained by the interpreter",) and x.tolist() == [1, 2, 3, 4]


def test_a_device_function_prints(capfd):
    def shown(value):
        print("value", value)
        return value + 1

    def kernel(x):
        x[cuda.threadIdx.x] = shown(x[cuda.threadIdx.x])

    x = np.arange(2)
    simulate(kernel, engine="native")[1, 2](x)
    assert x.tolist() == [1, 2] and capfd.readouterr().out == "value 0\nvalue 1\n"


def test_what_a_kernel_with_a_finding_prints_it_prints_once(capfd):
    def kernel(x):
        print("value", cuda.grid(1))
        x[0] = cuda.grid(1)

    report = simulate(kernel, engine="native", on_finding="report")[1, 2](np.zeros(1))
    assert [finding.kind for finding in report.findings] == [
        "race-global"
    ] and capfd.readouterr().out == "value 0\nvalue 1\n"


@pytest.mark.parametrize("observers", (DEFAULT, (*DEFAULT, Trace)))
def test_kernels_may_be_called_what_the_lowered_text_calls_things(observers):
    def compiled(value):
        cuda.syncthreads()
        return value + 1

    def kernel(value):
        return value * 2

    def generator(x, kernel_grid):
        threads = cuda.threadIdx.x
        kernel_grid[threads] = kernel(x[threads]) * compiled(x[threads])

    out = np.zeros(4, np.int64)
    simulate(generator, engine="native", observers=observers)[1, 4](np.arange(4), out)
    assert out.tolist() == [0, 4, 12, 24]


def test_a_kernel_that_raises_leaves_a_tensor_as_it_was():
    def kernel(x):
        x[cuda.threadIdx.x] = 1
        if cuda.threadIdx.x == 2:
            raise ValueError("not yet")

    torch = pytest.importorskip("torch")
    x = torch.zeros(4)
    with pytest.raises(ThreadError, match="not yet"):
        simulate(kernel, engine="native")[1, 4](x)


@pytest.mark.parametrize("observers", (DEFAULT, COUNTERS, ()))
def test_a_read_only_array_is_read_and_never_written(observers):
    def kernel(x, y):
        y[cuda.threadIdx.x] = x[cuda.threadIdx.x] + 1

    x, y = np.zeros(4), np.zeros(4)
    x.flags.writeable = False
    run = simulate(kernel, engine="native", observers=observers)[1, 4]
    run(x, y)
    assert (y == 1).all()
    with pytest.raises(ThreadError, match="x is a read-only array|y is a read-only array"):
        run(y, x)
    assert not x.any()


def test_outside_without_tools_is_an_error_of_the_thread():
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = x[i, 2 * i]

    errors = []
    for engine in ("fibers", "native"):
        with pytest.raises(ThreadError) as caught:
            simulate(kernel, engine=engine, observers=())[1, 4](np.zeros((4, 5)), np.zeros(4))
        errors.append(str(caught.value))
    assert errors[0] == errors[1] and "x[3, 6] is outside its shape [4, 5]" in errors[0]


def test_an_exception_of_the_kernel():
    def kernel(x):
        cuda.syncthreads()
        if cuda.threadIdx.x == 5:
            raise ValueError("five")
        cuda.syncthreads()

    with pytest.raises(
        ThreadError, match=r"thread 5 of block 0 raised ValueError: five\n  kernel line 4  raise ValueError"
    ) as caught:
        simulate(kernel, engine="native")[1, 8](np.zeros(8))
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("kernel, line", [(endless_with_loads, 2), (endless_spin, 3), (endless_barriers, 2)])
def test_endless_loops_end_and_name_the_line(kernel, line):
    with pytest.raises(KernelBug) as caught:
        simulate(kernel, engine="native", max_steps=20_000)[1, 4](np.zeros(4))
    (finding,) = caught.value.findings
    assert finding.kind == "no-progress" and finding.accesses[0].site.line == line


def test_uninitialized_arguments():
    def kernel(x, out):
        out[cuda.grid(1)] = x[cuda.grid(1)]

    with pytest.raises(KernelBug, match="uninitialized-read"):
        simulate(kernel, engine="native")[1, 4](empty(4), np.zeros(4))


def test_overlapping_arguments_share_their_shadow_words():
    def kernel(x, y):
        i = cuda.grid(1)
        y[i] = x[i] + 1

    x = np.zeros(9)
    with pytest.raises(KernelBug, match="race-global"):
        simulate(kernel, engine="native")[1, 8](x[:8], x[1:])
    x[:] = 0
    simulate(kernel, engine="native")[1, 8](x[:8], x[:8])
    assert x[:8].tolist() == [1.0] * 8


def test_globals_are_those_of_the_launch():
    scale = 2

    def kernel(out):
        out[cuda.grid(1)] = scale * math.sqrt(4.0)

    for scale in (2, 3):
        out = np.zeros(2)
        simulate(kernel, engine="native")[1, 2](out)
        assert out.tolist() == [2 * scale] * 2


def test_functions_are_those_of_the_launch():
    """Run a notebook cell again with a different function, while the kernel two calls above it stays the
    same."""

    def half(x):
        return x / 2

    def middle(x):
        return half(x)

    def kernel(out):
        out[0] = middle(8)

    got = []
    for divisor in (2, 4):
        if divisor == 4:

            def half(x):
                return x / 4

        out = np.zeros(1)
        simulate(kernel, engine="native")[1, 1](out)
        got.append(out[0])
    assert got == [4, 2]


def test_members_of_modules_are_those_of_the_launch():
    settings = types.ModuleType("settings")

    def kernel(out):
        out[0] = settings.scale

    for settings.scale in (2, 3):
        out = np.zeros(1)
        simulate(kernel, engine="native")[1, 1](out)
        assert out[0] == settings.scale


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_a_float_becomes_an_integer_as_on_a_gpu(dtype):
    """Convert floats to integers: towards zero and saturated (`cvt.rzi`) in a store, in a conversion, and by
    int(x)."""

    def convert(x, small, middle, unsigned, wide, wide_unsigned, converted):
        i = cuda.grid(1)
        if i < len(x):
            small[i], middle[i], unsigned[i], wide[i], wide_unsigned[i] = x[i], x[i], x[i], x[i], x[i]
            converted[0, i], converted[1, i], converted[2, i] = int(x[i]), int32(x[i]), uint8(x[i])

    x = np.array(
        [0.5, 1.5, -2.5, -1.0, 127.5, -200.0, 300.0, 70000.0, 3e9, 1e30, -1e30, np.inf, np.nan], dtype
    )
    left = {}
    for engine in ("fibers", "native"):
        left[engine] = [
            np.zeros(len(x), kind) for kind in (np.int8, np.int32, np.uint16, np.int64, np.uint64)
        ] + [np.zeros((3, len(x)), np.int64)]
        simulate(convert, engine=engine, observers=())[1, 16](x, *left[engine])
    assert all((found == wanted).all() for found, wanted in zip(left["native"], left["fibers"]))
    small, middle, unsigned, *_ = left["native"]
    assert middle.tolist()[:12] == [
        0,
        1,
        -2,
        -1,
        127,
        -200,
        300,
        70000,
        2**31 - 1,
        2**31 - 1,
        -(2**31),
        2**31 - 1,
    ]
    assert unsigned.tolist()[:12] == [0, 1, 0, 0, 127, 0, 300, 65535, 65535, 65535, 0, 65535]


def test_tuples_and_tensors():
    torch = pytest.importorskip("torch")

    def kernel(pair, scale, out):
        i = cuda.grid(1)
        out[i] = pair[0][i] + pair[1][i] * scale

    out = torch.zeros(4)
    assert simulate(kernel, engine="native")[1, 4](
        (np.ones(4, np.float32), torch.arange(4.0)), 2, out
    ).notes == ("compiled",)
    assert out.tolist() == [1, 3, 5, 7]


# --- kernels that cannot be compiled ------------------------------------------------------------------------


def barrier_in_try(x):
    try:
        cuda.syncthreads()
    except ValueError:
        pass


@cuda.jit(device=True)
def recursive(n):
    cuda.syncthreads()
    if n > 0:
        recursive(n - 1)


def recursion_with_a_barrier(x):
    recursive(3)


@cuda.jit(device=True)
def even(n):
    return 1 if n == 0 else odd(n - 1)


@cuda.jit(device=True)
def odd(n):
    return 0 if n == 0 else even(n - 1)


def two_that_call_each_other(x):
    x[cuda.threadIdx.x] = even(cuda.threadIdx.x)


def unknown_to_numba(x):
    x[0] = libdevice.erfinv(x[0])


@pytest.mark.parametrize(
    "kernel, why, line",
    [
        (
            barrier_in_try,
            "threads synchronise within a `try` statement",
            "barrier_in_try line 3  cuda.syncthreads()",
        ),
        (
            recursion_with_a_barrier,
            "recursive calls itself, and its threads synchronise",
            "recursive line 4  recursive(n - 1)",
        ),
        (two_that_call_each_other, "even calls itself through odd", "odd line 2  return 0 if n == 0"),
        (unknown_to_numba, " has no compiled form", "unknown_to_numba line 2  x[0] = libdevice.erfinv(x[0])"),
    ],
)
def test_what_cannot_be_compiled_names_the_line(kernel, why, line):
    (note,) = simulate(kernel, engine="native", on_finding="report")[1, 4](np.zeros(4, np.float32)).notes
    assert note.startswith("interpreted: ") and why in note and line in note
    with pytest.raises(LaunchError) as caught:
        source(kernel, np.zeros(4, np.float32))
    assert why in str(caught.value) and line in str(caught.value)


# --- generated code and its cache ---------------------------------------------------------------------------


def test_the_source_can_be_read():
    text = source(matmul, *[float32[:, ::1]] * 3)
    assert text == source(matmul, *[np.zeros((8, 8), np.float32)] * 3)
    assert (
        """
@translated
def matmul_3(thread, spill_buffer, spill_pitch, threadIdx, tile_a, tile_b):
    total = load_float32(spill_buffer, 0, spill_pitch, thread)
    x = threadIdx.x
    y = threadIdx.y
    for k in range(TILE):
        total = total + tile_a[y, k] * tile_b[k, x]
    store_float32(spill_buffer, 0, spill_pitch, thread, total)
"""
        in text
    )


KERNEL = """
from numba import cuda

@cuda.jit
def turned(x):
    t = cuda.threadIdx.x
    value = x[t]
    cuda.syncthreads()
    x[x.size - 1 - t] = value
"""
SCRIPT = """
import numpy as np
from numba.core import event
from kernel_of_a_test import turned
from sim import simulate
from sim.observers import COUNTERS
with event.install_recorder("numba:compile") as compilations:
    report = simulate(turned, engine="native")[1, 4](np.ones(4, np.float32))
    simulate(turned, engine="native", observers=COUNTERS)[1, 4](np.ones(4, np.float32))
print(len(compilations.buffer), report.notes)
"""


def run(script, folder, **environment):
    environment = {
        "PATH": "",
        "HOME": str(folder),
        "PYTHONPATH": f"{folder}:{':'.join(sys.path)}",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    """Return (again, folder).

    again(): function that repeats a launch in a new process, and returns the number of functions compiled and
    the
        notes.
    folder: the cache.
    """
    folder = tmp_path_factory.mktemp("kept")
    (folder / "kernel_of_a_test.py").write_text(KERNEL)
    again = functools.partial(run, SCRIPT, folder, NUMBA_CACHE_DIR=str(folder))
    first = again()
    assert first.endswith("('compiled',)") and not first.startswith("0 ")
    return again, folder / "sim-native"


def test_a_kernel_is_known_by_the_types_of_what_it_declares():
    """Declare arrays of two types in equal kernels. The second kernel once stored its value in a float32."""

    def reversed_by(dtype):
        @cuda.jit
        def reversed_in_shared(x, out):
            s = cuda.shared.array(4, dtype)
            t = cuda.threadIdx.x
            s[t] = x[t]
            cuda.syncthreads()
            value = s[3 - t]
            cuda.syncthreads()
            out[t] = value

        out = np.zeros(4)
        simulate(reversed_in_shared, engine="native")[1, 4](np.full(4, 1 / 3), out)
        return out[0]

    assert (reversed_by(float32), reversed_by(float64)) == (np.float32(1 / 3), 1 / 3)


def test_a_second_process_compiles_nothing(again):
    launched, _ = again
    assert launched() == "0 ('compiled',)"


RECURSIVE = """
import numpy as np
from numba import cuda
from sim import simulate

@cuda.jit(device=True)
def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)

@cuda.jit
def kernel(out):
    out[cuda.threadIdx.x] = factorial(cuda.threadIdx.x + 4) + factorial(4)

out = np.zeros(2)
report = simulate(kernel, engine="native")[1, 2](out)
print(out, report.notes)
"""


def test_a_second_process_runs_a_function_that_calls_itself(tmp_path):
    """Run a recursive function in a second process, which once crashed by calling an address of the first
    process."""
    (tmp_path / "recursive.py").write_text(RECURSIVE)
    for _ in range(2):
        done = run("import recursive", tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        assert done == "[ 48. 144.] ('compiled',)"


TWICE = """
import sys
import numpy as np
from numba import cuda
from sim import simulate
from sim.observers import DEFAULT

@cuda.jit
def kernel(x, out):
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * 2

for name in sys.argv[1:]:
    out = np.zeros(40)
    observers = DEFAULT if name == "checked" else ()
    simulate(kernel, engine="native", observers=observers)[2, 32](np.arange(40.0), out)
    print(out.sum())
"""


def test_code_from_the_cache_is_not_mixed_with_new_code_of_the_same_kernel(tmp_path):
    """Compile the launch without observers in one process, and then load it after the launch with observers.
    The second process once called functions of the other launch, and crashed."""
    (tmp_path / "twice.py").write_text(TWICE)
    for names in (["bare"], ["checked", "bare"]):
        code = f"import sys; sys.argv[1:] = {names}; import twice"
        done = run(code, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        assert done.split() == ["1560.0"] * len(names)


def test_what_is_kept_is_private_and_what_is_damaged_is_made_anew(again, few):
    launched, kept = again
    assert kept.stat().st_mode & 0o777 == 0o700
    for suffix in few([".nbc", ".py"], 1):
        for file in kept.rglob(f"*{suffix}"):
            file.write_bytes(file.read_bytes()[:-40])  # simulates a full disk
        assert launched().endswith("('compiled',)")
        assert launched() == "0 ('compiled',)"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
@pytest.mark.parametrize(
    ("above", "own", "wrong"),
    [
        (0o700, 0o700, ""),
        (0o755, 0o755, ""),
        (0o1777, 0o700, ""),
        (0o777, 0o700, "every user can write in {}, which has no sticky bit"),
        (0o703, 0o700, "every user can write in {}, which has no sticky bit"),
        (0o1777, 0o777, "other users can write in {}/home/sim-native"),
        (0o700, 0o720, "other users can write in {}/home/sim-native"),
    ],
)
def test_a_folder_that_others_may_change_is_not_used(tmp_path, monkeypatch, above, own, wrong):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "home"))
    (tmp_path / "home" / "sim-native").mkdir(parents=True)
    (tmp_path / "home" / "sim-native").chmod(own)
    tmp_path.chmod(above)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        used = cache.folder.__wrapped__()
    tmp_path.chmod(0o700)
    assert used.is_relative_to(tmp_path) == (not wrong)
    texts = [str(each.message) for each in said if each.category is RuntimeWarning]
    assert [wrong.format(tmp_path) in text for text in texts] == [True] * bool(wrong)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
def test_a_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.warns(RuntimeWarning, match="sim-native belongs to another user"):
        assert not cache.folder.__wrapped__().is_relative_to(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
def test_a_link_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sim-native").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="sim-native is not a folder"):
        assert not cache.folder.__wrapped__().is_relative_to(tmp_path)


def test_what_is_kept_is_known_by_all_sources_that_it_relies_on(tmp_path, monkeypatch):
    shutil.copytree(cache.ROOT, tmp_path / "sim")
    monkeypatch.setattr(cache, "ROOT", tmp_path / "sim")
    before = cache.version.__wrapped__()
    for name, matters in [
        ("viz/page.py", False),
        ("observers/races.py", False),
        ("isa/mathematics.py", True),
    ]:
        (tmp_path / "sim" / name).write_text("# changed")
        assert (cache.version.__wrapped__() != before) == matters


def test_what_nobody_has_launched_for_long_is_forgotten(tmp_path):
    for name, age in [
        ("old_1.py", MAX_UNUSED_SECONDS + 9),
        ("old_1.old-1.nbc", MAX_UNUSED_SECONDS + 9),
        ("old_version/shadow.dirty-1.nbc", MAX_UNUSED_SECONDS + 9),
        ("old_version", MAX_UNUSED_SECONDS + 9),
        ("used_2.py", 5),
        ("used_2.used-1.nbc", MAX_UNUSED_SECONDS + 9),
    ]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if "." in name:
            (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    cache.prune(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["used_2.py", "used_2.used-1.nbc"]


def test_without_numba_the_error_says_what_to_install(tmp_path):
    out = run(
        """
        import sys
        sys.modules["numba"] = None
        import numpy as np
        from sim import LaunchError, simulate
        try:
            simulate(lambda x: None, engine="native")[1, 1](np.zeros(1))
        except LaunchError as error:
            print(error)
        """,
        tmp_path,
    )
    assert (
        out
        == 'engine="native" compiles kernels with Numba, which is not installed\n  pip install numba, or use'
        ' engine="fibers", which needs no compiler'
    )


@cuda.jit(device=True)
def sum_below(n):
    total = 0
    for i in range(n):
        total += i
    return total


def with_a_loop_in_a_device_function(x, out, n):
    out[cuda.threadIdx.x] = sum_below(n) + 0 * x[cuda.threadIdx.x - 4]


@pytest.mark.parametrize("observers", [DEFAULT, [*DEFAULT, *COUNTERS]], ids=["explained", "counted"])
def test_a_loop_in_a_device_function_goes_round_however_the_kernel_runs(observers):
    out = np.zeros(4)
    report = simulate(with_a_loop_in_a_device_function, engine="native", observers=observers)[1, 4](
        np.ones(4), out, 10
    )
    assert [finding.kind for finding in report.findings] == ["negative-index"] and out.tolist() == [45.0] * 4


def test_frozen_objects_are_counted_once_and_stay_frozen(monkeypatch):
    """Count them once, because Python visits each of them, and each new kernel pauses the collector
    three times."""
    counts, unfrozen = [], []
    monkeypatch.setattr(collector, "is_frozen", False)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(5) or 5)
    monkeypatch.setattr(gc, "unfreeze", lambda: unfrozen.append(True))
    for _ in range(3):
        with collector.pause_collector():
            assert not gc.isenabled()
    assert counts == [5] and unfrozen == [] and gc.isenabled()
