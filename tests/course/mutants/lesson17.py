"""Wrong answers to the exercises of lesson 17, each labelled with its mistake, and alternative correct
answers.

Each answer is the solution's cell with some lines edited or with its body replaced.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from power.lessons import exercises

LESSON = exercises("17")
NAMES = """from numpy import float32, int32, uint32
from kernels.tensor_cores.instructions import cp_async_wait_0, ldmatrix_x2_trans, ldmatrix_x4, pack_f16
"""


def edited(check, what, *edits):
    """Return the answer after replacing each (old, new) in its cell. Every `old` must occur exactly once."""
    text = LESSON[check].cell
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"{old!r} stands {text.count(old)} times in the cell of {check}")
        text = text.replace(old, new)
    return LESSON[check].with_cell(NAMES + text, what)


def other(check, body, what="another way"):
    """Return the answer whose last solution is replaced by this body, indented by four spaces."""
    text = NAMES + LESSON[check].cell
    begin = text.rindex("    # BEGIN SOLUTION")
    end = text.index("# END SOLUTION", begin)
    lines = [f"    {line}" if line else line for line in body.strip("\n").split("\n")]
    return LESSON[check].with_cell(text[:begin] + "\n".join(lines) + "\n    " + text[end:], what)


def mutants(check, wrong):
    return [
        (what, edited(check, what, *edits) if isinstance(edits, list) else other(check, edits, what))
        for what, edits in wrong.items()
    ]


A01 = "a0, a1 = pack_bf16(p[0], p[1]), pack_bf16(p[2], p[3])"
A23 = "a2, a3 = pack_bf16(p[4], p[5]), pack_bf16(p[6], p[7])"
AS_LEFT = {
    "numbers of a column together": [
        (A01, "a0, a1 = pack_bf16(p[0], p[2]), pack_bf16(p[1], p[3])"),
        (A23, "a2, a3 = pack_bf16(p[4], p[6]), pack_bf16(p[5], p[7])"),
    ],
    "the first product twice": [(A23, "a2, a3 = a0, a1")],
    "the second product first": [("return a0, a1, a2, a3", "return a2, a3, a0, a1")],
    "only the first 8 keys": [(A23, "a2, a3 = uint32(0), uint32(0)")],
    "the tiles interleaved": [
        (A01, "a0, a1 = pack_bf16(p[0], p[1]), pack_bf16(p[4], p[5])"),
        (A23, "a2, a3 = pack_bf16(p[2], p[3]), pack_bf16(p[6], p[7])"),
    ],
    "float16": [(A01, A01.replace("bf16", "f16"))],
    "a number a little too small": [("pack_bf16(p[6], p[7])", "pack_bf16(p[6] * float32(0.998), p[7])")],
    "a number of the neighbour": [
        ("pack_bf16(p[6], p[7])", "pack_bf16(p[6], cuda.shfl_xor_sync(0xFFFFFFFF, p[7], 1))")
    ],
    "ties away from zero": """
b = cuda.local.array(8, uint32)
for x in range(8):
    b[x] = (uint32(cuda.libdevice.float_as_int(p[x])) + uint32(0x8000)) >> uint32(16)
return b[0] | b[1] << 16, b[2] | b[3] << 16, b[4] | b[5] << 16, b[6] | b[7] << 16""",
    "right, behind a barrier of the warp": [(A01, f"cuda.syncwarp()\n    {A01}")],
    "right, through a shuffle": [
        ("pack_bf16(p[6], p[7])", "pack_bf16(p[6], cuda.shfl_sync(0xFFFFFFFF, p[7], cuda.threadIdx.x))")
    ],
    "right, through shared memory": """
tile = cuda.shared.array((32, 8), float32)
lane = cuda.threadIdx.x % 32
for x in range(8):
    tile[lane, x] = p[x]
