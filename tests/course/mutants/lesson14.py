"""Wrong answers to the exercises of lesson 14, each labelled with its mistake, and alternative correct
answers."""

import math

import torch
from numba import cuda
from numpy import float32
from torch.nn.functional import conv2d, pad

from course.check.lesson14b import ACCEPTED
from editing import edited, wrong
from kernels import reference
from kernels.common.tiles import MINUS_INFINITY, weight
from kernels.reference import conv_scores
from kernels.reference.conv_tiled import load_rows
from kernels.reference.tiled import Traffic
from power.lessons import from_solutions

later, window_scores, is_right, merge_splits = from_solutions(
    "14", "later", "window_scores", "is_right", "merge_splits"
)


# Correct answers --------------------------------------------------------------------------------------------


def split_state(q_window, k, v, w, start, end, traffic):
    (rows, d), n, (c_q, c_k) = q_window.shape, len(k), w.shape
    if start == end:
        return -math.inf, 0.0, q_window.new_zeros(d)
    left = (c_k - 1) // 2
    k_tile = load_rows(k, start - left, end - start + c_k - 1, traffic)
    v_tile = load_rows(v, start, end - start, traffic)
    s = q_window @ k_tile.T / math.sqrt(d)
    s0 = s.masked_fill(later(*s.shape, n - rows, start - left), 0.0)
    t = conv2d(pad(s0, (0, 0, c_q - rows, 0))[None, None], w[None, None])[0, 0, 0]
    m = t.max()
    p = torch.exp(t - m)
    l = p.sum()
    o = p @ v_tile
    return m, l, o


# Alternative correct answers --------------------------------------------------------------------------------


def scores_tap_by_tap(q_window, k, w):
    rows, n = len(q_window), len(k)
    (c_q, c_k), s = w.shape, q_window @ k.T / math.sqrt(k.shape[1])
    t = torch.zeros(n, dtype=k.dtype)
    for j in range(n):
        for a in range(c_q):
            for b in range(c_k):
                row, key = rows - c_q + a, j - (c_k - 1) // 2 + b
                if row >= 0 and 0 <= key <= n - rows + row:
                    t[j] += w[a, b] * s[row, key]
    return t


def scores_by_the_triangle(q_window, k, w):
    rows, left = len(q_window), (w.shape[1] - 1) // 2
    s = torch.tril(q_window @ k.T, diagonal=len(k) - rows) * k.shape[1] ** -0.5
    return conv2d(pad(s, (left, w.shape[1] - 1 - left, 0, 0))[None, None], w[None, None, -rows:]).flatten()


def split_by_softmax(q_window, k, v, w, start, end, traffic):
    if end <= start:
        return -math.inf, 0, torch.zeros(v.shape[1])
    left, window = (w.shape[1] - 1) // 2, len(q_window)
    keys = load_rows(k, start - left, end - start + w.shape[1] - 1, traffic)
    i, j = (
        torch.arange(len(k) - window, len(k))[:, None],
        torch.arange(start - left, start - left + len(keys)),
    )
    s = torch.where(j <= i, q_window @ keys.T / k.shape[1] ** 0.5, 0.0)
    t = conv2d(s[None, None], w[None, None, -window:]).flatten()
    m, total = t.max(), torch.logsumexp(t, 0)
    l = torch.exp(total - m)
    return [m, l, l * (torch.softmax(t, 0) @ load_rows(v, start, end - start, traffic))]


def test_in_single_precision(decode):
    for n in (1, 3, 8):
        for taps in [(4, 2), (2, 3)]:
            q, k, v = torch.randn(3, 2, 3, n, 8)
            w = 0.3 * torch.randn(3, *taps)
            wanted = reference.conv_attention_decode(q[:, :, -taps[0] :], k, v, w)
            for splits in (1, 2, 3, 5, 6, 7, 9, 20):
                if not torch.allclose(
                    decode(q[:, :, -taps[0] :], k, v, w, splits=splits), wanted, rtol=0, atol=1e-5
                ):
                    return False
    return True


def merge_one_after_the_other(parts, out):
    head, batch = cuda.blockIdx.x, cuda.blockIdx.y
    d = out.shape[3]
    for c in range(cuda.threadIdx.x, d, cuda.blockDim.x):
        m, l, o = MINUS_INFINITY, float32(0), float32(0)
        for s in range(parts.shape[2]):
            m_s = parts[batch, head, s, d]
            larger = max(m, m_s)
            mine, theirs = weight(m, larger), weight(m_s, larger)
            l = mine * l + theirs * parts[batch, head, s, d + 1]
            o = mine * o + theirs * parts[batch, head, s, c]
            m = larger
        out[batch, head, 0, c] = o / l


