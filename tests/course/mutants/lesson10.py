"""Wrong answers to lesson 10 that its checks must reject, and correct answers that they must accept."""

import math

import torch
from torch.nn.functional import conv2d, pad

from kernels.reference.conv_tiled import forward, halo_of, load_rows, owned, valid
from kernels.reference.tiled import Traffic, initial_state, update

# Exercise 10.1 · to_load ------------------------------------------------------------------------------------


def loading(
    above=lambda c_q: c_q - 1,
    below=lambda c_q: 0,
    left=lambda c_k: (c_k - 1) // 2,
    right=lambda c_k: c_k - 1 - (c_k - 1) // 2,
    end=0,
):
    """Return a correct to_load with some parts replaced."""

    def to_load(i0, j0, rows, columns, c_q, c_k):
        return i0 - above(c_q), i0 + rows + below(c_q) - end, j0 - left(c_k), j0 + columns + right(c_k) - end

    return to_load


def clipped(i0, j0, rows, columns, c_q, c_k):
    top, bottom, left, right = loading()(i0, j0, rows, columns, c_q, c_k)
    return max(top, 0), bottom, max(left, 0), right


def rows_for_columns(i0, j0, rows, columns, c_q, c_k):
    return loading()(j0, i0, columns, rows, c_k, c_q)


def first_entry_only(i0, j0, rows, columns, c_q, c_k):
    return loading()(i0, j0, 1, 1, c_q, c_k)


def starts_and_counts(i0, j0, rows, columns, c_q, c_k):
    return i0 - c_q + 1, rows + c_q - 1, j0 - (c_k - 1) // 2, columns + c_k - 1


def another_order(i0, j0, rows, columns, c_q, c_k):
    top, bottom, left, right = loading()(i0, j0, rows, columns, c_q, c_k)
    return top, left, bottom, right


def by_counting(i0, j0, rows, columns, c_q, c_k):
    """Correct: computes the size of the loaded tile as the size of the owned tile plus c - 1."""
    top, left = i0 + 1 - c_q, j0 - math.ceil(c_k / 2) + 1
    return [top, top + rows + c_q - 1, left, left + columns + c_k - 1]


# Exercise 10.2 · convolved_tile -----------------------------------------------------------------------------


def future(shape, i0, j0):
    return torch.arange(shape[1]) + j0 > torch.arange(shape[0])[:, None] + i0


def convolving(
    scale=math.sqrt,
    first=lambda s, i0, j0, halo: s.masked_fill(future(s.shape, i0 - halo.above, j0 - halo.left), 0.0),
    convolve=lambda s, w, halo: conv2d(s[None, None], w[None, None])[0, 0],
    second=lambda t, i0, j0, halo: t.masked_fill(future(t.shape, i0, j0), -math.inf),
):
    """Return a correct convolved_tile with some parts replaced."""

    def convolved_tile(q_tile, k_tile, w, i0, j0):
        halo = halo_of(w)
        s0 = first(q_tile @ k_tile.T / scale(q_tile.shape[1]), i0, j0, halo)
        return second(convolve(s0, w, halo), i0, j0, halo)

    return convolved_tile


def same_size(s, w, halo):
    return conv2d(pad(s, (halo.left, halo.right, halo.above, 0))[None, None], w[None, None])[0, 0]


def without_neighbours(s, w, halo):
    return same_size(s[halo.above :, halo.left : s.shape[1] - halo.right], w, halo)


def wrong_part(s, w, halo):
    full = same_size(s, w, halo)
    return full[: len(s) - halo.above, : s.shape[1] - halo.across]


