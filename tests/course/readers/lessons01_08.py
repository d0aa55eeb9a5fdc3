"""Answers of readers of lessons 01 to 08: wrong ones that the checks once accepted, and correct ones that the
checks rejected."""

import linecache
import math

import numpy as np
import torch

from power.direct import HEAD
from power.lessons import exercises


def edit(check, *edits):
    """Return the solution after replacing each (old, new) of `edits` in its cell.

    Every `old` must occur exactly once.
    """
    exercise = exercises(check[2:4])[check]
    cell = exercise.cell
    for old, new in edits:
        if cell.count(old) != 1:
            raise ValueError(f"{old!r} stands {cell.count(old)} times in {check}")
        cell = cell.replace(old, new)
    return exercise.with_cell(cell, str(edits))


def write(text):
    """Return the function `answer` that this text defines."""
    name = f"<answer {abs(hash(text))}>"
    text = HEAD + text
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    names = {"__name__": "lesson"}
    exec(compile(text, name, "exec"), names)
    return names["answer"]


# Lessons 01 and 02 ------------------------------------------------------------------------------------------


def softmax_of_an_array(pairs):
    scores, o = np.empty(0), None
    values = []
    for score, value in pairs:
        scores = np.append(scores, score)
        values.append(value)
    if not len(scores):
        return -math.inf, 0.0, 0.0
    weights = np.exp(scores - scores.max())
    o = sum((w * v for w, v in zip(weights, values, strict=True)), 0.0)
    return scores.max(), weights.sum(), o


def softmax_of_a_string(pairs):
    """Wrong: stores all pairs in a string, because the check looks only for lists and arrays."""
    m, text = -math.inf, ""
    for score, value in pairs:
        m = max(m, score)
        text += f"{score!r};{value!r} " if not isinstance(value, np.ndarray) else ""
    l = sum(math.exp(float(part.partition(";")[0]) - m) for part in text.split())
    return (
        m,
        l,
        sum(
            math.exp(float(part.partition(";")[0]) - m) * float(part.partition(";")[2])
            for part in text.split()
        ),
    )


def finite_start(sentinel):
    def online_softmax(pairs):
        m, l, o, some = sentinel, 0.0, 0.0, False
        for score, value in pairs:
            some = True
            new_m = max(m, score)
            shrink, weight = math.exp(m - new_m), math.exp(score - new_m)
            m, l, o = new_m, l * shrink + weight, o * shrink + weight * value
        return (m, l, o) if some else (-math.inf, 0.0, 0.0)

    return online_softmax


def finite_merge(left, right):
    (m1, l1, o1), (m2, l2, o2) = left, right
    m = max(m1, m2)
    f1 = math.exp(m1 - m) if m1 > -1e9 else 0.0
    f2 = math.exp(m2 - m) if m2 > -1e9 else 0.0
    return m, f1 * l1 + f2 * l2, f1 * o1 + f2 * o2


def update_by_rows(state, scores, values):
    m, l, o = (x.clone() for x in state)
    for i in range(len(scores)):
        new = torch.maximum(m[i], scores[i].max())
        shrink, p = torch.exp(m[i] - new), torch.exp(scores[i] - new)
        m[i], l[i], o[i] = new, l[i] * shrink + p.sum(), o[i] * shrink + p @ values
    return m, l, o


def update_in_place(state, scores, values):
    m, l, o = state
    new = torch.maximum(m, scores.amax(dim=1, keepdim=True))
    shrink = torch.exp(m - new)
    p = scores.sub_(new).exp_()
    return new, shrink * l + p.sum(dim=1, keepdim=True), shrink * o + p @ values


def update_state_in_place(state, scores, values):
    m, l, o = state
    new = torch.maximum(m, scores.amax(dim=1, keepdim=True))
    o *= torch.exp(m - new)
    p = torch.exp(scores - new)
    return new, torch.exp(m - new) * l + p.sum(dim=1, keepdim=True), o + p @ values


def update_by_numpy(state, scores, values):
    m, l, o = (x.numpy() for x in state)
    s, v = scores.numpy(), values.numpy()
    new = np.maximum(m, s.max(1, keepdims=True))
    p = np.exp(s - new)
    return tuple(
        torch.from_numpy(x)
        for x in (new, np.exp(m - new) * l + p.sum(1, keepdims=True), np.exp(m - new) * o + p @ v)
    )


