"""Checks of lesson 13: the cells that a backward tile loads; dT, dS, dW and dQ of one tile, run in `sim`; and
four faulty passes to diagnose, for lesson 13c."""

import functools
from types import FunctionType

import numpy as np
from numba import cuda
from numpy import float32

from course.check import inputs, kernels, letters
from course.check.backward_faults import FAULTS
from course.check.backward_tiles import added, beyond, normal, poison, replaced, taps_met, tiles
from course.check.contract import Contract
from course.check.harness import compare, exercise, fail, instance, numbers
from sim.nouns import plural
from sim.observers import DEFAULT
from sim.observers.trace import Trace
from sim.observers.traffic import Traffic

TOLERANCE = 1e-4
DESCRIPTION = (
    "every visited tile of 1 to 11 tokens and one of 70, 1 × 1 to 6 × 8 and 2 × 13 taps, in a random order of"
    " the threads"
)


@exercise("13.1", "to_load")
def ex13_1(to_load, rng):
    taps = [(3, 4), (1, 1), (3, 3), (2, 2), (1, 4), (4, 1), (6, 11), (5, 2)]
    for number, (c_q, c_k) in enumerate(taps):
        i0, rows, j0, columns = rng.integers((0, 1, 0, 1), (20, 9, 20, 9)).tolist()
        if not number:  # the tile in the corner, whose halo lies outside
            i0 = j0 = 0
        call = f"to_load(i0={i0}, j0={j0}, rows={rows}, columns={columns}, c_q={c_q}, c_k={c_k})"
        got = to_load(i0, j0, rows, columns, c_q, c_k)
        if not (isinstance(got, tuple | list) and len(got) == 2):
            fail(
                "to_load must return two regions, each (top, bottom, left, right): of dT and of S0",
                call=call,
                got=repr(got),
            )
        readers = readers_of(i0, j0, rows, columns, c_q, c_k)
        for name, mine, cells in [("dT", got[0], readers), ("S0", got[1], read_by(readers, c_q, c_k))]:
            compare(
                mine,
                frame(cells),
                what=f"(top, bottom, left, right) of {name}",
                call=call,
                tolerance=0,
                hint=REACH[name],
            )
            for side in mine:
                instance(
                    side,
                    (int, np.integer),
                    what="whole numbers, to count with",
                    call=call,
                    hint="// divides whole numbers, / makes a float.",
                )
    return f"{len(taps)} tiles, taps odd and even, square and oblong"


@exercise("13.2", "gradient_of_t")
def ex13_2(gradient_of_t, rng):
    kernels.jitted(gradient_of_t, "gradient_of_t", allowed=())

    def t_kernel(s_tile, w, log_sum, delta, i0, j0, p_tile, d_t_tile):
        gradient_of_t(p_tile, d_t_tile, s_tile, w, log_sum, delta, i0, j0)

    for tile in tiles(rng):
        of_t = tile.of_t
        outputs = poison(of_t), beyond(tile.cut(tile.pass_.d_p, of_t))
        given = tile.s, tile.pass_.w, tile.pass_.log_sum, tile.pass_.delta, tile.i0, of_t[1]
        call = (
            f"gradient_of_t(p_tile, d_t_tile, s_tile, w {tile.taps}, log_sum, delta, i0={tile.i0},"
            f" j0={of_t[1]}), {plural(len(tile.pass_.log_sum), 'token')}"
        )
        shared = launched(t_kernel, tile.threads, given, outputs, rng, call, min(of_t[2:]))
        wanted = beyond(tile.cut(tile.pass_.p, of_t)), beyond(tile.cut(tile.pass_.d_t, of_t))
        agree("P", outputs[0], wanted[0], call, p_mistakes(tile), P_LINE)
        agree("dT", outputs[1], wanted[1], call, t_mistakes(tile), T_LINE)
        shared()
    for scores in inputs.TO_1000:
        given, outputs, wanted = loud_tile(rng, scores)
        call = (
            f"{scores}: gradient_of_t(p_tile, d_t_tile, s_tile (6, 6), w (1, 1), log_sum, delta, i0=0, j0=0),"
            " 6 tokens"
        )
        launched(t_kernel, 5, given, outputs, rng, call, 6)
        for name, got, right in zip(("P", "dT"), outputs, wanted, strict=True):
            compare(got, right, what=name, call=call, tolerance=TOLERANCE, hint=LOUD_LINE)
    return f"P and dT: {DESCRIPTION}; scores to ±{inputs.FAR}, L and D as they are handed over"


