"""Checks for lesson 21: Triton kernels, run by kernels.triton.interpreter with their programs in random
order. Where Triton is installed, each kernel is also compiled for sm_80, and its PTX runs in the
simulator."""

import operator
from functools import cache, partial

import numpy as np
import torch

from course.check.harness import agree, exercise, explained, fail
from course.check.inputs import DEEP, FAR, LOUD, attended, attention, normal
from course.check.trial import tried
from course.check.triton_kernels import at_most, by_triton, in_tiles, jitted, judged, owned
from kernels import reference
from kernels.triton.launch import recorded, simulated
from kernels.triton.optional import tl, triton
from kernels.triton.small import softmax_row
from sim.nouns import plural
from sim.observers import Trace

LANES = 32

# 21.1 -------------------------------------------------------------------------------------------------------

# rows, n, ROWS, WIDTH
ROWS_AND_TILES = [
    (5, 10, 4, 16),
    (1, 1, 1, 1),
    (8, 16, 4, 16),
    (7, 33, 2, 64),
    (3, 5, 8, 8),
    (2, 200, 2, 256),
]
ROWS_AND_TILES += [(9, 6, 4, 8)]
DEEPER = 2.0**80  # times DEEP's scores, so that -1e30 does not pass for minus infinity


@exercise("21.1", "softmax_rows")
def ex21_1(softmax_rows, rng):
    jitted(softmax_rows, "softmax_rows")
    tried(f"scores to ±{FAR}", DEEP)
    for rows, n, tall, wide in ROWS_AND_TILES:
        kinds = rng.permutation(list(LOUD))
        kinds = [kinds[row % len(kinds)] for row in range(rows)]
        x = np.array([LOUD[kind](rng, n) * (DEEPER if kind == DEEP else 1) for kind in kinds], np.float32)
        e = np.exp(np.float64(x) - x.max(1, keepdims=True))
        wanted = e / e.sum(1, keepdims=True)
        grid, constants = (-(-rows // tall),), dict(ROWS=tall, WIDTH=wide)
        call = f"softmax_rows of {plural(rows, 'row')} of {n}, tiles of {tall} × {wide}"
        given = x, np.full_like(x, 7), rows, n
        hint = partial(softmax_hint, x, wanted)
        # far from 0 a factor of log2(e) costs digits, whether before or after the difference
        near = np.repeat([1e-5 if kind in ("scores about 0", DEEP) else 1e-3 for kind in kinds], n)
        arrays = judged(
            softmax_rows, grid, given, 1, wanted, rng, call, tolerance=near, hint=hint, **constants
        )
        at_most(
            arrays, "x", "loads", 1, call, "A tile is a value: load it once, and use it as often as you like."
        )
        in_tiles(
            arrays,
            "x",
            "loads",
            tall * wide,
            call,
            "A tile has ROWS × WIDTH elements, for any ROWS and WIDTH.",
        )
        at_most(arrays, "y", "loads", 0, call, "y is an output.")
        at_most(arrays, "y", "stores", 1, call, "Store the whole tile once.")
        owned(arrays, "y", np.arange(rows * n) // (n * tall), call)
    said = by_triton(softmax_rows, grid, given, 1, wanted, call, tolerance=near, **constants)
    tried(said)
    return f"{len(ROWS_AND_TILES)} sizes, the programs in a random order"


def softmax_hint(x, wanted, got):
    if np.isnan(got).any():
        return (
            "NaN: take the maximum of each row separately. The masked elements of a load are undefined"
            " without other=."
        )
    return explained(
        got,
        {"Compute each row separately: the axis along a row is 1.": wanted * 0 + 1 / max(1, len(x))},
        "e = exp(s - the row's maximum), divided by the row's sum of e. Masked elements must count as -inf.",
    )


# 21.2 -------------------------------------------------------------------------------------------------------


@cache
def loaded_by(width, num_warps):
    """{column: the threads that load it} of one row of `width` numbers, seen in the simulator: the softmax
    kernel's recorded PTX."""
    seen = {}

    def run(*launched, **options):
        watching = dict(compiled=recorded, options=dict(observers=(Trace,)))
        seen["report"] = simulated(*launched, **options, **watching)

    softmax_row(torch.zeros(1, width), num_warps, run=run)
    trace = seen["report"].recording
    x = [home.name for home in trace.arrays].index("x")
    threads = {}
    for column, thread in zip(trace.element[trace.array == x], trace.thread[trace.array == x]):
        threads.setdefault(int(column), []).append(int(thread))
    return {column: sorted(threads[column]) for column in sorted(threads)}


RECORDED_ROWS = [(128, 8), (1024, 4), (64, 2)]


@exercise("21.2", "holders")
def ex21_2(holders, rng):
    seen = [(w, size, loaded_by(w, size)) for w, size in RECORDED_ROWS]
    for width, num_warps, threads in seen:
        for j in rng.choice(width, 8, replace=False):
            right_threads(holders, int(j), width, num_warps, threads[int(j)], "seen in its PTX")
    for _ in range(60):
        width, num_warps = 2 ** int(rng.integers(0, 13)), 2 ** int(rng.integers(0, 6))
        j = int(rng.integers(width))
        threads = [t for t in range(LANES * num_warps) if t % width == j % (LANES * num_warps)]
        right_threads(holders, j, width, num_warps, threads, "by the rule")
    return f"{len(seen)} widths in recorded PTX, 60 more by the rule"


def right_threads(holders, j, width, num_warps, wanted, source):
    got = holders(j, width, num_warps)
    call = f"holders({j}, {width}, {num_warps})"
    try:
        mine = sorted(operator.index(thread) for thread in got)
    except TypeError:
        fail("wanted a list of threads, whole numbers", call=call, got=repr(got))
    if mine != wanted:
        fail(
            f"other threads, {source}",
            call=call,
            wanted=str(wanted),
            got=str(mine),
            hint="Threads are numbered across all warps. Distinguish two cases: the row has more elements"
            " than the program has threads, or fewer.",
        )


# 21.3 -------------------------------------------------------------------------------------------------------

FLASHES = [  # n, d, ROWS, KEYS, WIDTH, causal, scores, whether the last key is loud
    (20, 5, 16, 16, 16, True, "scores about 0", True),
    (1, 1, 16, 16, 16, False, "scores about 0", False),
    (41, 16, 16, 32, 16, False, "scores that climb to 1000", False),
    (37, 20, 16, 16, 32, True, "scores that fall to -1000", False),
    (33, 3, 32, 16, 16, False, DEEP, False),
    (260, 7, 32, 16, 16, False, "the last key far above the rest", False),
    (50, 4, 32, 16, 16, True, DEEP, False),
    (90, 3, 64, 16, 16, True, "scores that climb to 1000", False),
    (45, 4, 16, 32, 16, True, "scores about 0", False),
    (64, 16, 16, 16, 16, True, "scores far above 0", False),
    (35, 20, 16, 16, 32, False, "scores about 0", False),
    (40, 16, 16, 16, 16, True, "scores about 0", False),
]


@exercise("21.3", "flash")
def ex21_3(flash, rng):
    jitted(flash, "flash")
    for n, d, rows, keys, width, causal, scores, loud in FLASHES:
        q, k, v, scale = attention(rng, n, n, d, scores, future=n - 1 if loud else None)
        k *= DEEPER if scores == DEEP else 1
        seen = np.tri(n, dtype=bool) if causal else np.True_
        wanted = attended(q, k, v, scale, seen)[1]
        grid = (-(-n // rows),)
        constants = dict(CAUSAL=causal, ROWS=rows, KEYS=keys, WIDTH=width)
        call = (
            f"flash of {plural(n, 'row')} of {d}, {scores},"
            f" {', '.join(f'{a}={b}' for a, b in constants.items())}"
        )
        given = q, k, v, scale, np.full_like(q, 7), n, d
        mistakes = {
            "Multiply the scores by scale.": attended(q, k, v, 1.0, seen)[1],
            "The scores are multiplied by scale twice: q_tile already contains it.": attended(
                q, k, v, scale**2, seen
            )[1],
            "Mask later keys only with CAUSAL." if not causal else "Mask later keys with CAUSAL.": (
                attended(q, k, v, scale, np.tri(n, dtype=bool) if not causal else np.True_)[1]
            ),
        }
        hint = partial(flash_hint, wanted, causal, mistakes)
        near = 1e-5 if scores == "scores about 0" else 1e-3  # log2(e) · 1000 has lost four digits
        arrays = judged(flash, grid, given, 4, wanted, rng, call, tolerance=near, hint=hint, **constants)
        ends = [min(n, (p + 1) * rows) if causal else n for p in range(grid[0])]
        tiles = np.repeat(np.arange(n) // keys * keys, d)
        visits = sum(tiles < end for end in ends)  # programs that need the tile of each key
        needed = [-(-end // keys) for end in ends]
        at_most(arrays, "q", "loads", 1, call, "A program's queries are loaded once, before the loop.")
        for name in "kv":
            once = "Load each tile of keys once: the loop steps by KEYS."
            at_most(arrays, name, "loads", 1, call, once, by="most")
            late = "With CAUSAL, load no tile after the program's last query: the loop ends there."
            at_most(arrays, name, "loads", visits, call, late)
            stepped = (
                "The loop goes over the n keys in tiles of KEYS, for any KEYS: no tile begins after them."
            )
            in_tiles(arrays, name, "loads", keys * width, call, stepped, needed)
        at_most(arrays, "o", "loads", 0, call, "o_tile stays in the program until the loop is done.")
        at_most(arrays, "o", "stores", 1, call, "One store, after the loop.")
        owned(arrays, "o", np.arange(n * d) // (d * rows), call)
    said = by_triton(flash, grid, given, 4, wanted, call, **constants)
    tried(said)
    return f"{len(FLASHES)} launches, causal and not, the programs in a random order"


def flash_hint(wanted, causal, mistakes, got):
    if np.isnan(got).any():
        return "NaN: masked scores must be -inf, and m must be the maximum of all scores so far."
    if agree(got, wanted, 5e-3).all():
        return 'Nearly correct: tl.dot keeps all 24 bits of a float32 only with input_precision="ieee".'
    later = ", and with CAUSAL so do keys after the query" if causal else ""
    return explained(
        got,
        mistakes,
        f"Keys after the last one need a score of -inf{later}. Multiply l and o_tile by the same shrink.",
        tolerance=1e-4,
    )


# 21.4 -------------------------------------------------------------------------------------------------------

VERDICTS = {"A": "outside", "B": "programs", "C": "programs", "D": "none", "E": "threads"}
WORDS = "outside", "programs", "threads", "none"
EXPLANATIONS = {
    "A": "Look at i = n - 1 in every load.",
    "B": "Every program loads, and stores to, all columns of y.",
    "C": "x[32] is loaded by one program and stored to by the next.",
    "D": "Loads may overlap as they like; what do the stores do?",
    "E": "One program, two warps: which thread stores scratch[31], and which one loads it?",
}


@exercise("21.4", "verdicts")
def ex21_4(verdicts, rng):
    got = verdicts()
    if not isinstance(got, dict) or set(got) != set(VERDICTS):
        fail(
            "wanted a dict, a word for each kernel", wanted=str(dict.fromkeys(VERDICTS, "...")), got=repr(got)
        )
    for name, word in VERDICTS.items():
        if got[name] not in WORDS:
            fail(f"kernel {name}: {got[name]!r} is not one of the words", hint=" ".join(map(repr, WORDS)))
        if got[name] != word:
            fail(f"kernel {name}: not {got[name]!r}", hint=EXPLANATIONS[name])
    return "five kernels"


# 21.5 -------------------------------------------------------------------------------------------------------

CONVOLUTIONS = [(16, 3, 4), (16, 1, 1), (32, 4, 3), (16, 1, 5), (16, 5, 1), (16, 7, 6), (32, 15, 15)]


@exercise("21.5", "convolved")
def ex21_5(convolved, rng):
    jitted(convolved, "convolved")
    kernel = calling(convolved)
    for place, (size, c_q, c_k) in enumerate(CONVOLUTIONS):
        unit = np.float32(2 ** (10 * (place % 3) - 10))  # large scores and small taps, and the reverse
        x, taps = normal(rng, size, size) * unit, normal(rng, c_q, c_k) / unit
        tall, wide = size - c_q + 1, size - c_k + 1
        given = x, taps, c_q, c_k, np.zeros((tall, wide), np.float32), tall, wide
        wanted = correlated(x, taps)
        near = np.maximum(1e-5, 1e-6 * correlated(abs(x), abs(taps))).ravel()  # in any order of adding
        call = f"convolved of a tile of {size} × {size} with {c_q} × {c_k} taps"
        hint = partial(convolved_hint, x, taps, wanted)
        judged(kernel, (1,), given, 4, wanted, rng, call, tolerance=near, hint=hint, SIZE=size)
        if (size, c_q, c_k) == CONVOLUTIONS[0]:
            first = given, wanted
    given, wanted = first
    said = by_triton(kernel, (1,), given, 4, wanted, call, SIZE=16)
    tried(said)
    return f"{len(CONVOLUTIONS)} sizes of tile and taps"


def calling(convolved):
    """A kernel that convolves one tile by the learner's function, and stores what is right of it."""

    @triton.jit
    def convolve(x, taps, c_q, c_k, y, tall, wide, SIZE: tl.constexpr):
        i, j = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
        t = convolved(tl.load(x + i * SIZE + j), taps, c_q, c_k, SIZE)
        tl.store(y + i * wide + j, t, mask=(i < tall) & (j < wide))

    return convolve


def correlated(x, taps):
    """Return Σ_ab taps[a, b] x[i + a, j + b] in float64, at the positions where every term is inside x."""
    windows = np.lib.stride_tricks.sliding_window_view(np.float64(x), taps.shape)
    return np.einsum("ijab,ab->ij", windows, np.float64(taps))


def convolved_hint(x, taps, wanted, got):
    if agree(got, wanted, 2e-2).all():
        return 'Nearly correct: tl.dot keeps all 24 bits of a float32 only with input_precision="ieee".'
    if np.isnan(got).any():
        return "NaN: the masked elements of a load are undefined, unless you pass other=."
    return explained(
        got,
        {
            "Each row of taps reads its own row of s: row i + a, for T's row i.": correlated(
                x[: len(x) - len(taps) + 1], taps.sum(0, keepdims=True)
            ),
            "The taps are flipped in both directions: T reads to the right of j and below i.": correlated(
                x, taps[::-1, ::-1]
            ),
            "The taps are flipped from left to right.": correlated(x, taps[:, ::-1]),
            "The taps are flipped from top to bottom.": correlated(x, taps[::-1]),
        },
        "Try 4 × 4 and taps (1, 2) on paper: which entries of the band matrix produce column j?",
        tolerance=1e-4,
    )


def whole_layer(q, k, v, taps):
    """Compute convolutional attention in float64 with the reference, for (n, d) and (c_q, c_k)."""
    given = (x.double()[None, None] for x in (q, k, v))
    return reference.conv_attention(*given, taps.double()[None])[0, 0]