def merge_with_plain_exponentials(parts, out):
    part, row, c = (
        parts[cuda.blockIdx.y, cuda.blockIdx.x],
        out[cuda.blockIdx.y, cuda.blockIdx.x, 0],
        cuda.threadIdx.x,
    )
    if c < row.size:
        m = part[0, row.size]
        for s in range(1, part.shape[0]):
            m = max(m, part[s, row.size])
        l, o = float32(0), float32(0)
        for s in range(part.shape[0]):
            l += math.exp(part[s, row.size] - m) * part[s, row.size + 1]
            o += math.exp(part[s, row.size] - m) * part[s, c]
        row[c] = o / l


# Wrong in more than one line --------------------------------------------------------------------------------


def whole_matrix(q_window, k, w):
    """Wrong: computes the window for all queries instead of only the last one."""
    q = pad(q_window, (0, 0, 0, len(k) - len(q_window)))
    return conv_scores(q[None, None], k[None, None], w[None])[0, 0, len(q_window) - 1]


def reads_everything(q_window, k, v, w, start, end, traffic):
    keys, values = load_rows(k, 0, len(k), traffic), load_rows(v, 0, len(v), traffic)
    if start == end:
        return -math.inf, 0.0, torch.zeros(k.shape[1])
    t = window_scores(q_window, keys, w)[start:end]
    p = torch.exp(t - t.max())
    return t.max(), p.sum(), p @ values[start:end]


def counts_nothing(q_window, k, v, w, start, end, traffic):
    return split_state(q_window, k, v, w, start, end, Traffic())


def always(answer):
    def is_right(decode):
        return answer

    return is_right


def by_identity(decode):
    return decode in ACCEPTED.values()


def test_with_memory():
    errors = []

    def is_right(decode):
        q, k, v, w = torch.randn(2, 2, 9, 4), *torch.randn(2, 2, 2, 9, 4), torch.randn(2, 3, 4) / 3
        wanted = reference.conv_attention(q, k, v, w)[:, :, -1:]
        found = [decode(q[:, :, -3:], k, v, w, splits=splits) for splits in range(1, 12)]
        errors.extend((one - wanted).abs().max().item() for one in found)
        return all(error <= 1e-5 for error in errors)

    return is_right


def test_on_one_split_only(decode):
    return edited(is_right, ("range(1, n + 3)", "[1]"))(decode)


def merge_by_atomics(parts, out):
    """Wrong: all splits add their results at the same time, each relative to its own maximum."""
    head, batch, s = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    d = out.shape[3]
    for c in range(d):
        if s == 0:
            out[batch, head, 0, c] = 0
        cuda.syncthreads()
        if s < parts.shape[2]:
            cuda.atomic.add(out, (batch, head, 0, c), parts[batch, head, s, c])


MASK = ".masked_fill(later(rows, n, n - rows, 0), 0.0)"
SPLIT_MASK = ".masked_fill(later(*s.shape, n - rows, start - left), 0.0)"
EMPTY = "    if start == end:\n        return -math.inf, 0.0, q_window.new_zeros(d)\n"
ALL_KEYS = "[(1, 3, 4), (2, 3, 4), (9, 3, 4), (10, 2, 5)]"


def last_row_of_all(q_window, k, w):
    """Compute N rows of scores, of zeros but for the window, and return the last row of T."""
    n, (c_q, c_k), rows = len(k), w.shape, len(q_window)
    q = torch.cat([k.new_zeros(n - rows, k.shape[1]), q_window])
    left = (c_k - 1) // 2
    s0 = torch.tril(q @ k.T / math.sqrt(k.shape[1]))
    return conv2d(pad(s0, (left, c_k - 1 - left, c_q - 1, 0))[None, None], w[None, None])[0, 0, -1]


def scores_of_the_package(q_window, k, w):
    q = torch.cat([k.new_zeros(len(k) - len(q_window), k.shape[1]), q_window])
    return reference.conv_scores(q[None, None], k[None, None], w[None])[0, 0, -1]


def in_float64(parts, out):
    """Sum in float64."""
    head, batch, c = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    part = parts[batch, head]
    splits, d = part.shape[0], out.shape[3]
    if c < d:
        m = MINUS_INFINITY
        for s in range(splits):
            m = max(m, part[s, d])
        l, o = 0.0, 0.0
        for s in range(splits):
            shrink = weight(part[s, d], m)
            l += shrink * part[s, d + 1]
            o += shrink * part[s, c]
        out[batch, head, 0, c] = o / l


