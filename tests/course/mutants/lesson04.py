"""Wrong answers to the exercises of lesson 04, each with the mistake it makes, and right ones written another way.

A wrong kernel is the lesson's broken one, or its mended one with a line or two edited, or one written here.
"""

import ast
import linecache
import math
from pathlib import Path

from numba import cuda
from numpy import float32

LESSON = (Path(__file__).parents[3] / "solutions" / "04_what_can_go_wrong.py").read_text(encoding="utf-8")
SOURCES = {node.name: ast.get_source_segment(LESSON, node) for node in ast.parse(LESSON).body if isinstance(node, ast.FunctionDef)}


def lessons(kernel, *edits):
    """The lesson's kernel of this name with each (old, new) of `edits` made in its source, in which every `old` stands exactly once."""
    source = SOURCES[kernel]
    for old, new in edits:
        if source.count(old) != 1:
            raise ValueError(f"{old!r} stands {source.count(old)} times in {kernel}")
        source = source.replace(old, new)
    name = f"<{kernel} with {edits}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name  # so that sim can read it
    namespace = {}
    exec(compile(source, name, "exec"), {**globals()}, namespace)
    return namespace[kernel]


def wrong(kernel, *answers):
    """The lesson's broken kernel, and what becomes of the mended one by the edits of each answer (what is wrong, *edits)."""
    edited = [(what, lessons(f"{kernel}_fixed", *edits)) for what, *edits in answers]
    return [("leaves the bug in", lessons(kernel)), *edited]


# Right in another way ---------------------------------------------------------------------------------------------


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


def previous_told_by_the_one_before(x, out):
    i = cuda.grid(1)
    if i + 1 < x.size:
        out[i + 1] = x[i]
    if i + 1 == x.size:
        out[0] = 0


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
    cuda.atomic.inc(counts, letters[i], 1000)


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


def sample_between_open_ends(cumulative, u, token):
    i = cuda.grid(1)
    if i < u.size:
        below, above = -1, cumulative.size - 1
        while above - below > 1:
            middle = (below + above + 1) // 2
            if cumulative[middle] <= u[i]:
                below = middle
            else:
                above = middle
        token[i] = above


# Wrong in more than a line ----------------------------------------------------------------------------------------


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


def histogram_alone(letters, counts):
    if cuda.grid(1) == 0:
        for i in range(letters.size):
            counts[letters[i]] += 1


def histogram_kept_in_a_variable(letters, counts):
    i = cuda.grid(1)
    if i < letters.size:
        count = counts[letters[i]]
        cuda.syncthreads()
        counts[letters[i]] = count + 1


def mirror_without_sharing(x, out):
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i < x.size:
        start = i - t
        out[i] = x[start + min(cuda.blockDim.x, x.size - start) - 1 - t]


def swap_without_a_shuffle(x, out):
    i = cuda.grid(1)
    out[i] = x[i + 1] if i % 2 == 0 else x[i - 1]


GUARD = "if x < board.shape[1] and y < board.shape[0]:"
ADD = "    if i < x.size:\n        cuda.atomic.add(total, 0, x[i])\n"
DIVIDE = "    if i < x.size:\n"

