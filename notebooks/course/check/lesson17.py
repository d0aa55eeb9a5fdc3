"""Checks of lesson 17: tensor-core operands lane by lane, and copies in flight during products."""

from collections import Counter, defaultdict
from types import CellType, FunctionType

import numpy as np
from ml_dtypes import bfloat16
from numba import cuda
from numpy import float32, int16

from course.check import kernels
from course.check.contract import Contract
from course.check.harness import exercise, fail
from course.check.inputs import normal, unusual
from course.check.tensor_cores import COLUMN, ROW, bits, parts, right_operand, unpack, used, which_half, words
from sim.events import Observer
from sim.nouns import plural


def random_bits(rng, *shape):
    """Return normally distributed numbers as bfloat16 bit patterns."""
    return bits(normal(rng, *shape))


# 17.1 -------------------------------------------------------------------------------------------------------

ROWS_OF_P = np.stack([ROW + x // 2 % 2 * 8 for x in range(8)], 1)
COLUMNS_OF_P = np.stack([COLUMN + x % 2 + x // 4 * 8 for x in range(8)], 1)
ROWS_OF_A = np.stack([ROW + r % 2 * 8 for r in range(4)], 1)
COLUMNS_OF_A = np.stack([COLUMN + r // 2 * 8 for r in range(4)], 1)


@exercise("17.1", "as_left")
def ex17_1(as_left, rng):
    kernels.jitted(as_left, "as_left")

    def operands(p, out, kept):
        thread = cuda.threadIdx.x
        mine = cuda.local.array(8, float32)
        for x in range(8):
            mine[x] = p[thread, x]
        a0, a1, a2, a3 = as_left(mine)
        unpack(out, thread, 0, a0)
        unpack(out, thread, 1, a1)
        unpack(out, thread, 2, a2)
        unpack(out, thread, 3, a3)
        for x in range(8):
            kept[thread, x] = mine[x]

    for size in (1, 1e-30, 1e-3, 1e3, "ties"):
        if size == "ties":  # halfway between two neighbours of bfloat16
            weights = (1 + (2 * rng.integers(0, 128, (2, 16, 16)) + 1) / 256).astype(float32)
        else:
            weights = (size * rng.standard_normal((2, 16, 16))).astype(float32)  # of two warps
        left, right = (weights[:, ROWS_OF_A, COLUMNS_OF_A + half] for half in (0, 1))
        wanted = parts(words(left, right)).reshape(64, 4, 2)
        call = "as_left(p) in two warps; p: weights as two mma leave them"
        kernels.judge(
            operands,
            (1, 64),
            (p := weights[:, ROWS_OF_P, COLUMNS_OF_P].reshape(64, 8),),
            (np.full((64, 4, 2), np.nan, float32), np.full((64, 8), np.nan, float32)),
            (wanted, p.copy()),
            rng,
            call,
            Contract(
                max_total={"shared": 0},
                shuffles=(0, 0),
                barriers=(0, 0),
                warp_barriers=(0, 0),
                hint="Every lane already has the values that it needs.",
            ),
            tolerance=0,
            what="a wrong operand, then p",
            hint=lambda out, kept, wanted=wanted, weights=weights: where_from(out, wanted, weights),
            float64=0,
        )
    return "10 tiles of weights, large and small, each in its place, rounded to the nearest, ties to even"


def where_from(out, wanted, weights):
    """Describe the first wrong half of a register, and the weight that it holds instead."""
    wrong = np.argwhere(out != wanted)
    if not len(wrong):
        return "p stays as it is."
    thread, r, half = wrong[0]
    warp, lane = divmod(thread, 32)
    place = int(ROWS_OF_A[lane, r]), int(COLUMNS_OF_A[lane, r] + half)
    same = np.argwhere(weights[warp].astype(bfloat16).astype(float32) == out[thread, r, half])
    holds = f"P[{same[0][0]}, {same[0][1]}]" if len(same) == 1 else f"{out[thread, r, half]:.6g}"
    return (
        f"Warp {warp}, lane {lane}, a{r}, {which_half(half)} half: wanted P[{place[0]}, {place[1]}] ="
        f" {wanted[thread, r, half]:.6g}, got {holds}."
    )


# 17.2 -------------------------------------------------------------------------------------------------------


@exercise("17.2", "value_operands")
def ex17_2(value_operands, rng):
    kernels.jitted(value_operands, "value_operands")
    for rows, width, padding in [(16, 16, 8), (32, 16, 8), (48, 64, 8), (32, 32, 0)]:
        aside = width // 32 * 16 - 8 if width > 16 else 0  # no multiple of 16
        for first, column in {(0, 0), (rows - 16, width - 16), (8 if rows > 16 else 0, aside)}:
            check_values(value_operands, rows, width, width + padding, first, column, rng)
    return "tiles of 16 to 48 rows, of 16 to 64 numbers, from several places on"


def check_values(value_operands, rows, width, pitch, first, column, rng):
    def operands(v, first, column, out):
        tile = cuda.shared.array((rows, pitch), int16, alignment=16)
        thread = cuda.threadIdx.x
        for e in range(thread, rows * width, 96):
            tile[e // width, e % width] = v[e // width, e % width]
        cuda.syncthreads()
        b0, b1, b2, b3 = value_operands(tile, first, column)
        unpack(out, thread, 0, b0)
        unpack(out, thread, 1, b1)
        unpack(out, thread, 2, b2)
        unpack(out, thread, 3, b3)

    v = random_bits(rng, rows, width)
    block = v.view(bfloat16).astype(float32)[first : first + 16, column : column + 16]
    wanted = parts(np.concatenate([right_operand(block[:, :8]), right_operand(block[:, 8:])], 1))
    wanted = np.tile(wanted, (3, 1, 1))  # three warps
    call = (
        f"value_operands(tile, {first}, {column}); tile: {plural(rows, 'row')}, {pitch} numbers"
        " from row to row"
    )
    report = kernels.judge(
        operands,
        (1, 96),
        (v, first, column),
        (np.full((96, 4, 2), np.nan, float32),),
        (wanted,),
        rng,
        call,
        Contract(max_total={"shared": rows * width + 96}, barriers=(1, 1)),
        tolerance=0,
        what="a wrong operand",
        hint=lambda out: what_value(out, wanted, block, first, column),
        float64=0,
    )
    each = {"ldmatrix_x4_trans": 3}
    used(report, each, call, "Three warps: one ldmatrix_x4_trans loads all four registers of a warp's lanes.")


def what_value(out, wanted, block, first, column):
    wrong = np.argwhere(out != wanted)
    if not len(wrong):
        return None
    thread, r, half = (int(x) for x in wrong[0])
    lane = thread % 32
    key, c = lane % 4 * 2 + half + r % 2 * 8, lane // 4 + r // 2 * 8
    same = np.argwhere(block == out[thread, r, half])
    holds = f"V[{first + same[0][0]}, {column + same[0][1]}]" if len(same) == 1 else "a number from elsewhere"
    return (
        f"Warp {thread // 32}, lane {lane}, b{r}, {which_half(half)} half: wanted V[{first + key},"
        f" {column + c}], got {holds}. Lane l supplies the address of row l % 8 of matrix l // 8, and"
        " register b{r} receives a word of matrix {r}."
    )


# 17.3 -------------------------------------------------------------------------------------------------------


class Flights(Observer):
    """The copies that are under way while products are made. A product is `covered` while copies to all the
    arrays are under way to which its block has sent any. `times`: (block, array, its row, from, to) of each
    copy. `ticks`: {block: when it makes a product}. Time is the number of events in all warps of the block so
    far."""

    def __init__(self):
        self.now, self.products, self.covered, self.sent = Counter(), Counter(), Counter(), Counter()
        self.times, self.ticks, self.flying = [], defaultdict(list), {}
        self.goals = defaultdict(set)

    def launch_started(self, context):
        self.context = context

    def collective(self, name, block, site):
        self.now[block] += 1
        if name.startswith("mma"):
            self.products[block] += 1
            self.ticks[block].append(self.now[block])
            flying = {flight[1] for flight in self.flying.values() if flight[0] == block}
            self.covered[block] += bool(flying) and flying == self.goals[block]

    def copy_sent(self, at, copy):
        array, index = self.context.space.element(copy.address)
        self.sent[at.block] += 1
        self.goals[at.block].add(array)
        self.flying[id(copy)] = at.block, array, index[0], self.now[at.block], copy

    def copies_received(self, at, copies):
        for copy in copies:
            *flight, _ = self.flying.pop(id(copy))
            self.times.append((*flight, self.now[at.block]))


WIDTH, KEYS, ROWS, THREADS = 16, 16, 32, 64  # as in the lesson
PRODUCTS = 8  # with 16 keys: two warps, two mma for the scores and two for the output
WIDE = 32  # keys of a larger tile, of which both warps of a block copy a part
LONG = 113


def with_tiles_of(keys, kernel):
    """Return the learner's kernel as the same source gives it with other values of KEYS and STAGE_ROWS."""
    original = kernel.py_func.__globals__
    names = dict(original)
    made = {}

    def again(value):
        """Return a function of the notebook that reads the new names, and any other value unchanged."""
        function = getattr(value, "py_func", value)
        if not isinstance(function, FunctionType) or function.__globals__ is not original:
            return value
        if function not in made:
            cells = tuple(CellType(again(cell.cell_contents)) for cell in function.__closure__ or ())
            copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
            made[function] = cuda.jit(device=True)(copied) if value is not function else copied
        return made[function]

    names.update({name: again(value) for name, value in original.items() if callable(value)})
    names.update(KEYS=keys, STAGE_ROWS=2 * keys)
    function = kernel.py_func
    cells = tuple(CellType(again(cell.cell_contents)) for cell in function.__closure__ or ())
    return cuda.jit(FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells))


def attended(q, k, v, scale):
    q, k, v = (x.view(bfloat16).astype(np.float64) for x in (q, k, v))
    scores = np.where(np.tri(len(q), dtype=bool), float(scale) * q @ k.T, -np.inf)
    p = np.exp(scores - scores.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True) @ v


@exercise("17.3", "two_buffers")
def ex17_3(flash_kernel, rng):
    kernels.jitted(flash_kernel, "flash_kernel")
    wide = with_tiles_of(WIDE, flash_kernel)
    check_loop(flash_kernel, 1, KEYS, rng)
    check_loop(flash_kernel, 16, KEYS, rng)
    check_loop(flash_kernel, 33, KEYS, rng)
    check_loop(wide, int(rng.integers(34, 60)), WIDE, rng)
    check_loop(wide, int(rng.integers(97, 113)), WIDE, rng)
    check_loop(flash_kernel, int(rng.integers(34, 60)), KEYS, rng)
    check_loop(flash_kernel, LONG, KEYS, rng)
    return f"1 to {LONG} tokens, up to 8 tiles of {KEYS} and of {WIDE} keys"


def check_loop(flash_kernel, n, keys, rng):
    q, k, v, scale = *(random_bits(rng, n, WIDTH) for _ in range(3)), float32(unusual(rng, unlike=(1, 0.25)))
    blocks = -(-n // ROWS)
    tiles = [-(-min(n, (block + 1) * ROWS) // keys) for block in range(blocks)]
    flights = Flights()
    call = f"flash_with(two_buffers) on {plural(n, 'token')}, {plural(max(tiles), 'tile')} of {keys} keys"
    kernels.judge(
        flash_kernel,
        (blocks, THREADS),
        (q, k, v, scale),
        (np.full((n, WIDTH), np.nan, float32),),
        (attended(q, k, v, scale),),
        rng,
        call,
        Contract(
            barriers=(sum(tiles) / blocks - 1e-6, sum(tiles) / blocks + 1 + 1e-6),
            hint=f"One barrier per tile, one more at most. Tiles of each block: {tiles}.",
        ),
        tolerance=2e-2,
        what="a wrong output",
        hint="Does use_tiles get each tile's stage and its first key j0? Does the loop use KEYS everywhere?",
        observers=(flights,),
        float64=0,
    )
    if (products := flights.products.total()) != (enough := PRODUCTS * keys // 16 * sum(tiles)):
        fail(f"correct, but {products} products are computed; {enough} process each tile once", call=call)
    least, most = 0, 0
    for block, count in zip(sorted(flights.products), reversed(tiles), strict=True):
        least += flights.products[block] * (count - 1) / count
        most += count * 2 * keys * WIDTH // 8
    if (sent := flights.sent.total()) > most:
        fail(f"correct, but {sent} copies are issued; {most} load each tile once", call=call)
    if (covered := flights.covered.total()) < least:
        fail(
            f"correct, but key and value copies are in flight during only {covered} of {products} products",
            call=call,
            wanted=f"{least:g}: all but those with a block's last tile",
            hint="Start the copies of the next tile before you use this one, and wait for them after that.",
        )
