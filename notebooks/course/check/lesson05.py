"""Checks of lesson 05, all run in `sim`: a tile loader, one row of flash attention, and a whole kernel."""

import numpy as np
from numba import cuda
from numpy import float32

from course.check import inputs, kernels
from course.check.contract import Contract
from course.check.harness import exercise
from sim.nouns import plural

# n, d, rows, columns; blocks of 40 and 64 threads have two warps, for which syncwarp() is no barrier
SHAPES = [(4, 3, 4, 2), (1, 3, 4, 2), (5, 3, 2, 4), (9, 4, 4, 3), (6, 5, 3, 7), (27, 3, 4, 4), (3, 17, 2, 2)]
SHAPES += [(43, 2, 40, 5), (65, 1, 64, 33)]
LOADS = [  # (numbers in the array, first of the tile, numbers in the tile, threads)
    (12, 4, 4, 4),
    (12, 0, 7, 3),
    (12, 9, 6, 2),
    (5, 0, 8, 4),
    (10, 8, 2, 8),
    (300, 7, 90, 4),
]
LOUD = list(inputs.LOUD)[1:]
SHARED = (
    "The threads of a block share their work: each loads its part of a tile once, all use it, and thread t"
    " computes row t of the output. Two barriers per tile are enough."
)


@exercise("5.1", "load_tile")
def ex05_1(load_tile, rng):
    kernels.jitted(load_tile, "load_tile", allowed=())
    for size, start, tile, threads in LOADS:
        blocks = int(rng.integers(2, 4))
        array = inputs.normal(rng, size)
        wanted = np.stack([part(array, start + block * tile, tile) for block in range(blocks)])
        there = sum(min(tile, max(0, size - start - block * tile)) for block in range(blocks))
        call = (
            f"load_tile(tile, array, start) with tiles of {tile} elements from index {start}, one per block,"
            f" an array of {size}, {blocks} blocks of {threads} threads"
        )
        contract = Contract(
            max_per_thread={"array": -(-tile // threads)},
            max_total={"array": there},
            owner={"array": own_elements(start, tile, threads)},
            barriers=(1, 1),
            warp_barriers=(0, 0),
            hint=(
                "Each element is loaded by one thread: thread t of T loads t, t + T, t + 2T, ... of the tile."
                " The caller waits at a barrier, load_tile does not."
            ),
        )
        out = np.full((blocks, tile), np.nan, float32)
        configuration = blocks, threads, 0, 4 * tile
        kernels.judge(
            kernel_that_loads(load_tile),
            configuration,
            (array, start),
            (out,),
            (wanted,),
            rng,
            call,
            contract,
            tolerance=0,
            what="the tile has wrong elements",
            refused=is_bug,
        )
    return (
        "tiles of 2 to 90 elements, with more and fewer threads than elements, some past the end of the array"
    )


def own_elements(start, tile, threads):
    """Return a function from elements of the array to the threads that load them: thread t of a block loads
    the elements t, t + threads, ... of its tile."""

    def owner(element):
        block, e = np.divmod(element - start, tile)
        return block * threads + e % threads

    return owner


def part(array, start, length):
    """Return `length` elements of the array from `start`, padded with 0 past its end."""
    return np.append(array, np.zeros(start + length, float32))[start : start + length]


@exercise("5.2", "visit")
def ex05_2(visit, rng):
    kernels.jitted(visit, "visit", allowed=())
    for d, keys, room in [(1, 1, 1), (2, 5, 5), (9, 20, 24), (67, 2, 3), (130, 1, 1), (1, 150, 150)]:
        check_visits(visit, d, keys, room, "scores about 0", rng)
    check_visits(visit, 3, 5, 5, "scores about 0", rng, sign=-1)
    for scores in LOUD:
        check_visits(visit, 3, 4, 6, scores, rng)
    return (
        "one key to 300, in two tiles, some with room for more keys than there are, d from 1 to 130, rows"
        " that had read something before, a negative scale"
    )


def check_visits(visit, d, keys, room, scores, rng, sign=1):
    """Update each row of two blocks, three rows per block, with two tiles of keys. The first row of a block
    starts empty, the others start with a state from earlier keys. Thread t updates row 2 - t."""
    q, k, v, scale = inputs.attention(rng, 6, 2 * keys, d, scores)
    scale *= sign
    m, l, o = inputs.states(rng, 6, d)
    m[::3], l[::3], o[::3] = -np.inf, 0, 0
    m[1::3], l[1::3] = 2, 0.6  # a sum below 1 that still affects the result
    m, l, o = (x.astype(float32) for x in (m, l, o))
    wanted = visited(inputs.attended(q, k, v, scale)[0], v, m, l, o)
    call = (
        f"{scores}: two tiles with {plural(keys, 'key')} and room for {room}, one visit each, with d ="
        f" {d} and scale = {scale:.3g}"
    )
    tiles = [
        np.concatenate(
            [
                np.append(x[tile * keys : (tile + 1) * keys], np.full((room - keys, d), np.nan, float32), 0)
                for tile in (0, 1)
            ]
        ).ravel()
        for x in (k, v)
    ]
    out = np.full(6, np.nan, float32), np.full(6, np.nan, float32), np.full((6, d), np.nan, float32)
    contract = Contract(
        max_per_thread=dict.fromkeys("qkv", 4 * keys * d),
        share=2.5,
        barriers=(0, 0),
        warp_barriers=(0, 0),
        hint="A visit reads each of its keys once, changes its own row alone, and waits for no thread.",
    )
    kernels.judge(
        kernel_that_visits(visit, keys, room, d),
        (2, 3, 0, 12 * d),
        (q.ravel(), *tiles, scale, m, l, o),
        out,
        wanted,
        rng,
        call,
        contract,
        tolerance=1e-4,
        what="m, l and o of six rows after both tiles",
        float64=0,
        hint=RESCALE,
        refused=is_bug,
    )


def visited(scores, v, m, l, o):
    """Return (m, l, o) of rows after these scores, in float64."""
    new_m = np.maximum(m, scores.max(1))
    shrink, p = np.exp(m - new_m), np.exp(scores - new_m[:, None])
    return new_m, l * shrink + p.sum(1), o * shrink[:, None] + p @ v.astype(np.float64)


@exercise("5.3", "flash_kernel")
def ex05_3(flash_kernel, rng):
    kernels.jitted(flash_kernel, "flash_kernel", allowed=())
    for n, d, rows, columns in SHAPES:
        for longer in (False, True):
            verify(
                flash_kernel, rng, n, d, rows, columns, 2 * (rows + columns) * d, loads_shared, longer=longer
            )
    for scores in LOUD:
        verify(flash_kernel, rng, 11, 2, 4, 3, 28, loads_shared, scores)
    return (
        f"{len(SHAPES)} shapes, from 1 row to {max(n for n, *_ in SHAPES)}, blocks of up to 64 threads,"
        f" ragged tiles of queries and of keys, up to {most_tiles(SHAPES)} key tiles, arrays longer than"
        " n rows"
    )


def most_tiles(shapes):
    """Return the maximum number of key tiles of these shapes."""
    return max(-(-n // columns) for n, _, _, columns in shapes)


def loads_shared(n, d, rows, columns):
    """Return the contract: each thread loads its part of each tile and writes its own row."""
    blocks, tiles = -(-n // rows), -(-n // columns)
    per_tile = -(-columns // rows) * d  # a key for each thread is a fair part, too
    keys = {"k": blocks * tiles * columns * d, "v": blocks * tiles * columns * d}
    each = {"q": d, "k": tiles * per_tile, "v": tiles * per_tile, "o": 2 * d}
    return Contract(
        "q k v o",
        max_per_thread=each,
        max_total=keys | {"q": blocks * rows * d},
        barriers=(1, 2 * tiles + 2),
        threads=n,
        blocks=blocks,
        share=2.5,
        hint=SHARED,
    )


RESCALE = (
    "When m grows, l and the row of o shrink by exp(old m - new m); then the key's weight is exp(score -"
    " new m)."
)
POISON = "NaN: an element of o that no thread has written, a 0 / 0, or -inf - (-inf)."
WHERE = (
    "Does each tile start at the correct index? Does the last one have fewer keys? Does each query start with"
    " its own m, l, o and end with a division by l?"
)


# Running an answer ------------------------------------------------------------------------------------------


def verify(kernel, rng, n, d, rows, columns, numbers, contract, scores="scores about 0", longer=False):
    """Run the kernel in `sim`. Reject findings, outputs that differ from float64 attention, and violations of
    `contract`."""
    q, k, v, scale = inputs.attention(rng, n, n, d, scores)
    wanted = inputs.attended(q, k, v, scale)[1].ravel()
    blocks = -(-n // rows)
    call = (
        f"{scores}: kernel[{blocks}, {rows}, 0, {4 * numbers}](q, k, v, o, n={n}, d={d}, columns={columns},"
        f" scale={scale:.3g})"
    )
    flat, out = [x.ravel() for x in (q, k, v)], np.full(n * d, np.nan, float32)
    if longer:
        flat = [inputs.longer(x) for x in flat]
        out, wanted = (inputs.longer(x, behind=inputs.SENTINEL) for x in (out, wanted))
    kernels.judge(
        kernel,
        (blocks, rows, 0, 4 * numbers),
        (*flat, n, d, columns, scale),
        (out,),
        (wanted,),
        rng,
        call,
        contract(n, d, rows, columns),
        tolerance=1e-5 if scores == "scores about 0" else 1e-4,
        what="a wrong output",
        float64=0,
        hint=lambda got: POISON if np.isnan(got).any() else WHERE,
        refused=is_bug,
        place=3,
    )


def is_bug(finding):
    """Return whether a finding counts as a bug. Among warnings, only races (including duplicate loads) and
    negative indices count."""
    return finding.severity == "error" or finding.kind.startswith(("race", "negative-index"))


def kernel_that_loads(load_tile):
    """Return a kernel whose blocks each load one tile into shared memory and copy it out."""

    def load_and_copy(array, start, out):
        tile = cuda.shared.array(0, float32)
        load_tile(tile, array, start + cuda.blockIdx.x * tile.size)
        cuda.syncthreads()
        for e in range(cuda.threadIdx.x, tile.size, cuda.blockDim.x):
            out[cuda.blockIdx.x, e] = tile[e]

    return load_and_copy


def kernel_that_visits(visit, keys, room, d):
    """Return a kernel in which each thread visits two tiles of keys for one row. Only o is in shared memory.
    Rows are in the reverse order of threads, so that a visit has to use its argument `row`."""

    def visit_twice(q, k, v, scale, m, l, o, new_m, new_l, new_o):
        o_tile = cuda.shared.array(0, float32)
        t = cuda.blockDim.x - 1 - cuda.threadIdx.x
        first = cuda.blockIdx.x * cuda.blockDim.x
        i = first + t
        for c in range(d):
            o_tile[t * d + c] = o[i, c]
        q_tile = q[first * d : (first + cuda.blockDim.x) * d]
        my_m, my_l = m[i], l[i]
        for start in range(0, 2 * room * d, room * d):
            my_m, my_l = visit(
                t,
                q_tile,
                k[start : start + room * d],
                v[start : start + room * d],
                o_tile,
                keys,
                d,
                scale,
                my_m,
                my_l,
            )
        new_m[i], new_l[i] = my_m, my_l
        for c in range(d):
            new_o[i, c] = o_tile[t * d + c]

    return visit_twice