MUTANTS = {
    "ex14_1": (
        wrong(
            window_scores,
            ("masks nothing", (MASK, "")),
            ("masks with -inf", ("n - rows, 0), 0.0)", "n - rows, 0), -math.inf)")),
            ("takes row r for query r", ("later(rows, n, n - rows, 0)", "later(rows, n, 0, 0)")),
            (
                "hides the new key from the window",
                ("later(rows, n, n - rows, 0)", "later(rows, n, n - rows - 1, 0)"),
            ),
            (
                "lets each row see one key more",
                ("later(rows, n, n - rows, 0)", "later(rows, n, n - rows + 1, 0)"),
            ),
            (
                "takes the window as full at the start",
                ("later(rows, n, n - rows, 0)", "later(rows, n, n - c_q, 0)"),
            ),
            ("gives the row of the oldest query", ("c_q - rows, 0))", "c_q - 1, 0))")),
            ("pads on the left alone", ("(left, c_k - 1 - left, c", "(c_k - 1, 0, c")),
            ("has P_k = c_k // 2", ("left = (c_k - 1) // 2", "left = c_k // 2")),
            ("does not divide by the root of d", (" / math.sqrt(d)", "")),
            ("divides by d", ("math.sqrt(d)", "d")),
            ("turns the taps round", ("w[None, None]", "w.flip(0, 1)[None, None]")),
            ("turns the rows of taps round", ("w[None, None]", "w.flip(0)[None, None]")),
            (
                "uses the newest query's taps alone",
                ("padded[None, None], w[None, None]", "padded[None, None, -1:], w[None, None, -1:]"),
            ),
            (
                "masks after the convolution",
                (MASK, ""),
                ("[0, 0, 0]", "[0, 0, 0].masked_fill(later(1, n, n - rows, 0)[0], 0.0)"),
            ),
            ("returns a matrix", ("[0, 0, 0]", "[0, 0]")),
            ("returns nothing", ("return conv2d", "conv2d")),
        )
        + [("takes the window for all queries", whole_matrix)]
    ),
    "ex14_2": (
        wrong(
            split_state,
            ("knows no halo", ("s0 = s", "s[:, :left], s[:, left + end - start :] = 0, 0\n    s0 = s")),
            ("has a halo to the left alone", ("s0 = s", "s[:, left + end - start :] = 0\n    s0 = s")),
            ("has a halo to the right alone", ("s0 = s", "s[:, :left] = 0\n    s0 = s")),
            ("masks nothing", (SPLIT_MASK, "")),
            ("masks as if column 0 were key start", ("start - left), 0.0", "start), 0.0")),
            ("masks as if column 0 were key 0", ("n - rows, start - left), 0.0", "n - rows, 0), 0.0")),
            ("masks by the split's own end", ("later(*s.shape, n - rows", "later(*s.shape, end - rows")),
            ("has P_k and P_r exchanged", ("left = (c_k - 1) // 2", "left = c_k // 2")),
            ("pads a short window below", ("(0, 0, c_q - rows, 0)", "(0, 0, 0, c_q - rows)")),
            ("divides o", ("return m, l, o", "return m, l, o / l")),
            ("divides o and l", ("return m, l, o", "return m, l / l, o / l")),
            ("takes no maximum", ("m = t.max()", "m = torch.zeros(())")),
            ("returns the logarithm of the sum", ("return m, l, o", "return m + torch.log(l), 1.0, o / l")),
            ("returns l, m, o", ("return m, l, o", "return l, m, o")),
            ("fails without keys", ("start == end", "False")),
            ("has 0 for the maximum of nothing", ("return -math.inf, 0.0", "return 0.0, 0.0")),
            ("loads the halo of an empty split", (EMPTY, ""), ("    v_tile =", EMPTY + "    v_tile =")),
            ("takes an empty split for the whole", (EMPTY, "    end = end if end > start else n\n")),
            (
                "loads V with the halo",
                (
                    "load_rows(v, start, end - start, traffic)",
                    "load_rows(v, start - left, end - start + c_k - 1, traffic)[left : left + end - start]",
                ),
            ),
            ("loads a key too many", ("end - start + c_k - 1, traffic)", "end - start + c_k, traffic)[:-1]")),
            ("counts V's halo", ("load_rows(v, start, end", "load_rows(v, start - left, end")),
            ("does not divide by the root of d", (" / math.sqrt(d)", "")),
        )
        + [("reads the whole cache", reads_everything), ("reads past the count", counts_nothing)]
    ),
    "ex14_3": (
        wrong(
            is_right,
            ("lets NaN pass", ("not error <= 1e-5", "error > 1e-5")),
            ("is too strict", ("1e-5", "1e-9")),
            ("is too lax", ("1e-5", "1e-2")),
            ("tries one token only", (ALL_KEYS, "[(1, 3, 4)]")),
            ("tries taps of odd size only", (ALL_KEYS, "[(1, 3, 3), (2, 3, 3), (9, 3, 3), (10, 3, 5)]")),
            ("tries full windows only", (ALL_KEYS, "[(9, 3, 4), (10, 2, 5)]")),
            ("tries windows of one query only", (ALL_KEYS, "[(1, 1, 4), (9, 1, 4)]")),
            ("tries even shares only", ("range(1, n + 3)", "[s for s in range(1, n + 1) if n % s == 0]")),
            ("tries powers of two", ("range(1, n + 3)", "(1, 2, 4, 8, 16)")),
            ("tries few splits", ("range(1, n + 3)", "range(1, min(n + 3, 5))")),
            ("tries one head", ("3, 2, 2, n", "3, 2, 1, n"), ("randn(2, c_q", "randn(1, c_q")),
            (
                "tries identity taps only",
                ("torch.randn(2, c_q, c_k) / math.sqrt(c_q * c_k)", "reference.identity_taps(2, c_q, c_k)"),
            ),
            (
                "asks for True at the first success",
                (
                    "            if not error <= 1e-5:\n                return False",
                    "            if error <= 1e-5:\n                return True",
                ),
            ),
            ("compares with the first row", ("[:, :, -1:]\n", "[:, :, :1]\n")),
            (
                "says the opposite",
                ("    return True", "    return None or False"),
                ("                return False", "                return True"),
            ),
            ("returns nothing in the end", ("    return True", "")),
            ("hands over all queries", ("q[:, :, -c_q:]", "q")),
        )
        + [
            ("accepts everything", always(True)),
            ("rejects everything", always(False)),
            ("tries one split only", test_on_one_split_only),
            ("compares functions", by_identity),
            ("keeps the errors of earlier decoders", test_with_memory()),
        ]
    ),
    "ex14_4": (
        wrong(
            merge_splits,
            ("does not divide", ("o / l", "o")),
            ("does not divide with one split", ("= o / l", "= o / l if splits > 1 else o")),
            ("divides each split", ("shrink * part[s, c]", "shrink * part[s, c] / part[s, d + 1]")),
            ("rescales nothing", ("shrink = weight(part[s, d], m)", "shrink = float32(1)")),
            ("rescales o only", ("l += shrink * ", "l += ")),
            ("rescales l only", ("o += shrink * ", "o += ")),
            (
                "takes no maximum",
                ("shrink = weight(part[s, d], m)", "shrink = weight(part[s, d], float32(0))"),
            ),
            ("starts the maximum at 0", ("m = MINUS_INFINITY", "m = float32(0)")),
            (
                "takes the first split's m",
                ("for s in range(splits):\n        m =", "for s in range(1):\n        m ="),
            ),
            (
                "takes the largest m of all heads",
                (
                    "m = max(m, part[s, d])",
                    "for h in range(parts.shape[1]):\n            m = max(m, parts[batch, h, s, d])",
                ),
            ),
            ("leaves out the last split", ("splits):\n        shrink", "splits - 1):\n        shrink")),
            (
                "leaves out the first split",
                ("range(splits):\n        shrink", "range(1, splits):\n        shrink"),
            ),
            (
                "has m and l exchanged",
                ("part[s, d + 1]", "part[s, d]"),
                ("max(m, part[s, d])", "max(m, part[s, d + 1])"),
            ),
            ("knows no guard", ("    if c >= d:\n        return\n", "")),
            ("writes the first number only", ("c >= d", "c >= 1")),
            (
                "has head and batch exchanged",
                (
                    "head, batch, c = cuda.blockIdx.x, cuda.blockIdx.y",
                    "batch, head, c = cuda.blockIdx.x, cuda.blockIdx.y",
                ),
            ),
            ("takes always the first batch", ("parts[batch, head]", "parts[0, head]")),
            ("takes always the first head", ("parts[batch, head]", "parts[batch, 0]")),
            ("takes a thread for a split", ("shrink * part[s, c]", "shrink * part[c % splits, c]")),
            (
                "makes NaN of what is empty",
                (
                    "shrink = weight(part[s, d], m)",
                    "shrink = math.exp(part[s, d] - m) * math.exp(part[s, d] - part[s, d])",
                ),
            ),
            ("changes the parts", ("        l += shrink", "        part[s, d] = m\n        l += shrink")),
        )
        + [("adds by atomics", merge_by_atomics)]
    ),
}

RIGHT = {
    "ex14_1": [window_scores, scores_tap_by_tap, scores_by_the_triangle],
    "ex14_2": [split_state, split_by_softmax],
    "ex14_3": [is_right, test_in_single_precision],
    "ex14_4": [merge_splits, merge_one_after_the_other, merge_with_plain_exponentials],
}
MUTANTS["ex14_1"] = [
    *MUTANTS["ex14_1"],
    ("the last row of the whole matrix", last_row_of_all),
    ("the package's scores", scores_of_the_package),
]
MUTANTS["ex14_4"] = [*MUTANTS["ex14_4"], ("sums in float64", in_float64)]
