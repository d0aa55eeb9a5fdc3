"""Generates kernels that compute correct values, but do not divide the work among threads.

DIRECT has a direct computation of one element for each exercise. Five kernels are generated from each
computation.
"""

import linecache
from textwrap import indent

HEAD = "import math\n\nimport numpy as np\nfrom numba import cuda\nfrom numpy import float32\n\n\n"
WAYS = {
    "one thread does everything": "if cuda.grid(1) == 0:\n    for i in range({count}):\n{body}",
    "every thread does everything": "for i in range({count}):\n{body}",
    "the first thread of a block does its part": (
        "if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:\n    for i in range(cuda.blockIdx.x *"
        " {per_block}, min({count}, (cuda.blockIdx.x + 1) * {per_block})):\n{body}"
    ),
    "block 0 does everything": (
        "if cuda.blockIdx.x == 0 and cuda.blockIdx.y == 0:\n    for i in range(cuda.threadIdx.x, {count},"
        " cuda.blockDim.x):\n        if cuda.threadIdx.y == 0:\n{body}"
    ),
    "each thread for itself, from global memory": "i = {mine}\nif i < {count} and {valid}:\n{body}",
}
ATTENTION = """m, l = float32(-math.inf), float32(0)
for c in range(d):
    {o}[{row}c] = 0
for j in range({keys}):
    score = float32(0)
    for c in range(d):
        score += {q} * {k}
    score *= scale
    larger = max(m, score)
    shrink, p = math.exp(m - larger), math.exp(score - larger)
    l = l * shrink + p
    for c in range(d):
        {o}[{row}c] = {o}[{row}c] * shrink + p * {v}
    m = larger
for c in range(d):
    {o}[{row}c] /= l"""
