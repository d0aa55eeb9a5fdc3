"""Wrong answers to the exercises of lesson 18, each labelled with its mistake, and alternative correct
answers.

A wrong device function is a correct one with one or two lines edited.
"""

import torch
from numba import cuda
from numpy import float32, uint32

from editing import wrong
from kernels.tensor_cores.instructions import (
    ldmatrix_x1_trans,
    ldmatrix_x2,
    ldmatrix_x2_trans,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    mma_bf16,
    mma_bf16_k8,
    mma_f16,
)
from power.lessons import from_solutions

add_products, sum_diagonals, most_registers, convolve = from_solutions(
    "18",
    "add_products",
    "sum_diagonals",
    "most_registers",
    "convolve",
    ldmatrix_x2=ldmatrix_x2,
    mma_bf16_k8=mma_bf16_k8,
    mma_f16=mma_f16,
)


# 18.1 -------------------------------------------------------------------------------------------------------


def tap_gradient(s_tile, g_tile, c_q, c_k):
    rows, columns = g_tile.shape
    d_w = s_tile.new_zeros(c_q, c_k)
    for a in range(c_q):
        c = s_tile.new_zeros(8 + c_k - 1, 8)
        for y0 in range(0, columns, 8):
            window = s_tile[a : a + rows, y0 : y0 + 8 + c_k - 1]
            c += window.T @ g_tile[:, y0 : y0 + 8]
        for b in range(c_k):
            d_w[a, b] = c.diagonal(-b).sum()
    return d_w


def by_windows_of_16(s_tile, g_tile, c_q, c_k):
    """Correct: uses windows of 16 columns, and one batch of products per row shift."""
    rows, columns = g_tile.shape
    wide = torch.nn.functional.pad(s_tile, (0, 16 - (8 + c_k - 1)))
    blocks = g_tile.reshape(rows, -1, 8).transpose(0, 1)
    taps = []
    for a in range(c_q):
        windows = torch.stack([wide[a : a + rows, y0 : y0 + 16] for y0 in range(0, columns, 8)])
        c = torch.bmm(windows.transpose(1, 2), blocks).sum(0)
        taps.append(torch.stack([torch.diagonal(c, offset=-b)[:8].sum() for b in range(c_k)]))
    return torch.stack(taps)


def turned(s_tile, g_tile, c_q, c_k):
    """Correct: multiplies the block's transpose by the window, so the diagonals lie on the other side."""
    out, n = torch.empty(c_q, c_k, dtype=s_tile.dtype), g_tile.shape
    for a in range(c_q):
        c = sum(
            torch.einsum("iy,ix->yx", g_tile[:, y : y + 8], s_tile[a : a + n[0], y : y + 7 + c_k])
            for y in range(0, n[1], 8)
        )
        for b in range(c_k):
            out[a, b] = torch.trace(c[:, b : b + 8])
    return out


def direct(s_tile, g_tile, c_q, c_k):
    rows, columns = g_tile.shape
    return torch.stack(
        [
            torch.stack([(g_tile * s_tile[a : a + rows, b : b + columns]).sum() for b in range(c_k)])
            for a in range(c_q)
        ]
    )


def whole_rows(s_tile, g_tile, c_q, c_k):
    rows, d_w = len(g_tile), s_tile.new_zeros(c_q, c_k)
    for a in range(c_q):
        c = s_tile[a : a + rows].T @ g_tile
        for b in range(c_k):
            d_w[a, b] = c.diagonal(-b).sum()
    return d_w


def by_dots(s_tile, g_tile, c_q, c_k):
    rows, columns = g_tile.shape
    flat = g_tile.reshape(-1)
    return torch.stack(
        [
            torch.stack([flat.dot(s_tile[a : a + rows, b : b + columns].reshape(-1)) for b in range(c_k)])
            for a in range(c_q)
        ]
    )


def by_convolution(s_tile, g_tile, c_q, c_k):
    return torch.nn.functional.conv2d(s_tile[None, None], g_tile[None, None])[0, 0]


def for_show(s_tile, g_tile, c_q, c_k):
    tap_gradient(s_tile, g_tile, c_q, c_k)
    return direct(s_tile, g_tile, c_q, c_k)


