"""Wrong answers to the exercises of lesson 03, each labelled with its mistake, and alternative correct
answers.

A wrong kernel is a correct one with one or two lines edited. A wrong launcher is a correct one with a method
replaced.
"""

import itertools
import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType, SimpleNamespace

import numpy as np
from numba import cuda
from numpy import float32

from editing import edited
from power.lessons import from_solutions

add, block_sum, indices = from_solutions("03", "add", "block_sum", "indices")


THREADS, TILE = 8, 4
dim3 = namedtuple("dim3", ["x", "y", "z"], defaults=(1, 1, 1))


# Correct kernels --------------------------------------------------------------------------------------------


def matmul(a, b, c):
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.y * TILE + ty
    col = cuda.blockIdx.x * TILE + tx
    total = float32(0)
    for start in range(0, a.shape[1], TILE):
        a_tile[ty, tx] = a[row, start + tx] if row < a.shape[0] and start + tx < a.shape[1] else float32(0)
        b_tile[ty, tx] = b[start + ty, col] if start + ty < b.shape[0] and col < b.shape[1] else float32(0)
        cuda.syncthreads()  # loaded
        for k in range(TILE):
            total += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()  # multiplied
    if row < c.shape[0] and col < c.shape[1]:
        c[row, col] = total


# Alternative correct kernels --------------------------------------------------------------------------------


def add_returns_early(x, y, out):
    i = cuda.grid(1)
    if i >= out.shape[0]:
        return
    out[i] = y[i] + x[i]