def loud_tile(rng, scores, n=6):
    """(inputs, outputs, (P, dT)) of gradient_of_t for one tap, 1, and scores as inputs.TO_1000 draws them, so
    that T is S0; L and D are drawn by themselves."""
    s = np.round(8 * (inputs.TO_1000[scores](rng, n) + rng.standard_normal((n, n)))) / 8  # exact in float32
    seen = np.tri(n, dtype=bool)
    log_sum = np.where(seen, s, -np.inf).max(1) + rng.integers(0, 16, n) / 8
    delta, d_p = rng.standard_normal(n), rng.standard_normal((n, n))
    delta[-2] = 0
    d_p = np.where(s - log_sum[:, None] < -25, 1e9, d_p)  # where P is all but 0, and yet no other number
    p = np.exp(np.where(seen, s - log_sum[:, None], -np.inf))
    d_t = p * (d_p - delta[:, None])
    s, log_sum, delta, d_p, p, d_t = (
        x.astype(float32) for x in (np.where(seen, s, 0), log_sum, delta, d_p, p, d_t)
    )
    return (
        (s, np.ones((1, 1), float32), log_sum, delta, 0, 0),
        (poison((0, 0, n, n)), beyond(d_p)),
        (beyond(p), beyond(d_t)),
    )


@exercise("13.3", "gradient_of_s")
def ex13_3(gradient_of_s, rng):
    kernels.jitted(gradient_of_s, "gradient_of_s", allowed=())

    def s_kernel(d_t_tile, w, i0, j0, rows, columns, d_s_tile):
        gradient_of_s(d_s_tile, d_t_tile, w, i0, j0, rows, columns)

    for tile in tiles(rng):
        d_s = poison(tile.owned)
        call = (
            f"gradient_of_s(d_s_tile, d_t_tile, w {tile.taps}, i0={tile.i0}, j0={tile.j0}, rows={tile.rows},"
            f" columns={tile.columns})"
        )
        inputs = beyond(tile.d_t), tile.pass_.w, tile.i0, tile.j0, tile.rows, tile.columns
        shared = launched(s_kernel, tile.threads, inputs, [d_s], rng, call, min(tile.rows, tile.columns))
        agree("dS", d_s, beyond(tile.d_s), call, s_mistakes(tile), S_LINE)
        shared()
    return f"dS: {DESCRIPTION}"


@exercise("13.4", "add_d_w")
def ex13_4(add_d_w, rng):
    kernels.jitted(add_d_w, "add_d_w", allowed=())

    def w_kernel(d_t_tile, s_tile, w, rows, columns, right, tap_sums):
        add_d_w(tap_sums, d_t_tile, s_tile, w, rows, columns, right)

    for tile in tiles(rng):
        before = normal(rng, 14, 14)
        sums = before.copy()
        call = (
            f"add_d_w(tap_sums, d_t_tile, s_tile, w {tile.taps}, rows={tile.rows}, columns={tile.columns},"
            f" right={tile.right})"
        )
        inputs = beyond(tile.d_t), tile.s, tile.pass_.w, tile.rows, tile.columns, tile.right
        shared = launched(w_kernel, tile.threads, inputs, [sums], rng, call, min(tile.taps))
        mistakes = {hint: added(before, more) for hint, more in w_mistakes(tile).items()}
        agree(
            "tap_sums",
            sums,
            added(before, taps_met(tile)),
            call,
            mistakes | {NOT_ADDED: replaced(before, taps_met(tile))},
            W_LINE,
        )
        shared()
    return f"dW: {DESCRIPTION}"


@exercise("13.5", "add_d_q")
def ex13_5(add_d_q, rng):
    kernels.jitted(add_d_q, "add_d_q", allowed=())

    def q_kernel(d_s_tile, k, j0, rows, columns, d_q_tile):
        add_d_q(d_q_tile, d_s_tile, k, j0, rows, columns)

    for tile in tiles(rng):
        before, k, d_s = normal(rng, tile.rows + 1, 5), tile.pass_.k, tile.d_s.copy()
        d_s[::2, 0] = 0  # a zero is no end: more numbers may follow
        d_q = before.copy()
        call = (
            f"add_d_q(d_q_tile, d_s_tile, k {k.shape}, j0={tile.j0}, rows={tile.rows},"
            f" columns={tile.columns})"
        )
        given = beyond(d_s), k, tile.j0, tile.rows, tile.columns
        shared = launched(q_kernel, tile.threads, given, [d_q], rng, call, min(tile.rows, k.shape[1]))
        more = d_s @ k[tile.j0 : tile.j0 + tile.columns]
        mistakes = {NOT_ADDED: replaced(before, more), FIRST_KEYS: added(before, d_s @ k[: tile.columns])}
        agree("d_q_tile", d_q, added(before, more), call, mistakes, Q_LINE)
        shared()
    return f"dQ: {DESCRIPTION}"


