"""Checks of lesson 18c: swizzled tiles, products of a warp group, a transaction barrier in plain Python, and
the two halves of a pipeline that is filled by tensor copies."""

from collections import Counter
from itertools import pairwise

import numpy as np
from numba import cuda
from numpy import float32

from course.check import kernels
from course.check.contract import Contract
from course.check.harness import compare, exercise, fail
from course.check.pipelines import (
    COLUMNS,
    DEPTH,
    ROWS,
    Issued,
    pipeline,
    the_consumer,
    the_producer,
    with_add_tiles,
)
from course.check.tensor_cores import bits, value
from sim import tensor_map
from sim.nouns import plural

ARCHITECTURE = "sm_90a"
GROUP = 128  # threads that multiply
SPINS = 4000  # iterations of waiting loops without progress, after which the launch has ended in a deadlock


def launch(kernel, configuration, arguments, rng, call, **options):
    return kernels.launch(
        kernel, configuration, arguments, rng, call, float64=0, architecture=ARCHITECTURE, **options
    )


def swizzled(row, column):
    return ((column // 8) ^ (row % 8)) * 8 + column % 8


# 18.6 -------------------------------------------------------------------------------------------------------

SWIZZLE = (
    "A chunk has 8 elements: column // 8 is the number of the chunk, and column % 8 the place in it. Only the"
    " number of the chunk changes: it becomes (column // 8) ^ (row % 8)."
)


@exercise("18.6", "place")
def ex18_6(place, rng):
    kernels.jitted(place, "place")

    @cuda.jit
    def every_element(rows, out):
        thread = cuda.grid(1)
        for column in range(64):
            out[thread, column] = place(rows[thread], column) | 0  # an index: a float raises an error here

    rows = np.concatenate([np.arange(32), rng.integers(32, 4096, 32)])
    wanted = swizzled(rows[:, None], np.arange(64)[None, :])
    kernels.judge(
        every_element,
        (2, 32),
        (rows,),
        (np.full((64, 64), -1),),
        (wanted,),
        rng,
        "place(row, column) for all columns of 64 rows; out[i, column] is the result for the i-th row",
        Contract(barriers=(0, 0), shuffles=(0, 0)),
        tolerance=0,
        what="a wrong position",
        hint=SWIZZLE,
        float64=0,
    )
    return "all columns of rows 0 to 31, and of 32 rows below 4,096"


# 18.7 -------------------------------------------------------------------------------------------------------

PRODUCTS = (
    "Four products of 16 columns each: columns 0, 16, 32 and 48 of both tiles. Each adds to the accumulators"
    " that the one before returned."
)
ONE_WAIT = (
    "While the first product runs, the others can be started. A wait after each product leaves the tensor"
    " cores idle in between, so wait once, after all products of the call."
)
NO_BARRIER = (
    "In the pipeline of section 6 only four of the five warps call add_tiles, so cuda.syncthreads would wait"
    " for ever."
)


@exercise("18.7", "add_tiles")
def ex18_7(add_tiles, rng):
    kernels.jitted(add_tiles, "add_tiles")
    kernel = with_add_tiles(add_tiles)
    for what, a, b in tiles(rng):
        issued, out = Issued(), np.full((ROWS, COLUMNS), np.nan, float32)
        call = f"total = add_tiles(total, a, b) for two pairs of tiles, {what}, starting with 3 everywhere"
        launch(kernel, (1, GROUP), (a, b, out), rng, call, observers=observers(issued))
        wanted = 3 + sum(value(a[i]) @ value(b[i]).T for i in range(2))
        compare(out, wanted, what="wrong accumulators", call=call, tolerance=1e-5, hint=PRODUCTS)
        # The simulator records an operation for each of the four warps.
        if (count := issued.total("wgmma")) != 2 * 4 * 4:
            fail(
                f"correct, but the warp group issues {plural(count // 4, 'product')} for two pairs of tiles;"
                " 8 are needed",
                call=call,
                hint=PRODUCTS,
            )
        if set(issued.ends) != {4 * 4}:
            fail("correct, but a call does not wait once for all of its products", call=call, hint=ONE_WAIT)
        if issued.barriers != 1:
            fail("correct, but add_tiles contains cuda.syncthreads", call=call, hint=NO_BARRIER)
    return "multiples of 1/8, and zeros next to NaN; two pairs of tiles, one after the other"


def observers(*more):
    from sim.observers import DEFAULT

    return [*DEFAULT, *more]


def tiles(rng):
    """Yield (description, a (2, 64, 64), b (2, 32, 64)): bit patterns of bfloat16."""
    a, b = (rng.integers(-64, 65, (2, rows, DEPTH)) / 8 for rows in (ROWS, COLUMNS))
    yield "multiples of 1/8", bits(a), bits(b)
    a[1, rng.integers(ROWS), rng.integers(48, DEPTH)] = np.nan
    b[1, :, 48:] = 0
    yield "zeros next to NaN", bits(a), bits(b)


# 18.8 -------------------------------------------------------------------------------------------------------


class Model:
    """The reference for exercise 18.8."""

    def __init__(self, arrivals):
        self.arrivals = self.missing = arrivals
        self.nbytes = self.phase = 0

    def arrive(self):
        self.missing -= 1
        self.advance()

    def expect(self, nbytes):
        self.nbytes += nbytes
        self.arrive()

    def deliver(self, nbytes):
        self.nbytes -= nbytes
        self.advance()

    def advance(self):
        if self.missing == self.nbytes == 0:
            self.phase += 1
            self.missing = self.arrivals

    def is_complete(self, parity):
        return self.phase % 2 != parity


RULE = (
    "A phase ends when no arrival is missing and all expected bytes have been delivered. Then the next phase"
    " begins: all arrivals are missing again. Test for the end in all three methods."
)


def histories(rng):
    """Yield (number of arrivals, list of (method, arguments)) for barriers."""
    yield 1, [("arrive", ()), ("arrive", ()), ("arrive", ())]
    yield 2, [("expect", (512,)), ("deliver", (512,)), ("arrive", ()), ("arrive", ()), ("arrive", ())]
    yield 1, [("expect", (768,)), ("deliver", (256,)), ("deliver", (512,)), ("arrive", ())]
    yield 2, [("deliver", (256,)), ("expect", (256,)), ("arrive", ())]
    yield 3, [("expect", (16,)), ("expect", (32,)), ("deliver", (48,)), ("arrive", ()), ("arrive", ())]
    yield 2, [("expect", (0,)), ("arrive", ()), ("arrive", ()), ("expect", (0,))]
    # the bytes of the largest shared memory of a block, in two copies
    yield 1, [("expect", (232448,)), ("deliver", (32768,)), ("deliver", (199680,)), ("arrive", ())]
    yield 1, [("expect", (16,)), ("deliver", (16,))] * 200
    for _ in range(40):
        arrivals, operations = int(rng.integers(1, 130)), []
        for _ in range(int(rng.integers(3, 7))):
            copies = 16 * rng.integers(1, 200, int(rng.integers(0, 4)))
            by = rng.integers(0, arrivals, len(copies))
            expected = [int(copies[by == thread].sum()) for thread in range(arrivals)]
            phase = [("expect", (n,)) if n else ("arrive", ()) for n in expected]
            phase += [("deliver", (int(n),)) for n in copies]
            operations += [phase[i] for i in rng.permutation(len(phase))]
        yield arrivals, operations


@exercise("18.8", "TransactionBarrier")
def ex18_8(TransactionBarrier, rng):
    # An older barrier that is in the middle of a phase: barriers must not share their state.
    older = TransactionBarrier(1)
    older.expect(48)
    for arrivals, operations in histories(rng):
        theirs, model, done = TransactionBarrier(arrivals), Model(arrivals), []
        for parity in (0, 1):
            ask(theirs, model, parity, arrivals, done)
        for method, given in operations:
            getattr(theirs, method)(*given)
            getattr(model, method)(*given)
            done.append(f"{method}({', '.join(map(str, given))})")
            for parity in (0, 1):
                ask(theirs, model, parity, arrivals, done)
    older.deliver(48)
    if not older.is_complete(0) or older.is_complete(1):
        fail("a barrier changes when another one is used", hint="Keep all state in attributes of self.")
    return "barriers of 1 to 129 arrivals, up to 200 phases, bytes before and after their arrival"


def ask(theirs, model, parity, arrivals, done):
    got, wanted = theirs.is_complete(parity), model.is_complete(parity)
    if bool(got) is not wanted:
        shown = "; ".join(["...", *done[-6:]] if len(done) > 6 else done) or "nothing yet"
        fail(
            f"is_complete({parity}) is wrong",
            call=f"b = TransactionBarrier({arrivals}); {shown}; b.is_complete({parity})",
            wanted=str(wanted),
            got=str(got),
            hint=RULE if done else "At the start phase 0 is not complete: is_complete(0) is False.",
        )


# 18.9 and 18.10 ---------------------------------------------------------------------------------------------

CONSUME = (
    "Step s uses stage s % stages, in round s // stages. Its copies complete phase number `round` of"
    " full[stage], so wait with the parity of that number, add the tiles, then let every thread arrive at"
    " empty[stage]."
)
PRODUCE = (
    "Step s fills stage s % stages, in round s // stages. Wait for the parity (round + 1) % 2: in round 0, in"
    " which the stage is empty from the start, this passes at once; later, it waits for the round before."
)


def check_pipeline(kernel, columns, stages, grid, steps, rng, call, hint):
    """Launch a pipeline. Return the asynchronous operations that it issued."""
    a, b = (
        bits(rng.integers(-64, 65, (size * count, DEPTH * steps)) / 8)
        for size, count in ((ROWS, grid[1]), (columns, grid[0]))
    )
    given, issued = (a.copy(), b.copy()), Issued()
    c = np.full((len(a), len(b)), np.nan, float32)
    maps = (tensor_map(x, (rows, DEPTH), swizzle=128) for x, rows in ((a, ROWS), (b, columns)))
    call = (
        f"{call}: {plural(stages, 'stage')}, {plural(steps, 'step')}, tiles of {columns} columns,"
        f" grid {grid[0]} × {grid[1]}"
    )
    launch(
        kernel, (grid, GROUP + 32), (*maps, steps, c), rng, call, observers=observers(issued), max_steps=SPINS
    )
    compare((a, b), given, what="the kernel changed an input", call=call, tolerance=0)
    compare(c, 3 + value(a) @ value(b).T, what="a wrong product", call=call, tolerance=0, hint=hint)
    tiles_needed = 2 * steps * grid[0] * grid[1]
    if (count := issued.total("tensor copy")) != tiles_needed:
        fail(f"correct, but {count} tensor copies; {tiles_needed} are needed", call=call, hint=PRODUCE)
    return issued


@exercise("18.9", "consume")
def ex18_9(consume, rng):
    kernels.jitted(consume, "consume")
    # Draw more stages and steps than an answer with a fixed limit is likely to allow.
    many = int(rng.integers(4, 7)), int(rng.integers(9, 13))
    for stages, steps in ((2, 5), (1, 4), many):
        kernel = pipeline(the_producer, consume, COLUMNS, stages)
        issued = check_pipeline(
            kernel, COLUMNS, stages, (1, 1), steps, rng, "your consume, with the course's produce", CONSUME
        )
        needed = 4 * 4 * steps
        if (count := issued.total("wgmma")) != needed:
            what = f"correct, but {count // 4} products of a warp group; {needed // 4} are needed"
            fail(what, hint=PRODUCTS)
        for (_, thread), events in issued.synchronised.items():
            arrivals = [barrier for action, barrier, _ in events if action == "arrive"]
            stage_of = {barrier: stage for stage, barrier in enumerate(sorted(set(arrivals)))}
            if thread < GROUP and [stage_of[barrier] for barrier in arrivals] != [
                step % stages for step in range(steps)
            ]:
                what = "correct, but a thread does not arrive once per step at empty[stage] of this step"
                fail(what, call=f"{plural(stages, 'stage')}, {plural(steps, 'step')}", hint=CONSUME)
    return "1 to 6 stages, 4 to 12 steps, accumulators that start with 3"


@exercise("18.10", "produce")
def ex18_10(produce, rng):
    kernels.jitted(produce, "produce")
    many, blocks = (int(rng.integers(4, 7)), int(rng.integers(9, 13))), int(rng.integers(3, 6))
    for stages, steps, columns, grid in (
        (2, 5, COLUMNS, (1, 2)),
        (1, 3, 16, (blocks, 1)),
        (1, 1, 64, (1, blocks)),
        (*many, 8, (1, 1)),
    ):
        kernel = pipeline(produce, the_consumer(columns), columns, stages)
        call = "your produce, with the course's consume"
        issued = check_pipeline(kernel, columns, stages, grid, steps, rng, call, PRODUCE)
        for (_, thread), events in issued.synchronised.items():
            if thread == GROUP and (what := misuse(events, stages, steps)):
                where = f"{call}: {plural(stages, 'stage')}, {plural(steps, 'step')}"
                fail(f"the values are correct, but {what}", call=where, hint=PRODUCE)
    return "1 to 6 stages, 1 to 12 steps, tiles of 8 to 64 columns"


def misuse(events, stages, steps):
    """Return the producer's mistake in the use of the mbarriers, or None. events: its entries in
    Issued.synchronised."""
    if (arrivals := sum(kind == "arrive" for kind, *_ in events)) != steps:
        return f"it arrives {plural(arrivals, 'time')} in {plural(steps, 'step')}, instead of once per step"
    step, passed = 0, Counter()
    for action, _, phase in events:
        if action == "pass":
            passed[phase] += 1
            continue
        if step >= stages and passed[step // stages - 1] <= step % stages:
            return (
                "it expects the bytes of a step before the stage is empty: if the previous phase is not"
                " complete, the bytes and the arrival count for that phase"
            )
        step += 1
    if any(later == ("pass", *of) for (kind, *of), later in pairwise(events) if kind == "arrive"):
        return "it waits for its own copies, so they cannot run ahead of the products"
    return None