MUTANTS = {
    "ex04_1": wrong(
        "checkerboard",
        ("follows the likely fix: guards the rows only", ("if x < board.shape[1] and y < board.shape[0]:", "if y < board.shape[0]:")),
        ("guards the columns only", ("if x < board.shape[1] and y < board.shape[0]:", "if x < board.shape[1]:")),
        ("guards with <=", ("x < ", "x <= "), ("y < ", "y <= ")),
        ("leaves out the last column", ("board.shape[1]", "board.shape[1] - 1")),
        (
            "guards both with the smaller",
            ("if x < board.shape[1] and y < board.shape[0]:", "if max(x, y) < min(board.shape[0], board.shape[1]):"),
        ),
        (
            "swaps the index too",
            ("if x < board.shape[1] and y < board.shape[0]:", "if x < board.shape[0] and y < board.shape[1]:"),
            ("board[y, x]", "board[x, y]"),
        ),
        ("guards with or", (" and ", " or ")),
        ("begins with a 1", ("(x + y)", "(x + y + 1)")),
        (
            "wraps round the board",
            ("if x < board.shape[1] and y < board.shape[0]:", "if True:"),
            ("board[y, x]", "board[y % board.shape[0], x % board.shape[1]]"),
        ),
        (
            "one thread fills a row",
            ("if x < board.shape[1] and y < board.shape[0]:", "for x in range(board.shape[1] if x == 0 and y < board.shape[0] else 0):"),
        ),
    ),
    "ex04_2": wrong(
        "previous",
        ("leaves out[0] alone", ("if i < x.size:", "if 0 < i < x.size:")),
        ("gives the first its own number", ("else float32(0)", "else x[0]")),
        ("guards with >=", ("i > 0", "i >= 0")),
        ("is zero for the second too", ("i > 0", "i > 1")),
        ("asks the thread, not the element", ("i > 0", "cuda.threadIdx.x > 0")),
        ("multiplies by 0 instead of guarding", ("x[i - 1] if i > 0 else float32(0)", "x[i - 1] * (i > 0)")),
        ("takes the one after", ("x[i - 1] if i > 0", "x[i + 1] if i + 1 < x.size")),
        ("takes the distance", ("x[i - 1] if i > 0 else float32(0)", "x[abs(i - 1)]")),
        (
            "moves the bug to out",
            ("i < x.size", "i <= x.size"),
            ("out[i] = x[i - 1] if i > 0 else float32(0)", "out[i - 1] = x[i - 2] if i > 1 else float32(0)"),
        ),
        ("loses the guard", ("if i < x.size:", "if True:")),
    )
    + [("one thread does it all", previous_alone)],
    "ex04_3": wrong(
        "block_max",
        ("puts in 0", ("float32(-math.inf)", "float32(0)")),
        ("puts in +inf", ("-math.inf", "math.inf")),
        ("puts in -1, as all numbers tried were below", ("-math.inf", "-1")),
        ("has no guard", (" if i < x.size else float32(-math.inf)", "")),
        ("loses the barrier", ("    cuda.syncthreads()\n", "")),
        ("looks at all 32 places", ("cuda.blockDim.x)", "32)")),
        ("leaves out the last thread's", ("cuda.blockDim.x)", "cuda.blockDim.x - 1)")),
        (
            "stops at the last element of x, not of the part",
            ("cuda.blockDim.x)", "min(cuda.blockDim.x, x.size))"),
            ("part[t] = x[i] if i < x.size else float32(-math.inf)", "if i < x.size: part[t] = x[i]"),
        ),
        ("returns before the barrier", ("    cuda.syncthreads()\n", "    if i >= x.size:\n        return\n    cuda.syncthreads()\n")),
        ("all threads write the result", ("if t == 0:", "if True:")),
    )
    + [("thread 0 reads x itself", max_alone)],
    "ex04_4": wrong(
        "running_sum",
        ("moves the barrier: none between passes", ("        cuda.syncthreads()\n", "")),
        (
            "moves the barrier out of the loop",
            ("        cuda.syncthreads()\n", ""),
            ("    step = 1\n", "    cuda.syncthreads()\n    step = 1\n"),
        ),
        (
            "puts the barrier under the if",
            (
                "left = part[t - step] if t >= step else float32(0)\n        cuda.syncthreads()",
                "left = float32(0)\n        if t >= step:\n            left = part[t - step]\n            cuda.syncthreads()",
            ),
        ),
        (
            "waits twice and then does both",
            ("left = part[t - step] if t >= step else float32(0)\n", "cuda.syncthreads()\n"),
            ("        part[t] += left", "        if t >= step:\n            part[t] += part[t - step]"),
        ),
        ("wraps to the end of the part", (" if t >= step else float32(0)", "")),
        ("forgets the last pass", ("step < cuda.blockDim.x", "2 * step < cuda.blockDim.x")),
        ("replaces instead of adding", ("part[t] += left", "part[t] = left")),
        ("leaves out the one at distance step", ("t >= step", "t > step")),
        ("adds neighbours only", ("part[t - step]", "part[t - 1]")),
        ("counts over blocks", ("t >= step", "i >= step")),
        ("uses a warp's barrier", ("cuda.syncthreads()", "pass"), ("cuda.syncthreads()", "cuda.threadfence_block()")),
    )
    + [("everybody adds up alone", running_sum_by_everybody_alone)],
    "ex04_5": wrong(
        "histogram",
        ("has a barrier instead", ("cuda.atomic.add(counts, letters[i], 1)", "counts[letters[i]] += 1; cuda.syncthreads()")),
        ("has a fence instead", ("cuda.atomic.add(counts, letters[i], 1)", "counts[letters[i]] += 1; cuda.threadfence()")),
        (
            "stores what the atomic returns",
            ("cuda.atomic.add(counts, letters[i], 1)", "counts[letters[i]] = cuda.atomic.add(counts, letters[i], 1) + 1"),
        ),
        ("adds the letter", ("letters[i], 1", "letters[i], letters[i]")),
        ("counts at the thread's place", ("counts, letters[i], 1", "counts, i % counts.size, 1")),
        ("moves the bug: no guard", ("if i < letters.size:", "if True:")),
        ("takes the maximum", ("atomic.add", "atomic.max")),
        ("guards with the counts", ("letters.size", "counts.size")),
    )
    + [("reads, waits, writes", histogram_kept_in_a_variable), ("one thread counts", histogram_alone)],
    "ex04_6": wrong(
        "mirror",
        ("has the barrier under the guard", ("    cuda.syncthreads()\n", "        cuda.syncthreads()\n")),
        (
            "has a barrier in each branch",
            ("    cuda.syncthreads()\n", "        cuda.syncthreads()\n    else:\n        cuda.syncthreads()\n"),
        ),
        ("has no barrier", ("    cuda.syncthreads()\n", "")),
        (
            "has the barrier first",
            ("    if i < x.size:\n", "    cuda.syncthreads()\n    if i < x.size:\n"),
            ("    cuda.syncthreads()\n    length", "    length"),
        ),
        ("loads without a guard", ("if i < x.size:", "if True:")),
        ("stores without a guard", ("if i < x.size:", "if True:")),
        ("mirrors whole parts only", ("min(cuda.blockDim.x, x.size - (i - t))", "cuda.blockDim.x")),
        ("is one off", ("length - 1 - t", "length - t")),
        ("measures the whole of x", ("x.size - (i - t)", "x.size")),
        ("guards with the thread", ("if i < x.size:", "if t < x.size:")),
    )
    + [("shares nothing", mirror_without_sharing)],
    "ex04_7": wrong(
        "swap_neighbours",
        (
            "follows the likely fix: a mask of those that come",
            (
                "    after = cuda.shfl_down_sync(0xFFFFFFFF, x[i], 1)\n",
                "    if i % 2 == 0:\n        other = cuda.shfl_down_sync(0x55555555, x[i], 1)\n",
            ),
            (
                "    before = cuda.shfl_up_sync(0xFFFFFFFF, x[i], 1)\n",
                "    else:\n        other = cuda.shfl_up_sync(0xAAAAAAAA, x[i], 1)\n",
            ),
            ("after if i % 2 == 0 else before", "other"),
        ),
        (
            "keeps one shuffle under the if",
            ("    before = ", "    before = x[i]\n    if i % 2:\n        before = "),
            ("    out[i]", "    cuda.syncwarp()\n    out[i]"),
        ),
        ("takes them the other way round", ("i % 2 == 0", "i % 2 == 1")),
        ("names half of the lanes", ("shfl_down_sync(0xFFFFFFFF", "shfl_down_sync(0x0000FFFF")),
        ("shuffles down only", ("after if i % 2 == 0 else before", "after")),
        ("goes two lanes far", ("shfl_up_sync(0xFFFFFFFF, x[i], 1)", "shfl_up_sync(0xFFFFFFFF, x[i], 2)")),
        ("hands over the index", ("shfl_down_sync(0xFFFFFFFF, x[i], 1)", "shfl_down_sync(0xFFFFFFFF, i, 1)")),
        ("knows the thread, not the element", ("cuda.grid(1)", "cuda.threadIdx.x")),
        ("swaps twice", ("    out[i] = after", "    after, before = before, after\n    out[i] = after")),
    )
    + [("reads global memory instead", swap_without_a_shuffle)],
    "ex04_8": wrong(
        "shares",
        (
            "returns before the barrier",
            (
                "    if i < x.size:\n        cuda.atomic.add(total, 0, x[i])\n",
                "    if i >= x.size:\n        return\n    cuda.atomic.add(total, 0, x[i])\n",
            ),
        ),
        (
            "skips it in blocks without work only",
            (
                "    cuda.cg.this_grid().sync()\n",
                "    if cuda.blockIdx.x * cuda.blockDim.x < x.size:\n        cuda.cg.this_grid().sync()\n",
            ),
        ),
        ("waits for its own block only", ("cuda.cg.this_grid().sync()", "cuda.syncthreads()")),
        ("has no barrier", ("    cuda.cg.this_grid().sync()\n", "")),
        ("has a fence instead", ("cuda.cg.this_grid().sync()", "cuda.threadfence()")),
        ("one thread of each block waits", ("    cuda.cg", "    if cuda.threadIdx.x == 0:\n        cuda.cg")),
        (
            "has the barrier first",
            ("    cuda.cg.this_grid().sync()\n", ""),
            ("    if i < x.size:\n", "    cuda.cg.this_grid().sync()\n    if i < x.size:\n"),
        ),
        ("adds without an atomic", ("cuda.atomic.add(total, 0, x[i])", "total[0] += x[i]")),
        (
            "adds without a guard",
            ("    if i < x.size:\n        cuda.atomic.add(total, 0, x[i])\n", "    cuda.atomic.add(total, 0, x[i])\n"),
        ),
        ("divides without a guard", ("    if i < x.size:\n", "    if True:\n")),
        ("adds twice", ("total, 0, x[i]", "total, 0, 2 * x[i]")),
        (
            "adds ones for those without an element",
            (
                "    if i < x.size:\n        cuda.atomic.add(total, 0, x[i])\n",
                "    cuda.atomic.add(total, 0, x[i] if i < x.size else float32(1))\n",
            ),
        ),
    ),
    "ex04_9": wrong(
        "sample",
        ("stops a step early", ("low < high", "low + 1 < high"), ("middle + 1", "middle")),
        ("leaves the middle out on both sides", ("high = middle\n", "high = middle - 1\n")),
        ("rounds up, and keeps the middle", ("(low + high) // 2", "(low + high + 1) // 2"), ("middle + 1", "middle")),
        ("rounds up", ("(low + high) // 2", "(low + high + 1) // 2")),
        ("takes the other side on a border", ("<= u[i]", "< u[i]")),
        ("goes the wrong way", ("<= u[i]", "> u[i]")),
        ("goes on when one is left", ("low < high", "low <= high")),
        ("begins at 1", ("low, high = 0,", "low, high = 1,")),
        ("ends behind the array", ("cumulative.size - 1", "cumulative.size"), ("while low < high", "while low <= high")),
        ("answers one too few", ("token[i] = low", "token[i] = low - 1")),
        ("stops after three halvings", ("while low < high:", "for _ in range(3):")),
        ("all draw the first number", ("cumulative[middle] <= u[i]", "cumulative[middle] <= u[0]")),
    ),
}

RIGHT = {
    "ex04_1": [checkerboard_by_rows_and_columns],
    "ex04_2": [previous_in_two_branches, previous_told_by_the_one_before],
    "ex04_3": [max_with_the_last_element_for_the_rest, max_of_those_that_are_there],
    "ex04_4": [running_sum_in_two_arrays, running_sum_with_the_barrier_last],
    "ex04_5": [histogram_in_shared_memory, histogram_jitted],
    "ex04_6": [mirror_on_the_way_in, mirror_with_the_return_behind_the_barrier],
    "ex04_7": [swap_by_xor, swap_with_a_computed_lane],
    "ex04_8": [shares_of_zero],
    "ex04_9": [sample_step_by_step, sample_between_open_ends],
}
