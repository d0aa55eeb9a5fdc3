"""Checks of lesson 04: five repaired kernels, run in `sim`. A repair must produce correct values and no
findings, and must keep as many threads active as before."""

from dataclasses import dataclass

import numpy as np
from numpy import float32, int32

from course.check import kernels
from course.check.contract import Contract
from course.check.harness import exercise, fail
from sim import simulate
from sim.nouns import plural

ENGINES = "fibers", "fibers", "threads"  # each launch runs once with each, with a seed of its own
STEPS = 10_000  # a launch here goes round its while loops some hundred times at most


@dataclass
class Case:
    """One launch. The kernel may modify only `outputs`, which follow its inputs and must become `wanted`, and
    it must fulfil the contract."""

    grid: object
    block: object
    inputs: tuple
    outputs: tuple
    wanted: tuple
    contract: Contract
    call: str


@exercise("4.1", "checkerboard")
def ex04_1(checkerboard, rng):
    for rows, columns in [(3, 5), (5, 3), (1, 1), (8, 8), (1, 7), (9, 2), (30, 41)]:
        grid = -(-columns // 4), -(-rows // 4) + int(rng.integers(2))
        wanted = np.add.outer(np.arange(rows), np.arange(columns)) % 2
        board = np.full((rows, columns), -1)
        call = f"checkerboard_fixed[{grid}, (4, 4)](board) with a board of {rows} x {columns}, full of -1"
        contract = Contract(
            "board", max_per_thread={"board": 1}, threads=board.size, atomics=(0, 0), hint=KEEP
        )
        verify(checkerboard, Case(grid, (4, 4), (), (board,), (wanted,), contract, call), rng)
    return "seven boards, wide, tall and square, under a grid that is larger than the board"


@exercise("4.2", "previous")
def ex04_2(previous, rng):
    for grid, block, size in [(2, 4, 6), (1, 4, 4), (1, 4, 1), (3, 16, 33), (5, 32, 150)]:
        x = with_zeros(numbers(rng, size))
        x[0] = np.inf  # inf times 0 is NaN instead of 0
        contract = Contract(
            "x out",
            max_per_thread={"x": 1, "out": 2},
            max_total={"out": size},
            threads=max(1, size - 1),
            hint=KEEP,
        )
        verify(previous, one_array(previous, grid, block, x, np.append(float32(0), x[:-1]), contract), rng)
    return "1 to 150 elements, the first of them inf, one block and several"


@exercise("4.3", "block_max")
def ex04_3(block_max, rng):
    for grid, block, size, order, far in [
        (2, 4, 6, 0, np.inf),
        (2, 4, 6, 0, 1),
        (1, 4, 1, 0, 1),
        (2, 8, 16, 1, 1),
        (2, 8, 16, -1, 1),
        (3, 32, 70, 0, 1),
        (3, 8, 19, 0, 1e30),
        (2, 8, 13, 0, None),
    ]:
        x = (
            both_signs(rng, block, size)
            if far is None
            else -far - min(far, 1e30) * np.abs(numbers(rng, size))
        )
        x = np.sort(x)[::order] if order else x  # the largest of each part comes last, then first
        wanted = np.array([part.max() for part in parts(x, block)])
        contract = Contract(
            "x out",
            max_per_thread={"x": 2, "out": 1},
            max_total={"shared": 5 * grid * block},
            min_total={"shared": 2 * size},
            threads=size,
            blocks=grid,
            barriers=(1, 7),  # 7: a maximum by halves
            grid_barriers=(0, 0),
            hint=THROUGH_SHARED,
        )
        verify(block_max, one_array(block_max, grid, block, x, wanted, contract), rng, float64=0)
    return "numbers of both signs, 0, and down to -10³⁰ and -inf, 1 to 70 of them, whole parts and short ones"


@exercise("4.4", "running_sum")
def ex04_4(running_sum, rng):
    for grid, block in [(1, 8), (1, 1), (3, 4), (2, 5), (2, 32), (3, 27)]:
        x = with_zeros(numbers(rng, grid * block))
        wanted = np.concatenate([np.cumsum(part) for part in parts(x, block)])
        shared = 2 * x.size * (block > 1)
        passes = (block - 1).bit_length()
        contract = Contract(
            "x out",
            max_per_thread={"x": 1, "out": 1, "shared": 5 * passes + 3},
            min_total={"shared": shared},
            owner=OWN,
            threads=x.size,
            share=3,
            barriers=(passes, 2 * passes + 1),
            grid_barriers=(0, 0),
            hint=THROUGH_SHARED,
        )
        verify(running_sum, one_array(running_sum, grid, block, x, wanted, contract), rng, float64=0)
    return "blocks of 1 to 32 threads, one and several, in many orders of the threads"


@exercise("4.5", "histogram")
def ex04_5(histogram, rng):
    for grid, block, size, kinds in [
        (2, 4, 8, 3),
        (1, 4, 1, 2),
        (2, 4, 6, 1),
        (3, 16, 40, 5),
        (9, 32, 270, 7),
    ]:
        letters = rng.integers(kinds, size=size).astype(int32)
        # a compare-and-swap fails at most once for each other thread
        retries = size if "cas" in kernels.names_in(histogram) else 0
        counts, wanted = np.zeros(kinds, int32), np.bincount(letters, minlength=kinds)
        call = f"histogram_fixed[{grid}, {block}](letters, counts) with {size} letters of {kinds} kinds"
        contract = Contract(
            "letters counts",
            max_per_thread={"letters": 2 + retries},
            max_total={"letters": (2 + retries) * size},
            threads=size,
            atomics=(1, (3 + retries) * size),
            share=None if retries else 4,
            hint=KEEP,
        )
        verify(histogram, Case(grid, block, (letters,), (counts,), (wanted,), contract, call), rng)
    loses_no_letter(histogram, rng)
    return "1 to 270 letters, of one kind and of several"


def loses_no_letter(histogram, rng):
    """Reject a count in which another thread can come between two atomic operations on one counter.

    The spinning loop makes `sim` switch threads at every atomic operation.
    """
    body = kernels.python_function(histogram)

    def interleaved(letters, counts):
        turns = 0
        while turns < 1:
            turns += 1
        body(letters, counts)

    for _ in range(3):
        letters, counts = np.zeros(40, int32), np.zeros(1, int32)
        seed = int(rng.integers(2**31))
        simulate(interleaved, seed=seed, max_steps=STEPS, on_finding="report")[3, 16](letters, counts)
        if counts[0] != letters.size:
            fail(
                "a letter is lost if another thread runs between two atomic operations on the same counter",
                call="histogram_fixed[3, 16](letters, counts) with 40 letters of one kind",
                wanted=f"counts[0] = {letters.size}",
                got=f"counts[0] = {counts[0]}",
                hint="Each operation is indivisible by itself, but not the pair. One atomic.add is enough.",
            )


OWN = {"x": lambda elements: elements}  # element i is read by thread i of the grid
KEEP = "Keep one element per thread, as in the kernel above: the bug can be fixed without giving that up."
THROUGH_SHARED = (
    "Fix the kernel above: each thread reads its own element once, and the threads exchange values through"
    " shared memory, with barriers of the block."
)


def numbers(rng, size):
    return rng.standard_normal(size).astype(float32)


def with_zeros(x):
    """Return x after setting every third number to 0: an answer that skips a 0 leaves NaN behind."""
    x[::3] = 0
    return x


def both_signs(rng, block, size):
    """Return numbers of which the largest is 0 in the first block and positive in the last one."""
    x = numbers(rng, size)
    x[:block] = -np.abs(x[:block])
    x[1], x[-1] = 0, np.abs(x[-1])
    return x


def parts(x, block):
    """Return the parts of the input, one per block of the launch. The last part may be shorter."""
    return [x[start : start + block] for start in range(0, len(x), block)]


def one_array(kernel, grid, block, x, wanted, contract):
    """Return the launch of a float32 kernel(x, out), where `out` is initialised with NaN."""
    out = np.full(wanted.shape, np.nan, float32)
    call = f"{kernel.__name__}[{grid}, {block}](x, out) with {plural(x.size, 'element')}"
    return Case(grid, block, (x,), (out,), (wanted,), contract, call)


# A repaired kernel in `sim` --------------------------------------------------------------------------------


def verify(kernel, case, rng, float64=None):
    """Reject the kernel unless every run of the case produces the expected values, modifies nothing else,
    fulfils the contract, and has no findings."""
    kernels.own(kernel, kernels.python_function(kernel).__name__)
    for engine in ENGINES:
        outputs, options = kernels.copies(case.outputs), {"engine": engine, "max_steps": STEPS}
        what = "sim finds no bug any more, but the result is wrong"
        report = kernels.judge(
            kernel,
            (case.grid, case.block),
            case.inputs,
            outputs,
            case.wanted,
            rng,
            case.call,
            case.contract,
            what=what,
            float64=float64,
            **options,
        )
        if report.counters["together"].get("syncwarp"):
            fail(
                "the result is correct, but it waits with cuda.syncwarp()",
                call=case.call,
                hint="It orders the lanes of one warp. cuda.syncthreads() orders all threads of a block.",
            )
