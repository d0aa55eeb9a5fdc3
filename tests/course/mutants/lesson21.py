"""Wrong answers to the exercises of lesson 21, each labelled with its mistake, and alternative correct
answers."""

import inspect
import linecache

from course.check.lesson21 import VERDICTS
from kernels.triton.optional import tl, triton
from kernels.triton.small import by_products
from kernels.triton.tiles import convolved as moved_tiles
from kernels.triton.tiles import load_rows, store_rows
from power.lessons import from_solutions


def solution(name):
    """Return the source of the lesson's kernel, renamed to `answer`."""
    (kernel,) = from_solutions("21", name)
    return inspect.getsource(kernel.fn).replace(f"def {name}(", "def answer(")


def variant(source, *changes):
    """Return the kernel of this source, with parts of its text replaced. Triton can read its source."""
    for old, new in changes:
        assert source.count(old), f"{old!r} is not in the source"
        source = source.replace(old, new)
    file = f"<lesson 21: {hash(source)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names = dict(tl=tl, triton=triton, load_rows=load_rows, store_rows=store_rows, __name__="lesson21")
    exec(compile(source, file, "exec"), names)
    return names["answer"]


def wrong(source, changes):
    return [
        (label, variant(source, *(each if isinstance(each, list) else [each]))) for label, each in changes
    ]


# 21.1

SOFTMAX = solution("softmax_rows")
ROW_BY_ROW = """@triton.jit
def answer(x, y, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    j = tl.arange(0, WIDTH)
    for r in range(ROWS):
        i = tl.program_id(0) * ROWS + r
        if i < rows:
            s = tl.load(x + i * n + j, mask=j < n, other=float("-inf"))
            e = tl.exp2((s - tl.max(s, 0)) * 1.4426950408889634)
            tl.store(y + i * n + j, e * (1 / tl.sum(e, 0)), mask=j < n)
"""
BY_WHERE = """@triton.jit
def answer(x, y, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    first = tl.program_id(axis=0) * ROWS
    i, j = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    place = i[:, None] * n + j[None, :]
    t = tl.load(x + place, (i[:, None] < rows) & (j[None, :] < n))
    t = tl.where(j[None, :] < n, t, -float("inf"))
    t -= tl.max(t, axis=1, keep_dims=True)
    p = tl.exp(t)
    tl.store(y + place, p / tl.sum(p, axis=1, keep_dims=True), (i[:, None] < rows) & (j[None, :] < n))
"""
MASK_FIRST = """@triton.jit
def answer(x, y, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    r0 = tl.program_id(0) * ROWS
    offsets = (r0 + tl.arange(0, ROWS))[:, None] * n + tl.arange(0, WIDTH)[None, :]
    ok = (tl.arange(0, WIDTH)[None, :] < n) & ((r0 + tl.arange(0, ROWS))[:, None] < rows)
    t = tl.load(x + offsets, ok, 0.0)
    t = tl.where(ok, t, float("-inf"))
    t = t - t.max(1)[:, None]
    t = tl.where(ok, tl.exp(t), 0.0)
    tl.store(y + offsets, t / t.sum(1)[:, None], ok)
"""
TWO_LOADS = [
    ("tl.sum(e, 1)[:, None]", "tl.sum(again, 1)[:, None]"),
    (
        "    tl.store",
        "    t = tl.load(x + i * n + j, mask=inside, other=float('-inf'))\n"
        "    again = tl.exp(t - tl.max(s, 1)[:, None])\n    tl.store",
    ),
]


def plain_function(x, y, rows, n, ROWS, WIDTH):
    pass


# 21.3