def add_in_two_steps(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 0
        out[i] += x[i] + y[i]


def matmul_with_two_buffers(a, b, c):
    """Correct: one barrier in each step, because the next step uses the other pair of tiles."""
    tiles = cuda.shared.array((2, 2, TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = float32(0)
    for tile in range((a.shape[1] + TILE - 1) // TILE):
        a_tile, b_tile = tiles[tile % 2, 0], tiles[tile % 2, 1]
        k = tile * TILE + tx
        a_tile[ty, tx] = a[row, k] if row < a.shape[0] and k < a.shape[1] else float32(0)
        k = tile * TILE + ty
        b_tile[ty, tx] = b[k, col] if k < b.shape[0] and col < b.shape[1] else float32(0)
        cuda.syncthreads()
        for k in range(TILE):
            total += a_tile[ty, k] * b_tile[k, tx]
    if row < c.shape[0] and col < c.shape[1]:
        c[row, col] = total


def sum_by_growing_steps(x, out):
    shared = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    shared[t] = 0
    if i < x.size:
        shared[t] = x[i]
    step = 1
    while step < THREADS:
        cuda.syncthreads()
        if t % (2 * step) == 0:
            shared[t] += shared[t + step]
        step *= 2
    if t == 0:
        out[cuda.blockIdx.x] = shared[t]


def matmul_in_one_long_tile(a, b, c):
    tiles = cuda.shared.array((2, TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    col, row = cuda.grid(2)
    total = float32(0)
    for tile in range((a.shape[1] + TILE - 1) // TILE):
        tiles[0, ty, tx] = tiles[1, ty, tx] = 0
        k = tile * TILE + tx
        if row < a.shape[0] and k < a.shape[1]:
            tiles[0, ty, tx] = a[row, k]
        k = tile * TILE + ty
        if k < b.shape[0] and col < b.shape[1]:
            tiles[1, ty, tx] = b[k, col]
        cuda.syncthreads()
        for k in range(TILE):
            total += tiles[0, ty, k] * tiles[1, k, tx]
        cuda.syncthreads()
    if row < c.shape[0] and col < c.shape[1]:
        c[row, col] = total


# Wrong in more than one line --------------------------------------------------------------------------------


def sum_alone(x, out):
    if cuda.threadIdx.x == 0:
        total = float32(0)
        for k in range(THREADS):
            i = cuda.blockIdx.x * THREADS + k
            if i < x.size:
                total += x[i]
        out[cuda.blockIdx.x] = total


def sum_beside_decoys(x, out):
    shared = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x * THREADS + t
    shared[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    total = float32(0)
    for k in range(THREADS):
        total += shared[k]
    cuda.syncthreads()
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = total


def sum_by_atomics(x, out):
    shared = cuda.shared.array(1, float32)
    i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    if cuda.threadIdx.x == 0:
        shared[0] = float32(0)
    cuda.syncthreads()
    if i < x.size:
        cuda.atomic.add(shared, 0, x[i])
    cuda.syncthreads()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = shared[0]


def matmul_without_sharing(a, b, c):
    row = cuda.blockIdx.y * TILE + cuda.threadIdx.y
    col = cuda.blockIdx.x * TILE + cuda.threadIdx.x
    if row < c.shape[0] and col < c.shape[1]:
        total = float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        c[row, col] = total


# Launchers for exercise 3.2 ---------------------------------------------------------------------------------


class SharedMemory:
    def __init__(self, arrays):
        self.arrays, self.asked = arrays, 0

    def array(self, shape, dtype):
        self.asked += 1
        return self.arrays.setdefault(self.asked, np.full(shape, np.nan, dtype))


class OneArray(SharedMemory):
    def array(self, shape, dtype):
        return self.arrays.setdefault(0, np.full(shape, np.nan, dtype))


KEPT = {}  # state that a wrong launcher carries over from block to block


def run_block(kernel, grid, block, block_index, args):
    arrays, errors = {}, []
    barrier = threading.Barrier(block.x * block.y * block.z, timeout=10)

    def run_thread(index):
        names = {"gridDim": grid, "blockDim": block, "blockIdx": block_index, "threadIdx": index}
        cuda = SimpleNamespace(**names, shared=SharedMemory(arrays), syncthreads=barrier.wait)
        try:
            FunctionType(kernel.__code__, {**kernel.__globals__, "cuda": cuda})(*args)
        except Exception as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run_thread, args=(index,)) for index in indices(block)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def launching(*edits):
    """Return a launcher whose run_block has these edits."""
    wrong = edited(run_block, *edits)

    def launch(kernel, grid, block, *args):
        for block_index in indices(grid):
            wrong(kernel, grid, block, block_index, args)

    return launch


def launch_first_block_only(kernel, grid, block, *args):
    run_block(kernel, grid, block, dim3(0, 0, 0), args)


def launch_all_blocks_at_once(kernel, grid, block, *args):
    """Correct: runs all blocks at the same time, because CUDA guarantees no order of blocks."""
    with ThreadPoolExecutor(len(indices(grid))) as pool:
        for block_done in [
            pool.submit(run_block, kernel, grid, block, index, args) for index in indices(grid)
        ]:
            block_done.result()


class ThreadLocalLauncher:
    """Correct: uses one copy of the kernel per launch, whose `cuda` is a threading.local with each thread's
    indices."""

    def __call__(self, kernel, grid, block, *args):
        cuda = threading.local()
        copy = FunctionType(kernel.__code__, {**kernel.__globals__, "cuda": cuda})
        for z, y, x in itertools.product(range(grid.z), range(grid.y), range(grid.x)):
            block_names = {"gridDim": grid, "blockDim": block, "blockIdx": dim3(x, y, z)}
            self.run_block(copy, args, cuda, block_names)

    def run_block(self, copy, args, cuda, block_names):
        arrays, errors = {}, []
        block = block_names["blockDim"]
        barrier = threading.Barrier(block.x * block.y * block.z, timeout=10)

        def work(index):
            vars(cuda).update(
                block_names, threadIdx=index, shared=SharedMemory(arrays), syncthreads=barrier.wait
            )
            try:
                copy(*args)
            except Exception as error:
                errors.append(error)
                barrier.abort()

        threads = [threading.Thread(target=work, args=(index,)) for index in reversed(indices(block))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in errors[:1]:
            raise error


MUTANTS = {
    "ex03_1": [
        ("leaves out the last element", edited(add, ("i < x.size", "i < x.size - 1"))),
        ("knows its thread, not its block", edited(add, ("cuda.blockIdx.x * cuda.blockDim.x + ", ""))),
        (
            "swaps block and thread",
            edited(
                add,
                (
                    "blockIdx.x * cuda.blockDim.x + cuda.threadIdx",
                    "threadIdx.x * cuda.blockDim.x + cuda.blockIdx",
                ),
            ),
        ),
        (
            "right only when N is a multiple of the block",
            edited(add, ("i < x.size", "cuda.blockIdx.x < x.size // cuda.blockDim.x")),
        ),
        ("guards threadIdx.x", edited(add, ("i < x.size", "cuda.threadIdx.x < x.size"))),
        ("right on arange only", edited(add, ("x[i] + y[i]", "i + i"))),
        ("right when x equals y", edited(add, ("+ y[i]", "+ x[i]"))),
        ("overwrites its input", edited(add, ("out[i] = x[i] + y[i]", "x[i] += y[i]; out[i] = x[i]"))),
    ],
    "ex03_2": [
        (
            "starts and joins one thread at a time",
            launching(("thread.start()", "thread.start(); thread.join()")),
        ),
        ("has a barrier that does not wait", launching(("=barrier.wait", "=lambda: None"))),
        (
            "has a barrier for one thread too few",
            launching(("block.z, timeout", "block.z - 1 or 1, timeout")),
        ),
        ("keeps shared memory from block to block", launching(("{}, []", "KEPT, []"))),
        (
            "gives each thread shared memory of its own",
            launching(("SharedMemory(arrays)", "SharedMemory({})")),
        ),
        ("makes all shared arrays one", launching(("SharedMemory(arrays)", "OneArray(arrays)"))),
        (
            "swaps x and y of the thread",
            launching(('"threadIdx": index', '"threadIdx": dim3(index.y, index.x, index.z)')),
        ),
        (
            "swaps blockIdx and threadIdx",
            launching(
                ('"blockIdx": block_index, "threadIdx": index', '"threadIdx": block_index, "blockIdx": index')
            ),
        ),
        (
            "swaps gridDim and blockDim",
            launching(('"gridDim": grid, "blockDim": block', '"gridDim": block, "blockDim": grid')),
        ),
        ("gives every thread index 0", launching(('"threadIdx": index', '"threadIdx": dim3(0, 0, 0)'))),
        ("forgets z", launching(("in indices(block)", "in indices(block) if index.z == 0"))),
        ("swallows errors", launching(("raise errors[0]", "pass"))),
        ("lets the others wait after an error", launching(("            barrier.abort()\n", ""))),
        ("raises the last error, not the first", launching(("errors[0]", "errors[-1]"))),
        ("raises a new error of the same type", launching(("errors[0]", "type(errors[0])"))),
        ("raises a new error with the same text", launching(("errors[0]", "RuntimeError(str(errors[0]))"))),
        ("never joins", launching(("thread.join()", "pass"))),
        ("runs the first block only", launch_first_block_only),
    ],
    "ex03_3": [
        (
            "forgets the barrier after the load",
            edited(block_sum, ("float32(0)\n    cuda.syncthreads()\n", "float32(0)\n")),
        ),
        (
            "has the barrier under the if",
            edited(block_sum, ("        cuda.syncthreads()\n", "            cuda.syncthreads()\n")),
        ),
        (
            "returns before the barrier",
            edited(
                block_sum,
                ("float32(0)\n    cuda", "float32(0)\n    if i >= x.size:\n        return\n    cuda"),
            ),
        ),
        (
            "right only when N is a multiple of the block",
            edited(
                block_sum,
                ("shared[t] = x[i] if i < x.size else float32(0)", "if i < x.size: shared[t] = x[i]"),
            ),
        ),
        ("starts with a step too wide", edited(block_sum, ("THREADS // 2", "THREADS"))),
        (
            "wrong only with several blocks: all write out[0]",
            edited(block_sum, ("out[cuda.blockIdx.x]", "out[0]")),
        ),
        (
            "wrong only with several blocks: all read the first part",
            edited(block_sum, ("cuda.blockIdx.x * THREADS + t", "t")),
        ),
        ("right on arange only", edited(block_sum, ("= x[i] if", "= float32(i) if"))),
        (
            "the last thread writes",
            edited(block_sum, ("t == 0", "t == THREADS - 1"), ("= shared[0]", "= shared[t]")),
        ),
        ("one thread does all the work", sum_alone),
        ("each thread adds all the numbers", sum_beside_decoys),
        ("adds with atomics", sum_by_atomics),
    ],
    "ex03_4": [
        ("forgets the barrier after the loads", edited(matmul, ("cuda.syncthreads()  # loaded", "pass"))),
        (
            "forgets the barrier after the product",
            edited(matmul, ("cuda.syncthreads()  # multiplied", "pass")),
        ),
        (
            "returns before the barrier",
            edited(
                matmul,
                (
                    "    total = float32(0)\n",
                    (
                        "    total = float32(0)\n    if row >= c.shape[0] or col >= c.shape[1]:\n       "
                        " return\n"
                    ),
                ),
            ),
        ),
        (
            "swaps row and column",
            edited(
                matmul,
                ("threadIdx.x, cuda.threadIdx.y", "threadIdx.y, cuda.threadIdx.x"),
                ("row = cuda.blockIdx.y", "row = cuda.blockIdx.x"),
                ("col = cuda.blockIdx.x", "col = cuda.blockIdx.y"),
            ),
        ),
        ("multiplies by the transpose of the tile", edited(matmul, ("b_tile[k, tx]", "b_tile[tx, k]"))),
        (
            "right only when the inner size is a multiple of TILE",
            edited(matmul, ("range(0, a.shape[1], TILE)", "range(0, a.shape[1] // TILE * TILE, TILE)")),
        ),
        (
            "has no guards",
            edited(
                matmul,
                (" if row < a.shape[0] and start + tx < a.shape[1] else float32(0)", ""),
                (" if start + ty < b.shape[0] and col < b.shape[1] else float32(0)", ""),
                ("if row < c.shape[0] and col < c.shape[1]:", "if True:"),
            ),
        ),
        (
            "guards the row, not the column",
            edited(matmul, ("if row < c.shape[0] and col < c.shape[1]:", "if row < c.shape[0]:")),
        ),
        (
            "leaves old numbers where the matrix ends",
            edited(
                matmul,
                (
                    (
                        "a_tile[ty, tx] = a[row, start + tx] if row < a.shape[0] and start + tx < a.shape[1]"
                        " else float32(0)"
                    ),
                    "if row < a.shape[0] and start + tx < a.shape[1]: a_tile[ty, tx] = a[row, start + tx]",
                ),
                (
                    (
                        "b_tile[ty, tx] = b[start + ty, col] if start + ty < b.shape[0] and col < b.shape[1]"
                        " else float32(0)"
                    ),
                    "if start + ty < b.shape[0] and col < b.shape[1]: b_tile[ty, tx] = b[start + ty, col]",
                ),
            ),
        ),
        (
            "wrong only with several blocks",
            edited(matmul, ("cuda.blockIdx.y * TILE + ty", "ty"), ("cuda.blockIdx.x * TILE + tx", "tx")),
        ),
        (
            "keeps only the last tile's product",
            edited(matmul, ("        for k in", "        total = float32(0)\n        for k in")),
        ),
        (
            "right on square matrices only",
            edited(
                matmul,
                ("range(0, a.shape[1], TILE)", "range(0, a.shape[0], TILE)"),
                ("start + tx < a.shape[1]", "start + tx < a.shape[0]"),
                (
                    "start + ty < b.shape[0] and col < b.shape[1]",
                    "start + ty < a.shape[0] and col < a.shape[0]",
                ),
                ("col < c.shape[1]", "col < a.shape[0]"),
            ),
        ),
        ("shares nothing", matmul_without_sharing),
        (
            "has a warp's barrier after the product",
            edited(matmul, ("cuda.syncthreads()  # multiplied", "cuda.syncwarp()")),
        ),
    ],
}

RIGHT = {
    "ex03_1": [add_returns_early, add_in_two_steps],
    "ex03_2": [launching(), launch_all_blocks_at_once, ThreadLocalLauncher()],
    "ex03_3": [sum_by_growing_steps],
    "ex03_4": [matmul_in_one_long_tile, matmul_with_two_buffers],
}
