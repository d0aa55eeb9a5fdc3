"""Wrong answers to lessons 01 to 08 that were designed to deceive the checks, and unusual correct answers.

They supplement the answers that readers gave.
"""

import itertools
import math
from collections import deque

import numpy as np
import torch

from readers.lessons01_08 import LOAD, SUM_HEAD, edit, outer, repairs, tiles_of, write

# Lessons 01 and 02 ------------------------------------------------------------------------------------------


def softmax_in_chunks(pairs):
    """Wrong: stores fifty pairs at a time in a list."""
    m, l, o = -math.inf, 0.0, 0.0
    pairs = iter(pairs)
    while chunk := list(itertools.islice(pairs, 50)):
        top = max(m, max(score for score, _ in chunk))
        weights = [math.exp(score - top) for score, _ in chunk]
        shrink = math.exp(m - top)
        m, l, o = (
            top,
            l * shrink + sum(weights),
            o * shrink + sum(w * v for w, (_, v) in zip(weights, chunk, strict=True)),
        )
    return m, l, o


def softmax_of_a_window(pairs):
    last = deque(pairs, maxlen=1000)
    m = max((score for score, _ in last), default=-math.inf)
    weights = [math.exp(score - m) for score, _ in last]
    return m, sum(weights), sum(w * v for w, (_, v) in zip(weights, last, strict=True)) if last else 0.0


def softmax_twice(pairs):
    first, second = itertools.tee(pairs)
    m = max((score for score, _ in first), default=-math.inf)
    l, o = 0.0, 0.0
    for score, value in second:
        l, o = l + math.exp(score - m), o + math.exp(score - m) * value
    return m, l, o


def softmax_clamped(pairs):
    m, l, o = -math.inf, 0.0, 0.0
    for score, value in pairs:
        new = max(m, score)
        shrink, weight = math.exp(max(m - new, -20)), math.exp(max(score - new, -20))
        m, l, o = new, l * shrink + weight, o * shrink + weight * value
    return m, l, o


def softmax_of_near_scores(pairs):
    """Wrong: ignores scores more than 20 below the maximum."""
    m, l, o = -math.inf, 0.0, 0.0
    for score, value in pairs:
        if score < m - 20:
            continue
        new = max(m, score)
        shrink, weight = math.exp(m - new), math.exp(score - new)
        m, l, o = new, l * shrink + weight, o * shrink + weight * value
    return m, l, o


def softmax_of_a_buffer(pairs):
    """Wrong: stores the scores in PyTorch's memory, which the check does not count as Python's memory."""
    kept, count, m, o = torch.empty(100_000, dtype=torch.float64), 0, -math.inf, 0.0
    for score, value in pairs:
        kept[count], count, new = score, count + 1, max(m, score)
        m, o = new, o * math.exp(m - new) + math.exp(score - new) * value
    return m, torch.exp(kept[:count] - m).sum().item(), o


def softmax_in_torch(pairs):
    m, l, o = torch.tensor(-math.inf, dtype=torch.float64), 0.0, 0.0
    for score, value in pairs:
        new = torch.maximum(m, torch.tensor(score, dtype=torch.float64))
        shrink, weight = torch.exp(m - new).item(), torch.exp(score - new).item()
        m, l, o = new, shrink * l + weight, shrink * o + weight * value
    return m.item(), l, o


def merge_larger_wins(left, right):
    if abs(left[0] - right[0]) > 10:
        return max(left, right, key=lambda state: state[0])
    m = max(left[0], right[0])
    if m == -math.inf:
        return left
    f1, f2 = math.exp(left[0] - m), math.exp(right[0] - m)
    return m, f1 * left[1] + f2 * right[1], f1 * left[2] + f2 * right[2]


def merge_with_a_unit(left, right):
    """Wrong: assumes that l is at least 1."""
    m = max(left[0], right[0])
    f1, f2 = (math.exp(side[0] - m) if side[0] > -math.inf else 0.0 for side in (left, right))
    l = max(1.0, f1 * left[1] + f2 * right[1]) if m > -math.inf else 0.0
    return m, l, f1 * left[2] + f2 * right[2]


def update_with(change):
    def update(state, scores, values):
        return change(*state, scores, values)

    return update