FLASH = solution("flash")
FLASH_OTHERWISE = """@triton.jit
def answer(
    q, k, v, scale, o, n, d,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):
    first = tl.program_id(0) * ROWS
    i, c = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    q_tile = tl.load(q + i[:, None] * d + c[None, :], mask=(i[:, None] < n) & (c[None, :] < d), other=0.0)
    o_tile = tl.zeros([ROWS, WIDTH], dtype=tl.float32)
    m = tl.zeros([ROWS], dtype=tl.float32) - float("inf")
    l = tl.zeros([ROWS], dtype=tl.float32)
    tiles = tl.cdiv(n, KEYS)
    if CAUSAL:
        tiles = tl.cdiv(tl.minimum(n, first + ROWS), KEYS)
    for tile in range(tiles - 1, -1, -1):
        j = tile * KEYS + tl.arange(0, KEYS)
        there = (j[:, None] < n) & (c[None, :] < d)
        k_tile = tl.load(k + j[:, None] * d + c[None, :], mask=there, other=0.0)
        s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * scale * 1.4426950408889634
        s = tl.where(j[None, :] < n, s, float("-inf"))
        if CAUSAL:
            s = tl.where(i[:, None] >= j[None, :], s, float("-inf"))
        larger = tl.maximum(m, tl.max(s, axis=1))
        safe = tl.where(larger == float("-inf"), 0.0, larger)
        p = tl.exp2(s - safe[:, None])
        shrink = tl.exp2(m - safe)
        l = l * shrink + tl.sum(p, axis=1)
        v_tile = tl.load(v + j[:, None] * d + c[None, :], mask=there, other=0.0)
        o_tile = tl.dot(p, v_tile, acc=o_tile * shrink[:, None], input_precision="ieee")
        m = larger
    o_tile = o_tile / l[:, None]
    tl.store(o + i[:, None] * d + c[None, :], o_tile, mask=(i[:, None] < n) & (c[None, :] < d))
"""
ON_ITS_SIDE = """@triton.jit
def answer(
    q, k, v, scale, o, n, d,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):
    i0 = tl.program_id(0) * ROWS
    qt = tl.trans(load_rows(q, i0, n, d, ROWS, WIDTH) * scale)
    i = i0 + tl.arange(0, ROWS)
    m, l = tl.full([ROWS], float("-inf"), tl.float32), tl.full([ROWS], 0.0, tl.float32)
    ot = tl.zeros([WIDTH, ROWS], tl.float32)
    end = n
    if CAUSAL:
        end = tl.minimum(n, i0 + ROWS)
    for t in range(tl.cdiv(end, KEYS)):
        j = t * KEYS + tl.arange(0, KEYS)
        s = tl.dot(load_rows(k, t * KEYS, n, d, KEYS, WIDTH), qt, input_precision="ieee")
        ok = j[:, None] < n
        if CAUSAL:
            ok = ok & (j[:, None] <= i[None, :])
        s = tl.where(ok, s, float("-inf"))
        new = tl.maximum(m, s.max(0))
        p = tl.exp(s - new[None, :])
        a = tl.exp(m - new)
        l = l * a + p.sum(0)
        vt = tl.trans(load_rows(v, t * KEYS, n, d, KEYS, WIDTH))
        ot = ot * a[None, :] + tl.dot(vt, p, input_precision="ieee")
        m = new
    store_rows(o, i0, ROWS, n, d, tl.trans(ot / l[None, :]))
"""
TWO_LOOPS = (
    "    for j0 in range(0, end, KEYS):\n        j = j0",
    """    full = min(i0, n) // KEYS * KEYS if CAUSAL else n // KEYS * KEYS
    for j0 in range(0, full, KEYS):
        k_tile = load_rows(k, j0, n, d, KEYS, WIDTH)
        v_tile = load_rows(v, j0, n, d, KEYS, WIDTH)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        larger = tl.maximum(m, tl.max(scores, 1))
        shrink = tl.exp(m - larger)
        p = tl.exp(scores - larger[:, None])
        l = l * shrink + tl.sum(p, 1)
        o_tile = o_tile * shrink[:, None] + tl.dot(p, v_tile, input_precision="ieee")
        m = larger
    for j0 in range(full, end, KEYS):
        j = j0""",
)
TWO_PASSES = [
    (
        "    for j0",
        "    for j1 in range(0, end, KEYS):\n"
        "        j = j1 + tl.arange(0, KEYS)[None, :]\n"
        "        t = tl.dot(q_tile, tl.trans(load_rows(k, j1, n, d, KEYS, WIDTH)), input_precision='ieee')\n"
        "        t = tl.where((j < n) & ((j <= i) | (not CAUSAL)), t, float('-inf'))\n"
        "        m = tl.maximum(m, tl.max(t, 1))\n"
        "    for j0",
    )
]
LAST_LINES = [("    store_rows", "        store_rows")]

