"""Device functions shared by the Triton kernels: copies of tiles, online-softmax weights, and convolution.
Convolution is built from shifted tiles.

A tile is a value of a program: SIZE × WIDTH elements, distributed over its threads by the compiler, which
also decides when they pass through shared memory. A tile cannot be indexed, so a thread cannot read a halo
at [i + a, j + b] in shared memory. Neighbours are read from a second tile, a shifted copy of the first.
"""

from kernels.triton.optional import tl, triton


@triton.jit
def head_of_program():
    """Return the index of this program's head among all B · H, as int64: offsets may exceed 2³¹."""
    return (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)


@triton.jit
def load_rows(rows, first, n, d, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """Return rows[first : first + SIZE] as a tile, SIZE × WIDTH, with 0 outside `rows` (n, d)."""
    i, c = first + tl.arange(0, SIZE)[:, None], tl.arange(0, WIDTH)[None, :]
    return tl.load(rows + i * d + c, mask=(i >= 0) & (i < n) & (c < d), other=0.0)


@triton.jit
def store_rows(rows, first, count, n, d, tile):
    """Store the tile in rows[first : first + count], skipping elements outside `rows` (n, d)."""
    SIZE: tl.constexpr = tile.shape[0]
    WIDTH: tl.constexpr = tile.shape[1]
    i, c = tl.arange(0, SIZE)[:, None], tl.arange(0, WIDTH)[None, :]
    tl.store(rows + (first + i) * d + c, tile, mask=(i < count) & (first + i < n) & (c < d))


@triton.jit
def products(a, b):
    """Return a bᵀ in full float32: without "ieee", a GPU's tensor cores round the operands to 11 bits."""
    return tl.dot(a, tl.trans(b), input_precision="ieee")


@triton.jit
def weight(score, maximum):
    """Return exp(score - maximum), float32, and 0 for a score of -inf even if the maximum is -inf."""
    return tl.where(score == float("-inf"), 0.0, tl.exp(score - maximum))


@triton.jit
def reciprocal(l):
    """Return 1 / l, float32, and 0 for l = 0, the sum of a row whose scores are all -inf."""
    return tl.where(l == 0.0, 0.0, 1.0 / l)


@triton.jit
def moved_left(tile, by):
    """Return tile[i, j + by]; columns shifted out on the left wrap around to the right."""
    ROWS: tl.constexpr = tile.shape[0]
    COLUMNS: tl.constexpr = tile.shape[1]
    column = (tl.arange(0, COLUMNS) + by) % COLUMNS
    return tl.gather(tile, tl.broadcast_to(column[None, :], ROWS, COLUMNS), 1)


@triton.jit
def moved_up(tile, by):
    """Return tile[i + by, j]; rows shifted out at the top wrap around to the bottom."""
    ROWS: tl.constexpr = tile.shape[0]
    COLUMNS: tl.constexpr = tile.shape[1]
    row = (tl.arange(0, ROWS) + by) % ROWS
    return tl.gather(tile, tl.broadcast_to(row[:, None], ROWS, COLUMNS), 0)


@triton.jit
def convolved(tile, taps, c_q, c_k, FLIPPED: tl.constexpr):
    """Return Σ_ab taps[a, b] · tile[i + a, j + b]; reverse the taps (c_q, c_k) in both dimensions if FLIPPED.
    The result is valid where i + c_q - 1 and j + c_k - 1 are inside the tile."""
    total = tl.zeros_like(tile)
    for a in range(c_q):
        row = tl.zeros_like(tile)
        for b in range(c_k):
            place = c_q * c_k - 1 - (a * c_k + b) if FLIPPED else a * c_k + b
            row += tl.load(taps + place) * moved_left(tile, b)
        total += moved_up(row, a)
    return total