def by_masks(s_tile, g_tile, c_q, c_k):
    rows, columns = g_tile.shape
    d_w = s_tile.new_zeros(c_q, c_k)
    for a in range(c_q):
        c = 0
        for y0 in range(0, columns, 8):
            c = c + s_tile[a : a + rows, y0 : y0 + 8 + c_k - 1].T @ g_tile[:, y0 : y0 + 8]
        for b in range(c_k):
            mask = torch.zeros_like(c)
            mask[torch.arange(8) + b, torch.arange(8)] = 1
            d_w[a, b] = (c * mask).sum()
    return d_w


def diagonals_of_each_block(s_tile, g_tile, c_q, c_k):
    rows, columns = g_tile.shape
    d_w = s_tile.new_zeros(c_q, c_k)
    for a in range(c_q):
        for y0 in range(0, columns, 8):
            c = s_tile[a : a + rows, y0 : y0 + 8 + c_k - 1].T @ g_tile[:, y0 : y0 + 8]
            for b in range(c_k):
                d_w[a, b] += c.diagonal(-b).sum()
    return d_w


def concatenated(s_tile, g_tile, c_q, c_k):
    rows, columns = g_tile.shape
    blocks = torch.cat([g_tile[:, y0 : y0 + 8] for y0 in range(0, columns, 8)])
    taps = []
    for a in range(c_q):
        windows = [s_tile[a : a + rows, y0 : y0 + 8 + c_k - 1] for y0 in range(0, columns, 8)]
        c = torch.cat(windows).T @ blocks
        taps.append(torch.stack([c.diagonal(-b).sum() for b in range(c_k)]))
    return torch.stack(taps)


# 18.2 -------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def a_larger_load(sums, s_tile, s_row, g_tile, g_row, column):
    """Wrong: loads four matrices of G, of which it uses two."""
    lane = cuda.threadIdx.x & 31
    row, right = (lane & 7) + (lane >> 4) * 8, (lane >> 3 & 1) * 8
    a0, a1, a2, a3 = ldmatrix_x4_trans(s_tile, (s_row + row, column + right))
    b0, b1, b2, b3 = ldmatrix_x4_trans(g_tile, (g_row + (lane & 15), column))
    sums[0], sums[1], sums[2], sums[3] = mma_bf16(a0, a1, a2, a3, b0, b1, sums[0], sums[1], sums[2], sums[3])


