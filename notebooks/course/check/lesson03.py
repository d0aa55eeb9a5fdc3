"""Checks of lesson 03: the learner's own simulator, which runs kernels from this file, and three kernels,
which run in `sim`."""

import math
import threading
import time
import traceback
from collections import Counter, namedtuple
from contextlib import contextmanager

import numpy as np
from numba import cuda
from numpy import float32

from course.check import kernels
from course.check.contract import Contract, Work
from course.check.harness import compare, exercise, fail
from sim.events import STORE
from sim.nouns import plural

THREADS, TILE = 8, 4  # as in the lesson
HALVINGS = 3  # of THREADS numbers, until one is left; none may begin before the last one ends
ORDERS = 3  # of the threads, tried with each input
MIRRORED = 6  # threads in a block of the kernels below
PATIENCE = 5  # seconds; a launch here takes hundredths of one

dim3 = namedtuple("dim3", ["x", "y", "z"], defaults=(1, 1, 1))

WAIT = (
    "Do two threads write one element? Is there a barrier wherever a thread needs what another has stored,"
    " and before anything is stored over it?"
)
NOT_A_NUMBER = (
    "NaN: no thread has written this element, or a thread read shared memory before it was written."
)


@exercise("3.1", "add")
def ex03_1(add, rng):
    for size, blocks, threads in [
        (8, 2, 4),
        (1, 1, 4),
        (3, 1, 4),
        (10, 3, 4),
        (33, 5, 8),
        (5, 4, 4),
        (1500, 48, 32),
    ]:
        x, y = rng.standard_normal((2, size)).astype(float32)
        x[1::3] = y[2::3] = 0
        call = f"add[{blocks}, {threads}](x, y, out) with {plural(size, 'element')}"
        contract = Contract(
            "x y out",
            max_per_thread={"x": 2, "y": 2, "out": 3},  # 3: out[i] = 0, then out[i] += x[i] + y[i]
            max_total={"x": 2 * size, "y": 2 * size, "out": 3 * size},
            threads=size,
            hint=ONE_EACH,
        )
        verify(add, blocks, threads, (x, y), x + y, rng, call, contract)
    return "1 to 1,500 elements, blocks of 4, 8 and 32, ragged ends, blocks without work"


@exercise("3.2", "run_block")
def ex03_2(launch, rng):
    with fallen_threads() as fallen:
        every_thread_runs_once(launch, dim3(2, 3, 2), dim3(3, 1, 4), fallen)
        every_thread_runs_once(launch, dim3(2), dim3(35, 2), fallen)
    barrier_waits(launch, rng)
    memory_is_fresh(launch)
    first_error_comes_out(launch, rng)
    nobody_waits_for_ever(launch, rng)
    barrier_waits(launch, rng)  # a launch that follows a failed one
    return (
        "three dimensions, 70 threads that meet, shared memory of several blocks, an error in one thread, a"
        " thread that never comes"
    )