@exercise("13.7", "diagnosis")
def ex13_7(diagnosis, rng):
    letters.judge(diagnosis(), truth, EVIDENCE)
    return "all four identified by the rows that are wrong"


# 13.1 -------------------------------------------------------------------------------------------------------

REACH = {
    "dT": (
        "S0[r, c] is read by T[r + P_q - a, c + P_k - b]: rows from r to r + P_q, columns from c - P_r to c"
        " + P_k. Compared with the forward pass, left and right are swapped."
    ),
    "S0": (
        "To recompute these T, the tile also needs the scores that they read: P_q rows above the first, P_k"
        " columns to the left, P_r to the right."
    ),
}


def readers_of(i0, j0, rows, columns, c_q, c_k):
    """Return the cells of T that read an owned cell of S0."""
    left = (c_k - 1) // 2
    owned = [(r, c) for r in range(i0, i0 + rows) for c in range(j0, j0 + columns)]
    return {(r + c_q - 1 - a, c + left - b) for r, c in owned for a in range(c_q) for b in range(c_k)}


def read_by(cells, c_q, c_k):
    """Return the cells of S0 that the given cells of T read."""
    left = (c_k - 1) // 2
    return {(i - (c_q - 1) + a, j - left + b) for i, j in cells for a in range(c_q) for b in range(c_k)}


def frame(cells):
    """Return the bounding box (top, bottom, left, right) of cells, with exclusive bottom and right."""
    i, j = zip(*cells, strict=True)
    return min(i), max(i) + 1, min(j), max(j) + 1


# A launch on one tile ---------------------------------------------------------------------------------------


def launched(kernel, threads, given, outputs, rng, call, rows):
    """Launch a kernel that calls one function. Return a function to call once the values are correct.

    It requires `rows` working threads, or all of them: the smaller side of the results, because an answer may
    deal out rows or columns.
    """
    observers = *DEFAULT, Trace(limit=kernels.EVENTS), Traffic
    report = kernels.run(
        kernel, (1, threads), given, outputs, rng, call, refused=is_bug, float64=0, observers=observers
    )
    contract = Contract(threads=min(threads, rows), atomics=(0, 0), hint=TOGETHER)
    return functools.partial(contract.enforce, kernel, report, call)


TOGETHER = (
    "The given loop distributes the entries over the threads. Each entry belongs to one thread, so no"
    " addition needs to be atomic."
)


def is_bug(finding):
    """Return whether a finding is a bug. Negative indices such as w[-1 - a] are not, because Numba wraps
    them."""
    return finding.kind != "negative-index"


# What the likely mistakes give ------------------------------------------------------------------------------

P_LINE = (
    "P = exp(T - L) where 0 <= key <= query < N, else 0; the query of row i is i0 + i, the key of column j is"
    " j0 + j."
)
NOT_YET_L = "Equal to exp(T): each row has an L, log_sum[query]."
T_LINE = "dT = P * (dP - D), with dP as it came in, in d_t_tile, and D = delta[query]; 0 where P is 0."
LOUD_LINE = (
    "P = exp(T - L), in a single exponential: exp(T) alone overflows float32 from 89 on, and inf times 0 is"
    " NaN. L is log_sum[query]."
)
NO_D = "Equal to P * dP: D, delta[query], is missing."
NO_P = "Equal to dP - D where P is not 0: multiply by P."
LEFT_ALONE = "Where P is 0, dT must be 0, but your function has left dP there."
S_LINE = (
    "Row i, column j of dS: Σ w[a, b] · d_t_tile[i + P_q - a, j + c_k - 1 - b], and 0 where the key j0 + j"
    " comes after the query i0 + i."
)
NO_MASK = "Equal to the result without the mask: in the future S0 is a constant 0, so dS is 0."
NOT_TURNED = (
    "Equal to the convolution of the forward pass. Which T read this score? Lower rows, with the taps"
    " reversed."
)
COLUMN_OFF = (
    "Off by a column: column 0 of d_t_tile is key j0 - P_r. With the tap b the reader of column j is in"
    " column j + P_r + P_k - b."
)
W_LINE = "tap_sums[a, b] += Σ over the owned i, j of d_t_tile[i, right + j] · s_tile[i + a, right + j + b]."
HALO_ROWS = "The rows below are counted too, but they belong to another tile. Sum over `rows` rows."
HALO_COLUMNS = (
    "Columns of the halo are counted too: the owned columns of d_t_tile are right to right + columns - 1."
)
SHIFTED = "Summed over columns 0 to columns - 1 of d_t_tile: the owned ones begin at `right`."
Q_LINE = "d_q_tile[i, c] += Σ over the columns j of d_s_tile[i, j] · k[j0 + j, c]."
NOT_ADDED = "Correct for a single tile, but it overwrites the sum of the earlier tiles: use += ."
FIRST_KEYS = "Column j of the tile is key j0 + j."