@cuda.jit(device=True)
def quarters_in_another_order(sums, s_tile, s_row, g_tile, g_row, column):
    """Correct: loads matrices 1 and 2 in a different order, and swaps the registers accordingly."""
    lane = cuda.threadIdx.x % 32
    a0, a2, a1, a3 = ldmatrix_x4_trans(s_tile, (s_row + lane % 16, column + lane // 16 * 8))
    b0, b1 = ldmatrix_x2_trans(g_tile, (g_row + lane % 16, column))
    c0, c1, c2, c3 = mma_bf16(a0, a1, a2, a3, b0, b1, sums[0], sums[1], sums[2], sums[3])
    sums[0] = c0
    sums[1] = c1
    sums[2] = c2
    sums[3] = c3


@cuda.jit(device=True)
def in_two_halves(sums, s_tile, s_row, g_tile, g_row, column):
    """Correct: multiplies eight rows at a time with the smaller instructions."""
    lane = cuda.threadIdx.x & 31
    for half in range(0, 16, 8):
        row = half + (lane & 7)
        a0, a1 = ldmatrix_x2_trans(s_tile, (s_row + row, column + (lane >> 3 & 1) * 8))
        b0 = ldmatrix_x1_trans(g_tile, (g_row + row, column))
        sums[0], sums[1], sums[2], sums[3] = mma_bf16_k8(a0, a1, b0, sums[0], sums[1], sums[2], sums[3])


@cuda.jit(device=True)
def by_plain_loads(sums, s_tile, s_row, g_tile, g_row, column):
    lane = cuda.threadIdx.x & 31
    g, t = lane >> 2, (lane & 3) * 2
    a = cuda.local.array(4, uint32)
    b = cuda.local.array(2, uint32)
    for r in range(4):
        x, i = column + g + 8 * (r & 1), s_row + t + 8 * (r >> 1)
        a[r] = uint32(s_tile[i, x] & 0xFFFF) | uint32(s_tile[i + 1, x] & 0xFFFF) << uint32(16)
    for r in range(2):
        i = g_row + t + 8 * r
        b[r] = uint32(g_tile[i, column + g] & 0xFFFF) | uint32(g_tile[i + 1, column + g] & 0xFFFF) << uint32(
            16
        )
    sums[0], sums[1], sums[2], sums[3] = mma_bf16(
        a[0], a[1], a[2], a[3], b[0], b[1], sums[0], sums[1], sums[2], sums[3]
    )


@cuda.jit(device=True)
def skips_zeros(sums, s_tile, s_row, g_tile, g_row, column):
    """Wrong: the warp votes, and skips the product if all entries of the window are 0."""
    lane = cuda.threadIdx.x & 31
    row, right = (lane & 7) + (lane >> 4) * 8, (lane >> 3 & 1) * 8
    a0, a1, a2, a3 = ldmatrix_x4_trans(s_tile, (s_row + row, column + right))
    b0, b1 = ldmatrix_x2_trans(g_tile, (g_row + (lane & 15), column))
    if cuda.any_sync(0xFFFFFFFF, (a0 | a1 | a2 | a3) != 0):
        sums[0], sums[1], sums[2], sums[3] = mma_bf16(
            a0, a1, a2, a3, b0, b1, sums[0], sums[1], sums[2], sums[3]
        )


@cuda.jit(device=True)
def works_twice(sums, s_tile, s_row, g_tile, g_row, column):
    lane = cuda.threadIdx.x & 31
    row, right = (lane & 7) + (lane >> 4) * 8, (lane >> 3 & 1) * 8
    a0, a1, a2, a3 = ldmatrix_x4_trans(s_tile, (s_row + row, column + right))
    b0, b1 = ldmatrix_x2_trans(g_tile, (g_row + (lane & 15), column))
    zero = float32(0)
    c0, c1, c2, c3 = mma_bf16(a0, a1, a2, a3, b0, b1, zero, zero, zero, zero)
    d0, d1, d2, d3 = mma_bf16(a0, a1, a2, a3, b0, b1, sums[0], sums[1], sums[2], sums[3])
    sums[0], sums[1], sums[2], sums[3] = d0 + zero * c0, d1 + zero * c1, d2 + zero * c2, d3 + zero * c3


def plain(sums, s_tile, s_row, g_tile, g_row, column):
    lane = cuda.threadIdx.x & 31
    row, right = (lane & 7) + (lane >> 4) * 8, (lane >> 3 & 1) * 8
    a0, a1, a2, a3 = ldmatrix_x4_trans(s_tile, (s_row + row, column + right))
    b0, b1 = ldmatrix_x2_trans(g_tile, (g_row + (lane & 15), column))
    sums[0], sums[1], sums[2], sums[3] = mma_bf16(a0, a1, a2, a3, b0, b1, sums[0], sums[1], sums[2], sums[3])


# 18.3 -------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def barrier_first(taps, a, diagonals, sums, c_k):
    """Correct: synchronises the warp before the writes instead of after the reads, and adds the last tap
    backwards."""
    lane = cuda.threadIdx.x % 32
    cuda.syncwarp()
    for half in range(2):
        for odd in range(2):
            x, y = lane // 4 + 8 * half, lane % 4 * 2 + odd
            if x >= y and x - y < c_k:
                diagonals[x - y, y] = sums[2 * half + odd]
    cuda.syncwarp()
    if lane < c_k:
        taps[a, lane] = diagonals[lane, 7]
        for y in range(6, -1, -1):
            taps[a, lane] += diagonals[lane, y]


@cuda.jit(device=True)
def sums_in_taps(taps, a, diagonals, sums, c_k):
    """Correct: accumulates in global memory."""
    lane = cuda.threadIdx.x & 31
    for i in range(4):
        y = (lane & 3) * 2 + (i & 1)
        b = (lane >> 2) + (i >> 1) * 8 - y
        if 0 <= b and b < c_k:
            diagonals[b, y] = sums[i]
    cuda.syncwarp()
    if lane < c_k:
        taps[a, lane] = float32(0)
        for y in range(8):
            taps[a, lane] += diagonals[lane, y]
    cuda.syncwarp()


@cuda.jit(device=True)
def by_shuffles(taps, a, diagonals, sums, c_k):
    """Wrong: fetches the entries of a tap by shuffles, and leaves `diagonals` unused."""
    lane = cuda.threadIdx.x & 31
    total = float32(0)
    for y in range(8):
        x = lane + y
        source, number = (x & 7) * 4 + (y >> 1), (x >> 3) * 2 + (y & 1)
        found = float32(0)
        for i in range(4):
            one = cuda.shfl_sync(0xFFFFFFFF, sums[i], source & 31)
            if i == number:
                found = one
        total += found
    if lane < c_k:
        taps[a, lane] = total


@cuda.jit(device=True)
def by_atomics(taps, a, diagonals, sums, c_k):
    lane = cuda.threadIdx.x & 31
    if lane < c_k:
        diagonals[lane, 0] = float32(0)
    cuda.syncwarp()
    for i in range(4):
        y = (lane & 3) * 2 + (i & 1)
        b = (lane >> 2) + (i >> 1) * 8 - y
        if 0 <= b and b < c_k:
            cuda.atomic.add(diagonals, (b, 0), sums[i])
    cuda.syncwarp()
    if lane < c_k:
        taps[a, lane] = diagonals[lane, 0]
    cuda.syncwarp()


FIRST, LAST = "cuda.syncwarp()  # all numbers are stored", "cuda.syncwarp()  # all numbers are read"

# 18.4 -------------------------------------------------------------------------------------------------------


def by_trying(blocks, threads, shared_bytes):
    """Correct: tries every register limit, starting with the largest."""
    warps = (threads + 31) // 32
    if 228 * 1024 // (shared_bytes + 1024) < blocks or min(2048 // (32 * warps), 32) < blocks:
        return 0
    for registers in (255, *range(248, 0, -8)):
        taken = (registers + 7) // 8 * 8 * 32
        if 16384 // taken * 4 // warps >= blocks:
            return registers
    return 0


# 18.5 -------------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def in_registers(t, scores, bands):
    """Correct: accumulates in variables, starting with the last row of taps."""
    lane = cuda.threadIdx.x % 32
    m, right = lane % 16, lane // 16
    c0, c1, c2, c3 = float32(0), float32(0), float32(0), float32(0)
    for a in range(bands.shape[0] // 2 - 1, -1, -1):
        a0, a1, a2, a3 = ldmatrix_x4(scores, (a, 8 * (m + right)))
        c0, c1, c2, c3 = mma_bf16(a0, a1, a2, a3, bands[2 * a], bands[2 * a + 1], c0, c1, c2, c3)
    t[0], t[1], t[2], t[3] = c0, c1, c2, c3


@cuda.jit(device=True)
def skips_zero_rows(t, scores, bands):
    """Wrong: the warp votes, and skips the product of a row of scores if all of them are 0."""
    lane = cuda.threadIdx.x & 31
    for e in range(4):
        t[e] = float32(0)
    for a in range(bands.shape[0] // 2):
        a0, a1, a2, a3 = ldmatrix_x4(scores, (a, (lane & 15) * 8 + (lane >> 4) * 8))
        if cuda.any_sync(0xFFFFFFFF, (a0 | a1 | a2 | a3) != 0):
            t[0], t[1], t[2], t[3] = mma_bf16(
                a0, a1, a2, a3, bands[2 * a], bands[2 * a + 1], t[0], t[1], t[2], t[3]
            )


@cuda.jit(device=True)
def skips_zero_taps(t, scores, bands):
    """Wrong: the warp votes, and skips the product of a row of taps if all of them are 0."""
    lane = cuda.threadIdx.x & 31
    for e in range(4):
        t[e] = float32(0)
    for a in range(bands.shape[0] // 2):
        a0, a1, a2, a3 = ldmatrix_x4(scores, (a, (lane & 15) * 8 + (lane >> 4) * 8))
        if cuda.any_sync(0xFFFFFFFF, (bands[2 * a] | bands[2 * a + 1]) != 0):
            t[0], t[1], t[2], t[3] = mma_bf16(
                a0, a1, a2, a3, bands[2 * a], bands[2 * a + 1], t[0], t[1], t[2], t[3]
            )


@cuda.jit(device=True)
def barrier_in_convolve(t, scores, bands):
    """Wrong: has a barrier of the warp."""
    in_registers(t, scores, bands)
    cuda.syncwarp()


@cuda.jit(device=True)
def a_half_at_a_time(t, scores, bands):
    """Correct: multiplies the left columns of the operand, then the right ones, with mma of depth 8."""
    lane = cuda.threadIdx.x & 31
    for e in range(4):
        t[e] = float32(0)
    for number in range(bands.shape[0]):
        a0, a1 = ldmatrix_x2(scores, (number >> 1, (lane & 15) * 8 + (number & 1) * 8))
        t[0], t[1], t[2], t[3] = mma_bf16_k8(a0, a1, bands[number], t[0], t[1], t[2], t[3])


def plain_convolve(t, scores, bands):
    lane = cuda.threadIdx.x & 31
    for e in range(4):
        t[e] = float32(0)
    for a in range(bands.shape[0] // 2):
        a0, a1, a2, a3 = ldmatrix_x4(scores, (a, (lane & 15) * 8 + (lane >> 4) * 8))
        t[0], t[1], t[2], t[3] = mma_bf16(
            a0, a1, a2, a3, bands[2 * a], bands[2 * a + 1], t[0], t[1], t[2], t[3]
        )


# 18.6 to 18.10 ----------------------------------------------------------------------------------------------

place, add_tiles, TransactionBarrier, consume, produce = from_solutions(
    "18c", "place", "add_tiles", "TransactionBarrier", "consume", "produce"
)


@cuda.jit(device=True)
def by_bits(row, column):
    """Correct: exchanges the bits of the chunk directly."""
    return column ^ ((row & 7) << 3)


class CountedUpwards:
    """Correct: counts both sums upwards."""

    def __init__(self, arrivals):
        self.wanted, self.come, self.expected, self.delivered, self.parity = arrivals, 0, 0, 0, 0

    def arrive(self, nbytes=0):
        self.come += 1
        self.expected += nbytes
        self.advance()

    expect = arrive

    def deliver(self, nbytes):
        self.delivered += nbytes
        self.advance()

    def advance(self):
        if self.come == self.wanted and self.expected == self.delivered:
            self.come = self.expected = self.delivered = 0
            self.parity ^= 1

    def is_complete(self, parity):
        return parity != self.parity


ROW, RIGHT_HALF = "(lane & 7) + (lane >> 4) * 8", "(lane >> 3 & 1) * 8"
ZEROED = "    for e in range(4):\n        t[e] = float32(0)\n"

MUTANTS = {
    "ex18_1": [
        ("number by number", direct),
        ("whole rows, all diagonals but c_k for nothing", whole_rows),
        ("a dot for each tap", by_dots),
        ("PyTorch's convolution", by_convolution),
        ("products for show", for_show),
        ("diagonals of each block", diagonals_of_each_block),
        ("diagonals by masks", by_masks),
        ("one concatenated product for a row shift", concatenated),
        *wrong(
            tap_gradient,
            ("no row shift", ("s_tile[a : a + rows,", "s_tile[0:rows,")),
            ("the last block alone", ("c += window", "c = window")),
            ("the window always at column 0", ("y0 : y0 + 8 + c_k - 1]", "0 : 8 + c_k - 1]")),
            ("diagonals above", ("c.diagonal(-b)", "c.diagonal(b)")),
            ("taps turned round", ("d_w[a, b]", "d_w[a, c_k - 1 - b]")),
            ("rows of taps turned round", ("d_w[a, b]", "d_w[c_q - 1 - a, b]")),
            ("a window a column late", ("y0 : y0 + 8 + c_k - 1]", "y0 + 1 : y0 + 9 + c_k - 1]")),
            ("forgets the last block", ("range(0, columns, 8)", "range(0, max(8, columns - 8), 8)")),
            ("blocks overlap", ("range(0, columns, 8)", "range(0, columns - 7, 4)")),
            ("the mean", (".sum()", ".mean()")),
            (
                "changes s_tile",
                ("rows, columns = g_tile.shape", "rows, columns = g_tile.shape; s_tile *= 1.0 + 1e-12"),
            ),
            (
                "8 rows",
                ("s_tile[a : a + rows, y0", "s_tile[a : a + min(rows, 8), y0"),
                ("g_tile[:, y0", "g_tile[:8, y0"),
            ),
            (
                "float32",
                ("window.T @ g_tile[:, y0 : y0 + 8]", "(window.T.float() @ g_tile[:, y0 : y0 + 8].float())"),
            ),
        ),
    ],
    "ex18_2": [
        ("a plain function", plain),
        ("plain loads", by_plain_loads),
        ("each product twice", works_twice),
        ("no product of a zero window", skips_zeros),
        ("x4 where x2 is enough", a_larger_load),
        *wrong(
            add_products,
            ("S G, not Sᵀ G", ("ldmatrix_x4_trans", "ldmatrix_x4")),
            ("G not transposed", ("ldmatrix_x2_trans", "ldmatrix_x2")),
            (
                "lanes with zeros in a make no product",
                (
                    "    b0, b1 =",
                    "    if a0 == 0 and a1 == 0 and a2 == 0 and a3 == 0:\n        return\n    b0, b1 =",
                ),
            ),
            (
                "lanes with zeros in b make no product",
                ("    sums[0], sums[1]", "    if b0 == 0 and b1 == 0:\n        return\n    sums[0], sums[1]"),
            ),
            ("quarters 1 and 2 swapped", (ROW, "(lane & 15)"), (RIGHT_HALF, "(lane >> 4) * 8")),
            (
                "not added",
                (
                    "b0, b1, sums[0], sums[1], sums[2], sums[3]",
                    "b0, b1, float32(0), float32(0), float32(0), float32(0)",
                ),
            ),
            ("the first quarter four times", (ROW, "(lane & 7)"), (RIGHT_HALF, "0")),
            ("the window's left half twice", (RIGHT_HALF, "0")),
            ("its upper half twice", (ROW, "(lane & 7)")),
            ("ignores column in G", ("(lane & 15), column)", "(lane & 15), 0)")),
            ("ignores column in S", ("column + right", "right")),
            ("ignores s_row", ("s_row + row", "row")),
            ("ignores g_row", ("g_row + (lane & 15)", "(lane & 15)")),
            ("one row for both", ("g_row + (lane & 15)", "s_row + (lane & 15)")),
            ("G's upper half twice", ("(lane & 15), column", "(lane & 7), column")),
            ("float16's product", ("mma_bf16", "mma_f16")),
            ("threads of the first warp only", ("cuda.threadIdx.x & 31", "cuda.threadIdx.x & 63")),
            (
                "half of the product",
                ("mma_bf16(", "mma_bf16_k8("),
                ("a0, a1, a2, a3, b0, b1, sums", "a0, a1, b0, sums"),
            ),
        ),
    ],
    "ex18_3": [
        ("atomics", by_atomics),
        ("shuffles", by_shuffles),
        *wrong(
            sum_diagonals,
            ("no meeting before it adds", (FIRST, "# stored")),
            ("no meeting after it has added", (LAST, "# read")),
            ("a barrier of the block", (FIRST, "cuda.syncthreads()  # stored")),
            ("the block's column off", ("(lane & 3) * 2 + (i & 1)", "(lane & 3) * 2 + (i >> 1)")),
            ("rows 8 to 15 lost", ("(i >> 1) * 8 - y", "(i >> 1) - y")),
            ("row 0 of taps always", ("taps[a, lane]", "taps[0, lane]")),
            ("adds to what is there", ("taps[a, lane] = total", "taps[a, lane] += total")),
            ("nine taps always", ("if lane < c_k:", "if lane < 9:")),
            ("lane 0 alone has a tap", ("if lane < c_k:", "if lane < 1:")),
            ("the thread of the block", ("cuda.threadIdx.x & 31", "cuda.threadIdx.x")),
            ("taps turned round", ("taps[a, lane]", "taps[a, c_k - 1 - lane]")),
            ("a float64 sum", ("total = float32(0)", "total = 0.0")),
        ),
    ],
    "ex18_4": wrong(
        most_registers,
        ("not of quarters", ("16384 // (32 * in_a_quarter)", "65536 // (32 * warps)")),
        ("quarters rounded down", ("-(-warps // 4)", "max(1, warps // 4)")),
        ("no multiple of 8", (" // 8 * 8", "")),
        ("248 at most", ("min(255,", "min(248,")),
        (
            "no limit of a thread",
            ("min(255, 16384 // (32 * in_a_quarter) // 8 * 8)", "16384 // (32 * in_a_quarter) // 8 * 8"),
        ),
        ("without the 1,024 bytes", ("shared_bytes + 1024", "shared_bytes")),
        ("threads, not warps", ("-(-threads // 32)", "threads // 32")),
        ("one block's registers", ("-(-warps // 4)", "-(-warps // blocks // 4)")),
        ("1,024 bytes once", ("blocks * (shared_bytes + 1024)", "blocks * shared_bytes + 1024")),
        ("a float", ("16384 // (32 * in_a_quarter) // 8 * 8", "16384 / (32 * in_a_quarter) // 8 * 8")),
        ("not None, but nothing", ("return 0", "return None")),
        ("227 KiB", ("233472", "232448")),
        ("48 KiB a block", ("blocks > 32", "blocks > 32 or shared_bytes > 49152")),
    ),
    "ex18_5": [
        ("a plain function", plain_convolve),
        ("no product of a row of zero scores", skips_zero_rows),
        ("no product of a row of zero taps", skips_zero_taps),
        ("a barrier of the warp", barrier_in_convolve),
        *wrong(
            convolve,
            (
                "lanes with zeros in a make no product",
                (
                    "        t[0], t[1], t[2], t[3] = mma",
                    "        if a0 == 0 and a1 == 0 and a2 == 0 and a3 == 0:\n            continue\n"
                    "        t[0], t[1], t[2], t[3] = mma",
                ),
            ),
            ("rows 16 apart", ("(lane & 15) * 8 + (lane >> 4) * 8", "(lane & 15) * 16 + (lane >> 4) * 8")),
            ("the left half twice", ("(lane & 15) * 8 + (lane >> 4) * 8", "(lane & 15) * 8")),
            ("transposed", ("ldmatrix_x4", "ldmatrix_x4_trans")),
            ("row 0 of the scores always", ("(scores, (a, at))", "(scores, (0, at))")),
            ("one band for all", ("bands[2 * a], bands[2 * a + 1]", "bands[0], bands[1]")),
            (
                "the last row alone",
                (
                    "bands[2 * a + 1], t[0], t[1], t[2], t[3]",
                    "bands[2 * a + 1], float32(0), float32(0), float32(0), float32(0)",
                ),
            ),
            ("adds to what was in t", (ZEROED, "")),
            ("forgets a row", ("range(bands.shape[0] // 2)", "range(bands.shape[0] // 2 - 1)")),
            ("seven rows always", ("range(bands.shape[0] // 2)", "range(7)")),
            ("a row too many", ("range(bands.shape[0] // 2)", "range(bands.shape[0] // 2 + 1)")),
            (
                "quarters 1 and 2 swapped",
                (
                    "(lane & 15) * 8 + (lane >> 4) * 8",
                    "((lane & 7) + (lane >> 4) * 8) * 8 + (lane >> 3 & 1) * 8",
                ),
            ),
            ("float16's product", ("mma_bf16", "mma_f16")),
            ("a whole block of lanes", ("cuda.threadIdx.x & 31", "cuda.threadIdx.x")),
            (
                "half a product",
                (
                    "mma_bf16(\n            a0, a1, a2, a3, bands[2 * a], bands[2 * a + 1],",
                    "mma_bf16_k8(\n            a0, a1, bands[2 * a],",
                ),
            ),
        ),
    ],
}
PLACE, FIRST = "((column // 8) ^ (row % 8)) * 8 + column % 8", "cuda.threadIdx.x"
MULTIPLY = "        total = product"
END_IF_DUE = "\n        self.end_phase()"
RESTART = "        self.missing = self.arrivals"
ADD = "        total = add_tiles(total, a[stage], b[stage])\n"
ARRIVE = "        mbarrier_arrive(empty, stage)\n"
WAIT_FULL = "        wait(full, stage, phase % 2)\n"
WAIT_EMPTY = "        wait(empty, stage, (phase + 1) % 2)\n"
COPY_B = "        tensor_load(b"
STAGE = "step % full.shape[0], step // full.shape[0]"

MUTANTS |= {
    "ex18_6": wrong(
        place,
        ("adds in place of XOR", ("(column // 8) ^ (row % 8)", "(column // 8 + row % 8) % 8")),
        ("every row, not modulo 8", ("(row % 8)", "row")),
        ("half of the chunks", ("row % 8", "row % 4")),
        ("elements in place of chunks", (PLACE, "column ^ (row % 8)")),
        ("no swizzle", (PLACE, "column")),
        ("the position of the chunk", (" * 8 + column % 8", "")),
    ),
    "ex18_7": wrong(
        add_tiles,
        ("no fence", ("    total = wgmma_fence(total)\n", "")),
        ("no commit", ("    wgmma_commit()\n", "")),
        ("no wait", ("return wgmma_wait_0(total)", "return total")),
        ("the last product alone", ("of_b, True)", "of_b, False)")),
        ("forgets the accumulators of the call", ("of_b, True)", "of_b, first > 0)")),
        ("three products", ("range(0, 64, 16)", "range(0, 48, 16)")),
        ("steps of 32", ("range(0, 64, 16)", "range(0, 64, 32)")),
        ("always the first columns of A", ("a, (0, first)", "a, (0, 0)")),
        ("A without a swizzle", ("(a, (0, first), 16, 1024, 128)", "(a, (0, first), 16, 1024, 0)")),
        ("rows of half the length", ("b, (0, first), 16, 1024", "b, (0, first), 16, 512")),
        ("the tiles exchanged", ("total, of_a, of_b", "total, of_b, of_a")),
        ("one warp", (MULTIPLY, f"        if {FIRST} < 32:\n    {MULTIPLY}")),
    ),
    "ex18_8": wrong(
        TransactionBarrier,
        ("does not wait for bytes", (" and self.nbytes == 0", "")),
        ("does not wait for arrivals", ("self.missing == 0 and ", "")),
        ("one arrival in later phases", (f"1\n    {RESTART}", f"1\n    {RESTART[:-13]}1")),
        ("the last byte ends nothing", (f"-= nbytes{END_IF_DUE}", "-= nbytes")),
        ("the last arrival ends nothing", (f"-= 1{END_IF_DUE}", "-= 1")),
        ("expect does not arrive", ("\n        self.arrive()", "")),
        ("forgets other expectations", ("self.nbytes += nbytes", "self.nbytes = nbytes")),
        ("the other parity", ("!= parity", "== parity")),
        ("phase 0 alone", ("self.phase % 2 != parity", "self.phase > parity")),
    ),
    "ex18_9": wrong(
        consume,
        ("always parity 0", ("phase % 2", "0")),
        ("the parity of the step", ("phase % 2", "step % 2")),
        ("the producer's parity", ("phase % 2", "(phase + 1) % 2")),
        ("does not wait", (WAIT_FULL, "")),
        ("arrives first", (ADD + ARRIVE, ARRIVE + ADD)),
        ("does not arrive", (ARRIVE, "")),
        ("one thread arrives", (ARRIVE, f"        if {FIRST} == 0:\n    {ARRIVE}")),
        ("arrives at full", ("mbarrier_arrive(empty", "mbarrier_arrive(full")),
        ("always stage 0", ("a[stage], b[stage]", "a[0], b[0]")),
        ("two stages", (STAGE, "step % 2, step // 2")),
        ("at most 8 steps", ("range(steps)", "range(min(steps, 8))")),
        ("at most 3 stages", (STAGE, "step % min(3, full.shape[0]), step // min(3, full.shape[0])")),
        ("forgets the last step", ("range(steps)", "range(steps - 1)")),
    ),
    "ex18_10": wrong(
        produce,
        ("the consumer's parity", ("(phase + 1) % 2", "phase % 2")),
        ("does not wait", (WAIT_EMPTY, "")),
        ("the bytes of A alone", ("(a.shape[1] + b.shape[1])", "a.shape[1]")),
        ("elements in place of bytes", ("2 * 64 * (a", "64 * (a")),
        ("twice the bytes", ("2 * 64 * (a", "4 * 64 * (a")),
        ("32 columns", ("a.shape[1] + b.shape[1]", "64 + 32")),
        ("expects nothing", ("2 * 64 * (a.shape[1] + b.shape[1])", "0")),
        ("always the first tile of B", ("map_b, 0, (64 * step", "map_b, 0, (0")),
        ("rows and columns exchanged", ("(64 * step, row)", "(row, 64 * step)")),
        ("the first columns in every block", ("cuda.blockIdx.x", "0")),
        ("two stages", (STAGE, "step % 2, step // 2")),
        ("at most 8 steps", ("range(steps)", "range(min(steps, 8))")),
        ("waits before the second copy", (COPY_B, f"{WAIT_FULL}{COPY_B}")),
        ("at most 3 stages", (STAGE, "step % min(3, full.shape[0]), step // min(3, full.shape[0])")),
        ("two blocks", ("cuda.blockIdx.x", "(cuda.blockIdx.x % 2)")),
    ),
}
RIGHT = {
    "ex18_1": [tap_gradient, by_windows_of_16, turned],
    "ex18_2": [add_products, quarters_in_another_order, in_two_halves],
    "ex18_3": [sum_diagonals, barrier_first, sums_in_taps],
    "ex18_4": [most_registers, by_trying],
    "ex18_5": [convolve, in_registers, a_half_at_a_time],
    "ex18_6": [place, by_bits],
    "ex18_7": [add_tiles],
    "ex18_8": [TransactionBarrier, CountedUpwards],
    "ex18_9": [consume],
    "ex18_10": [produce],
}