cuda.syncwarp()
t = tile[lane]
return pack_bf16(t[0], t[1]), pack_bf16(t[2], t[3]), pack_bf16(t[4], t[5]), pack_bf16(t[6], t[7])""",
}

ROW, PLACE = "row = first + lane % 16", "(row, column + lane // 16 * 8)"
VALUE_OPERANDS = {
    "one warp alone": [(PLACE, "(row, column + cuda.threadIdx.x // 16 * 8)")],
    "not transposed": [("ldmatrix_x4_trans(", "ldmatrix_x4(")],
    "the keys' map": [
        (ROW, "row = first + lane % 8 + lane // 16 * 8"),
        (PLACE, "(row, column + lane // 8 % 2 * 8)"),
    ],
    "first ignored": [(ROW, "row = lane % 16")],
    "column ignored": [(PLACE, "(row, lane // 16 * 8)")],
    "one column further, not eight": [(PLACE, "(row, column + lane // 16)")],
    "a row for each lane": [(ROW, "row = first + lane")],
    "the keys 0 to 7 alone": [(ROW, "row = first + lane % 8")],
    "the columns 0 to 7 alone": [(PLACE, "(row, column)")],
    "the keys turned round": [(ROW, "row = first + 15 - lane % 16")],
    "columns first": [(PLACE, "(row, column + 8 - lane // 16 * 8)")],
    "two instructions": """
row = first + lane % 16
b0, b1 = ldmatrix_x2_trans(tile, (row, column))
b2, b3 = ldmatrix_x2_trans(tile, (row, column + 8))
return b0, b1, b2, b3""",
    "the keys' operands": """
