"""The checks of lesson 03: the learner's own simulator, run on kernels made here, and three kernels, run in `sim`."""

import threading
import time
import traceback
from collections import namedtuple

import numpy as np
from numba import cuda
from numpy import float32

from course.check import kernels
from course.check.harness import compare, exercise, fail

THREADS, TILE = 8, 4  # as in the lesson
ORDERS = 4  # of the threads, tried with each input
MIRRORED = 6  # threads in a block of the kernels below
PATIENCE = 3  # seconds; a launch here takes hundredths of one

dim3 = namedtuple("dim3", ["x", "y", "z"], defaults=(1, 1, 1))

WAIT = "Do two threads write one element? Is there a barrier wherever one thread needs what another has stored, and before anything is stored over it?"
NOT_A_NUMBER = "NaN: no thread has written this element, or a thread used shared memory that nobody had filled."


@exercise("3.1", "add")
def ex03_1(add, rng):
    for size, blocks, threads in [(8, 2, 4), (1, 1, 4), (3, 1, 4), (10, 3, 4), (33, 5, 8), (5, 4, 4)]:
        x, y = rng.standard_normal((2, size)).astype(float32)
        call = f"add[{blocks}, {threads}](x, y, out) with {size} element{'s' * (size > 1)}"
        verify(add, blocks, threads, (x, y), x + y, rng, call)
    return "1 to 33 elements, blocks of 4 and 8, ragged ends, blocks without work"


@exercise("3.2", "run_block")
def ex03_2(launch, rng):
    every_thread_runs_once(launch)
    barrier_waits(launch, rng)
    memory_is_fresh(launch)
    first_error_comes_out(launch, rng)
    barrier_waits(launch, rng)  # a launch after one that failed
    return "three dimensions, barriers, shared memory of several blocks, an error in one thread"


@exercise("3.3", "block_sum")
def ex03_3(block_sum, rng):
    shares_memory(block_sum)
    for size in [8, 16, 1, 5, 19, 40]:
        x = rng.standard_normal(size).astype(float32)
        sums = np.array([x[start : start + THREADS].sum() for start in range(0, size, THREADS)])
        call = f"block_sum[{len(sums)}, {THREADS}](x, out) with {size} element{'s' * (size > 1)}"
        verify(block_sum, len(sums), THREADS, (x,), sums, rng, call)
    return "1 to 40 elements in blocks of 8, in many orders of the threads"


@exercise("3.4", "matmul")
def ex03_4(matmul, rng):
    shares_memory(matmul)
    for m, inner, n in [(4, 4, 4), (8, 8, 8), (1, 1, 1), (3, 2, 3), (5, 3, 6), (7, 9, 2), (3, 13, 10)]:
        a = rng.standard_normal((m, inner)).astype(float32)
        b = rng.standard_normal((inner, n)).astype(float32)
        grid = -(-n // TILE), -(-m // TILE)
        call = f"matmul[{grid}, {(TILE, TILE)}](a, b, c) with a of {m} x {inner} and b of {inner} x {n}"
        verify(matmul, grid, (TILE, TILE), (a, b), a @ b, rng, call)
    return "seven shapes, from 1 x 1 to 3 x 13 times 13 x 10, most of them ragged"


# 3.2: the learner's simulator -------------------------------------------------------------------------------------


def every_thread_runs_once(launch):
    grid, block = dim3(2, 3, 2), dim3(3, 1, 4)
    seen = []
    in_time(launch, roll_call, grid, block, seen)
    wanted = [(grid, block, b, t) for b in indices(grid) for t in indices(block)]
    call = f"launch(kernel, {grid}, {block}, ...) with a kernel that notes what its cuda says"
    if strange := [names for names in seen if names not in wanted]:
        fail("a thread that should not be", call=call, got=described(strange[0]), hint=f"wanted, for example: {described(wanted[1])}")
    if missing := [names for names in wanted if names not in seen]:
        fail("a thread that never ran", call=call, wanted=described(missing[0]), hint=f"{len(seen)} threads ran, of {len(wanted)}.")
    compare(len(seen), len(wanted), what="how many threads ran", call=call, tolerance=0)


def indices(size):
    return [(x, y, z) for z in range(size.z) for y in range(size.y) for x in range(size.x)]


def described(names):
    return ", ".join(f"{name} {tuple(value)}" for name, value in zip(("gridDim", "blockDim", "blockIdx", "threadIdx"), names, strict=True))


def barrier_waits(launch, rng):
    x = rng.standard_normal(18).astype(float32)
    out = np.full(18, np.nan, dtype=float32)
    in_time(launch, mirror_two, dim3(3), dim3(MIRRORED), x, rng.uniform(0, 0.004, 18), out)
    back_to_front = x.reshape(3, MIRRORED)[:, ::-1]
    hint = "NaN: a thread took from shared memory what nobody had stored yet, or the threads do not share one array."
    what = "three blocks of six threads that take different times before a barrier; shared arrays swap their numbers"
    compare(out.reshape(3, MIRRORED), 3 * back_to_front, what=what, tolerance=1e-5, hint=hint)


def memory_is_fresh(launch):
    old = np.zeros((4, MIRRORED), dtype=float32)
    in_time(launch, look_then_store, dim3(4), dim3(MIRRORED), old)
    hint = "A block must not find what the block before it has left: every block has shared memory of its own."
    compare(old == 7, np.zeros_like(old), what="cells in which a block found the 7 of an earlier block", tolerance=0, hint=hint)


def first_error_comes_out(launch, rng):
    culprit = int(rng.integers(MIRRORED))
    what = f"thread {culprit} of block 1 raises a ZeroDivisionError while the others wait at the barrier"
    try:
        in_time(launch, one_fails, dim3(2), dim3(MIRRORED), culprit, what=what)
    except ZeroDivisionError:
        return
    except threading.BrokenBarrierError:
        got, hint = "BrokenBarrierError", "Raise the error that came first: append before you abort."
    else:
        got, hint = "no error", "Note the errors in run_thread, and raise the first one after the join."
    fail(what, wanted="that ZeroDivisionError", got=got, hint=hint)


def in_time(launch, *args, what="a launch of a few threads"):
    """launch(*args), with its exception if it has one. If it takes too long, the check fails, and nobody waits for the threads left behind."""
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
            hint="Who waits for whom? All threads start before the first join; a thread that fails aborts the barrier.",
        )
    if errors:
        raise errors[0]