def agree(name, got, wanted, call, mistakes, hint):
    """Compare one result with the expected values. If a known mistake explains every number, show its
    hint."""
    known = (
        said for said, mistaken in mistakes.items() if np.allclose(got, mistaken, 1e-4, 1e-4, equal_nan=True)
    )
    compare(
        got,
        wanted,
        what=name,
        call=call,
        tolerance=TOLERANCE,
        hint=next(known, poisoned(got, wanted) or hint),
    )


def poisoned(got, wanted):
    """Return the hint for a NaN where a number is expected, or for a number outside the tile's part."""
    mine, theirs = np.isnan(numbers(got)), np.isnan(numbers(wanted))
    if (mine & ~theirs).any():
        return (
            "NaN fills everything that must not be read or was not written: did you read outside the tile's"
            " part, or leave an entry unwritten?"
        )
    return "A number was written outside the tile's part." if (theirs & ~mine).any() else None


def p_mistakes(tile):
    log_sum = tile.cut(tile.pass_.log_sum[:, None] + np.zeros_like(tile.pass_.p), tile.of_t)
    return {NOT_YET_L: beyond(tile.p * np.exp(log_sum))}


def t_mistakes(tile):
    d_p, delta = (
        tile.cut(matrix, tile.of_t)
        for matrix in (tile.pass_.d_p, tile.pass_.delta[:, None] + np.zeros_like(tile.pass_.p))
    )
    seen = tile.p > 0
    return {
        NO_D: beyond(tile.p * d_p),
        NO_P: beyond(np.where(seen, d_p - delta, 0)),
        LEFT_ALONE: beyond(np.where(seen, tile.d_t, d_p)),
    }


def s_mistakes(tile):
    c_q, c_k = tile.taps
    w, d_t = tile.pass_.w, tile.d_t
    future = np.arange(tile.columns) + tile.j0 > np.arange(tile.rows)[:, None] + tile.i0

    def summed(taps, columns=0):
        room = np.pad(d_t, ((0, 0), (1, 1)))
        places = [(a, b) for a in range(c_q) for b in range(c_k)]
        return sum(
            taps[a, b] * room[a : a + tile.rows, b + 1 + columns : b + 1 + columns + tile.columns]
            for a, b in places
        )

    def masked(d_s):
        return beyond(np.where(future, float32(0), d_s))

    turned = w[::-1, ::-1]
    return {
        NO_MASK: beyond(summed(turned)),
        NOT_TURNED: masked(summed(w)),
        COLUMN_OFF: masked(summed(turned, 1)),
        COLUMN_OFF + " ": masked(summed(turned, -1)),
    }


def w_mistakes(tile):
    height, width = tile.d_t.shape
    return {
        SHIFTED: taps_met(tile, first=0),
        HALO_ROWS: taps_met(tile, height=height),
        HALO_COLUMNS: taps_met(tile, first=0, width=width),
        HALO_ROWS + " " + HALO_COLUMNS: taps_met(tile, height, 0, width),
    }


# 13.7 -------------------------------------------------------------------------------------------------------

truth = letters.drawn(["no mask", "halo rows", "no rows below", "taps twice"])


def without_name(function):
    """Return a copy of a device function, so that the functions of FAULTS cannot be recognised."""
    original = function.py_func
    copy = FunctionType(original.__code__, original.__globals__, "under_test", original.__defaults__)
    copy.__module__ = original.__module__
    return cuda.jit(device=True)(copy)


under_test = {
    letter: {name: without_name(function) for name, function in FAULTS[fault].items()}
    for letter, fault in truth.items()
}
EVIDENCE = (
    "Without the rows below, dQ is wrong in the last P_q rows of a tile, and dV is correct. Without the mask,"
    " dQ is wrong in all rows of a diagonal tile but the last, and dV is correct. Halo rows that count twice"
    " spoil dK and dV. Taps summed over the halo spoil dW alone."
)