row = first + lane % 8 + lane // 16 * 8
return ldmatrix_x4(tile, (row, column + lane // 8 % 2 * 8))""",
    "plain loads": """
row, c = first + lane % 4 * 2, column + lane // 4
b0 = uint32((int32(tile[row, c]) & 0xFFFF) | (int32(tile[row + 1, c]) << 16))
b1 = uint32((int32(tile[row + 8, c]) & 0xFFFF) | (int32(tile[row + 9, c]) << 16))
b2 = uint32((int32(tile[row, c + 8]) & 0xFFFF) | (int32(tile[row + 1, c + 8]) << 16))
b3 = uint32((int32(tile[row + 8, c + 8]) & 0xFFFF) | (int32(tile[row + 9, c + 8]) << 16))
return b0, b1, b2, b3""",
}

WAIT, MEET = "        cp_async_wait_0()\n", "        cuda.syncthreads()\n"
GUARD = "        if j0 + KEYS < seen:\n"
NEXT = "            send_tiles(k, v, k_tile, v_tile, KEYS - stage, j0 + KEYS)\n"
VISIT = "use_tiles(k_tile, v_tile, stage, j0, mine)"
LOOP = "for j0 in range(0, seen, KEYS):"
TWO_PLACES = {
    "never waits": [(WAIT, "")],
    "no barrier": [(MEET, "")],
    "waits behind the barrier": [(WAIT + MEET, MEET + WAIT)],
    "waits for all but the newest": [("cp_async_wait_0", "cp_async_wait_1")],
    "sends before the barrier": [(WAIT + MEET, WAIT), (NEXT, NEXT + MEET)],
    "two barriers": [(VISIT, f"{VISIT}\n        cuda.syncthreads()")],
    "waits as soon as it has sent": [(NEXT, NEXT + "    " + WAIT)],
    "one place": """
for j0 in range(0, seen, KEYS):
    send_tiles(k, v, k_tile, v_tile, 0, j0)
    cp_async_wait_0()
    cuda.syncthreads()
    use_tiles(k_tile, v_tile, 0, j0, mine)
    cuda.syncthreads()""",
    "always stage 0": [("stage = KEYS - stage", "stage = stage")],
    "uses the other stage": [(VISIT, "use_tiles(k_tile, v_tile, KEYS - stage, j0, mine)")],
    "brings beyond the last tile": [(GUARD, "        if j0 >= 0:\n")],
    "goes on to the last key": [(LOOP, "for j0 in range(0, k.shape[0], KEYS):")],
    "the last tile is missing": [(LOOP, "for j0 in range(0, seen - KEYS + 1, KEYS):")],
    "the first tile is missing": [("    send_tiles(k, v, k_tile, v_tile, 0, 0)\n", "")],
    "the tile's number is one behind": [(VISIT, "use_tiles(k_tile, v_tile, stage, j0 - KEYS, mine)")],
    "brings this tile again": [("KEYS - stage, j0 + KEYS)", "KEYS - stage, j0)")],
    "two tiles and no more": [(LOOP, "for j0 in range(0, min(seen, 2 * KEYS), KEYS):")],
    "brings each tile twice": [(NEXT, NEXT + NEXT)],
    "only the first warp waits": [
        (WAIT, "        if cuda.threadIdx.x < 32:\n            cp_async_wait_0()\n")
    ],
    "tiles of 16 keys": """
send_tiles(k, v, k_tile, v_tile, 0, 0)
stage = 0
for j0 in range(0, seen, 16):
    cp_async_wait_0()
    cuda.syncthreads()
    if j0 + 16 < seen:
        send_tiles(k, v, k_tile, v_tile, 16 - stage, j0 + 16)
    use_tiles(k_tile, v_tile, stage, j0, mine)
    stage = 16 - stage""",
}

ROUTES = {
    "convolution as dear as tensor cores": [("12 * c_q * c_k", "c_q * c_k")],
    "c_q rows, not c_q - 1": [("rows = strip + c_q - 1", "rows = strip + c_q")],
    "odd rows": [("    rows += rows % 2\n", "")],
    "c_k rows of taps": [("c_q * (16", "c_k * (16")],
    "S0 once": [("d * rows / strip", "d")],
    "rows for each query": [("d * rows / strip", "d * rows")],
    "whole numbers": [("d * rows / strip", "d * rows // strip")],
    "strip of 4": [("d * rows / strip", "d * rows / 4")],
    "folds the rows": [("toeplitz, d * c_k", "toeplitz, d * c_q")],
    "folding with its scores": [("toeplitz, d * c_k", "toeplitz, d * c_k + d")],
    "plain without scores": [("plain = d + 12", "plain = 12")],
    "two of them": [("return plain, toeplitz, d * c_k", "return toeplitz, d * c_k")],
}

TAP = "return w[a, b] if 0 <= b and b < w.shape[1] else float32(0)"
B0, B1 = "pack_bf16(tap(w, a, b), tap(w, a, b + 1))", "pack_bf16(tap(w, a, b + 8), tap(w, a, b + 9))"
FIRST = "b = lane % 4 * 2 - lane // 4"
BAND = {
    "one warp alone": [("lane = cuda.threadIdx.x % 32", "lane = cuda.threadIdx.x")],
    "the nearest tap instead of 0": [(TAP, "return w[a, max(0, min(b, w.shape[1] - 1))]")],
    "0 times an infinite tap": [
        (TAP, "return w[a, b if 0 <= b and b < w.shape[1] else 0] * float32(0 <= b and b < w.shape[1])")
    ],
    "at most 7 taps": [(TAP, TAP.replace("b < w.shape[1]", "b < min(7, w.shape[1])"))],
    "always row 0": [(TAP, TAP.replace("w[a, b]", "w[0, b]"))],
    "turned round": [(TAP, TAP.replace("w[a, b]", "w[a, w.shape[1] - 1 - b]"))],
    "transposed": [(FIRST, "b = lane // 4 - lane % 4 * 2")],
    "rows and columns changed places": [(FIRST, "b = lane // 4 * 2 - lane % 4")],
    "one row each": [(FIRST, "b = lane % 4 - lane // 4")],
    "the halves changed places": [(B0, "pack_bf16(tap(w, a, b + 1), tap(w, a, b))")],
    "one number in both halves": [(B0, "pack_bf16(tap(w, a, b), tap(w, a, b))")],
    "b1 four rows further": [(B1, "pack_bf16(tap(w, a, b + 4), tap(w, a, b + 5))")],
    "b0 and b1 changed places": [("return b0, b1", "return b1, b0")],
    "b1 is 0": [(B1, "uint32(0)")],
    "a barrier of the warp": [(FIRST, f"cuda.syncwarp()\n    {FIRST}")],
    "the whole block": [(FIRST, "b = cuda.threadIdx.x * 2 - lane // 4")],
}

A0, A2 = "a0, a1 = s[a, block], s[a + 1, block]", "a2, a3 = s[a, block + 1], s[a + 1, block + 1]"
B, PRODUCT = "b0, b1, x = bands[a, 0], bands[a, 1], 4 * block", "a0, a1, a2, a3, b0, b1, t[x]"
CONVOLVE = {
    "both queries the same row": [(A0, A0.replace("a + 1", "a")), (A2, A2.replace("a + 1", "a"))],
    "no shift of rows": [
        (A0, "a0, a1 = s[0, block], s[1, block]"),
        (A2, "a2, a3 = s[0, block + 1], s[1, block + 1]"),
    ],
    "two rows a tap": [
        (A0, "a0, a1 = s[2 * a, block], s[2 * a + 1, block]"),
        (A2, "a2, a3 = s[2 * a, block + 1], s[2 * a + 1, block + 1]"),
    ],
    "the queries changed places": [(PRODUCT, "a1, a0, a3, a2, b0, b1, t[x]")],
    "the first block for both": [(A0, A0.replace("block]", "0]")), (A2, A2.replace("block + 1]", "1]"))],
    "the same block twice": [(A2, A2.replace("block + 1", "block"))],
    "three rows of taps": [("range(bands.shape[0])", "range(3)")],
    "all but the last row of taps": [("range(bands.shape[0])", "range(bands.shape[0] - 1)")],
    "taps from below": [(B, B.replace("bands[a,", "bands[bands.shape[0] - 1 - a,"))],
    "the last row alone": [("range(bands.shape[0])", "range(bands.shape[0] - 1, bands.shape[0])")],
    "lanes with zeros in a make no product": [
        (
            B,
            "if s[a, block] == 0 and s[a + 1, block] == 0 and a2 == 0 and a3 == 0: continue\n            "
            + B,
        )
    ],
    "lanes with zeros in b make no product": [
        (B, "if bands[a, 0] == 0 and bands[a, 1] == 0: continue\n            " + B)
    ],
    "a barrier of the warp": [(B, f"cuda.syncwarp()\n            {B}")],
    "t of both blocks in one": [(B, B.replace("4 * block", "0"))],
}

MUTANTS = {
    "ex17_1": mutants("ex17_1", AS_LEFT),
    "ex17_2": mutants("ex17_2", VALUE_OPERANDS),
    "ex17_3": mutants("ex17_3", TWO_PLACES),
    "ex17_4": mutants("ex17_4", ROUTES),
    "ex17_5": mutants("ex17_5", BAND),
    "ex17_6": mutants("ex17_6", CONVOLVE),
}

RIGHT = {
    "ex17_1": [
        other(
            "ex17_1",
            """
left, right = (pack_bf16(p[0], p[1]), pack_bf16(p[2], p[3])), (pack_bf16(p[4], p[5]), pack_bf16(p[6], p[7]))
return left[0], left[1], right[0], right[1]""",
        ),
        other(
            "ex17_1",
            """
if cuda.threadIdx.x % 2:
    return pack_bf16(p[0], p[1]), pack_bf16(p[2], p[3]), pack_bf16(p[4], p[5]), pack_bf16(p[6], p[7])
return pack_bf16(p[0], p[1]), pack_bf16(p[2], p[3]), pack_bf16(p[4], p[5]), pack_bf16(p[6], p[7])""",
        ),
        other(
            "ex17_1",
            """
a = cuda.local.array(4, uint32)
for r in range(4):
    a[r] = pack_bf16(p[2 * r], p[2 * r + 1])
return a[0], a[1], a[2], a[3]""",
        ),
    ],
    "ex17_2": [
        other(
            "ex17_2",
            """
matrix, row = lane >> 3, lane & 7
return ldmatrix_x4_trans(tile, (first + row + (matrix & 1) * 8, column + (matrix >> 1) * 8))""",
        ),
        other(
            "ex17_2",
            """
if lane < 16:
    row, c = first + lane, column
else:
    row, c = first + lane - 16, column + 8
b0, b1, b2, b3 = ldmatrix_x4_trans(tile, (row, c))
return b0, b1, b2, b3""",
        ),
    ],
    "ex17_3": [
        other(
            "ex17_3",
            """
tiles = (seen + KEYS - 1) // KEYS
send_tiles(k, v, k_tile, v_tile, 0, 0)
for number in range(tiles):
    cp_async_wait_0()
    cuda.syncthreads()
    if number + 1 < tiles:
        send_tiles(k, v, k_tile, v_tile, (number + 1) % 2 * KEYS, (number + 1) * KEYS)
    use_tiles(k_tile, v_tile, number % 2 * KEYS, number * KEYS, mine)""",
        ),
        other(
            "ex17_3",
            """
send_tiles(k, v, k_tile, v_tile, 0, 0)
cp_async_wait_0()
cuda.syncthreads()
j0, stage = 0, 0
while j0 < seen:
    if j0 + KEYS < seen:
        send_tiles(k, v, k_tile, v_tile, KEYS - stage, j0 + KEYS)
    use_tiles(k_tile, v_tile, stage, j0, mine)
    cp_async_wait_0()
    cuda.syncthreads()
    j0, stage = j0 + KEYS, KEYS - stage""",
        ),
        other(
            "ex17_3",
            """
send_tiles(k, v, k_tile, v_tile, 0, 0)
stage = 0
for j0 in range(KEYS, seen, KEYS):
    cp_async_wait_0()
    cuda.syncthreads()
    send_tiles(k, v, k_tile, v_tile, KEYS - stage, j0)
    use_tiles(k_tile, v_tile, stage, j0 - KEYS, mine)
    stage = KEYS - stage
cp_async_wait_0()
cuda.syncthreads()
use_tiles(k_tile, v_tile, stage, (seen - 1) // KEYS * KEYS, mine)""",
        ),
    ],
    "ex17_4": [
        other(
            "ex17_4",
            """
import math
pairs = math.ceil((strip + c_q - 1) / 2)
steps = [16, 24][c_k > 9]
return [12 * c_k * c_q + d, 2 * pairs / strip * d + steps * c_q, c_k * d]""",
        ),
        other(
            "ex17_4",
            """
from fractions import Fraction
rows = (strip + c_q) // 2 * 2
blocks = 2 if c_k <= 9 else 3
return d + 12 * c_q * c_k, float(Fraction(d * rows, strip)) + 8 * blocks * c_q, d * c_k""",
        ),
    ],
    "ex17_5": [
        other(
            "ex17_5",
            """
g, t = cuda.threadIdx.x // 4 % 8, cuda.threadIdx.x % 4
part = cuda.local.array(4, float32)
for x in range(4):
    row = 2 * t + x % 2 + x // 2 * 8
    part[x] = float32(0)
    for b in range(w.shape[1]):
        if row == g + b:
            part[x] = w[a, b]
return pack_bf16(part[0], part[1]), pack_bf16(part[2], part[3])""",
        ),
        other(
            "ex17_5",
            """
lane, c_k = cuda.threadIdx.x & 31, w.shape[1]
first = 2 * (lane & 3) - (lane >> 2)
x0 = w[a, first] if first >= 0 and first < c_k else float32(0)
x1 = w[a, first + 1] if first >= -1 and first + 1 < c_k else float32(0)
x8 = w[a, first + 8] if first + 8 < c_k else float32(0)
x9 = w[a, first + 9] if first + 9 < c_k else float32(0)
return pack_bf16(x0, x1), pack_bf16(x8, x9)""",
        ),
    ],
    "ex17_6": [
        other(
            "ex17_6",
            """
for block in range(2):
    c0, c1, c2, c3 = float32(0), float32(0), float32(0), float32(0)
    for a in range(bands.shape[0]):
        c0, c1, c2, c3 = mma_bf16(
            s[a, block], s[a + 1, block], s[a, block + 1], s[a + 1, block + 1],
            bands[a, 0], bands[a, 1], c0, c1, c2, c3,
        )
    t[4 * block], t[4 * block + 1], t[4 * block + 2], t[4 * block + 3] = c0, c1, c2, c3""",
        ),
        other(
            "ex17_6",
            """
for x in range(8):
    t[x] = float32(0)
for a in range(bands.shape[0] - 1, -1, -1):
    b0, b1 = bands[a, 0], bands[a, 1]
    t[0], t[1], t[2], t[3] = mma_bf16(
        s[a, 0], s[a + 1, 0], s[a, 1], s[a + 1, 1], b0, b1, t[0], t[1], t[2], t[3]
    )
    t[4], t[5], t[6], t[7] = mma_bf16(
        s[a, 1], s[a + 1, 1], s[a, 2], s[a + 1, 2], b0, b1, t[4], t[5], t[6], t[7]
    )""",
        ),
    ],
}
