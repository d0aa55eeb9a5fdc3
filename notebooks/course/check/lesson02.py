"""Checks of lesson 02: the update by one tile, attention with queries in the outer loop, and byte counts."""

import numbers

import numpy as np
import torch

from course.check import inputs, tensors
from course.check.harness import compare, exercise, fail, instance, text
from kernels.reference import attention, tiled

# (queries, keys, d, rows of a tile, columns of a tile): one token, one short tile, ragged ends, several whole
# tiles, many keys, many queries.
SHAPES = [
    *[(1, 1, 1, 1, 1), (1, 1, 3, 4, 4), (3, 3, 2, 8, 8), (5, 5, 4, 2, 3)],
    *[
        (8, 8, 4, 4, 2),
        (13, 13, 3, 5, 4),
        (4, 11, 5, 3, 4),
        (11, 4, 5, 4, 3),
        (9, 330, 3, 4, 5),
        (130, 7, 2, 3, 4),
        (900, 5, 2, 3, 4),
    ],
]


# (queries, keys of each tile, d): one number, a ragged end, tiles of several widths, many tiles of one key,
# many rows.
RUNS = [
    (1, (1, 1), 1),
    (1, (2, 1), 1),
    (3, (2, 2, 2), 2),
    (4, (5, 3, 1), 3),
    (2, (1,) * 6, 4),
    (90, (3, 2), 2),
]
# of PyTorch, for a tile, and as many again for each of its columns; an update by merging two states takes 25
OPERATIONS = 40


@exercise("2.1", "update")
def ex02_1(update, rng):
    for rows, widths, d in RUNS:
        for spread in (1.0, 500.0):
            scores = spread * normal(rng, rows, sum(widths))
            values = normal(rng, sum(widths), d)
            update_by_tiles(update, scores, values, widths)
        one_update(
            update,
            any_state(rng, rows, d),
            normal(rng, rows, 3),
            normal(rng, 3, d),
            "a state whose l and o fit no scores",
        )
        values = normal(rng, 3, d)
        values[0] *= 1e15  # nothing, where it is a thousand below the maximum
        scores = 1000 * normal(rng, rows, 3)
        one_update(update, any_state(rng, rows, d), scores, values, "a state, and scores to ±1000")
        scores, values = normal(rng, rows, 3) - 1, normal(rng, 3, d)
        scores[:, 1], values[2] = 0, 0
        one_update(update, any_state(rng, rows, d), scores, values, "scores and values of 0")
        single = [x.float() for x in (*any_state(rng, rows, d), scores, values)]
        one_update(update, tiled.State(*single[:3]), *single[3:], "a float32 state", tolerance=1e-5)
    return (
        f"updated with {2 * sum(len(widths) for _, widths, _ in RUNS) + 4 * len(RUNS)} tiles of 1 to 90 rows,"
        " without a loop over rows, scores in the thousands, float32 and float64"
    )


def update_by_tiles(update, scores, values, widths):
    """Call `update` with one tile after another, each time with the correct preceding state."""
    read = 0
    for number, width in enumerate(widths):
        before, tile = slice(0, read), slice(read, read + width)
        read += width
        state = state_of(scores[:, before], values[before])
        one_update(
            update,
            state,
            scores[:, tile].clone(),
            values[tile].clone(),
            f"tile {number + 1} of {len(widths)}",
        )


def one_update(update, state, scores, values, what, tolerance=1e-10):
    """Check one update: the inputs and the dtype must not change, and the rows must be processed together."""
    call = f"update({text(state)}, {text(scores)}, {text(values)})"
    wanted = updated(state, scores, values)
    limits = {
        "operations": OPERATIONS * (1 + len(values)),
        "refused": tensors.AUTOGRAD,
        "allowed": (),
        "hint": "m and l have shape (rows, 1): one operation processes all rows.",
    }
    got = tensors.within(update, (state, scores, values), call=call, **limits)
    if not (isinstance(got, tuple | list) and len(got) == 3):
        fail("update must return three tensors, (m, l, o)", wanted="(m, l, o)", got=type(got).__name__)
    for name, mine, right in zip("mlo", got, wanted, strict=True):
        instance(mine, torch.Tensor, what=f"{name} as a tensor", call=call)
        close = mine.shape == right.shape and torch.allclose(
            mine.to(right.dtype), right, rtol=1e-5, atol=1e-5
        )
        hint = FLOAT32 if close else UPDATE_HINTS[name]
        compare(mine, right, what=f"{name} after {what}", call=call, tolerance=tolerance, hint=hint)
        if mine.dtype != right.dtype:
            fail(
                f"the values are correct, but {name} has another dtype than the state",
                call=call,
                wanted=right.dtype,
                got=mine.dtype,
                hint=DTYPE,
            )


