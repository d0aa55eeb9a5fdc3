"""Wrong answers to the exercises of lesson 08, each labelled with its mistake, and alternative correct
answers.

A wrong kernel is the correct one with one or two lines edited.
"""

import json
from types import SimpleNamespace

import numpy as np
from numba import cuda
from numpy import float32

from editing import edited
from kernels.cases.memory_patterns import TILE, transpose_padded
from kernels.common.data import DATA
from power.lessons import from_solutions

sectors, wavefronts, transpose, least_time = from_solutions(
    "08", "sectors", "wavefronts", "transpose", "least_time"
)


# Correct answers --------------------------------------------------------------------------------------------


PREDICTED = {
    "copy": (4, 4, 0, 0),
    "strided_copy": (32, 4, 0, 0),
    "transpose_naive": (4, 32, 0, 0),
    "transpose_tiled": (4, 4, 32, 1),
    "transpose_padded": (4, 4, 1, 1),
}


def predictions():
    return PREDICTED


# Alternative correct answers --------------------------------------------------------------------------------


def sectors_by_every_byte(stride, itemsize, first=0):
    touched = []
    for lane in range(32):
        for byte in range(itemsize):
            sector = ((first + lane * stride) * itemsize + byte) // 32
            if sector not in touched:
                touched.append(sector)
    return len(touched)


def sectors_by_numpy(stride, itemsize, first=0):
    return np.unique((first + np.arange(32) * stride) * itemsize >> 5).size