# 21.5

CONVOLVED = solution("convolved")
BY_MOVES = """@triton.jit
def answer(s, taps, c_q, c_k, SIZE: tl.constexpr):
    i, j = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    total = tl.zeros_like(s)
    for a in range(c_q):
        for b in range(c_k):
            row = tl.gather(s, tl.broadcast_to((i + a) % SIZE, SIZE, SIZE), 0)
            moved = tl.gather(row, tl.broadcast_to((j + b) % SIZE, SIZE, SIZE), 1)
            total += tl.load(taps + a * c_k + b) * moved
    return total
"""
THREE_SIDES = """@triton.jit
def answer(s, taps, c_q, c_k, SIZE: tl.constexpr):
    r = tl.arange(0, SIZE)
    out = tl.zeros([SIZE, SIZE], tl.float32)
    for a in range(c_q):
        up = r[None, :] == r[:, None] + a
        moved = tl.sum(tl.where(up[:, :, None], s[None, :, :], 0.0), 1)
        for b in range(c_k):
            w = tl.load(taps + a * c_k + b)
            left = r[:, None] == r[None, :] + b
            out += w * tl.sum(tl.where(left[None, :, :], moved[:, :, None], 0.0), 1)
    return out
"""
ROWS_FIRST = """@triton.jit
def answer(s, taps, c_q, c_k, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    total = tl.zeros((SIZE, SIZE), dtype=tl.float32)
    for b in range(c_k):
        a = i[None, :] - i[:, None]
        band = tl.load(taps + a * c_k + b, mask=(a >= 0) & (a < c_q), other=0.0)
        left = tl.where(i[:, None] == i[None, :] + b, 1.0, 0.0)
        total = tl.dot(tl.dot(band, s, input_precision="ieee"), left, acc=total, input_precision="ieee")
    return total
"""
BAND, IEEE = "b = i - j", ', input_precision="ieee"'

THREADS = "[t for t in range(32 * warps) if {}]"


def holders(rule):
    return eval(f"lambda j, width, warps: {THREADS.format(rule)}")


def loads(j, width, num_warps):
    threads = 32 * num_warps
    if width >= threads:
        return [j % threads]
    return list(range(j, threads, width))


@triton.jit
def by_the_package(s, taps, c_q, c_k, SIZE: tl.constexpr):
    """Wrong: calls the package's own convolution."""
    return moved_tiles(s, taps, c_q, c_k, False)