def by_taps(q_tile, k_tile, w, i0, j0):
    """Correct: adds up shifted scores, tap by tap."""
    (c_q, c_k), d = w.shape, q_tile.shape[1]
    rows, columns = len(q_tile) - c_q + 1, len(k_tile) - c_k + 1
    i = torch.arange(len(q_tile)).view(-1, 1) + i0 - c_q + 1
    j = torch.arange(len(k_tile)) + j0 - (c_k - 1) // 2
    s0 = torch.where(j <= i, q_tile @ k_tile.T * d**-0.5, 0.0)
    t = sum(w[a, b] * s0[a : a + rows, b : b + columns] for a in range(c_q) for b in range(c_k))
    return torch.where(torch.arange(j0, j0 + columns) <= torch.arange(i0, i0 + rows)[:, None], t, -math.inf)


def in_global_coordinates(q_tile, k_tile, w, i0, j0):
    """Place the tile in the whole matrix, convolve all of it, and cut the tile out."""
    halo, n = halo_of(w), max(i0 + len(q_tile), j0 + len(k_tile))
    top, left = i0 - halo.above, j0 - halo.left
    room = halo.above + halo.left + halo.right
    s = q_tile.new_zeros(n + 2 * room, n + 2 * room)
    rows, columns = slice(top + room, top + room + len(q_tile)), slice(left + room, left + room + len(k_tile))
    s[rows, columns] = q_tile @ k_tile.T / math.sqrt(q_tile.shape[1])
    t = conv2d(s.tril()[None, None], w[None, None])[0, 0]
    owned_rows = slice(rows.start, rows.stop - halo.above)
    t = t[owned_rows, columns.start : columns.stop - halo.across]
    return t.masked_fill(future(t.shape, i0, j0), -math.inf)


def with_an_unused_matrix(q_tile, k_tile, w, i0, j0):
    unused = q_tile.new_zeros(1000, 1000)
    return convolving()(q_tile, k_tile, w, i0, j0) + unused[0, 0]


def by_unfolding(q_tile, k_tile, w, i0, j0):
    """Correct: collects the windows, then multiplies by the taps."""
    halo = halo_of_taps(w)
    s = q_tile @ k_tile.T / math.sqrt(q_tile.shape[1])
    s = s.masked_fill(future(s.shape, i0 - halo[0], j0 - halo[1]), 0.0)
    t = (s.unfold(0, w.shape[0], 1).unfold(1, w.shape[1], 1) * w).sum((2, 3))
    return t.masked_fill(future(t.shape, i0, j0), -math.inf)


def halo_of_taps(w):
    return w.shape[0] - 1, (w.shape[1] - 1) // 2


def of_the_package(q_tile, k_tile, w, i0, j0):
    return valid(convolving_scores(q_tile, k_tile, w, i0, j0), w).masked_fill(
        future((len(q_tile) - w.shape[0] + 1, len(k_tile) - w.shape[1] + 1), i0, j0), -math.inf
    )


def convolving_scores(q_tile, k_tile, w, i0, j0):
    above, left = halo_of_taps(w)
    s = q_tile @ k_tile.T / math.sqrt(q_tile.shape[1])
    return s.masked_fill(future(s.shape, i0 - above, j0 - left), 0.0)


def by_the_packages_forward(q, k, v, w, loaded, traffic):
    return forward(q, k, v, w, loaded, traffic)


def in_float32(q_tile, k_tile, w, i0, j0):
    return convolving()(q_tile.float(), k_tile.float(), w.float(), i0, j0).double()


# Exercise 10.3 · forward ------------------------------------------------------------------------------------


