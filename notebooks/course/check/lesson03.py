"""Checks of lesson 03: the learner's own simulator, which runs kernels from this file."""

import threading
import time
import traceback
from collections import namedtuple
from contextlib import contextmanager

import numpy as np
from numba import cuda
from numpy import float32

from course.check import kernels
from course.check.contract import Contract
from course.check.harness import compare, exercise, fail
from sim.nouns import plural

ORDERS = 3  # of the threads, tried with each input
MIRRORED = 6  # threads in a block of the kernels below
PATIENCE = 5  # seconds; a launch here takes hundredths of one

dim3 = namedtuple("dim3", ["x", "y", "z"], defaults=(1, 1, 1))

WAIT = (
    "Do two threads write one element? Is there a barrier wherever a thread needs what another has stored,"
    " and before anything is stored over it?"
)
NOT_A_NUMBER = (
    "NaN: no thread has written this element, or a thread read it (out[i] += ...), or shared memory, before"
    " it was written."
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
        verify(add, blocks, threads, (x, y), x + y, rng, call, contract, otherwise=SAME_INDEX)
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


SAME_INDEX = "Each element of out is the sum of the two elements that have the same index, in float32."
ONE_EACH = "One element a thread; a thread without an element does nothing."


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
NOT_UNPACKED = (
    "the kernel received the whole tuple `args` as one argument. Unpack it with a star: kernel(*args), not"
    " kernel(args)"
)
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
    got, hint = "no error", "Note the errors in run_thread, and raise the first one after the join."
    try:
        with barriers(abort_takes=0.05):
            in_time(launch, one_fails, dim3(2), dim3(MIRRORED), culprit, what=what)
    except threading.BrokenBarrierError:
        got, hint = "BrokenBarrierError", "Raise the error that came first: append before you abort."
    except Exception as error:
        if isinstance(error, Mishap) and error.args == CAUSE:
            return
        got = f"{type(error).__name__}: {error}"
        hint = "Raise the first recorded error itself, with its message: not a new error in its place."
    fail(what, wanted=f"Mishap: {CAUSE[0]}", got=got, hint=hint)


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
    if isinstance(seen, tuple):
        raise TypeError(NOT_UNPACKED)
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


CAUSE = ("a kernel may raise anything",)


def one_fails(culprit):
    if cuda.blockIdx.x == 1 and cuda.threadIdx.x == culprit:
        raise Mishap(*CAUSE)
    cuda.syncthreads()


# 3.1, 3.3, 3.4: the learner's kernels, in sim ---------------------------------------------------------------


def verify(kernel, grid, block, inputs, wanted, rng, call, contract, *, otherwise=WAIT, **options):
    """Run the kernel in `sim` in several thread orders, and return the reports. Reject it unless it always
    returns `wanted` (float32) and fulfils the contract.

    otherwise: the hint for a wrong value that is not NaN.
    """
    kernels.own(kernel, kernels.python_function(kernel).__name__)
    outs = [np.full(wanted.shape, np.nan, dtype=float32) for _ in range(ORDERS)]
    reports = []
    for out in outs:
        hint = lambda got: NOT_A_NUMBER if np.isnan(got).any() else otherwise  # noqa: E731
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