def tiles_of(n, size):
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def outer(finish):
    """Return a queries_outer that loads every tile, and then calls finish(q_tile, pairs) with all stored
    tiles."""

    def queries_outer(q, k, v, rows, columns, traffic):
        out = torch.empty_like(q)
        for queries in tiles_of(len(q), rows):
            q_tile = traffic.load(q, queries)
            pairs = [(traffic.load(k, keys), traffic.load(v, keys)) for keys in tiles_of(len(k), columns)]
            traffic.store(out, queries, finish(q_tile, pairs))
        return out

    return queries_outer


def whole_row(q_tile, pairs):
    scores = torch.cat([q_tile @ k.T for k, _ in pairs], 1) / math.sqrt(q_tile.shape[1])
    return torch.softmax(scores, 1) @ torch.cat([v for _, v in pairs])


def row_in_pieces(q_tile, pairs):
    """Wrong: stores the whole row of scores as a list of tiles."""
    scores = [q_tile @ k.T / math.sqrt(q_tile.shape[1]) for k, _ in pairs]
    m = torch.stack([s.amax(1, keepdim=True) for s in scores]).amax(0)
    p = [torch.exp(s - m) for s in scores]
    return sum(x @ v for x, (_, v) in zip(p, pairs, strict=True)) / sum(x.sum(1, keepdim=True) for x in p)


def pytorchs_own(q_tile, pairs):
    return torch.nn.functional.scaled_dot_product_attention(
        q_tile, torch.cat([k for k, _ in pairs]), torch.cat([v for _, v in pairs])
    )


def for_show(q, k, v, rows, columns, traffic):
    """Wrong: loads every tile, but computes with the whole arrays."""
    for _ in tiles_of(len(q), rows):
        traffic.load(q, _)
        for keys in tiles_of(len(k), columns):
            traffic.load(k, keys), traffic.load(v, keys)
    out = torch.softmax(q @ k.T / math.sqrt(q.shape[1]), 1) @ v
    for queries in tiles_of(len(q), rows):
        traffic.store(out, queries, out[queries])
    return out


# Lesson 03 --------------------------------------------------------------------------------------------------

ABORT_FIRST = edit(
    "ex03_2",
    (
        "            errors.append(error)\n            barrier.abort()",
        "            barrier.abort()\n            errors.append(error)",
    ),
)
SWALLOWS = edit(
    "ex03_2",
    (
        "        except Exception as error:",
        "        except threading.BrokenBarrierError:\n            pass\n        except Exception as error:",
    ),
)
POOL = edit(
    "ex03_2",
    (
        (
            "    threads = [\n        threading.Thread(target=run_thread, args=(index,)) for index in"
            " indices(block)\n    ]\n"
        ),
        (
            "    from concurrent.futures import ThreadPoolExecutor\n    with ThreadPoolExecutor(12) as"
            " pool:\n        list(pool.map(run_thread, indices(block)))\n"
        ),
    ),
    ("    for thread in threads:\n        thread.start()\n", ""),
    ("    for thread in threads:\n        thread.join()\n", ""),
)
SUM_HEAD = (
    "def answer(x, out):\n    shared = cuda.shared.array(8, float32)\n    t = cuda.threadIdx.x\n    i ="
    " cuda.blockIdx.x * 8 + t\n"
)
BLOCK_SUM_BY_ONE = (
    SUM_HEAD
    + """    shared[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for e in range(8):
            total += shared[e]
        out[cuda.blockIdx.x] = total
"""
)
BLOCK_SUM_BY_TWO = (
    SUM_HEAD
    + """    shared[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    total = float32(0)
    if t < 2:
        for e in range(4):
            total += shared[4 * t + e]
    cuda.syncthreads()
    if t == 1:
        shared[1] = total
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = total + shared[1]
"""
)
BLOCK_SUM_BY_ATOMICS = (
    SUM_HEAD.replace("array(8", "array(1")
    + """    if t == 0:
        shared[0] = 0
    cuda.syncthreads()
    if i < x.size:
        cuda.atomic.add(shared, 0, x[i])
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = shared[0]
"""
)
BLOCK_SUM_FOR_SHOW = (
    SUM_HEAD
    + """    shared[t] = 0
    if t == 0:
        total = float32(0)
        for e in range(i, min(x.size, i + 8)):
            total += x[e]
        out[cuda.blockIdx.x] = total
"""
)

# Lesson 04: correct values without the technique that the exercise asks for ---------------------------------