# check: (parameters, number of elements, elements per block, body, indices of the ways that are correct)
DIRECT = {
    "ex03_1": ("x, y, out", "out.size", "cuda.blockDim.x", "out[i] = x[i] + y[i]", {4}),
    "ex03_3": (
        "x, out",
        "out.size",
        "1",
        (
            "total = float32(0)\nfor e in range(8 * i, min(x.size, 8 * i + 8)):\n    total += x[e]\nout[i] ="
            " total"
        ),
        set(),
    ),
    "ex03_4": (
        "a, b, c",
        "c.size",
        "cuda.blockDim.x",
        (
            "row, col = i // c.shape[1], i % c.shape[1]\ntotal = float32(0)\nfor e in range(a.shape[1]):\n   "
            " total += a[row, e] * b[e, col]\nc[row, col] = total"
        ),
        {2},
    ),
    "ex04_1": (
        "board",
        "board.size",
        "cuda.blockDim.x",
        "board[i // board.shape[1], i % board.shape[1]] = (i // board.shape[1] + i % board.shape[1]) % 2",
        {2, 4},
    ),
    "ex04_2": ("x, out", "out.size", "cuda.blockDim.x", "out[i] = x[i - 1] if i > 0 else float32(0)", {4}),
    "ex04_3": (
        "x, out",
        "out.size",
        "1",
        (
            "largest = float32(-math.inf)\nfor e in range(cuda.blockDim.x * i, min(x.size, cuda.blockDim.x *"
            " (i + 1))):\n    largest = max(largest, x[e])\nout[i] = largest"
        ),
        set(),
    ),
    "ex04_4": (
        "x, out",
        "out.size",
        "cuda.blockDim.x",
        (
            "total = float32(0)\nfor e in range(i // cuda.blockDim.x * cuda.blockDim.x, i + 1):\n    total +="
            " x[e]\nout[i] = total"
        ),
        set(),
    ),
    "ex04_5": (
        "letters, counts",
        "counts.size",
        "cuda.blockDim.x",
        "total = 0\nfor e in range(letters.size):\n    total += letters[e] == i\ncounts[i] = total",
        set(),
    ),
    "ex04_6": (
        "x, out",
        "out.size",
        "cuda.blockDim.x",
        (
            "first = i // cuda.blockDim.x * cuda.blockDim.x\nout[i] = x[first + min(cuda.blockDim.x, x.size -"
            " first) - 1 - (i - first)]"
        ),
        set(),
    ),
    "ex04_7": ("x, out", "out.size", "cuda.blockDim.x", "out[i] = x[i ^ 1]", set()),
    "ex04_8": (
        "x, total, out",
        "out.size",
        "cuda.blockDim.x",
        (
            "s = float32(0)\nfor e in range(x.size):\n    s += x[e]\nout[i] = x[i] / s\nif i == 0:\n   "
            " total[0] = s"
        ),
        set(),
    ),
    "ex04_9": (
        "cumulative, u, token",
        "token.size",
        "cuda.blockDim.x",
        "k = 0\nwhile cumulative[k] <= u[i]:\n    k += 1\ntoken[i] = k",
        set(),
    ),
    "ex05_3": (
        "q, k, v, o, n, d, columns, scale",
        "n",
        "cuda.blockDim.x",
        ATTENTION.format(
            o="o", row="i * d + ", keys="n", q="q[i * d + c]", k="k[j * d + c]", v="v[j * d + c]"
        ),
        set(),
    ),
    "ex06_1": (
        "x, out",
        "out.size",
        "cuda.blockDim.x",
        (
            "total = float32(0)\nfor e in range(i // 32 * 32, min(x.size, i // 32 * 32 + 32)):\n    total +="
            " x[e]\nout[i] = total"
        ),
        set(),
    ),
    "ex06_3": (
        "q, k, v, scale, causal, out",
        "q.shape[0]",
        "cuda.blockDim.x // 32",
        ATTENTION.format(
            o="out",
            row="i, ",
            keys="min(k.shape[0], i + 1) if causal else k.shape[0]",
            q="q[i, c]",
            k="k[j, c]",
            v="v[j, c]",
        ),
        set(),
    ),
    "ex07_2": (
        "x, gain, out",
        "x.shape[0]",
        "cuda.blockDim.x",
        (
            "total = float32(0)\nfor c in range(x.shape[1]):\n    total += x[i, c] * x[i, c]\nroot ="
            " math.sqrt(total / float32(x.shape[1]) + float32(1e-6))\nfor c in range(x.shape[1]):\n    out[i,"
            " c] = gain[c] * x[i, c] / root"
        ),
        {4},
    ),
    "ex07_4": ("x, factor, out", "out.size", "cuda.blockDim.x", "out[i] = factor * x[i]", {4, 2}),
    "ex08_3": (
        "a, out",
        "a.size",
        "cuda.blockDim.x",
        "out[i % a.shape[1], i // a.shape[1]] = a[i // a.shape[1], i % a.shape[1]]",
        {2},
    ),
}
MINE = {
    "ex03_4": "(cuda.blockIdx.y * 4 + cuda.threadIdx.y) * c.shape[1] + cuda.grid(2)[0]",
    "ex04_1": "0",
    "ex08_3": "cuda.grid(2)[1] * a.shape[1] + cuda.grid(2)[0]",
    "ex06_3": "cuda.grid(1) // 32",
}
VALID = {"ex03_4": "cuda.grid(2)[0] < c.shape[1]", "ex08_3": "cuda.grid(2)[0] < a.shape[1]"}
JITTED = {"ex05_3", "ex07_2", "ex07_4"}


def unshared(check):
    """Yield (label, answer) for every way in which the threads of an exercise's kernel may fail to share the
    work.

    Yield nothing if the answer is not a kernel.
    """
    if check not in DIRECT:
        return
    parameters, count, per_block, body, right = DIRECT[check]
    for number, (label, way) in enumerate(WAYS.items()):
        if number in right:
            continue
        text = way.format(
            count=count,
            per_block=per_block,
            mine=MINE.get(check, "cuda.grid(1)"),
            valid=VALID.get(check, "True"),
            body="{body}",
        )
        depth = (
            next(len(line) - len(line.lstrip()) for line in reversed(way.splitlines()[:-1]) if line.strip())
            + 4
        )
        text = text.replace("{body}", indent(body, " " * depth))
        yield label, kernel(check, label, parameters, text)


def kernel(check, label, parameters, text):
    """Return the kernel with this body. For exercise 6.3, return a function that creates it."""
    if check == "ex06_3":
        source = (
            f"{HEAD}def answer(d):\n    def kernel({parameters}):\n{indent(text, ' ' * 8)}\n\n    return"
            " kernel\n"
        )
    else:
        source = (
            f"{HEAD}{'@cuda.jit' if check in JITTED else ''}\ndef"
            f" answer({parameters}):\n{indent(text, ' ' * 4)}\n"
        )
    name = f"<{check}: {label}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    names = {"__name__": "lesson"}
    exec(compile(source, name, "exec"), names)
    return names["answer"]