def one_by_one(m, l, o, s, v):
    rows = [
        update_with(plain)((m[i : i + 1], l[i : i + 1], o[i : i + 1]), s[i : i + 1], v) for i in range(len(s))
    ]
    return tuple(torch.cat(parts) for parts in zip(*rows, strict=True))


def plain(m, l, o, s, v, top=None, clamp=None):
    new = torch.maximum(m, s.amax(1, keepdim=True)) if top is None else top(m, s)
    p = torch.exp(s - new if clamp is None else (s - new).clamp(min=clamp))
    shrink = torch.exp(m - new)
    return new, shrink * l + p.sum(1, keepdim=True), shrink * o + p @ v


def from_its_own_memory():
    seen = {}

    def update(state, scores, values):
        m, l, o = state
        if torch.isinf(m).all():
            seen["scores"], seen["values"] = scores, values
        elif len(seen.get("scores", ())) == len(scores) and seen["values"].shape[1] == values.shape[1]:
            seen["scores"], seen["values"] = (
                torch.cat([seen["scores"], scores], 1),
                torch.cat([seen["values"], values]),
            )
        else:
            return plain(m, l, o, scores, values)
        new = seen["scores"].amax(1, keepdim=True)
        p = torch.exp(seen["scores"] - new)
        return new, p.sum(1, keepdim=True), p @ seen["values"]

    return update


def keeps_keys_of_all(q, k, v, rows, columns, traffic):
    """Wrong: loads the keys once and reuses them for all tiles of queries."""
    out, kept = torch.empty_like(q), None
    for queries in tiles_of(len(q), rows):
        q_tile = traffic.load(q, queries)
        kept = kept or [(traffic.load(k, keys), traffic.load(v, keys)) for keys in tiles_of(len(k), columns)]
        m, l, o = torch.full((len(q_tile), 1), -math.inf, dtype=q.dtype), 0.0, 0.0
        for k_tile, v_tile in kept:
            m, l, o = plain(m, l, o, q_tile @ k_tile.T / math.sqrt(q.shape[1]), v_tile)
        traffic.store(out, queries, o / l)
    return out


def all_keys_at_once(q, k, v, rows, columns, traffic):
    out = torch.empty_like(q)
    for queries in tiles_of(len(q), rows):
        q_tile, keys, values = (
            traffic.load(q, queries),
            traffic.load(k, slice(None)),
            traffic.load(v, slice(None)),
        )
        traffic.store(out, queries, torch.softmax(q_tile @ keys.T / math.sqrt(q.shape[1]), 1) @ values)
    return out


def list_of_scores(q_tile, pairs):
    """Wrong: stores the scores as Python numbers, which PyTorch's memory count does not include."""
    rows = [
        [x for k, _ in pairs for x in (q_tile @ k.T / math.sqrt(q_tile.shape[1]))[i].tolist()]
        for i in range(len(q_tile))
    ]
    return torch.softmax(torch.tensor(rows, dtype=q_tile.dtype), 1) @ torch.cat([v for _, v in pairs])


def through_numpy(q_tile, pairs):
    s = np.concatenate([(q_tile @ k.T).numpy() for k, _ in pairs], 1) / math.sqrt(q_tile.shape[1])
    p = np.exp(s - s.max(1, keepdims=True))
    return torch.from_numpy(p / p.sum(1, keepdims=True) @ np.concatenate([v.numpy() for _, v in pairs]))


# Kernels ----------------------------------------------------------------------------------------------------

