"""Wrong answers to lesson 02 that its checks must reject, and correct answers that they must accept."""

import math

import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.reference import tiled
from kernels.reference.tiled import Traffic, initial_state, tile_scores, tiles

# Exercise 2.1 · update --------------------------------------------------------------------------------------


def updating(
    maximum=lambda m, s: torch.maximum(m, s.amax(1, keepdim=True)),
    factor=lambda m, m_new: torch.exp(m - m_new),
    weights=lambda s, m_new, m_old: torch.exp(s - m_new),
    result=lambda m, l, o: (m, l, o),
    of_l=1,
    of_o=1,
):
    """Return a correct `update` with some parts replaced.

    of_l, of_o: exponents of the rescaling factor of l and of o; 0 omits the factor.
    """

    def update(state, scores, values):
        m, l, o = state
        m_new = maximum(m, scores)
        shrink = factor(m, m_new)
        p = weights(scores, m_new, m)
        return result(m_new, shrink**of_l * l + p.sum(1, keepdim=True), shrink**of_o * o + p @ values)

    return update


def forgets_the_old(state, scores, values):
    return tiled.tile_state(scores, values)


def keeps_the_old_maximum(state, scores, values):
    _, l, o = updating()(state, scores, values)
    return (state[0] if torch.isfinite(state[0]).all() else scores.amax(1, keepdim=True)), l, o


def flat_statistics(state, scores, values):
    m, l, o = (state[0][:, 0], state[1][:, 0], state[2])
    m_new = torch.maximum(m, scores.amax(1))
    p = torch.exp(scores - m_new[:, None])
    shrink = torch.exp(m - m_new)
    return m_new, shrink * l + p.sum(1), shrink[:, None] * o + p @ values


def merges_both(state, scores, values):
    """Correct: computes the tile's own state, and merges it as in lesson 01."""
    m, l, o = state
    m_tile = scores.max(dim=1).values[:, None]
    p = (scores - m_tile).exp()
    top = torch.maximum(m, m_tile)
    old, new = (m - top).exp(), (m_tile - top).exp()
    return top, old * l + new * p.sum(dim=1)[:, None], old * o + new * (p @ values)


def key_by_key(state, scores, values):
    """Correct: processes the keys of the tile one at a time."""
    m, l, o = state
    for score, value in zip(scores.T[:, :, None], values, strict=True):
        m_new = torch.where(score > m, score, m)
        l = l * torch.exp(m - m_new) + torch.exp(score - m_new)
        o = o * torch.exp(m - m_new) + torch.exp(score - m_new) * value
        m = m_new
    return [m, l, o]


# Exercise 2.2 · queries_outer -------------------------------------------------------------------------------


def outer(query_tiles=tiles, key_tiles=tiles, score=tile_scores, width=len, finish=lambda m, l, o: o / l):
    """Return a correct queries_outer with some parts replaced."""

    def queries_outer(q, k, v, rows, columns, traffic):
        o = torch.zeros_like(q)
        for queries in query_tiles(len(q), rows):
            q_tile = traffic.load(q, queries)
            state = initial_state(len(q_tile), q.shape[1], like=q)
            for keys in key_tiles(width(k), columns):
                state = tiled.update(state, score(q_tile, traffic.load(k, keys)), traffic.load(v, keys))
            traffic.store(o, queries, finish(*state))
        return o

    return queries_outer


