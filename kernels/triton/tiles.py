"""What several Triton kernels share: tiles in and out of memory, how (m, l, o) changes, a tile that moves,
and a convolution made of moves.

A tile is a value of a program, SIZE × WIDTH numbers spread over its threads: the compiler says which thread
has which, and when they pass through shared memory. There is no index into a tile, and so no halo in shared
memory that a thread reads at [i + a, j + b]. Its neighbour is another tile, the same one moved.
"""

from kernels.triton.optional import tl, triton


@triton.jit
def head_of_program():
    """The number of this program's head among all B · H, int64: what multiplies it may pass 2³¹."""
    return (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64)


@triton.jit
def load_rows(rows, first, n, d, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """rows[first : first + SIZE], with 0 for what lies outside `rows` (n, d): a tile, SIZE × WIDTH."""
    i, c = first + tl.arange(0, SIZE)[:, None], tl.arange(0, WIDTH)[None, :]
    return tl.load(rows + i * d + c, mask=(i >= 0) & (i < n) & (c < d), other=0.0)


@triton.jit
def store_rows(rows, first, count, n, d, tile):
    """rows[first : first + count] = tile, without what lies outside `rows` (n, d)."""
    SIZE: tl.constexpr = tile.shape[0]
    WIDTH: tl.constexpr = tile.shape[1]
    i, c = tl.arange(0, SIZE)[:, None], tl.arange(0, WIDTH)[None, :]
    tl.store(rows + (first + i) * d + c, tile, mask=(i < count) & (first + i < n) & (c < d))


@triton.jit
def products(a, b):
    """a bᵀ, in float32 throughout: without "ieee" a GPU's tensor cores round the operands to 11 bits."""
    return tl.dot(a, tl.trans(b), input_precision="ieee")


@triton.jit
def weight(score, maximum):
    """exp(score - maximum), float32; 0 for a score of -inf, even if the maximum is -inf too."""
    return tl.where(score == float("-inf"), 0.0, tl.exp(score - maximum))


@triton.jit
def reciprocal(l):
    """1 / l, float32; 0 for l = 0, the sum of a row all of whose scores are -inf."""
    return tl.where(l == 0.0, 0.0, 1.0 / l)


@triton.jit
def moved_left(tile, by):
    """tile[i, j + by]; columns that leave on the left come back on the right."""
    ROWS: tl.constexpr = tile.shape[0]
    COLUMNS: tl.constexpr = tile.shape[1]
    column = (tl.arange(0, COLUMNS) + by) % COLUMNS
    return tl.gather(tile, tl.broadcast_to(column[None, :], ROWS, COLUMNS), 1)


@triton.jit
def moved_up(tile, by):
    """tile[i + by, j]; rows that leave at the top come back at the bottom."""
    ROWS: tl.constexpr = tile.shape[0]
    COLUMNS: tl.constexpr = tile.shape[1]
    row = (tl.arange(0, ROWS) + by) % ROWS
    return tl.gather(tile, tl.broadcast_to(row[:, None], ROWS, COLUMNS), 0)


@triton.jit
def convolved(tile, taps, c_q, c_k, FLIPPED: tl.constexpr):
    """Σ_ab taps[a, b] · tile[i + a, j + b], right where i + c_q - 1 and j + c_k - 1 are in the tile; taps
    (c_q, c_k), in both directions reversed if FLIPPED."""
    total = tl.zeros_like(tile)
    for a in range(c_q):
        row = tl.zeros_like(tile)
        for b in range(c_k):
            place = c_q * c_k - 1 - (a * c_k + b) if FLIPPED else a * c_k + b
            row += tl.load(taps + place) * moved_left(tile, b)
        total += moved_up(row, a)
    return total