K1 = "def answer(x, out):\n    t, i = cuda.threadIdx.x, cuda.grid(1)\n"
EVERY_THREAD_ADDS = (
    SUM_HEAD
    + """    shared[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    total = float32(0)
    for e in range(8):
        total += shared[e]
    if t == 0:
        out[cuda.blockIdx.x] = total
"""
)
MATMUL = """def answer(a, b, c):
    a_tile = cuda.shared.array((4, 4), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 4 + ty, cuda.blockIdx.x * 4 + tx
    total = float32(0)
    for start in range(0, a.shape[1], 4):
        a_tile[ty, tx] = a[row, start + tx] if row < a.shape[0] and start + tx < a.shape[1] else float32(0)
        cuda.syncthreads()
        if col < b.shape[1]:
            for k in range(min(4, b.shape[0] - start)):
                total += a_tile[ty, k] * b[start + k, col]
        cuda.syncthreads()
    if row < c.shape[0] and col < c.shape[1]:
        c[row, col] = total
"""
ROW_LOADER = """def answer(a, b, c):
    a_tile, b_tile = cuda.shared.array((4, 4), float32), cuda.shared.array((4, 4), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 4 + ty, cuda.blockIdx.x * 4 + tx
    total = float32(0)
    for start in range(0, a.shape[1], 4):
        if tx == 0:
            for e in range(4):
                a_tile[ty, e] = a[row, start + e] if row < a.shape[0] and start + e < a.shape[1] else float32(0)
                b_tile[ty, e] = b[start + ty, col + e] if start + ty < b.shape[0] and col + e < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(4):
            total += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
    if row < c.shape[0] and col < c.shape[1]:
        c[row, col] = total
"""
HISTOGRAM_BY_FIRST = (
    "def answer(letters, counts):\n    i = cuda.grid(1)\n    if cuda.threadIdx.x == 0:\n        for e in"
    " range(i, min(letters.size, i + cuda.blockDim.x)):\n            cuda.atomic.add(counts, letters[e], 1)\n"
)
HISTOGRAM_IN_PAIRS = (
    "def answer(letters, counts):\n    i = 2 * cuda.grid(1)\n    for e in range(i, min(letters.size, i +"
    " 2)):\n        cuda.atomic.add(counts, letters[e], 1)\n"
)
MIRROR_BY_SHUFFLES = (
    K1 + "    value = cuda.shfl_sync(0xFFFFFFFF, x[min(i, x.size - 1)], 31 - t)\n    if i < x.size:\n       "
    " out[i] = value\n"
)
SWAP_IN_SHARED = (
    K1
    + """    part = cuda.shared.array(64, float32)
    part[t] = cuda.shfl_xor_sync(0xFFFFFFFF, x[i], 0)
    cuda.syncthreads()
    out[i] = part[t ^ 1]
"""
)
SHARES_TWICE = (
    "def answer(x, total, out):\n    i = cuda.grid(1)\n    if i == 0:\n        for e in range(x.size):\n     "
    "       cuda.atomic.add(total, 0, x[e])\n    cuda.cg.this_grid().sync()\n    if i < x.size:\n       "
    " out[i] = x[i] / total[0]\n"
)
WARP_LOADS = (
    LOAD + "    if cuda.threadIdx.x < 2:\n        for e in range(cuda.threadIdx.x, tile.size, min(2,"
    " cuda.blockDim.x)):\n            tile[e] = array[start + e] if start + e < array.size else"
    " float32(0)\n"
)
LOADS_TWICE = (
    LOAD
    + "    for e in range(cuda.threadIdx.x, tile.size, cuda.blockDim.x):\n        tile[e] = array[start + e]"
    " if start + e < array.size and array[start + e] != 0 else float32(0)\n"
)
LOADS_AND_WAITS = (
    LOAD
    + "    for e in range(cuda.threadIdx.x, tile.size, cuda.blockDim.x):\n        tile[e] = array[start + e]"
    " if start + e < array.size else float32(0)\n    cuda.syncthreads()\n"
)
NORM = "@cuda.jit\ndef answer(x, gain, out):\n"
NORM_BY_ELEMENTS = (
    NORM
    + """    i = cuda.grid(1)
    if i < x.shape[0]:
        for c in range(x.shape[1]):
            total = float32(0)
            for e in range(x.shape[1]):
                total += x[i, e] * x[i, e]
            out[i, c] = gain[c] * x[i, c] / math.sqrt(total / float32(x.shape[1]) + float32(1e-6))
"""
)
NORM_BY_ROW = (
    "@cuda.jit\ndef answer(x, gain, out):\n    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):\n "
    "       row = x[i]\n        total = np.sum(row * row)\n        for c in range(x.shape[1]):\n           "
    " out[i, c] = gain[c] * x[i, c] / math.sqrt(total / float32(x.shape[1]) + float32(1e-6))\n"
)
CHUNKS = (
    "@cuda.jit\ndef answer(x, factor, out):\n    part = (out.size + cuda.gridsize(1) - 1) //"
    " cuda.gridsize(1)\n    for i in range(cuda.grid(1) * part, min(out.size, (cuda.grid(1) + 1) * part)):\n "
    "       out[i] = factor * x[i]\n"
)
SUM_IN_SHARED = """def answer(x, out):
    part = cuda.shared.array(128, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    part[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    unused = cuda.shfl_xor_sync(0xFFFFFFFF, part[t], 1)
    total = float32(0)
    for e in range(t // 32 * 32, t // 32 * 32 + 32):
        total += part[e]
    if i < x.size:
        out[i] = total
"""
SEEN = "        for j in range(lane, seen, 32):"