PUSH = """def answer(x, out):
    i = cuda.grid(1)
    if i == 0:
        out[0] = 0
    if i + 1 < x.size:
        out[i + 1] = x[i]
"""
MIRROR_FOR_SHOW = """def answer(x, out):
    part = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    part[t] = 0
    cuda.syncthreads()
    length = min(cuda.blockDim.x, x.size - (i - t))
    if i < x.size:
        out[i] = x[i - t + length - 1 - t] + part[t]
"""
SWAP_FOR_SHOW = """def answer(x, out):
    i = cuda.grid(1)
    unused = cuda.shfl_xor_sync(0xFFFFFFFF, x[i], 1)
    out[i] = x[i ^ 1]
"""
SHARES_FOR_SHOW = """def answer(x, total, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(total, 0, x[i])
        s = float32(0)
        for e in range(x.size):
            s += x[e]
        out[i] = x[i] / s
"""
SUM_BY_ITSELF = """def answer(x, out):
    part = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    part[t] = x[i]
    cuda.syncthreads()
    if t == 0:
        for e in range(1, cuda.blockDim.x):
            part[e] += part[e - 1]
    cuda.syncthreads()
    out[i] = part[t]
"""
SAMPLE = "        while low < high:"

# Lessons 05 to 08 -------------------------------------------------------------------------------------------

LOAD = "@cuda.jit(device=True)\ndef answer(tile, array, start):\n"
THREAD_0_LOADS = (
    LOAD
    + """    if cuda.threadIdx.x == 0:
        for e in range(tile.size):
            tile[e] = array[start + e] if start + e < array.size else float32(0)
"""
)
BY_GRID = (
    LOAD
    + """    for e in range(cuda.grid(1), tile.size, cuda.blockDim.x):
        tile[e] = array[start + e] if start + e < array.size else float32(0)
"""
)
REPAIRS = exercises("05")["ex05_4"].solution


def repairs(**changes):
    """Return the repairs, with different replacements for the lines that the keywords name."""
    lines = {
        "rows": "for first in range(0, n, rows):",
        "start": "m, l = float32(0), float32(0)",
        "keys": "for j in range(d):",
    }
    return lambda: REPAIRS() | {lines[key]: line for key, line in changes.items()}


NORM = exercises("07")["ex07_2"]
GRIDS = exercises("07")["ex07_4"]


def many_shuffles():
    """Wrong: every lane fetches the state of every other lane."""
    text = """@cuda.jit(device=True)
def answer(m, l, o):
    my_m, my_l, lane = m, l, cuda.threadIdx.x % 32
    for other in range(32):
        larger = cuda.shfl_sync(0xFFFFFFFF, my_m, other)
        m = max(m, larger)
    l = float32(0)
    factor = math.exp(my_m - m) if my_m > float32(-math.inf) else float32(0)
    for other in range(32):
        l += cuda.shfl_sync(0xFFFFFFFF, factor * my_l, other)
    for c in range(o.size):
        total = float32(0)
        for other in range(32):
            total += cuda.shfl_sync(0xFFFFFFFF, factor * o[c], other)
        o[c] = total
    return m, l
"""
    return write(text)


def two_tiles():
    return edit(
        "ex08_3",
        (
            "    tile = cuda.shared.array((TILE, 33), float32)",
            (
                "    tile = cuda.shared.array((TILE, 33), float32)\n    other = cuda.shared.array((TILE, 33),"
                " float32)"
            ),
        ),
        (
            "    cuda.syncthreads()\n",
            (
                "    cuda.syncthreads()\n    if row + y < a.shape[0] and column + x < a.shape[1]:\n       "
                " other[y, x] = tile[y, x]\n    cuda.syncthreads()\n"
            ),
        ),
        ("= tile[x, y]", "= other[x, y]"),
    )