def any_state(rng, rows, d):
    """Return a state with independently drawn m, l and o."""
    m, l, o = (torch.from_numpy(x) for x in inputs.states(rng, rows, d))
    return tiled.State(m[:, None], l[:, None], o)


def updated(state, scores, values):
    """Return the reference state after one more tile, computed row by row."""
    m = torch.maximum(state.m, scores.max(dim=1, keepdim=True).values)
    shrink = torch.where(state.m == -torch.inf, 0.0, torch.exp(state.m - m))
    p = torch.exp(scores - m)
    return tiled.State(m, state.l * shrink + p.sum(dim=1, keepdim=True), state.o * shrink + p @ values)


DTYPE = "Compute with the tensors as they are. Neither .double() nor .float() is needed."
FLOAT32 = (
    "Correct to about five digits only: is a tensor float32? torch.zeros(n) has PyTorch's default type;"
    " scores.new_zeros(n) has the type of scores."
)
UPDATE_HINTS = {
    "m": "m is each row's own largest score of all tiles so far: torch.maximum of the old m and the tile's.",
    "l": (
        "The old l is relative to the old m, and the tile's weights are relative to the new one. Which factor"
        " converts the old l?"
    ),
    "o": "The old o needs the same factor as the old l; nothing is divided yet.",
}


def state_of(scores, values):
    """Return (m, l, o) of all these keys, computed at once."""
    rows, keys = scores.shape
    m = (
        scores.max(dim=1, keepdim=True).values
        if keys
        else torch.full((rows, 1), -torch.inf, dtype=scores.dtype)
    )
    p = torch.exp(scores - m)
    return tiled.State(m, p.sum(dim=1, keepdim=True), p @ values)