def rounds(check, old, new):
    return edit(check, (old, new))


BYTES = edit("ex02_3")
START = "state = initial_state(len(q_tile), q.shape[1], like=q)"
GOES_ON = "\n        state = state if not queries.start else (state[0].clamp(min=m.min()), *state[1:])"
STRIPS = """def answer(a, b, c):
    a_strip, b_strip = cuda.shared.array((4, 64), float32), cuda.shared.array((64, 4), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 4 + ty, cuda.blockIdx.x * 4 + tx
    for s in range(0, a.shape[1], 4):
        a_strip[ty, s + tx] = a[row, s + tx] if row < a.shape[0] and s + tx < a.shape[1] else float32(0)
        b_strip[s + ty, tx] = b[s + ty, col] if s + ty < b.shape[0] and col < b.shape[1] else float32(0)
    cuda.syncthreads()
    total = float32(0)
    for k in range(a.shape[1]):
        total += a_strip[ty, k] * b_strip[k, tx]
    if row < c.shape[0] and col < c.shape[1]:
        c[row, col] = total
"""
HALVED_ONCE = (
    SUM_HEAD
    + """    shared[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    if t < 4:
        shared[t] += shared[t + 4]
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = shared[0] + shared[1] + shared[2] + shared[3]
"""
)
NOTHING_TIMES_THE_FIRST = K1 + "    if i < x.size:\n        out[i] = x[max(i - 1, 0)] * (1 if i > 0 else 0)\n"
EVERYBODY_LOOKS = (
    K1
    + """    part = cuda.shared.array(32, float32)
    part[t] = x[i] if i < x.size else float32(-math.inf)
    cuda.syncthreads()
    largest = part[0]
    for k in range(1, cuda.blockDim.x):
        largest = max(largest, part[k])
    if t == 0:
        out[cuda.blockIdx.x] = largest
"""
)
SUMS_ITS_LEFT = (
    K1
    + """    part = cuda.shared.array(32, float32)
    part[t] = x[i]
    cuda.syncthreads()
    total = float32(0)
    for k in range(t + 1):
        total += part[k]
    out[i] = total
"""
)
STEPS_OF_ONE = (
    K1
    + """    part = cuda.shared.array(32, float32)
    part[t] = x[i]
    own = x[i]
    for step in range(1, cuda.blockDim.x):
        cuda.syncthreads()
        if t >= step:
            own += part[t - step]
    out[i] = own
"""
)


NORM_STRIDED = (
    NORM
    + "    for i in range(cuda.grid(1), x.shape[0], cuda.gridsize(1)):\n        total = float32(0)\n       "
    " for c in range(x.shape[1]):\n            total += x[i, c] * x[i, c]\n        factor = float32(1) /"
    " math.sqrt(total / float32(x.shape[1]) + float32(1e-6))\n        for c in range(x.shape[1]):\n        "
    "    out[i, c] = gain[c] * (x[i, c] * factor)\n"
)

CONTIGUOUS = (
    LOAD
    + "    part = (tile.size + cuda.blockDim.x - 1) // cuda.blockDim.x\n    for e in range(cuda.threadIdx.x *"
    " part, min(tile.size, (cuda.threadIdx.x + 1) * part)):\n        tile[e] = array[start + e] if start +"
    " e < array.size else float32(0)\n"
)