WRONG = {
    "ex01_1": [
        ("keeps the scores in an array", softmax_of_an_array),
        ("keeps them in a text", softmax_of_a_string),
        ("-1e9 for -inf", finite_start(-1e9)),
        ("-1e4 for -inf", finite_start(-1e4)),
    ],
    "ex01_2": [("-1e9 for -inf", finite_merge)],
    "ex02_1": [
        ("loops over rows", update_by_rows),
        ("in place on the scores", update_in_place),
        ("in place on o", update_state_in_place),
        ("in numpy", update_by_numpy),
    ],
    "ex02_2": [
        ("a whole row of scores", outer(whole_row)),
        ("a whole row, in pieces", outer(row_in_pieces)),
        ("PyTorch's own", outer(pytorchs_own)),
        ("tiles for show", for_show),
    ],
    "ex03_1": [
        (
            "elements over again",
            edit(
                "ex03_1",
                (
                    "    if i < x.size:\n        out[i] = x[i] + y[i]",
                    "    i = i % x.size\n    out[i] = x[i] + y[i]",
                ),
            ),
        ),
        (
            "the last element over again",
            edit(
                "ex03_1",
                (
                    "    if i < x.size:\n        out[i] = x[i] + y[i]",
                    "    i = min(i, x.size - 1)\n    out[i] = x[i] + y[i]",
                ),
            ),
        ),
    ],
    "ex03_2": [
        ("an index for the arguments", edit("ex03_2", ("args=(index,)", "args=index"))),
        ("aborts before it appends", ABORT_FIRST),
        ("swallows broken barriers", SWALLOWS),
        ("a pool of twelve threads", POOL),
    ],
    "ex03_3": [
        ("atomics in shared memory", write(BLOCK_SUM_BY_ATOMICS)),
        ("one thread adds", write(BLOCK_SUM_BY_ONE)),
        ("two threads add four each", write(BLOCK_SUM_BY_TWO)),
        ("shared memory for show", write(BLOCK_SUM_FOR_SHOW)),
    ],
    "ex04_3": [("-10 for -inf", edit("ex04_3", ("float32(-math.inf)", "float32(-10)")))],
    "ex04_4": [("one thread adds in shared memory", write(SUM_BY_ITSELF))],
    "ex04_6": [("shared memory for show", write(MIRROR_FOR_SHOW))],
    "ex04_7": [("a shuffle for show", write(SWAP_FOR_SHOW))],
    "ex04_8": [("no barrier of the grid", write(SHARES_FOR_SHOW))],
    "ex04_9": [
        (
            "six rounds",
            edit(
                "ex04_9",
                (SAMPLE, "        for _ in range(6):\n            if low >= high:\n                break"),
            ),
        )
    ],
    "ex05_1": [
        ("thread 0 loads", write(THREAD_0_LOADS)),
        ("counts from the grid's first thread", write(BY_GRID)),
    ],
    "ex05_2": [
        (
            "ignores keys",
            edit("ex05_2", ("    for j in range(keys):", "    for j in range(k_tile.size // d):")),
        ),
        (
            "the first key's score as maximum",
            edit("ex05_2", ("new_m = max(m, score)", "new_m = score if m == float32(-math.inf) else m")),
        ),
    ],
    "ex05_3": [
        (
            "1/√d for the scale",
            edit(
                "ex05_3",
                (
                    "    first = cuda.blockIdx.x * rows",
                    "    first = cuda.blockIdx.x * rows\n    scale = float32(1) / math.sqrt(float32(d))",
                ),
            ),
        )
    ],
    "ex05_4": [
        (
            "block 0 has all queries",
            repairs(rows="for first in range(0 if cuda.blockIdx.x == 0 else n, n, rows):"),
        ),
        ("starts at -50", repairs(start="m, l = float32(-50), float32(0)")),
        ("at most d keys", repairs(keys="for j in range(min(d, keys)):")),
    ],
    "ex06_2": [
        ("32 shuffles a number", many_shuffles()),
        ("three columns at most", edit("ex06_2", ("range(o.size)", "range(min(3, o.size))"))),
    ],
    "ex06_3": [
        (
            "96 keys at most",
            edit(
                "ex06_3",
                (
                    "        seen = min(keys, i + 1) if causal else keys",
                    "        seen = min(96, min(keys, i + 1) if causal else keys)",
                ),
            ),
        )
    ],
    "ex07_2": [("a plain function", NORM.solution.py_func)],
    "ex07_4": [
        ("a plain function", GRIDS.solution.py_func),
        ("stops at 1000", edit("ex07_4", ("out.size,", "min(out.size, 1000),"))),
    ],
    "ex08_3": [
        ("a tile of float64", edit("ex08_3", ("(TILE, 33), float32", "(TILE, 33), np.float64"))),
        ("a second tile", two_tiles()),
    ],
}


def bytes_in_an_array(n, d, rows, columns, itemsize=4):
    return np.array(exercises("02")["ex02_3"].solution(n, d, rows, columns, itemsize))


def longest_of_all(bytes, flops, turns, gpu):
    return max(amount / rate for amount, rate in zip((bytes, flops, turns), gpu, strict=True))


RIGHT = {
    "ex01_0": [("a tensor", lambda: torch.exp(torch.tensor(-1.0)))],
    "ex02_3": [("an array", bytes_in_an_array)],
    "ex04_2": [("each thread pushes its element on", write(PUSH))],
    "ex08_5": [("by the order of the rates", longest_of_all)],
}
