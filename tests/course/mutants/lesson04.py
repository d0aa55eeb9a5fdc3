"""Wrong answers to the exercises of lesson 04, each labelled with its mistake, and alternative correct
answers.

A wrong kernel is the lesson's broken kernel, its fixed kernel with one or two lines edited, or a kernel
defined here.
"""

import math

import numpy as np
from numba import cuda
from numpy import float32

from course.check.six_kernels import KERNELS, launches
from editing import edited
from power.lessons import from_solutions
from sim import simulate


def lessons(kernel, *edits):
    """Return the lesson's kernel of this name after applying each (old, new) in `edits` to its source."""
    return edited(*from_solutions("04", kernel, float32=float32, math=math), *edits)


def wrong(kernel, *answers):
    """Return the lesson's broken kernel, and its fixed kernel with the edits of each answer.

    answers: (description of the mistake, *edits) each.
    """
    answers = [(what, lessons(f"{kernel}_fixed", *edits)) for what, *edits in answers]
    return [("leaves the bug in", lessons(kernel)), *answers]


# Alternative correct answers --------------------------------------------------------------------------------


def checkerboard_by_rows_and_columns(board):
    column, row = cuda.grid(2)
    rows, columns = board.shape
    if row >= rows or column >= columns:
        return
    board[row, column] = 1 if row % 2 != column % 2 else 0


def previous_in_two_branches(x, out):
    i = cuda.grid(1)
    if i == 0:
        out[0] = 0
    elif i < x.size:
        out[i] = x[i - 1]


def max_with_the_last_element_for_the_rest(x, out):
    part = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    part[t] = x[min(cuda.grid(1), x.size - 1)]
    cuda.syncthreads()
    if t == 0:
        largest = part[0]
        for k in range(cuda.blockDim.x):
            if part[k] > largest:
                largest = part[k]
        out[cuda.blockIdx.x] = largest


def max_of_those_that_are_there(x, out):
    part = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i < x.size:
        part[t] = x[i]
    cuda.syncthreads()
    if t == 0:
        largest = part[0]
        for k in range(min(cuda.blockDim.x, x.size - i)):
            largest = max(largest, part[k])
        out[cuda.blockIdx.x] = largest


def running_sum_in_two_arrays(x, out):
    old, new = cuda.shared.array(32, float32), cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    old[t] = x[i]
    cuda.syncthreads()
    step = 1
    while step < cuda.blockDim.x:
        new[t] = old[t]
        if t >= step:
            new[t] += old[t - step]
        cuda.syncthreads()
        old, new = new, old
        step *= 2
    out[i] = old[t]


def running_sum_with_the_barrier_last(x, out):
    part = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    mine = x[i]
    part[t] = mine
    cuda.syncthreads()
    step = 1
    while step < cuda.blockDim.x:
        if t >= step:
            mine += part[t - step]
        cuda.syncthreads()
        part[t] = mine
        cuda.syncthreads()
        step *= 2
    out[i] = mine