def whole_tiles_only(n, size):
    return [slice(i * size, (i + 1) * size) for i in range(max(1, n // size))]


def last_tile_pulled_back(n, size):
    return [
        slice(max(0, min(i, n - size)), min(max(0, min(i, n - size)) + size, n)) for i in range(0, n, size)
    ]


def one_state_for_all(q, k, v, rows, columns, traffic):
    o = torch.zeros_like(q)
    state = initial_state(min(rows, len(q)), q.shape[1], like=q)
    for queries in tiles(len(q), rows):
        q_tile = traffic.load(q, queries)
        state = tiled.State(*(part[: len(q_tile)] for part in state))
        for keys in tiles(len(k), columns):
            state = tiled.update(state, tile_scores(q_tile, traffic.load(k, keys)), traffic.load(v, keys))
        traffic.store(o, queries, state.o / state.l)
    return o


def pads_with_zero_keys(q, k, v, rows, columns, traffic):
    missing = -len(k) % columns
    k, v = (torch.cat([array, array.new_zeros(missing, array.shape[1])]) for array in (k, v))
    return outer()(q, k, v, rows, columns, traffic)


def divides_in_every_tile(q, k, v, rows, columns, traffic):
    o = torch.zeros_like(q)
    for queries in tiles(len(q), rows):
        q_tile = traffic.load(q, queries)
        state = initial_state(len(q_tile), q.shape[1], like=q)
        for keys in tiles(len(k), columns):
            state = tiled.update(state, tile_scores(q_tile, traffic.load(k, keys)), traffic.load(v, keys))
            state = state._replace(o=state.o / state.l)
        traffic.store(o, queries, state.o)
    return o


def loads_queries_in_the_inner_loop(q, k, v, rows, columns, traffic):
    o = torch.zeros_like(q)
    for queries in tiles(len(q), rows):
        state = initial_state(len(q[queries]), q.shape[1], like=q)
        for keys in tiles(len(k), columns):
            scores = tile_scores(traffic.load(q, queries), traffic.load(k, keys))
            state = tiled.update(state, scores, traffic.load(v, keys))
        traffic.store(o, queries, state.o / state.l)
    return o


def stores_after_every_tile(q, k, v, rows, columns, traffic):
    o = torch.zeros_like(q)
    for queries in tiles(len(q), rows):
        q_tile = traffic.load(q, queries)
        state = initial_state(len(q_tile), q.shape[1], like=q)
        for keys in tiles(len(k), columns):
            state = tiled.update(state, tile_scores(q_tile, traffic.load(k, keys)), traffic.load(v, keys))
            traffic.store(o, queries, state.o / state.l)
    return o


def asks_pytorch(q, k, v, rows, columns, traffic):
    return scaled_dot_product_attention(q, k, v)


def keys_outside(q, k, v, rows, columns, traffic):
    return tiled.keys_outer(q, k, v, rows, columns, traffic)


def bypasses_the_counter(q, k, v, rows, columns, traffic):
    return outer()(q, k, v, rows, columns, Traffic())


def softmax_in_each_tile(q, k, v, rows, columns, traffic):
    o = torch.zeros_like(q)
    for queries in tiles(len(q), rows):
        q_tile = traffic.load(q, queries)
        total = torch.zeros_like(q_tile)
        for keys in tiles(len(k), columns):
            total += torch.softmax(tile_scores(q_tile, traffic.load(k, keys)), 1) @ traffic.load(v, keys)
        traffic.store(o, queries, total / len(tiles(len(k), columns)))
    return o


def whole_row_loops(q, k, v, rows, columns, traffic):
    """Correct: uses indices instead of the package's helpers, apart from the traffic counter."""
    n, d = q.shape
    out = torch.empty(n, d, dtype=q.dtype)
    i = 0
    while i < n:
        mine = traffic.load(q, slice(i, i + rows))
        m, l, o = torch.full((len(mine), 1), -math.inf), 0.0, 0.0
        for j in range(0, k.shape[0], columns):
            s = mine @ traffic.load(k, slice(j, j + columns)).mT / math.sqrt(d)
            top = torch.maximum(m, s.amax(-1, keepdim=True))
            p = (s - top).exp()
            l = l * (m - top).exp() + p.sum(-1, keepdim=True)
            o = o * (m - top).exp() + p @ traffic.load(v, slice(j, j + columns))
            m = top
        traffic.store(out, slice(i, i + rows), o / l)
        i += rows
    return out


# Exercise 2.3 · bytes_moved ---------------------------------------------------------------------------------


def moved(
    count=lambda n, size: math.ceil(n / size),
    start=1,
    squares=4,
    statistics=2,
    out_and_in=2,
    keys_once=2,
    once=2,
):
    """Return a correct bytes_moved with some parts replaced."""

    def bytes_moved(n, d, rows, columns, itemsize=4):
        state = n * (d + statistics)
        standard = squares * n * n + 4 * n * d
        by_keys = start * state + keys_once * n * d + count(n, columns) * (n * d + out_and_in * state)
        by_queries = once * n * d + count(n, rows) * 2 * n * d
        return standard * itemsize, by_keys * itemsize, by_queries * itemsize

    return bytes_moved


def in_numbers(n, d, rows, columns, itemsize=4):
    return moved()(n, d, rows, columns, 1)


def always_four_bytes(n, d, rows, columns, itemsize=4):
    return moved()(n, d, rows, columns, 4)


def rows_for_columns(n, d, rows, columns, itemsize=4):
    return moved()(n, d, columns, rows, itemsize)


def orders_swapped(n, d, rows, columns, itemsize=4):
    standard, by_keys, by_queries = moved()(n, d, rows, columns, itemsize)
    return standard, by_queries, by_keys


def padded_rows(n, d, rows, columns, itemsize=4):
    standard, by_keys, _ = moved()(n, d, rows, columns, itemsize)
    whole = math.ceil(n / columns) * columns
    return standard, by_keys, itemsize * (2 * n * d + math.ceil(n / rows) * 2 * whole * d)


def by_running(n, d, rows, columns, itemsize=4):
    """Correct: adds up the bytes tile by tile."""
    by_keys = n * d + 2 * n
    for keys in tiles(n, columns):
        by_keys += 2 * (keys.stop - keys.start) * d
        for queries in tiles(n, rows):
            by_keys += (queries.stop - queries.start) * (3 * d + 4)
    by_queries = sum(2 * (queries.stop - queries.start) * d + 2 * n * d for queries in tiles(n, rows))
    return [(4 * n * n + 4 * n * d) * itemsize, by_keys * itemsize, by_queries * itemsize]


def serpentine(q, k, v, rows, columns, traffic):
    """Correct: each query tile starts with the key tile that the one before it ended with."""
    out, order, held = torch.empty_like(q), tiles(len(k), columns), None
    for queries in tiles(len(q), rows):
        q_tile = traffic.load(q, queries)
        state = initial_state(len(q_tile), q.shape[1], like=q)
        for keys in order:
            if held is None or held[0] != keys:
                held = keys, traffic.load(k, keys), traffic.load(v, keys)
            state = updating()(state, tile_scores(q_tile, held[1]), held[2])
        order = order[::-1]
        traffic.store(out, queries, state[2] / state[1])
    return out


def holds_all(what):
    """Return a queries_outer that keeps `what` of all queries on the chip."""

    def queries_outer(q, k, v, rows, columns, traffic):
        out, rows_of = torch.empty_like(q), tiles(len(q), rows)
        tiles_of_q = [traffic.load(q, queries) for queries in rows_of] if what == "tiles" else None
        states = (
            [initial_state(s.stop - s.start, q.shape[1], like=q) for s in rows_of]
            if what == "states"
            else None
        )
        outputs = []
        for number, queries in enumerate(rows_of):
            q_tile = tiles_of_q[number] if tiles_of_q else traffic.load(q, queries)
            state = states[number] if states else initial_state(len(q_tile), q.shape[1], like=q)
            for keys in tiles(len(k), columns):
                scores = tile_scores(q_tile, traffic.load(k, keys))
                state = updating()(state, scores, traffic.load(v, keys))
                if states:
                    states[number] = state
            outputs.append(state[2] / state[1])
            if what != "outputs":
                traffic.store(out, queries, outputs.pop())
        for queries, tile in zip(rows_of, outputs):
            traffic.store(out, queries, tile)
        return out

    return queries_outer


def single(state, scores, values):
    return tuple(part.float().double() for part in updating()(state, scores, values))


def of_the_package(state, scores, values):
    return tiled.update(tiled.State(*state), scores, values)


def outer_of_the_package(q, k, v, rows, columns, traffic):
    return tiled.queries_outer(q, k, v, rows, columns, traffic)


MUTANTS = {
    "ex02_1": [
        ("subtracts no maximum", updating(maximum=lambda m, s: torch.zeros_like(m))),
        ("exponentials without the maximum", updating(weights=lambda s, m_new, m_old: torch.exp(s))),
        ("does not rescale l", updating(of_l=0)),
        ("does not rescale o", updating(of_o=0)),
        ("rescales the wrong way round", updating(factor=lambda m, m_new: torch.exp(m_new - m))),
        ("takes the tile's maximum alone", updating(maximum=lambda m, s: s.amax(1, keepdim=True))),
        ("takes one maximum for all rows", updating(maximum=lambda m, s: torch.maximum(m, s.amax()))),
        ("takes the maximum over rows", updating(maximum=lambda m, s: torch.maximum(m, s.amax(0)[:1, None]))),
        ("weighs against the old maximum", updating(weights=lambda s, m_new, m_old: torch.exp(s - m_old))),
        ("divides o by l", updating(result=lambda m, l, o: (m, l, o / l))),
        ("returns o only", updating(result=lambda m, l, o: o)),
        ("forgets the old state", forgets_the_old),
        ("keeps the old maximum", keeps_the_old_maximum),
        ("returns flat m and l", flat_statistics),
        ("rounds to float32", single),
        ("calls the package's update", of_the_package),
        ("is the package's update", tiled.update),
    ],
    "ex02_2": [
        ("drops the ragged tile of queries", outer(query_tiles=whole_tiles_only)),
        ("drops the ragged tile of keys", outer(key_tiles=whole_tiles_only)),
        ("pulls the last tile of keys back", outer(key_tiles=last_tile_pulled_back)),
        ("does not divide by sqrt(d)", outer(score=lambda q, k: q @ k.T)),
        ("divides by d", outer(score=lambda q, k: q @ k.T / q.shape[1])),
        ("never divides by l", outer(finish=lambda m, l, o: o)),
        ("one state for all queries", one_state_for_all),
        ("pads with zero keys", pads_with_zero_keys),
        ("divides in every tile", divides_in_every_tile),
        ("softmax in each tile, averaged", softmax_in_each_tile),
        ("reads only the first tile of keys", outer(key_tiles=lambda n, size: tiles(n, size)[:1])),
        ("loads queries in the inner loop", loads_queries_in_the_inner_loop),
        ("stores after every tile", stores_after_every_tile),
        ("asks PyTorch", asks_pytorch),
        ("keys outside", keys_outside),
        ("bypasses the counter", bypasses_the_counter),
        ("keeps all states", holds_all("states")),
        ("loads all queries first", holds_all("tiles")),
        ("stores all outputs at the end", holds_all("outputs")),
        ("calls the package's queries_outer", outer_of_the_package),
        ("is the package's queries_outer", tiled.queries_outer),
    ],
    "ex02_3": [
        ("rounds the tiles down", moved(count=lambda n, size: n // size)),
        ("takes fractions of tiles", moved(count=lambda n, size: n / size)),
        ("counts one tile too many", moved(count=lambda n, size: n // size + 1)),
        ("forgets the start", moved(start=0)),
        ("forgets m and l", moved(statistics=0)),
        ("forgets to write the state", moved(out_and_in=1)),
        ("forgets V with keys outer", moved(keys_once=1)),
        ("forgets to write O", moved(once=1)),
        ("moves S and P one way", moved(squares=2)),
        ("counts numbers", in_numbers),
        ("always four bytes", always_four_bytes),
        ("rows for columns", rows_for_columns),
        ("swaps the two orders", orders_swapped),
        ("counts padded rows", padded_rows),
    ],
}

RIGHT = {
    "ex02_1": [merges_both, key_by_key, updating()],
    "ex02_2": [whole_row_loops, serpentine, outer()],
    "ex02_3": [by_running, moved()],
}