def print_no_failure_of_our_kernels():
    """Have Python print no exception from a thread that ran a kernel of this file: ten seconds late, it would stand below some other cell."""
    usual = threading.excepthook

    def hook(failure):
        if all(frame.f_code.co_filename != __file__ for frame, _ in traceback.walk_tb(failure.exc_traceback)):
            usual(failure)

    threading.excepthook = hook


print_no_failure_of_our_kernels()

# Its kernels ------------------------------------------------------------------------------------------------------


def roll_call(seen):
    seen.append((tuple(cuda.gridDim), tuple(cuda.blockDim), tuple(cuda.blockIdx), tuple(cuda.threadIdx)))


def mirror_two(x, delay, out):
    """out = 3 * (each block's part of x, back to front), through two shared arrays, twice used."""
    once, twice = cuda.shared.array(MIRRORED, float32), cuda.shared.array(MIRRORED, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x * cuda.blockDim.x + t
    time.sleep(delay[i])
    once[t] = x[i]
    twice[t] = 2 * x[i]
    cuda.syncthreads()
    total = once[MIRRORED - 1 - t] + twice[MIRRORED - 1 - t]
    cuda.syncthreads()
    time.sleep(delay[i])
    once[t] = total
    cuda.syncthreads()
    out[i] = once[t]


def look_then_store(old):
    shared = cuda.shared.array(MIRRORED, float32)
    old[cuda.blockIdx.x, cuda.threadIdx.x] = shared[cuda.threadIdx.x]
    shared[cuda.threadIdx.x] = 7


def one_fails(culprit):
    if cuda.blockIdx.x == 1 and cuda.threadIdx.x == culprit:
        raise ZeroDivisionError("this thread divides by zero")
    cuda.syncthreads()


# 3.1, 3.3, 3.4: the learner's kernels, in sim ---------------------------------------------------------------------


def verify(kernel, grid, block, inputs, wanted, rng, call):
    """Run the kernel in `sim` with its threads in several orders, and reject it unless it gives `wanted`, float32, each time."""
    outs = [run(kernel, grid, block, inputs, wanted.shape, rng, call) for _ in range(ORDERS)]
    if not all(np.array_equal(out, outs[0], equal_nan=True) for out in outs):
        fail("the result depends on the order in which the threads run", call=call, hint=WAIT)
    hint = NOT_A_NUMBER if np.isnan(outs[0]).any() else None
    compare(outs[0], wanted, what="a wrong result", call=call, tolerance=1e-5, hint=hint)


def run(kernel, grid, block, inputs, shape, rng, call):
    """The kernel's output, full of NaN before. An error that `sim` finds, or an input that has changed, is a failed check."""
    out = np.full(shape, np.nan, dtype=float32)
    kernels.run(kernel, (grid, block), inputs, (out,), rng, call, refused=lambda finding: finding.severity == "error")
    return out


def shares_memory(kernel):
    """Reject a kernel that never asks for shared memory: right, but with none of what the exercise is about."""
    if "shared" not in kernels.names_in(kernel):
        fail("the kernel never uses cuda.shared", hint="Here the threads of a block share their work, through cuda.shared.array.")