@exercise("3.3", "block_sum")
def ex03_3(block_sum, rng):
    for size in [8, 16, 1, 5, 19, 40, 509]:
        x = rng.standard_normal(size).astype(float32)
        x[THREADS : 2 * THREADS] = 0  # block 1, if there is one, has the sum 0
        sums = np.array(
            [x[start : start + THREADS].sum(dtype=np.float64) for start in range(0, size, THREADS)]
        )
        call = f"block_sum[{len(sums)}, {THREADS}](x, out) with {plural(size, 'element')}"
        contract = Contract(
            "x out",
            max_per_thread={"x": 2, "out": 2},
            max_total={"x": 2 * size, "out": len(sums), "shared": 48 * len(sums)},
            min_total={"shared": size},
            blocks=len(sums),
            barriers=(HALVINGS, math.inf),
            atomics=(0, 0),
            helpers=(THREADS // 2) * (size // THREADS),
            share=None if size % THREADS else 3.2,
            hint=BY_HALVES,
        )
        for report in verify(block_sum, len(sums), THREADS, (x,), sums, rng, call, contract, float64=0):
            adds_by_halves(Work(report), call)
    return "1 to 509 elements in blocks of 8, in many orders of the threads"


@exercise("3.4", "matmul")
def ex03_4(matmul, rng):
    for m, inner, n in [
        (4, 4, 4),
        (8, 8, 8),
        (1, 1, 1),
        (3, 2, 3),
        (5, 3, 6),
        (7, 9, 2),
        (3, 13, 10),
        (14, 33, 9),
    ]:
        a = rng.standard_normal((m, inner)).astype(float32)
        b = rng.standard_normal((inner, n)).astype(float32)
        a[1::3] = 0  # c then has rows of zeros, which must be written too
        grid = -(-n // TILE), -(-m // TILE)
        stops = -(-inner // TILE)
        # one barrier in each step is enough with two pairs of tiles, but not if syncwarp replaces the other
        fewest = 2 * stops - 1 if "syncwarp" in kernels.names_in(matmul) else stops
        call = f"matmul[{grid}, {(TILE, TILE)}](a, b, c) with a of {m} x {inner} and b of {inner} x {n}"
        contract = Contract(
            "a b c",
            max_per_thread={"a": stops, "b": stops, "c": 1},
            max_total={"a": m * inner * grid[0], "b": inner * n * grid[1]},
            threads=m * n,
            barriers=(fewest, math.inf),
            owner={"c": lambda element, n=n, width=grid[0]: thread_of(element // n, element % n, width)},
            hint=BY_TILES,
        )
        wanted = a.astype(np.float64) @ b
        verify(matmul, grid, (TILE, TILE), (a, b), wanted, rng, call, contract, float64=0)
    return (
        "eight shapes, from 1 x 1 to 14 x 33 times 33 x 9, most of them ragged, up to 9 steps; each thread"
        " loads one number of each tile"
    )


def adds_by_halves(work, call):
    """Reject a block_sum in which a thread reads more of the shared numbers than halving needs."""
    chosen = work.chosen("shared") & (work.trace.action != STORE)
    threads = work.block_number[chosen] * work.threads + work.trace.thread[chosen]
    reads = np.unique(np.stack([threads, work.trace.address[chosen].astype(np.int64)]), axis=1)
    thread, count = Counter(reads[0].tolist()).most_common(1)[0]
    if count > HALVINGS + 2:
        fail(
            f"the result is correct, but {work.who(thread)} reads {count} different numbers in shared memory;"
            f" adding by halves needs {HALVINGS + 1}",
            call=call,
            hint=BY_HALVES,
        )


def thread_of(row, column, width):
    """Return the global thread index whose y and x correspond to this row and column of c, in a grid `width`
    blocks wide."""
    block = row // TILE * width + column // TILE
    return block * TILE**2 + row % TILE * TILE + column % TILE


ONE_EACH = "One element a thread; a thread without an element does nothing."
BY_HALVES = (
    "The threads of a block store their numbers in shared memory and add by halves: no thread reads all of"
    " them, and there are no atomic operations."
)
BY_TILES = (
    "In each step a thread loads one number of each tile into shared memory, and all compute from there. Both"
    " barriers of a step are cuda.syncthreads(); a barrier of a warp is not enough."
)


# 3.2: the learner's simulator -------------------------------------------------------------------------------


def every_thread_runs_once(launch, grid, block, fallen):
    seen = []
    in_time(launch, roll_call, grid, block, seen)
    wanted = [(grid, block, b, t) for b in indices(grid) for t in indices(block)]
    call = f"launch(kernel, {grid}, {block}, ...) with a kernel that notes what its cuda says"
    if strange := [names for names in seen if names not in wanted]:
        fail(
            "a thread that should not exist",
            call=call,
            got=described(strange[0]),
            hint=f"expected, for example: {described(wanted[1])}",
        )
    if missing := [names for names in wanted if names not in seen]:
        hint = f"{plural(len(seen), 'thread')} ran, of {len(wanted)}."
        if fallen:
            hint += f" The first to fall fell before the kernel began: {fallen[0]}. {ARGUMENTS}"
        fail("a thread that never ran", call=call, wanted=described(missing[0]), hint=hint)
    compare(len(seen), len(wanted), what="how many threads ran", call=call, tolerance=0)


TIMEOUT = "Keep the barrier's timeout=10: it ends the wait for a thread that has returned."
ARGUMENTS = "(A Thread's args are a tuple, with a comma even for one: args=(thread_index,).)"


@contextmanager
def fallen_threads():
    """Collect the exceptions that end threads in the `with` block instead of printing them."""
    usual, fallen = threading.excepthook, []
    threading.excepthook = lambda failure: fallen.append(f"{failure.exc_type.__name__}: {failure.exc_value}")
    try:
        yield fallen
    finally:
        threading.excepthook = usual


def indices(size):
    return [(x, y, z) for z in range(size.z) for y in range(size.y) for x in range(size.x)]


def described(names):
    return ", ".join(
        f"{name} {tuple(value)}"
        for name, value in zip(("gridDim", "blockDim", "blockIdx", "threadIdx"), names, strict=True)
    )


def barrier_waits(launch, rng):
    """Check that all threads of a block, in one dimension and in three, wait at each of three barriers."""
    hint = (
        "Does every barrier wait for all threads of the block? NaN: a thread took from shared memory what"
        " no thread had stored yet, or the threads do not share one array."
    )
    for block in dim3(MIRRORED), dim3(1, 2, 3):
        x = rng.standard_normal((3, MIRRORED)).astype(float32)
        delay = np.stack([rng.permutation(MIRRORED) for _ in range(3)]) / 1000
        out = np.full(x.shape, np.nan, dtype=float32)
        in_time(launch, mirror_two, dim3(3), block, x, delay, out)
        what = (
            f"three blocks of {tuple(block)} threads that take different times before each of three barriers"
        )
        compare(out, 3 * x, what=what, tolerance=1e-5, hint=hint)


def memory_is_fresh(launch):
    old = np.zeros((4, MIRRORED), dtype=float32)
    in_time(launch, look_then_store, dim3(4), dim3(MIRRORED), old)
    hint = "A block must not see values that an earlier block stored: every block has its own shared memory."
    compare(
        old == 7,
        np.zeros_like(old),
        what="cells in which a block found the 7 of an earlier block",
        tolerance=0,
        hint=hint,
    )


def first_error_comes_out(launch, rng):
    culprit = int(rng.integers(MIRRORED))
    what = f"thread {culprit} of block 1 raises a Mishap while the others wait at the barrier"
    try:
        with barriers(abort_takes=0.05):
            in_time(launch, one_fails, dim3(2), dim3(MIRRORED), culprit, what=what)
    except Mishap:
        return
    except threading.BrokenBarrierError:
        got, hint = "BrokenBarrierError", "Raise the error that came first: append before you abort."
    else:
        got, hint = "no error", "Note the errors in run_thread, and raise the first one after the join."
    fail(what, wanted="that Mishap", got=got, hint=hint)


def nobody_waits_for_ever(launch, rng):
    """Check that a thread that returns early does not leave the others waiting at the barrier. Their
    BrokenBarrierError counts as an error too."""
    deserter = int(rng.integers(MIRRORED))
    what = f"thread {deserter} returns and never comes to the barrier at which the others wait"
    try:
        with barriers(patience=0.3) as endless:
            in_time(launch, one_leaves, dim3(1), dim3(MIRRORED), deserter, what=what)
    except threading.BrokenBarrierError:
        if endless:
            fail(what, wanted="a BrokenBarrierError after ten seconds", got="endless waiting", hint=TIMEOUT)
        return
    fail(
        what,
        wanted="a BrokenBarrierError",
        got="no error",
        hint=(
            "Record every error, including that of a broken barrier. Otherwise, a failed launch looks like"
            " a successful one."
        ),
    )


@contextmanager
def barriers(abort_takes=0, patience=None):
    """Make new barriers break after `patience` seconds in the `with` block, and delay the first thread that
    aborts one, so that the order of append and abort becomes visible. Yield a list with one entry per wait
    that only this timeout ended."""
    usual, endless = threading.Barrier, []

    class Barrier(usual):
        def __init__(self, parties, action=None, timeout=None):
            super().__init__(parties, action, patience or timeout)
            self.limited = timeout is not None

        def wait(self, timeout=None):
            if not self.limited and timeout is None:
                endless.append(threading.get_ident())
            return super().wait(patience or timeout)

        def abort(self):
            first = not self.broken
            super().abort()
            if first:  # the threads that it wakes abort too, and must not be delayed
                time.sleep(abort_takes)

    threading.Barrier = Barrier
    try:
        yield endless
    finally:
        threading.Barrier = usual


def in_time(launch, *args, what="a launch of a few threads"):
    """Call launch(*args) and re-raise its exception. If it takes too long, fail the check without waiting for
    its remaining threads."""
    errors = []

    def call():
        try:
            launch(*args)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        fail(
            f"{what}: not finished after {PATIENCE} seconds",
            hint=(
                "Which thread waits for which? Start all threads before the first join. A thread that fails"
                " must abort the barrier."
            ),
        )
    if errors:
        raise errors[0]


def print_no_failure_of_our_kernels():
    """Suppress the printing of exceptions from threads that run a kernel of this file. They could occur ten
    seconds later, and would appear below another cell."""
    usual = threading.excepthook

    def hook(failure):
        if all(frame.f_code.co_filename != __file__ for frame, _ in traceback.walk_tb(failure.exc_traceback)):
            usual(failure)

    threading.excepthook = hook


print_no_failure_of_our_kernels()

# Its kernels ------------------------------------------------------------------------------------------------


def roll_call(seen):
    cuda.syncthreads()  # all threads of the block must be there at once
    seen.append((tuple(cuda.gridDim), tuple(cuda.blockDim), tuple(cuda.blockIdx), tuple(cuda.threadIdx)))


def mirror_two(x, delay, out):
    """out = 3 * x, a row per block, mirrored twice through shared memory.

    Of a thread and its mirror image, the slower one accesses shared memory last before each barrier, and the
    faster one would fail without that barrier.
    """
    once, twice = cuda.shared.array(MIRRORED, float32), cuda.shared.array(MIRRORED, float32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    t += cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    time.sleep(delay[b, t])
    once[t] = x[b, t]
    twice[t] = 2 * x[b, t]
    cuda.syncthreads()
    time.sleep(delay[b, t])
    total = once[MIRRORED - 1 - t] + twice[MIRRORED - 1 - t]
    cuda.syncthreads()
    time.sleep(delay[b, t])
    once[t] = total
    cuda.syncthreads()
    out[b, t] = once[MIRRORED - 1 - t]


def look_then_store(old):
    shared = cuda.shared.array(MIRRORED, float32)
    old[cuda.blockIdx.x, cuda.threadIdx.x] = shared[cuda.threadIdx.x]
    shared[cuda.threadIdx.x] = 7


def one_leaves(deserter):
    if cuda.threadIdx.x != deserter:
        cuda.syncthreads()


class Mishap(Exception):
    """Error type raised by a kernel below, which no simulator can have anticipated."""


def one_fails(culprit):
    if cuda.blockIdx.x == 1 and cuda.threadIdx.x == culprit:
        raise Mishap("a kernel may raise anything")
    cuda.syncthreads()


# 3.1, 3.3, 3.4: the learner's kernels, in sim ---------------------------------------------------------------


def verify(kernel, grid, block, inputs, wanted, rng, call, contract, **options):
    """Run the kernel in `sim` in several thread orders, and return the reports. Reject it unless it always
    returns `wanted` (float32) and fulfils the contract."""
    kernels.own(kernel, kernels.python_function(kernel).__name__)
    outs = [np.full(wanted.shape, np.nan, dtype=float32) for _ in range(ORDERS)]
    reports = []
    for out in outs:
        hint = lambda got: NOT_A_NUMBER if np.isnan(got).any() else WAIT  # noqa: E731
        report = kernels.judge(
            kernel,
            (grid, block),
            inputs,
            (out,),
            (wanted,),
            rng,
            call,
            contract,
            hint=hint,
            refused=lambda finding: finding.severity == "error",
            **options,
        )
        reports.append(report)
    return reports