def wavefronts_by_banks(addresses):
    wanted = {}
    for address in addresses:
        wanted.setdefault(address // 4 % 32, set()).add(address // 128)
    return max(map(len, wanted.values()))


def wavefronts_one_after_another(addresses):
    left, taken = {address // 4 for address in addresses}, 0
    while left:
        left -= set({word % 32: word for word in left}.values())
        taken += 1
    return taken


def transpose_through_columns(a, out):
    tile = cuda.shared.array((TILE, 33), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    i, j = cuda.blockIdx.y * TILE + y, cuda.blockIdx.x * TILE + x
    if i < a.shape[0] and j < a.shape[1]:
        tile[x, y] = a[i, j]
    cuda.syncthreads()
    i, j = cuda.blockIdx.x * TILE + y, cuda.blockIdx.y * TILE + x
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = tile[y, x]


def transpose_with_a_twist(a, out):
    """Correct: instead of padding, row y of the tile is permuted by y, so that a column uses all banks."""
    tile = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if row + y < a.shape[0] and column + x < a.shape[1]:
        tile[y, x ^ y] = a[row + y, column + x]
    cuda.syncthreads()
    if row + x < a.shape[0] and column + y < a.shape[1]:
        out[column + y, row + x] = tile[x, y ^ x]


def transpose_with_zeros(a, out):
    """Correct: fills the rest of a ragged tile with 0."""
    tile = cuda.shared.array((TILE, 33), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if row + y < a.shape[0] and column + x < a.shape[1]:
        tile[y, x] = a[row + y, column + x]
    else:
        tile[y, x] = 0
    cuda.syncthreads()
    if row + x < a.shape[0] and column + y < a.shape[1]:
        out[column + y, row + x] = tile[x, y]


def recorded_predictions():
    """Read the record, and return the solution."""
    json.loads((DATA / "lesson08.json").read_text("utf-8"))
    return predictions()


def predictions_as_lists():
    return {
        name: [sectors(1, 4) if number == 4 else number for number in numbers]
        for name, numbers in reversed(PREDICTED.items())
    }


def least_time_by_loop(bytes, flops, turns, gpu):
    longest = 0.0
    for work, rate in (
        (bytes, gpu.bytes_per_second),
        (flops, gpu.flops_per_second),
        (turns, gpu.wavefronts_per_second),
    ):
        if work / rate > longest:
            longest = work / rate
    return longest


# Wrong in more than one line --------------------------------------------------------------------------------


def transpose_without_a_tile(a, out):
    column, row = cuda.grid(2)
    if row < a.shape[0] and column < a.shape[1]:
        out[column, row] = a[row, column]


package_transpose = cuda.jit(device=True)(transpose_padded.py_func)


def transpose_of_the_package(a, out):
    package_transpose(a, out)


def transpose_by_one_thread(a, out):
    first_row, first_column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
        for i in range(first_row, min(first_row + TILE, a.shape[0])):
            for j in range(first_column, min(first_column + TILE, a.shape[1])):
                out[j, i] = a[i, j]


def transpose_by_one_lane_a_warp(a, out):
    y = cuda.threadIdx.y
    i, j = cuda.blockIdx.y * TILE + y, cuda.blockIdx.x * TILE
    if cuda.threadIdx.x == 0 and i < a.shape[0]:
        for step in range(min(TILE, a.shape[1] - j)):
            out[j + step, i] = a[i, j + step]


def changed(**numbers):
    """Return a wrong answer that predicts different numbers for some patterns."""
    return lambda: PREDICTED | numbers


def with_least_time(body):
    return lambda bytes, flops, turns, gpu: body(
        SimpleNamespace(
            bytes=bytes / gpu.bytes_per_second,
            flops=flops / gpu.flops_per_second,
            turns=turns / gpu.wavefronts_per_second,
        )
    )


LANES = range(32)
MUTANTS = {
    "ex08_1": [
        ("counts bytes, not sectors", lambda stride, itemsize, first=0: 32 * itemsize // 32),
        ("forgets `first`", lambda stride, itemsize, first=0: sectors(stride, itemsize)),
        ("takes `first` for bytes", lambda stride, itemsize, first=0: len({(first + lane * stride * itemsize) // 32 for lane in LANES})),
        ("forgets the size", lambda stride, itemsize, first=0: len({(first + lane * stride) // 32 for lane in LANES})),
        ("always float32", lambda stride, itemsize, first=0: sectors(stride, 4, first)),
        ("takes lines of 128 bytes", lambda stride, itemsize, first=0: len({(first + lane * stride) * itemsize // 128 for lane in LANES})),
        ("counts lanes, not sectors", lambda stride, itemsize, first=0: len([(first + lane * stride) * itemsize // 32 for lane in LANES])),
        ("from the first to the last", lambda stride, itemsize, first=0: abs(31 * stride * itemsize) // 32 + 1),
        ("a formula for aligned warps", lambda stride, itemsize, first=0: min(max(abs(stride) * itemsize, 1), 32)),
        ("has 31 lanes", lambda stride, itemsize, first=0: len({(first + lane * stride) * itemsize // 32 for lane in range(31)})),
        ("gives the set", lambda stride, itemsize, first=0: {(first + lane * stride) * itemsize // 32 for lane in LANES}),
        ("does not round", lambda stride, itemsize, first=0: len({(first + lane * stride) * itemsize / 32 for lane in LANES})),
        ("returns nothing", lambda stride, itemsize, first=0: None),
    ],
    "ex08_2": [
        ("takes turns even for one word", lambda addresses: max(np.bincount(np.array(addresses) // 4 % 32))),
        ("takes addresses for words", lambda addresses: max(np.bincount([a % 32 for a in set(addresses)]))),
        ("counts different words", lambda addresses: len({a // 4 for a in addresses})),
        ("counts banks", lambda addresses: len({a // 4 % 32 for a in addresses})),
        ("counts conflicts: one turn less", lambda addresses: wavefronts(addresses) - 1),
        ("rounds lanes by banks", lambda addresses: -(-len(set(addresses)) // len({a // 4 % 32 for a in addresses}))),
        ("has 16 banks", lambda addresses: max(np.bincount([w % 16 for w in {a // 4 for a in addresses}]))),
        ("has banks of 8 bytes", lambda addresses: max(np.bincount([w % 32 for w in {a // 8 for a in addresses}]))),
        ("looks at the first lane's bank", lambda addresses: len({a for a in addresses if a // 4 % 32 == addresses[0] // 4 % 32})),
        ("counts banks with a conflict", lambda addresses: 1 + sum(np.bincount([a // 4 % 32 for a in set(addresses)]) > 1)),
        ("adds up what is too much", lambda addresses: 1 + len(set(addresses)) - len({a // 4 % 32 for a in addresses})),
        ("goes by the stride of the first two lanes", lambda addresses: np.gcd(abs(addresses[-1] - addresses[0]) // 4 // 31, 32)),
        ("counts sectors", lambda addresses: len({a // 32 for a in addresses})),
    ],
    "ex08_3": [
        ("has no tile", transpose_without_a_tile),
        ("has no padding", edited(transpose, ("33", "32"))),
        ("is the package's own", transpose_padded),
        ("calls a kernel of the package in part", transpose_of_the_package),
        ("pads by four", edited(transpose, ("33", "36"))),
        ("pads to twice the width", edited(transpose, ("33", "64"))),
        ("has no barrier", edited(transpose, ("    cuda.syncthreads()\n", ""))),
        ("has only a warp's barrier", edited(transpose, ("cuda.syncthreads()", "cuda.syncwarp()"))),
        ("does not move the corner", edited(transpose, ("out[column + y, row + x]", "out[row + y, column + x]"))),
        ("stores down a column of out", edited(transpose, ("out[column + y, row + x] = tile[x, y]", "out[column + x, row + y] = tile[y, x]"), ("if row + x < a.shape[0] and column + y <", "if row + y < a.shape[0] and column + x <"))),
        ("loads down a column of a", edited(transpose, ("tile[y, x] = a[row + y, column + x]", "tile[x, y] = a[row + x, column + y]"), ("if row + y < a.shape[0] and column + x <", "if row + x < a.shape[0] and column + y <"))),
        ("has no guard at the load", edited(transpose, ("    if row + y < a.shape[0] and column + x < a.shape[1]:\n        tile", "    tile"))),
        ("has no guard at the store", edited(transpose, ("    if row + x < a.shape[0] and column + y < a.shape[1]:\n        out", "    out"))),
        ("guards the store as it did the load", edited(transpose, ("if row + x < a.shape[0] and column + y <", "if row + y < a.shape[0] and column + x <"))),
        ("is right for one block only", edited(transpose, ("cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE", "0, 0"))),
        ("waits under the guard", edited(transpose, ("    cuda.syncthreads()", "        cuda.syncthreads()"))),
        ("loads twice", edited(transpose, ("        tile[y, x] = a[", "        tile[y, x] = a[row + y, column + x]\n        tile[y, x] = a["))),
        ("lets one thread do it all", transpose_by_one_thread),
        ("lets one lane of each warp do it all", transpose_by_one_lane_a_warp),
    ],
    "ex08_4": [
        ("reads the record", recorded_predictions),
        ("thinks a strided load is cheap", changed(strided_copy=(4, 4, 0, 0))),
        ("thinks stride 8 is 8 sectors", changed(strided_copy=(8, 4, 0, 0))),
        ("thinks the strided copy stores with a stride, too", changed(strided_copy=(32, 32, 0, 0))),
        ("takes the naive store for the load", changed(transpose_naive=(32, 4, 0, 0))),
        ("thinks both sides of the naive one are bad", changed(transpose_naive=(32, 32, 0, 0))),
        ("thinks the tile costs nothing", changed(transpose_tiled=(4, 4, 1, 1))),
        ("takes the shared store for the load", changed(transpose_tiled=(4, 4, 1, 32))),
        ("sees no shared memory in the tiled one", changed(transpose_tiled=(4, 4, 0, 0))),
        ("thinks padding halves the conflict", changed(transpose_padded=(4, 4, 16, 1))),
        ("thinks padding spoils the store", changed(transpose_padded=(4, 4, 1, 2))),
        ("counts in bytes", lambda: {name: [32 * number for number in numbers] for name, numbers in PREDICTED.items()}),
        ("predicts one turn where there is none", changed(copy=(4, 4, 1, 1))),
        ("leaves one out", lambda: {name: PREDICTED[name] for name in list(PREDICTED)[:4]}),
        ("gives a list", lambda: list(PREDICTED.values())),
        ("returns nothing", lambda: None),
    ],
    "ex08_5": [
        ("adds the times", with_least_time(lambda t: t.bytes + t.flops + t.turns)),
        ("takes the shortest", with_least_time(lambda t: min(t.bytes, t.flops, t.turns))),
        ("forgets the turns", with_least_time(lambda t: max(t.bytes, t.flops))),
        ("forgets the arithmetic", with_least_time(lambda t: max(t.bytes, t.turns))),
        ("forgets the bytes", with_least_time(lambda t: max(t.flops, t.turns))),
        ("adds the turns to the bytes", with_least_time(lambda t: max(t.flops, t.bytes + t.turns))),
        ("gives microseconds", with_least_time(lambda t: 1e6 * max(t.bytes, t.flops, t.turns))),
        ("gives all three", with_least_time(lambda t: (t.bytes, t.flops, t.turns))),
        ("gives a rate", lambda bytes, flops, turns, gpu: flops / max(bytes / gpu.bytes_per_second, flops / gpu.flops_per_second)),
        ("has an H200 of its own", lambda bytes, flops, turns, gpu: max(bytes / 4.8e12, flops / 66.9e12, turns / 261e9)),
        ("multiplies", lambda bytes, flops, turns, gpu: max(bytes * gpu.bytes_per_second, flops * gpu.flops_per_second)),
        ("is off by a part in a thousand", with_least_time(lambda t: 1.001 * max(t.bytes, t.flops, t.turns))),
        ("returns nothing", with_least_time(lambda t: None)),
    ],
}  # fmt: skip

RIGHT = {
    "ex08_1": [sectors, sectors_by_every_byte, sectors_by_numpy],
    "ex08_2": [wavefronts, wavefronts_by_banks, wavefronts_one_after_another],
    "ex08_3": [
        transpose,
        transpose_through_columns,
        transpose_with_a_twist,
        transpose_with_zeros,
        cuda.jit(transpose),
    ],
    "ex08_4": [predictions, predictions_as_lists],
    "ex08_5": [least_time, least_time_by_loop],
}