def looping(
    count=min,
    first=lambda i0: 0,
    last=lambda i0, count, n: i0 + count,
    tile=convolving(),
    values=lambda v, j0, width, halo, traffic: load_rows(v, j0, width, traffic),
    keys=lambda halo: halo,
    finish=lambda m, l, o: (o / l, m + torch.log(l)),
    counter=lambda traffic: traffic,
    queries_anew=False,
):
    """Return a correct forward with some parts replaced."""

    def forward(q, k, v, w, loaded, traffic):
        n, halo = len(q), halo_of(w)
        rows, columns = owned(loaded, halo)
        out, log_sum = torch.empty_like(q), q.new_empty(n)
        traffic = counter(traffic)
        for i0 in range(0, n, rows):
            height = count(rows, n - i0)
            state = initial_state(height, q.shape[1], like=q)
            q_tile = load_rows(q, i0 - halo.above, height + halo.above, traffic)
            for j0 in range(first(i0) // columns * columns, last(i0, height, n), columns):
                width = min(columns, n - j0)
                around = keys(halo)
                k_tile = load_rows(k, j0 - around.left, width + around.across, traffic)
                if queries_anew:
                    q_tile = load_rows(q, i0 - halo.above, height + halo.above, traffic)
                state = update(state, tile(q_tile, k_tile, w, i0, j0), values(v, j0, width, halo, traffic))
            o, log_l = finish(*state)
            traffic.store(out, slice(i0, i0 + height), o)
            traffic.store(log_sum, slice(i0, i0 + height), log_l[:, 0])
        return out, log_sum

    return forward


def stops_early(q, k, v, w, loaded, traffic):
    """Wrong: skips the partial tile of rows at the end."""
    rows, _ = owned(loaded, halo_of(w))
    out, log_sum = torch.zeros_like(q), q.new_zeros(len(q))
    whole = max(len(q) // rows * rows, min(rows, len(q)))
    out[:whole], log_sum[:whole] = looping()(q[:whole], k[:whole], v[:whole], w, loaded, traffic)
    return out, log_sum


def strides_as_loaded(q, k, v, w, loaded, traffic):
    """Wrong: advances by the loaded columns instead of the owned ones, so some keys are in no tile."""
    halo = halo_of(w)
    rows, columns = owned(loaded, halo)
    out, log_sum = torch.zeros_like(q), q.new_zeros(len(q))
    for i0 in range(0, len(q), rows):
        height = min(rows, len(q) - i0)
        state = initial_state(height, q.shape[1], like=q)
        q_tile = load_rows(q, i0 - halo.above, height + halo.above, traffic)
        for j0 in range(0, i0 + height, loaded[1]):
            k_tile = load_rows(k, j0 - halo.left, columns + halo.across, traffic)
            state = update(state, convolving()(q_tile, k_tile, w, i0, j0), load_rows(v, j0, columns, traffic))
        traffic.store(out, slice(i0, i0 + height), state.o / state.l)
        traffic.store(log_sum, slice(i0, i0 + height), (state.m + torch.log(state.l))[:, 0])
    return out, log_sum


def only_o(q, k, v, w, loaded, traffic):
    return looping()(q, k, v, w, loaded, traffic)[0]


def without_the_counter(q, k, v, w, loaded, traffic):
    return looping()(q, k, v, w, loaded, Traffic())


def own_statistics(q, k, v, w, loaded, traffic):
    """Correct: keeps m, l and o as flat tensors, and never shortens the last tile of keys."""
    n, d = q.shape
    above, left, right = halo_of(w)
    rows, columns = loaded[0] - above, loaded[1] - left - right
    out, log_sum = q.new_zeros(n, d), q.new_zeros(n)
    i0 = 0
    while i0 < n:
        end = min(i0 + rows, n)
        m, l, o = (
            torch.full((end - i0,), -math.inf, dtype=q.dtype),
            q.new_zeros(end - i0),
            q.new_zeros(end - i0, d),
        )
        q_tile = load_rows(q, i0 - above, end - i0 + above, traffic)
        for j0 in range(0, end, columns):
            t = by_taps(q_tile, load_rows(k, j0 - left, loaded[1], traffic), w, i0, j0)
            top = torch.maximum(m, t.amax(1))
            p, shrink = torch.exp(t - top[:, None]), torch.exp(m - top)
            l, o, m = l * shrink + p.sum(1), o * shrink[:, None] + p @ load_rows(v, j0, columns, traffic), top
        traffic.store(out, slice(i0, end), o / l[:, None])
        traffic.store(log_sum, slice(i0, end), m + l.log())
        i0 = end
    return [out, log_sum]


# Exercise 10.4 · two_tests ----------------------------------------------------------------------------------


def tests(sharp=(2, 2, 2, 3, 2), blind=(16, 7, 7, 32, 32)):
    """Return a correct two_tests with some parts replaced."""
    return lambda: (sharp, blind)


MUTANTS = {
    "ex10_1": [
        ("the same halo on both sides", loading(right=lambda c_k: (c_k - 1) // 2)),
        ("c_k // 2 on both sides", loading(left=lambda c_k: c_k // 2, right=lambda c_k: c_k // 2)),
        (
            "left and right swapped",
            loading(left=lambda c_k: c_k - 1 - (c_k - 1) // 2, right=lambda c_k: (c_k - 1) // 2),
        ),
        ("the whole width on both sides", loading(left=lambda c_k: c_k - 1, right=lambda c_k: c_k - 1)),
        ("rows below too", loading(below=lambda c_q: c_q - 1)),
        ("rows centred", loading(above=lambda c_q: (c_q - 1) // 2, below=lambda c_q: c_q // 2)),
        ("c_q rows above", loading(above=lambda c_q: c_q)),
        ("ends that are the last row and column", loading(end=1)),
        ("no halo", loading(above=lambda c: 0, left=lambda c: 0, right=lambda c: 0)),
        ("clipped at 0", clipped),
        ("rows and columns exchanged", rows_for_columns),
        ("reach of the first entry only", first_entry_only),
        ("starts and counts", starts_and_counts),
        ("top, left, bottom, right", another_order),
    ],
    "ex10_2": [
        ("in global coordinates", in_global_coordinates),
        ("an unused matrix", with_an_unused_matrix),
        ("the package's convolution", of_the_package),
        ("float32", in_float32),
        ("no zero-mask", convolving(first=lambda s, i0, j0, halo: s)),
        (
            "-inf before the convolution",
            convolving(
                first=lambda s, i0, j0, h: s.masked_fill(
                    future(s.shape, i0 - h.above, j0 - h.left), -math.inf
                )
            ),
        ),
        (
            "zero-mask at the owned place",
            convolving(first=lambda s, i0, j0, halo: s.masked_fill(future(s.shape, i0, j0), 0.0)),
        ),
        (
            "zero-mask without the left halo",
            convolving(first=lambda s, i0, j0, h: s.masked_fill(future(s.shape, i0 - h.above, j0), 0.0)),
        ),
        (
            "zero-mask without the rows above",
            convolving(first=lambda s, i0, j0, h: s.masked_fill(future(s.shape, i0, j0 - h.left), 0.0)),
        ),
        ("zero-mask counted from the tile", convolving(first=lambda s, i0, j0, halo: s.tril())),
        (
            "zero-mask hides the diagonal",
            convolving(
                first=lambda s, i0, j0, h: s.masked_fill(future(s.shape, i0 - h.above - 1, j0 - h.left), 0.0)
            ),
        ),
        ("no second mask", convolving(second=lambda t, i0, j0, halo: t)),
        (
            "0 after the convolution",
            convolving(second=lambda t, i0, j0, halo: t.masked_fill(future(t.shape, i0, j0), 0.0)),
        ),
        (
            "second mask at the loaded place",
            convolving(
                second=lambda t, i0, j0, h: t.masked_fill(
                    future(t.shape, i0 - h.above, j0 - h.left), -math.inf
                )
            ),
        ),
        (
            "second mask counted from the tile",
            convolving(second=lambda t, i0, j0, h: t.masked_fill(future(t.shape, 0, 0), -math.inf)),
        ),
        ("no scale", convolving(scale=lambda d: 1)),
        ("divides by d", convolving(scale=lambda d: d)),
        (
            "taps turned",
            convolving(convolve=lambda s, w, halo: conv2d(s[None, None], w.flip(0, 1)[None, None])[0, 0]),
        ),
        ("keeps the halo", convolving(convolve=same_size)),
        ("does not use the halo", convolving(convolve=without_neighbours)),
        ("keeps the wrong part", convolving(convolve=wrong_part)),
    ],
    "ex10_3": [
        ("rows of the last tile not cut", looping(count=lambda rows, left: rows)),
        ("leaves the ragged tile out", stops_early),
        ("stops at the first owned row", looping(last=lambda i0, count, n: i0 + 1)),
        ("visits all tiles of keys", looping(last=lambda i0, count, n: n)),
        ("starts at the diagonal", looping(first=lambda i0: i0)),
        ("K without its halo", looping(keys=lambda halo: halo._replace(left=0))),
        (
            "V from the left halo on",
            looping(values=lambda v, j0, width, halo, traffic: load_rows(v, j0 - halo.left, width, traffic)),
        ),
        ("never divides by l", looping(finish=lambda m, l, o: (o, m + torch.log(l)))),
        ("L is l", looping(finish=lambda m, l, o: (o / l, l))),
        ("L is log l", looping(finish=lambda m, l, o: (o / l, torch.log(l)))),
        ("L is m", looping(finish=lambda m, l, o: (o / l, m))),
        ("L in base 2", looping(finish=lambda m, l, o: (o / l, m + torch.log2(l)))),
        ("no zero-mask", looping(tile=convolving(first=lambda s, i0, j0, halo: s))),
        ("steps by what it loads", strides_as_loaded),
        ("loads Q with each tile of keys", looping(queries_anew=True)),
        (
            "V with its halo",
            looping(
                values=lambda v, j0, width, h, traffic: load_rows(v, j0 - h.left, width + h.across, traffic)[
                    h.left : h.left + width
                ]
            ),
        ),
        ("O alone", only_o),
        ("calls the package's loop", by_the_packages_forward),
        ("bypasses the counter", without_the_counter),
    ],
    "ex10_4": [
        ("sharp has one row of taps", tests(sharp=(2, 1, 2, 2, 2))),
        ("sharp has one column of taps", tests(sharp=(2, 2, 1, 3, 1))),
        ("sharp owns as many rows as columns", tests(sharp=(3, 2, 2, 3, 3))),
        ("sharp is a single tile", tests(sharp=(3, 3, 3, 16, 16))),
        ("sharp has every key in every tile", tests(sharp=(3, 3, 5, 5, 5))),
        ("sharp has one token", tests(sharp=(1, 2, 2, 3, 2))),
        ("sharp has four tokens", tests(sharp=(4, 2, 2, 3, 2))),
        ("sharp owns nothing", tests(sharp=(2, 3, 3, 2, 2))),
        ("blind has 15 tokens", tests(blind=(15, 7, 7, 32, 32))),
        ("blind has one tap", tests(blind=(16, 1, 1, 32, 32))),
        ("blind has two tiles of keys", tests(blind=(27, 7, 7, 32, 32))),
        ("blind finds all", tests(blind=(20, 3, 5, 16, 16))),
        ("blind is a list of words", tests(blind="16 7 7 32 32")),
        ("blind has four numbers", tests(blind=(16, 7, 7, 32))),
        ("floats", tests(sharp=(2.0, 2, 2, 3, 2))),
        ("one test", lambda: (2, 2, 2, 3, 2)),
    ],
}

RIGHT = {
    "ex10_1": [by_counting, loading()],
    "ex10_2": [by_taps, by_unfolding, convolving()],
    "ex10_3": [own_statistics, looping()],
    "ex10_4": [
        tests(),
        tests(sharp=[3, 2, 3, 4, 3], blind=(100, 3, 3, 200, 102)),
        tests(sharp=(3, 3, 4, 5, 4), blind=(16, 3, 3, 18, 18)),
    ],
}