MUTANTS = {
    "ex21_1": [
        ("a plain function", plain_function),
        *wrong(
            SOFTMAX,
            [
                ("no maximum", ("s - tl.max(s, 1)[:, None]", "s")),
                ("one maximum for the tile", ("tl.max(s, 1)[:, None]", "tl.max(s)")),
                ("one sum for the tile", ("tl.sum(e, 1)[:, None]", "tl.sum(e)")),
                ("the maximum of columns", ("tl.max(s, 1)[:, None]", "tl.max(s, 0)[None, :]")),
                ("the sum of columns", ("tl.sum(e, 1)[:, None]", "tl.sum(e, 0)[None, :]")),
                ("what is masked is 0", ('float("-inf")', "0.0")),
                ("what is masked is -1e9", ('float("-inf")', "-1e9")),
                ("no mask of rows", ("(i < rows) & (j < n)", "(j < n) & (i >= 0)")),
                ("no mask of columns", ("(i < rows) & (j < n)", "(i < rows) & (j >= 0)")),
                ("rows of WIDTH", [("x + i * n", "x + i * WIDTH"), ("y + i * n", "y + i * WIDTH")]),
                ("all programs do the first rows", ("tl.program_id(0) * ROWS +", "0 +")),
                ("programs overlap", ("tl.program_id(0) * ROWS", "tl.program_id(0) * (ROWS - 1)")),
                ("not divided", ("e / tl.sum(e, 1)[:, None]", "e")),
                ("loads twice", TWO_LOADS),
                (
                    "program 0 does all",
                    [
                        (
                            "    i = tl.program_id(0) * ROWS +",
                            "    for b in range(ALL):\n        i = b * ROWS +",
                        ),
                        ("ALL", "0 if tl.program_id(0) > 0 else tl.cdiv(rows, ROWS)"),
                        *[
                            (f"\n    {line}", f"\n        {line}")
                            for line in ("j =", "inside", "s =", "e =", "tl.store")
                        ],
                    ],
                ),
                (
                    "programs from the end",
                    ("tl.program_id(0)", "(tl.num_programs(0) - 1 - tl.program_id(0))"),
                ),
                ("and", ("(i < rows) & (j < n)", "i < rows and j < n")),
                (
                    "a maximum of at least 0",
                    ("tl.max(s, 1)[:, None]", "tl.maximum(tl.max(s, 1), 0.0)[:, None]"),
                ),
                ("32 columns", ("(j < n)", "(j < min(n, 32))")),
                ("another base", ("tl.exp(s", "tl.exp2(s")),
            ],
        ),
    ],
    "ex21_2": [
        ("the number's own", holders("t == j")),
        ("one warp", holders("t == j % 32")),
        ("one thread alone", holders("t == j % min(width, 32 * warps)")),
        ("neighbours", holders("t == j * 32 * warps // width")),
        ("all of a warp", holders("t % width % 32 == j % 32")),
        ("warps instead of threads", lambda j, width, warps: [j % warps]),
        ("a number", lambda j, width, warps: j % (32 * warps)),
        ("at most 4 warps", lambda j, width, warps: loads(j, width, min(warps, 4))),
        ("two at most", lambda j, width, warps: loads(j, width, warps)[:2]),
    ],
    "ex21_3": wrong(
        FLASH,
        [
            (
                "no maximum",
                ("larger = tl.maximum(m, tl.max(scores, 1))", "larger = tl.zeros((ROWS,), tl.float32)"),
            ),
            ("this tile's maximum", ("tl.maximum(m, tl.max(scores, 1))", "tl.max(scores, 1)")),
            ("o does not shrink", ("o_tile * shrink[:, None]", "o_tile")),
            ("l does not shrink", ("l * shrink", "l")),
            ("m stays", ("        m = larger\n", "")),
            ("begins at 0", ('tl.full((ROWS,), float("-inf"), tl.float32)', "tl.zeros((ROWS,), tl.float32)")),
            ("begins at -1e9", ('tl.full((ROWS,), float("-inf")', "tl.full((ROWS,), -1e9")),
            (
                "m begins as a number",
                ('m = tl.full((ROWS,), float("-inf"), tl.float32)', 'm = float("-inf")'),
            ),
            ("keys behind the last count", ("else j < n", "else j < n + KEYS")),
            ("masked with -1e9", ('scores, float("-inf")', "scores, -1e9")),
            ("no scale", ("scale * load_rows", "load_rows")),
            ("scale twice", ("scores = tl.dot", "scores = scale * tl.dot")),
            ("one tile too few", ("min(n, i0 + ROWS) if CAUSAL else n", "min(n, i0) if CAUSAL else n")),
            ("the first tile alone", ("range(0, end, KEYS)", "range(0, KEYS, KEYS)")),
            ("two tiles at most", ("range(0, end, KEYS)", "range(0, min(end, 2 * KEYS), KEYS)")),
            ("steps by ROWS", ("range(0, end, KEYS)", "range(0, end, ROWS)")),
            ("V by the queries' rows", ("load_rows(v, j0", "load_rows(v, i0")),
            ("K is V", ("load_rows(k, j0", "load_rows(v, j0")),
            ("not divided", ("o_tile / l[:, None]", "o_tile")),
            ("one program does it", ("tl.program_id(0) * ROWS", "0")),
            ("stores each round", LAST_LINES),
            (
                "16 columns of K",
                (
                    "k_tile = load_rows(k, j0, n, d, KEYS, WIDTH)",
                    "c = tl.arange(0, WIDTH)[None, :]\n"
                    "        k_tile = tl.where(c < 16, load_rows(k, j0, n, d, KEYS, WIDTH), 0.0)",
                ),
            ),
            ("causal within the tiles", ("(j <= i)", "(j - j0 <= i - i0)")),
            ("1/√d", ("scale * load_rows", "(1.0 / tl.sqrt(d + 0.0)) * load_rows")),
            ("full tiles alone", ("range(0, end, KEYS)", "range(0, end // KEYS * KEYS, KEYS)")),
            ("six tiles at most", ("range(0, end, KEYS)", "range(0, min(end, 6 * KEYS), KEYS)")),
            ("stores too few rows", ("ROWS, n, d, o_tile", "ROWS - 1, n, d, o_tile")),
            ("two passes", TWO_PASSES),
            ("an index", ("tl.dot(q_tile,", "tl.dot(q_tile[0:ROWS],")),
            (
                "a loop that breaks",
                ("        m = larger\n", "        m = larger\n        if j0 > n:\n            break\n"),
            ),
        ],
    ),
    "ex21_4": [
        ("all none", lambda: dict.fromkeys("ABCDE", "none")),
        ("D too", lambda: VERDICTS | {"D": "programs"}),
        ("E for the interpreter", lambda: VERDICTS | {"E": "none"}),
        ("C by threads", lambda: VERDICTS | {"C": "threads"}),
        ("A is right", lambda: VERDICTS | {"A": "none"}),
        ("B by threads", lambda: VERDICTS | {"B": "threads"}),
        ("no such word", lambda: VERDICTS | {"A": "bounds"}),
        ("one left out", lambda: {name: VERDICTS[name] for name in "ABCD"}),
        ("a list", lambda: list(VERDICTS.values())),
    ],
    "ex21_5": wrong(
        CONVOLVED,
        [
            ("turned round in the row", ("a * c_k + b,", "a * c_k + c_k - 1 - b,")),
            ("from bottom to top", ("taps + a * c_k", "taps + (c_q - 1 - a) * c_k")),
            ("does not move", ("j == i + a", "j == i")),
            ("rows of SIZE", ("a * c_k + b,", "a * SIZE + b,")),
            ("rows of c_q", ("a * c_k + b,", "a * c_q + b,")),
            ("no lower bound", ("(b >= 0) & (b < c_k)", "(b < c_k) & (b > -SIZE)")),
            ("no upper bound", ("(b >= 0) & (b < c_k)", "b >= 0")),
            ("one tap less", ("(b < c_k)", "(b < c_k - 1)")),
            ("centred", ("j == i + a", "j == i + a - c_q // 2")),
            ("both sides of the band", (BAND, "b = tl.abs(i - j)")),
            ("the first row of taps", ("range(c_q)", "range(1)")),
            ("the last row of taps alone", ("total += tl", "total = tl")),
            ("c_k rows of taps", ("range(c_q)", "range(c_k)")),
            ("11 bits", (IEEE, "")),
            ("an index", ("tl.dot(s, band", "tl.dot(s[a:, :], band")),
            ("writes into the taps", ("    return", "    tl.store(taps, 1.0)\n    return")),
            ("six rows at most", ("range(c_q)", "range(min(c_q, 6))")),
            ("gives nothing back", ("    return total\n", "")),
        ],
    )
    + [("the package's convolution", by_the_package), ("the package's products", by_products)],
}


RIGHT = {
    "ex21_1": [variant(SOFTMAX), variant(ROW_BY_ROW), variant(BY_WHERE), variant(MASK_FIRST)],
    "ex21_2": [
        loads,
        holders("t % width == j % (32 * warps)"),
        lambda j, width, warps: range(j % (32 * warps), 32 * warps, width),
        lambda j, width, warps: {t for t in range(32 * warps) if j in range(t % width, width, 32 * warps)},
    ],
    "ex21_3": [variant(FLASH), variant(FLASH_OTHERWISE), variant(ON_ITS_SIDE), variant(FLASH, TWO_LOOPS)],
    "ex21_4": [lambda: dict(reversed(VERDICTS.items()))],
    "ex21_5": [variant(CONVOLVED), variant(BY_MOVES), variant(ROWS_FIRST), variant(THREE_SIDES)],
}