@exercise("2.2", "queries_outer")
def ex02_2(queries_outer, rng):
    for queries, keys, d, rows, columns in SHAPES:
        q, k, v = loud(rng, queries, keys, d, rows)
        wanted = attention(q, k, v)
        traffic, given = tensors.Counted(), [tensors.OffChip(x.clone()) for x in (q, k, v)]
        call = (
            f"queries_outer(q {(queries, d)}, k {(keys, d)}, v {(keys, d)}, rows={rows}, columns={columns},"
            " traffic)"
        )
        out = queries * d  # counted if an answer allocates the output as a plain tensor
        limits = {
            "largest": max(out, 2 * max(rows, columns) * max(rows, columns, d)),
            "kept": lambda got, out=out, tile=6 * (rows * columns + (rows + 2 * columns) * (d + 2)) + 20: (
                tile + out * isinstance(got, torch.Tensor)
            ),
        }
        got = tensors.within(
            queries_outer,
            (*given, rows, columns, traffic),
            call=call,
            refused=tensors.READY_MADE,
            allowed=PARTS,
            hint=ONE_TILE,
            **limits,
        )
        compare(
            getattr(got, "hidden", got),
            wanted,
            what="attention in tiles",
            call=call,
            tolerance=1e-10,
            hint=OUTER_HINT,
        )
        compare([x.hidden for x in given], [q, k, v], what="q, k or v has changed", call=call, tolerance=0)
        tiles_of_queries = -(-queries // rows)
        read = queries * d + tiles_of_queries * 2 * keys * d
        tiles_of_keys = -(-keys // columns)
        loads = tiles_of_queries * (1 + 2 * tiles_of_keys)
        again = kept_tiles(tiles_of_queries, keys, columns)
        if (traffic.read, traffic.loads) != (read - 2 * sum(again) * d, loads - 2 * len(again)):
            compare_traffic("read", traffic.read, read, call, READ_HINT)
            compare_traffic("read, in tiles,", traffic.loads, loads, call, TILES_HINT)
        compare_traffic("written", traffic.written, queries * d, call, WRITTEN_HINT)
    return (
        f"right in {len(SHAPES)} shapes with ragged tiles, up to 66 tiles of keys, and no number moved too"
        " often, nor more than a few tiles kept"
    )


def loud(rng, queries, keys, d, rows):
    """Return q, k and v with scores in the thousands, including the last ones. In most shapes, scores are
    near 1000 for one query tile and near -1000 for the next."""
    q, k, v = 3 * normal(rng, queries, d), 3 * normal(rng, keys, d), normal(rng, keys, d)
    q[0], k[-1] = 40 * q[0], 40 * k[-1]
    if d > 2:
        sign = 1 - 2 * (torch.arange(queries) // rows % 2)
        q[:, 0], k[:, 0] = 1000 * d**0.5 * sign, 1.0
    return q, k, v


def kept_tiles(tiles_of_queries, keys, columns):
    """Return the widths of the key tiles that need no second load in serpentine order: each query tile starts
    with the key tile that the one before it ended with."""
    last = (keys - 1) % columns + 1
    return [last if number % 2 == 0 else min(columns, keys) for number in range(tiles_of_queries - 1)]


# of the package, without which each answer would be longer
PARTS = tiled.tiles, tiled.tile_scores, tiled.initial_state, tiled.update, tiled.merge
TILES_HINT = "A tile of keys has `columns` rows, the last one fewer; a tile of queries has `rows`."
ONE_TILE = (
    "The chip has room for a tile of queries, its state, and one tile of keys and values: neither for all"
    " scores of a row, nor for all keys, nor for all queries or their states."
)
OUTER_HINT = (
    "Do the scores come from tile_scores? Does each tile of queries start with a new state? Is o divided by l"
    " exactly once? Is the short last tile processed?"
)
READ_HINT = (
    "Load each tile of Q once, before the inner loop, and each K and V once a step; always through"
    " traffic.load."
)
WRITTEN_HINT = "Store each tile of the output once, after the inner loop, through traffic.store."


def compare_traffic(direction, got, wanted, call, hint):
    """Reject an answer with correct output that moves the wrong number of elements."""
    if got != wanted:
        fail(
            f"the output is correct, but the wrong number of elements is {direction}",
            call=call,
            wanted=wanted,
            got=got,
            hint=hint,
        )


@exercise("2.3", "bytes_moved")
def ex02_3(bytes_moved, rng):
    sizes = [
        (1, 1, 1, 1),
        (5, 3, 8, 8),
        (12, 4, 4, 3),
        (300, 5, 7, 11),
        *rng.integers(2, 40, (6, 4)).tolist(),
    ]
    for n, d, rows, columns in sizes:
        itemsize = int(rng.choice([2, 4, 8]))
        call = f"bytes_moved(n={n}, d={d}, rows={rows}, columns={columns}, itemsize={itemsize})"
        with tensors.record_calls((), allowed=(tiled.tiles,)) as ours, tensors.watched() as seen:
            got = bytes_moved(n, d, rows, columns, itemsize)
        for name in (*ours, *seen.called):
            fail(f"it calls {name}; a formula needs no run and no tensor", call=call, hint=FORMULA)
        wanted = [itemsize * numbers for numbers in numbers_moved(n, d, rows, columns)]
        if np.shape(got) != (3,):
            fail(
                "three numbers are needed: standard, keys outer, queries outer",
                call=call,
                wanted=wanted,
                got=got,
            )
        for name, mine, right in zip(BYTES_HINTS, got, wanted, strict=True):
            instance(mine, numbers.Integral, what=f"a whole number for {name}", call=call, hint=WHOLE)
            compare(mine, right, what=f"bytes of {name}", call=call, tolerance=0, hint=BYTES_HINTS[name])
    return f"as the counter says, {len(sizes)} times"


FORMULA = "Compute the counts from n, d, rows and columns. Then they also hold for sizes too large to run."
WHOLE = "n // columns rounds down, math.ceil(n / columns) up, and both give whole numbers."
BYTES_HINTS = {
    "standard": (
        "S and P are each written once and read once: 4n² numbers. Q, K and V are read and O is written:"
        " 4nd numbers. Each number has itemsize bytes."
    ),
    "keys outer": (
        "Initialising O, m and l writes n(d + 2) numbers. For every tile of keys, Q, O, m and l are read,"
        " and O, m and l are written. K and V are read once."
    ),
    "queries outer": (
        "Q is read once and O is written once. All of K and V is read for every tile of queries, including"
        " a ragged one."
    ),
}


def numbers_moved(n, d, rows, columns):
    """Return the reference for exercise 2.3: the traffic counts measured while the three algorithms run."""
    q = torch.zeros(n, d)
    runs = [tiled.Traffic() for _ in range(3)]
    tiled.standard(q, q, q, runs[0])
    tiled.keys_outer(q, q, q, rows, columns, runs[1])
    tiled.queries_outer(q, q, q, rows, columns, runs[2])
    return [run.moved for run in runs]


def normal(rng, *shape):
    """Return standard normal numbers in float64."""
    return torch.from_numpy(rng.standard_normal(shape))
