"""Checks of lesson 22: CUDA C++ kernels, compiled by NVRTC without a GPU and run in `sim` under the same
contracts as the Python kernels."""

import math
import re
from dataclasses import replace

import numpy as np
from numpy import float32

from course.check import cuda_kernels, inputs, kernels, lesson05
from course.check.contract import Contract
from course.check.harness import NotChecked, agree, dictionary, exercise, fail, instance
from course.check.inputs import normal
from course.progress_bar import progress_bar
from sim import LaunchError, load_ptx, simulate
from sim.nouns import plural

# 22.1 -------------------------------------------------------------------------------------------------------

VALUES = -7, 4, 7, float32(8), np.arange(10, dtype=float32) * 10  # i, n, k, x, a
EXPLAINED = {
    "a": "The quotient of two ints is an int, rounded towards 0; Python's // rounds down.",
    "b": "i % n is i - (i / n) * n. It has the sign of i; in Python, the sign of n.",
    "c": "A shift by 1 bit halves and rounds down, as in Python. It is not a division.",
    "d": "1 / n is evaluated first, and both are ints.",
    "e": "int(...) rounds towards 0.",
    "f": "threadIdx.x is unsigned, and so is threadIdx.x - 1: in thread 0 it is 4294967295.",
    "g": "From left to right: 0 <= k is 1 or 0, and that value is compared with n.",
    "h": "row points at a[3], so row[2] is two elements further.",
}


@exercise("22.1", "expressions")
def ex22_1(expressions, rng):
    said = expressions()
    dictionary(said, EXPLAINED, what="a value for each of a to h", wanted="{'a': ..., 'b': ..., ...}")
    out = np.full(8, np.nan, float32)
    simulate(compiled(cuda_kernels.EXPRESSIONS, "expressions.cu", "expressions"))[1, 1](*VALUES, out)
    for letter, right in zip(EXPLAINED, out):
        if not isinstance(said[letter], (bool, np.bool_)):
            instance(said[letter], (int, float, np.number), what=f"a number for {letter}")
        if not agree(np.float64(said[letter]), np.float64(right), 1e-9):
            fail(
                f"{letter}: the kernel stores another number", got=repr(said[letter]), hint=EXPLAINED[letter]
            )
    return "eight values as the kernel stores them"


# 22.2 -------------------------------------------------------------------------------------------------------