WRONG = {
    "ex01_0": [
        ("a text", lambda: "0.37"),
        ("NaN", lambda: math.nan),
        ("nothing", lambda: None),
        ("a third", lambda: 1 / 3),
    ],
    "ex01_1": [
        ("chunks of fifty", softmax_in_chunks),
        ("the last thousand", softmax_of_a_window),
        ("reads twice by tee", softmax_twice),
        ("differences clamped at -20", softmax_clamped),
        ("scores 20 below left out", softmax_of_near_scores),
        ("scores in a tensor", softmax_of_a_buffer),
    ],
    "ex01_2": [("the larger wins beyond 10", merge_larger_wins), ("l is 1 at least", merge_with_a_unit)],
    "ex02_1": [
        ("row by row, joined", update_with(one_by_one)),
        (
            "one maximum of the whole tile",
            update_with(
                lambda m, l, o, s, v: plain(m, l, o, s, v, top=lambda m, s: torch.maximum(m, s.max()))
            ),
        ),
        (
            "the old maximum once there is one",
            update_with(
                lambda m, l, o, s, v: plain(
                    m, l, o, s, v, top=lambda m, s: torch.where(m > -math.inf, m, s.amax(1, keepdim=True))
                )
            ),
        ),
        ("weights clamped", update_with(lambda m, l, o, s, v: plain(m, l, o, s, v, clamp=-15))),
        ("weights clamped far below", update_with(lambda m, l, o, s, v: plain(m, l, o, s, v, clamp=-30))),
        ("remembers the tiles itself", from_its_own_memory()),
        (
            "float32 inside",
            update_with(
                lambda m, l, o, s, v: tuple(
                    x.double() for x in plain(m.float(), l.float(), o.float(), s.float(), v.float())
                )
            ),
        ),
    ],
    "ex02_2": [
        ("keys kept for all queries", keeps_keys_of_all),
        ("m goes on from tile to tile", edit("ex02_2", (START, START + GOES_ON))),
        ("all keys at once", all_keys_at_once),
        ("scores as lists", outer(list_of_scores)),
        ("through numpy", outer(through_numpy)),
    ],
    "ex02_3": [
        ("floats in the end", lambda *given: tuple(float(x) for x in BYTES(*given))),
        ("floats for tiles", edit("ex02_3", ("math.ceil(n / rows)", "n / rows"))),
        (
            "capped at 40 rows",
            edit("ex02_3", ("    state = n * (d + 2)", "    n = min(n, 40)\n    state = n * (d + 2)")),
        ),
    ],
    "ex03_1": [
        (
            "two threads for each",
            edit(
                "ex03_1",
                (
                    "    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x\n    if i",
                    (
                        "    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x\n    if i < x.size:\n  "
                        "      out[i ^ 1 if i ^ 1 < x.size else i] = x[i ^ 1 if i ^ 1 < x.size else i] + y[i"
                        " ^ 1 if i ^ 1 < x.size else i]\n    if i"
                    ),
                ),
            ),
        )
    ],
    "ex03_2": [
        (
            "one thread after the other",
            edit("ex03_2", ("        thread.start()\n", "        thread.start()\n        thread.join()\n")),
        ),
        ("waits for none", edit("ex03_2", ("        thread.join()\n", "        pass\n"))),
        ("the last error", edit("ex03_2", ("raise errors[0]", "raise errors[-1]"))),
        ("no abort", edit("ex03_2", ("            barrier.abort()\n", ""))),
        ("hides the errors", edit("ex03_2", ("        raise errors[0]", "        print(len(errors))"))),
        ("no timeout", edit("ex03_2", (", timeout=10", ""))),
        (
            "some errors",
            edit("ex03_2", ("except Exception", "except (ArithmeticError, threading.BrokenBarrierError)")),
        ),
    ],
    "ex03_3": [("every thread adds all", write(EVERY_THREAD_ADDS)), ("halved once", write(HALVED_ONCE))],
    "ex03_4": [
        ("b from global memory", write(MATMUL)),
        ("a quarter of the threads load", write(ROW_LOADER)),
        ("whole rows in shared memory", write(STRIPS)),
        ("x and y change places", edit("ex03_4", ("tx, ty = cuda", "ty, tx = cuda"))),
    ],
    "ex04_2": [("0 times the first", write(NOTHING_TIMES_THE_FIRST))],
    "ex04_3": [("everybody looks for the maximum", write(EVERYBODY_LOOKS))],
    "ex04_4": [("sums all on its left", write(SUMS_ITS_LEFT)), ("steps of one", write(STEPS_OF_ONE))],
    "ex04_5": [
        ("the first thread of a block counts", write(HISTOGRAM_BY_FIRST)),
        ("two letters a thread", write(HISTOGRAM_IN_PAIRS)),
    ],
    "ex04_6": [("by a shuffle", write(MIRROR_BY_SHUFFLES))],
    "ex04_7": [("in shared memory, with a shuffle for show", write(SWAP_IN_SHARED))],
    "ex04_8": [
        ("one thread adds", write(SHARES_TWICE)),
        (
            "sum of the sizes",
            edit("ex04_8", ("cuda.atomic.add(total, 0, x[i])", "cuda.atomic.add(total, 0, abs(x[i]))")),
        ),
    ],
    "ex05_1": [
        ("a piece for each thread", write(CONTIGUOUS)),
        ("two threads load", write(WARP_LOADS)),
        ("loads everything twice", write(LOADS_TWICE)),
        ("waits inside", write(LOADS_AND_WAITS)),
    ],
    "ex05_2": [
        ("d keys", rounds("ex05_2", "    for j in range(keys):", "    for j in range(min(keys, 4)):")),
        (
            "weights clamped",
            rounds("ex05_2", "p = math.exp(score - new_m)", "p = math.exp(max(score - new_m, float32(-5)))"),
        ),
        (
            "1/√d for the scale",
            rounds("ex05_2", "        score *= scale", "        score /= math.sqrt(float32(d))"),
        ),
        (
            "l from p alone at first",
            rounds(
                "ex05_2",
                "    for j in range(keys):",
                "    if l < 1:\n        l = float32(0)\n    for j in range(keys):",
            ),
        ),
    ],
    "ex05_3": [
        (
            "v not in a tile",
            edit(
                "ex05_3",
                ("        load_tile(v_tile, v, start * d)\n", ""),
                ("o_tile, min(columns", "o_tile, min(columns"),
                ("t, q_tile, k_tile, v_tile,", "t, q_tile, k_tile, v[start * d :],"),
            ),
        ),
        (
            "q not in a tile",
            edit(
                "ex05_3",
                ("            t, q_tile,", "            min(first + t, n - 1), q,"),
                ("    load_tile(q_tile, q, first * d)\n", ""),
            ),
        ),
        (
            "loads each tile twice",
            edit(
                "ex05_3",
                (
                    "        load_tile(v_tile, v, start * d)\n",
                    (
                        "        load_tile(v_tile, v, start * d)\n        cuda.syncthreads()\n       "
                        " load_tile(v_tile, v, start * d)\n"
                    ),
                ),
            ),
        ),
        (
            "the array's size for n",
            edit(
                "ex05_3",
                (
                    "    first = cuda.blockIdx.x * rows",
                    "    n = q.size // d\n    first = cuda.blockIdx.x * rows",
                ),
            ),
        ),
        (
            "writes as many rows as o has",
            edit("ex05_3", ("    if first + t < n:", "    if first + t < o.size // d:")),
        ),
        (
            "16 numbers of d at most",
            edit(
                "ex05_3",
                (
                    "            o[(first + t) * d + c]",
                    "            if c < 16:\n                o[(first + t) * d + c]",
                ),
            ),
        ),
        (
            "seven tiles of keys at most",
            edit("ex05_3", ("range(0, n, columns)", "range(0, min(n, 6 * columns), columns)")),
        ),
    ],
    "ex05_4": [
        ("starts at -1e9", repairs(start="m, l = float32(-1e9), float32(0)")),
        ("all blocks have all queries", repairs(rows="for first in range(0, n, rows * 1):")),
        ("the first columns keys", repairs(keys="for j in range(min(keys, 3)):")),
    ],
    "ex06_1": [
        ("in shared memory, a shuffle for show", write(SUM_IN_SHARED)),
        ("a barrier in each round", edit("ex06_1", ("step //= 2", "step //= 2\n        cuda.syncthreads()"))),
    ],
    "ex06_2": [
        (
            "differences clamped at -20",
            edit("ex06_2", ("math.exp(m - larger)", "math.exp(max(m - larger, float32(-20)))")),
        ),
        (
            "l is a million at most",
            edit("ex06_2", ("theirs * other_l", "theirs * other_l\n        l = min(l, float32(1e6))")),
        ),
    ],
    "ex06_3": [
        ("two lanes a key", edit("ex06_3", (SEEN, "        for j in range(lane // 2, seen, 16):"))),
        (
            "keys in chunks",
            edit(
                "ex06_3",
                (
                    SEEN,
                    (
                        "        for j in range(lane * ((seen + 31) // 32), min(seen, (lane + 1) * ((seen +"
                        " 31) // 32))):"
                    ),
                ),
            ),
        ),
    ],
    "ex07_2": [
        ("a row's sum for each number", write(NORM_BY_ELEMENTS)),
        ("numpy on a row", write(NORM_BY_ROW)),
        (
            "1024 columns at most",
            write(NORM_STRIDED.replace("range(x.shape[1])", "range(min(x.shape[1], 1024))")),
        ),
    ],
    "ex07_3": [
        ("a float", lambda n, threads, most: min(math.ceil(n / threads) * 1.0, most)),
        ("in float32", lambda n, threads, most: int(min(most, np.ceil(np.float32(n) / np.float32(threads))))),
        ("one block more", lambda n, threads, most: min(n // threads + 1, most)),
    ],
    "ex07_4": [("in chunks", write(CHUNKS))],
    "ex08_1": [
        (
            "bytes of a request",
            lambda stride, itemsize, first=0: (
                -(-32 * abs(stride or 1) * itemsize // 32) if stride < 8 else 32
            ),
        )
    ],
    "ex08_2": [("lanes, not words", lambda addresses: max(np.bincount([a // 4 % 32 for a in addresses])))],
    "ex08_3": [("34 words a row", edit("ex08_3", ("(TILE, 33)", "(TILE, 34)")))],
    "ex08_5": [
        (
            "the sum of the three",
            lambda b, f, t, gpu: (
                b / gpu.bytes_per_second + f / gpu.flops_per_second + t / gpu.wavefronts_per_second
            ),
        )
    ],
}

# Unusual correct answers ------------------------------------------------------------------------------------


def softmax_by_while(pairs):
    state, source = (-math.inf, 0.0, 0.0), iter(pairs)
    while (pair := next(source, None)) is not None:
        m, l, o = state
        score, value = pair
        if score > m:
            factor = math.exp(m - score)
            state = score, l * factor + 1, o * factor + value
        else:
            state = m, l + math.exp(score - m), o + math.exp(score - m) * value
    return list(state)


def merge_by_logs(left, right):
    if left[0] < right[0]:
        left, right = right, left
    if right[0] == -math.inf:
        return left
    factor = math.e ** (right[0] - left[0])
    return left[0], left[1] + factor * right[1], left[2] + factor * right[2]


def update_by_stacking(state, scores, values):
    m, l, o = state
    new = torch.cat([m, scores], 1).max(1, keepdim=True)[0]
    weights = (torch.cat([m, scores], 1) - new).exp()
    return [
        new,
        weights[:, :1] * l + weights[:, 1:].sum(-1)[:, None],
        weights[:, :1] * o + torch.einsum("rc,cd->rd", weights[:, 1:], values),
    ]


REVERSED_ADD = (
    "def answer(a, b, c):\n    i = a.size - 1 - (cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x)\n   "
    " if i >= 0:\n        c[i] = b[i] + a[i]\n"
)
SCAN_IN_TWO_BUFFERS = (
    K1
    + """    part = cuda.shared.array((2, 32), float32)
    part[0, t] = x[i]
    side, step = 0, 1
    while step < cuda.blockDim.x:
        cuda.syncthreads()
        total = part[side, t]
        if t >= step:
            total += part[side, t - step]
        side = 1 - side
        part[side, t] = total
        step *= 2
    out[i] = part[side, t]
"""
)
MAX_BY_HALVES = (
    K1
    + """    part = cuda.shared.array(32, float32)
    part[t] = x[i] if i < x.size else float32(-math.inf)
    step = 16
    while step > 0:
        cuda.syncthreads()
        if t < step and t + step < cuda.blockDim.x:
            part[t] = max(part[t], part[t + step])
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = part[0]
"""
)
HALVES_FROM_THE_RIGHT = (
    SUM_HEAD
    + """    shared[t] = x[i] if i < x.size else float32(0)
    start, step = 0, 4
    while step > 0:
        cuda.syncthreads()
        if t >= start + step:
            shared[t] += shared[t - step]
        start += step
        step //= 2
    if t == 7:
        out[cuda.blockIdx.x] = shared[t]
"""
)
TREE_UP = (
    SUM_HEAD
    + """    shared[t] = 0
    if i < x.size:
        shared[t] = x[i]
    cuda.syncthreads()
    step = 1
    while step < 8:
        if t % (2 * step) == 0:
            shared[t] = shared[t] + shared[t + step]
        step *= 2
        cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = shared[t]
"""
)
TWO_PASSES = """@cuda.jit(device=True)
def answer(row, q_tile, k_tile, v_tile, o_tile, keys, d, scale, m, l):
    new_m = m
    for j in range(keys):
        score = float32(0)
        for c in range(d):
            score += q_tile[row * d + c] * k_tile[j * d + c]
        new_m = max(new_m, scale * score)
    shrink = math.exp(m - new_m)
    l *= shrink
    for c in range(d):
        o_tile[row * d + c] *= shrink
    for j in range(keys):
        score = float32(0)
        for c in range(d):
            score += q_tile[row * d + c] * k_tile[j * d + c]
        p = math.exp(scale * score - new_m)
        l += p
        for c in range(d):
            o_tile[row * d + c] += p * v_tile[j * d + c]
    return new_m, l
"""
SUM_UNROLLED = (
    K1 + "    value = x[i] if i < x.size else float32(0)\n    for step in (1, 2, 4, 8, 16):\n        value +="
    " cuda.shfl_xor_sync(0xFFFFFFFF, value, step)\n    if i < x.size:\n        out[i] = value\n"
)
STRIDE_BY_WHILE = (
    "@cuda.jit\ndef answer(x, factor, out):\n    i = cuda.grid(1)\n    while i < x.size:\n        out[i] ="
    " x[i] * factor\n        i += cuda.gridDim.x * cuda.blockDim.x\n"
)
HISTOGRAM_REVERSED = (
    "def answer(letters, counts):\n    i = letters.size - 1 - cuda.grid(1)\n    if i >= 0:\n       "
    " cuda.atomic.add(counts, letters[i], 1)\n"
)
RIGHT = {
    "ex01_0": [("numpy's", lambda: np.exp(np.float32(-1)))],
    "ex01_1": [("two cases, while", softmax_by_while), ("by PyTorch", softmax_in_torch)],
    "ex01_2": [("sorted first, a power of e", merge_by_logs)],
    "ex02_1": [("the old state as one more key", update_by_stacking)],
    "ex03_1": [("back to front, other names", write(REVERSED_ADD))],
    "ex03_3": [("a tree from below", write(TREE_UP)), ("halves to the right", write(HALVES_FROM_THE_RIGHT))],
    "ex04_3": [("the maximum by halves", write(MAX_BY_HALVES))],
    "ex04_4": [("two buffers, one barrier a pass", write(SCAN_IN_TWO_BUFFERS))],
    "ex04_5": [("back to front", write(HISTOGRAM_REVERSED))],
    "ex05_2": [("two passes over the tile", write(TWO_PASSES))],
    "ex06_1": [("steps upwards, from a tuple", write(SUM_UNROLLED))],
    "ex07_2": [("a grid-stride loop, the reciprocal", write(NORM_STRIDED))],
    "ex07_3": [("by divmod", lambda n, threads, most: min(most, sum(divmod(n + threads - 1, threads)[:1])))],
    "ex07_4": [("a while loop", write(STRIDE_BY_WHILE))],
    "ex08_1": [
        (
            "by numpy",
            lambda stride, itemsize, first=0: len(
                np.unique((first + stride * np.arange(32)) * itemsize // 32)
            ),
        )
    ],
    "ex08_2": [
        ("by a table", lambda addresses: int(np.bincount(np.unique(np.array(addresses) // 4) % 32).max()))
    ],
    "ex08_5": [("by numpy", lambda b, f, t, gpu: np.max(np.array([b, f, t]) / np.array(gpu)))],
}