def histogram_in_shared_memory(letters, counts):
    mine = cuda.shared.array(8, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    for k in range(t, 8, cuda.blockDim.x):
        mine[k] = 0
    cuda.syncthreads()
    if i < letters.size:
        cuda.atomic.add(mine, letters[i], 1)
    cuda.syncthreads()
    for k in range(t, counts.size, cuda.blockDim.x):
        cuda.atomic.add(counts, k, int(mine[k]))


@cuda.jit
def histogram_jitted(letters, counts):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i >= letters.size:
        return
    cuda.atomic.sub(counts, letters[i], -1)


def histogram_by_retries(letters, counts):
    """Correct: repeats a compare-and-swap until no other thread intervenes."""
    i = cuda.grid(1)
    if i < letters.size:
        old = 0
        while True:
            seen = cuda.atomic.cas(counts, letters[i], old, old + 1)
            if seen == old:
                break
            old = seen


def mirror_on_the_way_in(x, out):
    part = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    there = i < x.size
    if there:
        part[min(cuda.blockDim.x, x.size - i + t) - 1 - t] = x[i]
    cuda.syncthreads()
    if there:
        out[i] = part[t]


def mirror_with_the_return_behind_the_barrier(x, out):
    part = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    part[t] = x[i] if i < x.size else 0
    cuda.syncthreads()
    if i >= x.size:
        return
    out[i] = part[min(cuda.blockDim.x, x.size - (i - t)) - 1 - t]


def swap_by_xor(x, out):
    i = cuda.grid(1)
    out[i] = cuda.shfl_xor_sync(0xFFFFFFFF, x[i], 1)


def swap_with_a_computed_lane(x, out):
    i = cuda.grid(1)
    partner = cuda.laneid + 1 - 2 * (i % 2)
    out[i] = cuda.shfl_sync(0xFFFFFFFF, x[i], partner)


def shares_of_zero(x, total, out):
    i = cuda.grid(1)
    mine = x[i] if i < x.size else float32(0)
    cuda.atomic.add(total, 0, mine)
    grid = cuda.cg.this_grid()
    grid.sync()
    if i >= x.size:
        return
    out[i] = mine / total[0]


def sample_step_by_step(cumulative, u, token):
    i = cuda.grid(1)
    if i < u.size:
        k = 0
        while cumulative[k] <= u[i]:
            k += 1
        token[i] = k


def sample_by_length(cumulative, u, token):
    i = cuda.grid(1)
    if i < u.size:
        first, length, mine = 0, cumulative.size, u[i]
        while length > 0:
            half = length // 2
            if cumulative[first + half] <= mine:
                first, length = first + half + 1, length - half - 1
            else:
                length = half
        token[i] = first


# Wrong in more than one line --------------------------------------------------------------------------------


def previous_alone(x, out):
    if cuda.grid(1) == 0:
        out[0] = 0
        for i in range(1, x.size):
            out[i] = x[i - 1]


def max_alone(x, out):
    if cuda.threadIdx.x == 0:
        start = cuda.grid(1)
        largest = x[start]
        for i in range(start, min(start + cuda.blockDim.x, x.size)):
            largest = max(largest, x[i])
        out[cuda.blockIdx.x] = largest


def running_sum_by_everybody_alone(x, out):
    i = cuda.grid(1)
    total = float32(0)
    for k in range(i - cuda.threadIdx.x, i + 1):
        total += x[k]
    out[i] = total


def mirror_without_sharing(x, out):
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i < x.size:
        start = i - t
        out[i] = x[start + min(cuda.blockDim.x, x.size - start) - 1 - t]


def swap_with_two_masks(x, out):
    i = cuda.grid(1)
    if i % 2 == 0:
        other = cuda.shfl_down_sync(0x55555555, x[i], 1)
    else:
        other = cuda.shfl_up_sync(0xAAAAAAAA, x[i], 1)
    out[i] = other


def swap_without_a_shuffle(x, out):
    i = cuda.grid(1)
    out[i] = x[i + 1] if i % 2 == 0 else x[i - 1]


GUARD = "if x < board.shape[1] and y < board.shape[0]:"
PAST_THE_FIRST = "x[i - 1] if i > 0 else float32(0)"
BARRIER, GRID_BARRIER = "    cuda.syncthreads()\n", "    cuda.cg.this_grid().sync()\n"
FILL = "part[t] = x[i] if i < x.size else float32(-math.inf)"
READ, ADD = "left = part[t - step] if t >= step else float32(0)\n", "    part[t] += left\n"
COUNT, COUNT_PLAIN = "cuda.atomic.add(counts, letters[i], 1)", "counts[letters[i]] += 1"
LOAD, STORE = "    if i < x.size:\n        part[t] = x[i]\n", "    if i < x.size:\n        out[i]"
AFTER, BEFORE = (
    "after = cuda.shfl_down_sync(0xFFFFFFFF, x[i], 1)",
    "before = cuda.shfl_up_sync(0xFFFFFFFF, x[i], 1)",
)
SUM, DIVIDE = (
    "    if i < x.size:\n        cuda.atomic.add(total, 0, x[i])\n",
    "    if i < x.size:\n        out",
)
MIDDLE = "(low + high) // 2"

BUGS = {
    "a": "out-of-bounds",
    "b": "uninitialized-read",
    "c": "race-global",
    "d": "none",
    "e": "race-shared",
    "f": "barrier-divergence",
}


def named_by_sim():
    """Return the kind of the first finding of each kernel."""
    reports = {
        name: simulate(KERNELS[name], on_finding="report")[grid, block](*given)
        for name, (grid, block, given) in launches(np.random.default_rng(1)).items()
    }
    kinds = {name: [finding.kind for finding in report.findings] for name, report in reports.items()}
    return {name: (found or ["none"])[0] for name, found in kinds.items()}


def naming(**others):
    """Return an answer that names the bugs of the six kernels correctly except for `others`."""
    return lambda: BUGS | others


MUTANTS = {
    "ex04_10": [
        ("nothing named", dict),
        ("names in a list", lambda: list(BUGS.values())),
        ("a word that is no kind", naming(a="index")),
        ("no name for the guard that is too wide", naming(a="none")),
        ("an early return that is none", naming(d="barrier-divergence")),
        ("a race too many", naming(d="race-shared")),
        ("the wrong kind of race", naming(c="race-shared")),
        ("a barrier too few taken for unequal loops", naming(e="barrier-divergence")),
        ("unequal loops taken for a race", naming(f="race-shared")),
        ("old values taken for a race", naming(b="race-shared")),
        ("names found by running sim", named_by_sim),
    ],
    "ex04_1": wrong(
        "checkerboard",
        ("guards with <=", ("x < ", "x <= "), ("y < ", "y <= ")),
        ("leaves out the last column", ("board.shape[1]", "board.shape[1] - 1")),
        ("guards both with the smaller", (GUARD, "if max(x, y) < min(board.shape[0], board.shape[1]):")),
        (
            "swaps the index too",
            (GUARD, "if x < board.shape[0] and y < board.shape[1]:"),
            ("board[y, x]", "board[x, y]"),
        ),
        ("begins with a 1", ("(x + y)", "(x + y + 1)")),
        (
            "writes with an atomic",
            ("board[y, x] = (x + y) % 2", "cuda.atomic.exch(board, (y, x), (x + y) % 2)"),
        ),
        (
            "wraps round the board",
            (GUARD, "if True:"),
            ("board[y, x]", "board[y % board.shape[0], x % board.shape[1]]"),
        ),
        (
            "one thread fills a row",
            (GUARD, "for x in range(board.shape[1] if x == 0 and y < board.shape[0] else 0):"),
        ),
    ),
    "ex04_2": (
        wrong(
            "previous",
            ("leaves out[0] alone", ("if i < x.size:", "if 0 < i < x.size:")),
            ("gives the first its own number", ("else float32(0)", "else x[0]")),
            ("asks the thread, not the element", ("i > 0", "cuda.threadIdx.x > 0")),
            ("multiplies by 0 instead of guarding", (PAST_THE_FIRST, "x[i - 1] * (i > 0)")),
            ("takes the one after", ("x[i - 1] if i > 0", "x[i + 1] if i + 1 < x.size")),
            ("takes the distance", (PAST_THE_FIRST, "x[abs(i - 1)]")),
            (
                "moves the bug to out",
                (f"out[i] = {PAST_THE_FIRST}", "out[i - 1] = x[i - 2] if i > 1 else float32(0)"),
                ("i < x", "i <= x"),
            ),
        )
        + [("one thread does it all", previous_alone)]
    ),
    "ex04_3": (
        wrong(
            "block_max",
            ("puts in 0", ("float32(-math.inf)", "float32(0)")),
            ("puts in -1", ("-math.inf", "-1")),
            ("puts in the lowest finite number", ("-math.inf", "-3.4e38")),
            ("waits for its warp only", (BARRIER, "    cuda.syncwarp()\n")),
            ("loses the barrier", (BARRIER, "")),
            ("looks at all 32 places", ("cuda.blockDim.x)", "32)")),
            ("leaves out the last thread's", ("cuda.blockDim.x)", "cuda.blockDim.x - 1)")),
            (
                "ends with x, not with the part",
                (FILL, "if i < x.size: part[t] = x[i]"),
                ("cuda.blockDim.x)", "min(cuda.blockDim.x, x.size))"),
            ),
            ("returns before the barrier", (BARRIER, f"    if i >= x.size:\n        return\n{BARRIER}")),
        )
        + [("thread 0 reads x itself", max_alone)]
    ),
    "ex04_4": (
        wrong(
            "running_sum",
            ("moves the barrier: none between passes", (f"    {BARRIER}        left", "        left")),
            (
                "moves the barrier out of the loop",
                (f"    {BARRIER}        left", "        left"),
                ("    step = 1\n", f"{BARRIER}    step = 1\n"),
            ),
            (
                "puts the barrier under the if",
                (
                    f"{READ}    {BARRIER}",
                    f"left = float32(0)\n        if t >= step:\n            {READ}        {BARRIER}",
                ),
            ),
            (
                "waits twice, then does both",
                (READ, "pass\n"),
                (ADD, "    if t >= step:\n            part[t] += part[t - step]\n"),
            ),
            ("waits for its warp only", (f"{BARRIER}    {ADD}", f"    cuda.syncwarp()\n    {ADD}")),
            ("has a third barrier in each pass", (ADD, ADD + f"    {BARRIER}")),
            ("forgets the last pass", ("step < cuda.blockDim.x", "2 * step < cuda.blockDim.x")),
            ("replaces instead of adding", ("part[t] += left", "part[t] = left")),
            ("adds neighbours only", ("part[t - step]", "part[t - 1]")),
            ("counts over blocks", ("t >= step", "i >= step")),
            ("has a fence instead", (f"{BARRIER}    {ADD}", f"    cuda.threadfence_block()\n    {ADD}")),
        )
        + [("everybody adds up alone", running_sum_by_everybody_alone)]
    ),
    "ex04_5": wrong(
        "histogram",
        ("has a barrier instead", (COUNT, f"{COUNT_PLAIN}; cuda.syncthreads()")),
        ("has a fence instead", (COUNT, f"{COUNT_PLAIN}; cuda.threadfence()")),
        (
            "reads, waits, writes",
            (COUNT, "count = counts[letters[i]]; cuda.syncthreads(); counts[letters[i]] = count + 1"),
        ),
        ("stores what the atomic returns", (COUNT, f"counts[letters[i]] = {COUNT} + 1")),
        ("adds the letter", ("letters[i], 1", "letters[i], letters[i]")),
        ("counts at the thread's place", ("counts, letters[i]", "counts, i % counts.size")),
        ("takes the maximum", ("atomic.add", "atomic.max")),
        ("guards with the counts", ("letters.size", "counts.size")),
        (
            "reads and writes with two atomics",
            (COUNT, "cuda.atomic.max(counts, letters[i], cuda.atomic.add(counts, letters[i], 0) + 1)"),
        ),
        (
            "swaps once, without a retry",
            (
                COUNT,
                "old = cuda.atomic.add(counts, letters[i], 0);"
                " cuda.atomic.cas(counts, letters[i], old, old + 1)",
            ),
        ),
        ("one thread counts", ("if i < letters.size:", "for i in range(letters.size if i == 0 else 0):")),
    ),
    "ex04_6": (
        wrong(
            "mirror",
            ("has the barrier under the guard", (BARRIER, f"    {BARRIER}")),
            ("has a barrier in each branch", (BARRIER, f"    {BARRIER}    else:\n    {BARRIER}")),
            ("has no barrier", (BARRIER, "")),
            ("waits for its warp only", (BARRIER, "    cuda.syncwarp()\n")),
            ("waits for the whole grid", (BARRIER, "    cuda.cg.this_grid().sync()\n")),
            ("has the barrier first", (LOAD + BARRIER, BARRIER + LOAD)),
            ("loads without a guard", (LOAD, "    part[t] = x[i]\n")),
            ("stores without a guard", (STORE, "    out[i]")),
            ("mirrors whole parts only", ("min(cuda.blockDim.x, x.size - (i - t))", "cuda.blockDim.x")),
            ("is one off", ("length - 1 - t", "length - t")),
            ("measures the whole of x", ("x.size - (i - t)", "x.size")),
            ("guards with the thread", (STORE, "    if t < x.size:\n        out[i]")),
        )
        + [("shares nothing", mirror_without_sharing)]
    ),
    "ex04_7": (
        wrong(
            "swap_neighbours",
            (
                "keeps one shuffle under the if",
                (BEFORE, f"before = x[i]\n    if i % 2:\n        {BEFORE}\n    cuda.syncwarp()"),
            ),
            ("names half of the lanes", (AFTER, AFTER.replace("0xFFFFFFFF", "0x0000ffff"))),
            (
                "names each other lane",
                (AFTER, AFTER.replace("0xFFFFFFFF", "0x55555555")),
                (BEFORE, BEFORE.replace("0xFFFFFFFF", "0xaaaaaaaa")),
            ),
            ("hands over the index", (AFTER, AFTER.replace("x[i]", "i"))),
            ("knows the thread, not the element", ("cuda.grid(1)", "cuda.threadIdx.x")),
            ("swaps twice", ("    out[i]", "    after, before = before, after\n    out[i]")),
        )
        + [
            ("follows the likely fix: a mask of those that come", swap_with_two_masks),
            ("reads global memory instead", swap_without_a_shuffle),
        ]
    ),
    "ex04_8": wrong(
        "shares",
        (
            "returns before the barrier",
            (SUM, "    if i >= x.size:\n        return\n    cuda.atomic.add(total, 0, x[i])\n"),
        ),
        (
            "blocks without work skip it",
            (GRID_BARRIER, f"    if cuda.blockIdx.x * cuda.blockDim.x < x.size:\n    {GRID_BARRIER}"),
        ),
        ("waits for its own block only", (GRID_BARRIER, BARRIER)),
        ("waits twice", (GRID_BARRIER, GRID_BARRIER + GRID_BARRIER)),
        ("has no barrier", (GRID_BARRIER, "")),
        ("has a fence instead", (GRID_BARRIER, "    cuda.threadfence()\n")),
        (
            "one thread of each block waits",
            (GRID_BARRIER, f"    if cuda.threadIdx.x == 0:\n    {GRID_BARRIER}"),
        ),
        ("has the barrier first", (SUM + GRID_BARRIER, GRID_BARRIER + SUM)),
        ("adds without an atomic", ("cuda.atomic.add(total, 0, x[i])", "total[0] += x[i]")),
        ("adds without a guard", (SUM, "    cuda.atomic.add(total, 0, x[i])\n")),
        ("divides without a guard", (DIVIDE, "    out")),
        ("adds twice", ("total, 0, x[i]", "total, 0, 2 * x[i]")),
        (
            "adds ones where no element is",
            (SUM, "    cuda.atomic.add(total, 0, x[i] if i < x.size else float32(1))\n"),
        ),
    ),
    "ex04_9": (
        [("walks through all tokens", sample_step_by_step)]
        + wrong(
            "sample",
            ("stops a step early", ("low < high", "low + 1 < high"), ("middle + 1", "middle")),
            ("leaves the middle out on both sides", ("high = middle\n", "high = middle - 1\n")),
            ("rounds up, and keeps the middle", (MIDDLE, "(low + high + 1) // 2"), ("middle + 1", "middle")),
            ("rounds up", (MIDDLE, "(low + high + 1) // 2")),
            (
                "ends behind the array",
                ("cumulative.size - 1", "cumulative.size"),
                ("low < high", "low <= high"),
            ),
            ("answers one too few", ("token[i] = low", "token[i] = low - 1")),
            ("stops after three halvings", ("while low < high:", "for _ in range(3):")),
            ("all draw the first number", ("<= u[i]", "<= u[0]")),
        )
    ),
}

RIGHT = {
    "ex04_1": [checkerboard_by_rows_and_columns],
    "ex04_2": [previous_in_two_branches],
    "ex04_3": [max_with_the_last_element_for_the_rest, max_of_those_that_are_there],
    "ex04_4": [running_sum_in_two_arrays, running_sum_with_the_barrier_last],
    "ex04_5": [histogram_in_shared_memory, histogram_jitted, histogram_by_retries],
    "ex04_6": [mirror_on_the_way_in, mirror_with_the_return_behind_the_barrier],
    "ex04_7": [swap_by_xor, swap_with_a_computed_lane],
    "ex04_8": [shares_of_zero],
    "ex04_9": [sample_by_length],
    "ex04_10": [lambda: dict(reversed(BUGS.items()))],
}