@exercise("22.2", "load_tile")
def ex22_2(text, rng):
    kernel = compiled(text, "load_tile.cu", "load_and_copy", behind=cuda_kernels.LOADS)
    for size, start, length, threads in [*lesson05.LOADS, (290, 3, 140, 70)]:
        for longer in (False, True):
            blocks = int(rng.integers(2, 4))
            array = normal(rng, size)
            wanted = np.stack([lesson05.part(array, start + b * length, length) for b in range(blocks)])
            call = (
                f"load_tile(tile, array, start, length={length}, size={size}) from {start} on, a tile for"
                f" each of {plural(blocks, 'block')} of {plural(threads, 'thread')}"
            )
            contract = Contract(
                "array",
                max_per_thread={"array": -(-length // threads)},
                max_total={"array": blocks * length},
                barriers=(1, 1),
                hint="One thread loads each element: thread t of T loads the elements t, t + T, t + 2T, ..."
                " The caller executes the barrier.",
            )
            kernels.judge(
                kernel,
                (blocks, threads, 0, 4 * length),
                (inputs.longer(array) if longer else array, start, length, size),
                (np.full((blocks, length), np.nan, float32),),
                (wanted,),
                rng,
                call,
                contract,
                tolerance=0,
                what="the tile holds something else",
            )
    return "tiles of 2 to 140 elements, more and fewer threads than elements, arrays longer than `size`"


# 22.3 -------------------------------------------------------------------------------------------------------

# d above 80 finds a fixed local array, n above 127 an index of 8 bits
SHAPES = [*lesson05.SHAPES, (37, 2, 3, 2), (3, 70, 2, 2), (2, 131, 2, 2), (131, 1, 64, 66)]
TILES = cuda_kernels.INFINITY + cuda_kernels.LOAD_TILE + cuda_kernels.VISIT


@exercise("22.3", "flash_kernel")
def ex22_3(text, rng):
    kernel = compiled(text, "flash.cu", "flash_kernel", tiles=TILES)
    for n, d, rows, columns in progress_bar(SHAPES, desc="shapes", leave=False):
        for longer in (False, True):
            numbers = 2 * (rows + columns) * d
            lesson05.verify(kernel, rng, n, d, rows, columns, numbers, of_launch, longer=longer)
    for scores in lesson05.LOUD:
        lesson05.verify(kernel, rng, 11, 2, 4, 3, 28, of_launch, scores)
    return (
        f"{len(SHAPES)} shapes, from 1 row to {max(n for n, *_ in SHAPES)}, d to 131, blocks of up to 64"
        f" threads, ragged tiles of queries and of keys, up to {lesson05.most_tiles(SHAPES)} key tiles,"
        " arrays longer than n rows"
    )


def of_launch(n, d, rows, columns):
    """Return lesson 05's contract, without shared memory beyond what the launch provides."""
    size = 4 * 2 * (rows + columns) * d
    return replace(lesson05.loads_shared(n, d, rows, columns), shared_bytes=size)


# 22.4 -------------------------------------------------------------------------------------------------------

BLOCK = 64


@exercise("22.4", "absorb")
def ex22_4(text, rng):
    for width in (8, 4, 16):
        kernel = compiled(
            text,
            "absorb.cu",
            "every_row",
            f"-DWIDTH={width}",
            behind=cuda_kernels.ABSORBS,
            rows=cuda_kernels.ROWS,
        )
        for rows, offset, alike, block in [
            (2 * BLOCK // width, 0, True, BLOCK),
            (BLOCK // width + 1, 0, False, 32 + width),  # the second block does not begin at a multiple of 32
            (BLOCK // width + 3, inputs.FAR, False, BLOCK),
            (3, -inputs.FAR, True, BLOCK),
        ]:
            check_rows(kernel, width, rows, offset, alike, block, rng)
    return "rows of 4, 8 and 16 lanes, some without a query, some with fewer tiles; scores to ±1000"


def check_rows(kernel, width, rows, offset, alike, block, rng):
    """Check the update of every row with its tiles of scores, in order: 3 tiles for each row, or 0 to 3."""
    tiles = np.full(rows, 3) if alike else rng.permutation(np.arange(rows) % 4)
    t = np.round(8 * (rng.normal(0, 3, (3, rows, width)) + offset)) / 8
    t[rng.random(t.shape) < 0.3] = -math.inf
    t[0, 0] = -math.inf  # a row that sees nothing of its first tile
    m, l = np.round(8 * rng.normal(offset, 2, rows)) / 8, rng.uniform(0.5, 4, rows)
    m[::3], l[::3] = -math.inf, 0  # has read nothing before
    t, m, l = (x.astype(float32) for x in (t, m, l))
    wanted = absorbed(t, m, l, tiles)
    blocks = -(-rows * width // block)
    kernels.judge(
        kernel,
        (blocks, block),
        (t, m, l, tiles.astype(np.int32), rows),
        tuple(np.full(x.shape, np.nan, float32) for x in wanted),
        wanted,
        rng,
        f"absorb(t, m, l, shrink) with WIDTH = {width} in blocks of {block} threads;"
        f" {plural(rows, 'row')} have a"
        f" query, and {'3 tiles each' if alike else '0 to 3 tiles'}; scores about {offset}",
        Contract(
            max_total={"shared": 0},
            shuffles=(2, 2 * int(math.log2(width)) * int(tiles.sum())),
            atomics=(0, 0),
            hint="The sum needs as many shuffles as row_max: one for each halving of WIDTH.",
        ),
        tolerance=2e-5,
        what="m, l, shrink and p of every row",
        hint=lambda *got: (
            UNGUARDED if any(np.isnan(x).sum() > np.isnan(y).sum() for x, y in zip(got, wanted)) else STATE
        ),
    )


STATE = (
    "m is the largest of the old m and the row's scores, l = old l * exp(old m - m) + the sum of the row's p,"
    " shrink = exp(old m - m), p = exp(t - m); m and l are equal in all lanes of the row."
)
UNGUARDED = "NaN: shrink was not set, or -inf - (-inf) in a row without any score so far: use weight(a, b)."


def absorbed(t, m, l, tiles):
    """(m, l, each (rows, width); shrink, p, each (tiles, rows, width)) in float64, NaN in tiles that a row
    does not have; 0 as the shrink of a row that had read nothing."""
    t, m, l = t.astype(np.float64), m.astype(np.float64), l.astype(np.float64)
    shrinks, p = np.full(t.shape, np.nan), np.full(t.shape, np.nan)
    for row, count in enumerate(tiles):
        for tile in range(count):
            larger = max(m[row], t[tile, row].max())
            base = larger if larger > -math.inf else 0.0
            shrinks[tile, row], p[tile, row] = np.exp(m[row] - base), np.exp(t[tile, row] - base)
            m[row], l[row] = larger, l[row] * shrinks[tile, row, 0] + p[tile, row].sum()
    lanes = np.ones(t.shape[2])
    return m[:, None] * lanes, l[:, None] * lanes, shrinks, p


# 22.5 -------------------------------------------------------------------------------------------------------


# Compiling --------------------------------------------------------------------------------------------------


def compiled(text, name, entry, *options, behind="", **headers):
    """Compile the kernel `entry` from the learner's text, a str, with `behind` appended. Report the
    compiler's message if compilation fails. Also fail if the kernel is missing or uses float64."""
    # here, as they need Numba
    from course.cuda_cpp import ptx_of, without_marks
    from course.ptx import NoCompiler

    instance(text, str, what="CUDA C++ as text, a str")
    whole = without_marks(text).rstrip() + "\n" + behind
    try:
        ptx = ptx_of(whole, name, *options, **headers)
    except NoCompiler as missing:
        raise NotChecked(
            f"{missing}.\nThe solution's PTX was recorded, this text's was not. Go on: nothing depends on it."
        ) from None
    except LaunchError as error:
        fail("NVRTC does not compile it", hint=first_errors(str(error)))
    module = load_ptx(ptx, source=whole)
    if entry not in module.names:
        fail(
            f"there is no kernel {entry}",
            hint=f'extern "C" __global__ void {entry}(...); kernels are: {", ".join(module.names) or "none"}',
        )
    no_float64(ptx, whole)
    if "activemask" in ptx:
        hint = "__activemask() returns the lanes that happen to be there. Compute those that should be there."
        fail("a mask from __activemask()", hint=hint)
    return module[entry]


def first_errors(message, most=10):
    """Return the compiler's message without its first line and remarks, cut to a readable length."""
    lines = [line for line in message.splitlines()[1:] if line.strip() and not line.startswith("Remark")]
    return "\n".join(lines[:most])


def no_float64(ptx, text):
    """Fail if an instruction uses float64, and name the source line that it comes from."""
    line = 0
    for instruction in ptx.splitlines():
        if place := re.match(r"\s*\.loc\s+1\s+(\d+)", instruction):
            line = int(place[1])
        elif ".f64" in instruction and not instruction.lstrip().startswith("."):
            shown = text.splitlines()[line - 1].strip() if 0 < line <= len(text.splitlines()) else ""
            fail(
                f"line {line} computes with a double",
                call=shown,
                hint="A bare 0.5 is a double; 0.5f is a float.",
            )
