"""Wrong answers to the exercises of lesson 07, each labelled with its mistake, and alternative correct
answers."""

import math

from numba import cuda, types
from numpy import float32, int64

from editing import wrong
from power.lessons import from_solutions

scale_all, pipelined = from_solutions("07", "scale_all", "pipelined")


# 7.1 --------------------------------------------------------------------------------------------------------

TYPES = dict(
    a="int64",
    b="int64",
    c="float64",
    d="float32",
    e="float64",
    f="float32",
    g="float64",
    h="float32",
    i="float64",
    j="float32",
)


def types_with(**changes):
    return lambda: {letter: kind for letter, kind in (TYPES | changes).items() if kind}


# 7.2 --------------------------------------------------------------------------------------------------------


@cuda.jit
def rms_norm(x, gain, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        total = float32(0)
        for c in range(x.shape[1]):
            total += x[i, c] ** 2
        mean = total / float32(x.shape[1])
        root = math.sqrt(mean + float32(1e-6))
        for c in range(x.shape[1]):
            out[i, c] = gain[c] * x[i, c] / root


@cuda.jit
def rms_norm_by_reciprocals(x, gain, out):
    i = cuda.grid(1)
    if i >= x.shape[0]:
        return
    d = float32(x.shape[1])
    total = float32(0)
    for c in range(x.shape[1]):
        total += x[i, c] * x[i, c]
    factor = float32(1) / math.sqrt(total / d + float32(0.000001))
    for c in range(x.shape[1]):
        out[i, c] = x[i, c] * factor * gain[c]


# 7.4 --------------------------------------------------------------------------------------------------------


@cuda.jit
def scale_all_by_hand(x, factor, out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    while i < x.shape[0]:
        out[i] = x[i] * factor
        i += cuda.gridDim.x * cuda.blockDim.x


def in_pieces(x, factor, out):
    threads = cuda.gridsize(1)
    piece = (out.size + threads - 1) // threads
    start = cuda.grid(1) * piece
    for i in range(start, min(start + piece, out.size)):
        out[i] = factor * x[i]


def one_each(x, factor, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = factor * x[i]


def alone(x, factor, out):
    if cuda.grid(1) == 0:
        for i in range(out.size):
            out[i] = factor * x[i]


RANGE = "range(cuda.grid(1), out.size, cuda.gridsize(1))"

# 7.5


def pipelined_by_buffer(copier, worker, parts, buffers, fill, compute):
    free = [None, None]
    for p in range(parts):
        side = p % 2
        if free[side]:
            copier.wait_event(free[side])
        copier.launch(lambda p=p, side=side: fill(p, buffers[side]))
        filled = copier.record_event()
        worker.wait_event(filled)
        worker.launch(lambda p=p, side=side: compute(p, buffers[side]))
        free[side] = worker.record_event()


def all_filled_first(copier, worker, parts, buffers, fill, compute):
    for p in range(parts):
        copier.launch(fill, p, buffers[p % 2])
    worker.wait_event(copier.record_event())
    for p in range(parts):
        worker.launch(compute, p, buffers[p % 2])


FILLED = "worker.wait_event(copier.record_event())"
FILL = "copier.launch(fill, p, buffers[p % 2])"
COMPUTE = "worker.launch(compute, p, buffers[p % 2])"

MUTANTS = {
    "ex07_1": [
        ("int32 + int64 as in numpy", types_with(a="int32")),
        ("// of an int32", types_with(b="int32")),
        ("// as a float", types_with(b="float64")),
        ("/ as in C", types_with(c="int64")),
        ("/ as a float32", types_with(c="float32")),
        ("float32 times float32 widened", types_with(d="float64")),
        ("a whole number adapts, as in PyTorch", types_with(e="float32")),
        ("float32(2) overlooked", types_with(f="float64")),
        ("0.0 adapts", types_with(g="float32")),
        ("math always in float64", types_with(h="float64")),
        ("a size adapts", types_with(i="float32")),
        ("the index counts", types_with(j="float64")),
        ("a letter is missing", types_with(j=None)),
        ("a list", lambda: list(TYPES.values())),
        ("nothing", lambda: None),
    ],
    "ex07_2": wrong(
        rms_norm,
        ("starts with 0.0", ("float32(0)", "0.0")),
        ("divides by a whole number", ("float32(x.shape[1])", "x.shape[1]")),
        ("adds a bare 1e-6", ("float32(1e-6)", "1e-6")),
        (
            "adds a bare 1e-6 and rounds afterwards",
            ("math.sqrt(mean + float32(1e-6))", "float32(math.sqrt(mean + 1e-6))"),
        ),
        ("a float64 in between", ("total / float32(x.shape[1])", "float32(total * (1.0 / x.shape[1]))")),
        ("times 2.0 / 2", ("gain[c] * x[i, c] / root", "gain[c] * x[i, c] / root * 2.0 / 2")),
        ("no 1e-6", (" + float32(1e-6)", "")),
        ("1e-6 outside the root", ("math.sqrt(mean + float32(1e-6))", "math.sqrt(mean) + float32(1e-6)")),
        ("a sum in place of the mean", (" / float32(x.shape[1])", "")),
        ("the mean of the values", (" ** 2", "")),
        ("divides by the number of rows", ("float32(x.shape[1])", "float32(x.shape[0])")),
        ("no gain", ("gain[c] * ", "")),
        ("the row's gain", ("gain[c]", "gain[i % gain.size]")),
        ("no root", ("math.sqrt(mean + float32(1e-6))", "mean + float32(1e-6)")),
        ("no guard", ("if i < x.shape[0]:", "if True:")),
        ("one row too few", ("i < x.shape[0]", "i < x.shape[0] - 1")),
        (
            "whole numbers",
            ("total = float32(0)", "total = 0"),
            ("total += x[i, c] ** 2", "total += int64(x[i, c] ** 2)"),
        ),
    ),
    "ex07_3": [
        ("rounds down", lambda n, threads, most: max(1, min(n // threads, most))),
        ("always one more", lambda n, threads, most: min(n // threads + 1, most)),
        ("rounds to the nearest", lambda n, threads, most: max(1, min(round(n / threads), most))),
        ("forgets the limit", lambda n, threads, most: -(-n // threads)),
        ("takes the limit", lambda n, threads, most: most),
        ("max for min", lambda n, threads, most: max(-(-n // threads), most)),
        ("one off", lambda n, threads, most: min((n + threads) // threads, most)),
        ("a float", lambda n, threads, most: float(min(-(-n // threads), most))),
        ("counts threads", lambda n, threads, most: min(n, most)),
        ("nothing", lambda n, threads, most: None),
    ],
    "ex07_4": [
        *wrong(
            scale_all,
            ("the stride of one block", (RANGE, "range(cuda.grid(1), out.size, cuda.blockDim.x)")),
            ("the stride of the blocks", (RANGE, "range(cuda.grid(1), out.size, cuda.gridDim.x)")),
            ("each block does all", (RANGE, "range(cuda.threadIdx.x, out.size, cuda.blockDim.x)")),
            (
                "starts at the thread of the block",
                (RANGE, "range(cuda.threadIdx.x, out.size, cuda.gridsize(1))"),
            ),
            ("one element too few", ("out.size", "out.size - 1")),
            ("one element too many", ("out.size", "out.size + 1")),
            ("adds into out", ("out[i] = ", "out[i] += ")),
            ("writes twice", ("out[i] = factor * x[i]", "out[i] = x[i]; out[i] = factor * x[i]")),
        ),
        ("pieces of neighbours", in_pieces),
        ("one element a thread", one_each),
        ("one thread does it all", alone),
    ],
    "ex07_5": [
        *wrong(
            pipelined,
            ("waits for the part before: one buffer is idle", ("p >= 2", "p >= 1"), ("p - 2", "p - 1")),
            ("lets the third part wait alone", ("p >= 2", "p == 2")),
            ("waits in Python", (FILLED, "copier.synchronize()")),
            ("the mark before the launch", (FILLED, "pass"), (FILL, f"{FILLED}; {FILL}")),
            ("a mark of the stream that waits", (FILLED, "worker.wait_event(worker.record_event())")),
            (
                "one buffer for all",
                (FILL, FILL.replace("p % 2", "0")),
                (COMPUTE, COMPUTE.replace("p % 2", "0")),
            ),
            ("calls fill at once", (FILL, "copier.launch(fill(p, buffers[p % 2]))")),
            ("all in one stream", (COMPUTE, COMPUTE.replace("worker", "copier"))),
            (
                "the streams exchanged",
                (FILL, FILL.replace("copier", "worker")),
                (COMPUTE, COMPUTE.replace("worker", "copier")),
            ),
            ("without the last part", ("range(parts)", "range(parts - 1)")),
            ("computes twice", (COMPUTE, f"{COMPUTE}; {COMPUTE}")),
            (
                "the copier waits at the end of each round",
                ("p >= 2", "False"),
                ("computed.append(", "copier.wait_event("),
            ),
        ),
        ("fills all, then computes all", all_filled_first),
    ],
}

RIGHT = {
    "ex07_1": [types_with(), types_with(a=int64, d=float32, g=types.float64)],
    "ex07_2": [rms_norm, rms_norm_by_reciprocals],
    "ex07_3": [
        lambda n, threads, most: min((n + threads - 1) // threads, most),
        lambda n, threads, most: min(math.ceil(n / threads), most),
    ],
    "ex07_4": [scale_all, scale_all_by_hand],
    "ex07_5": [pipelined, pipelined_by_buffer],
}
