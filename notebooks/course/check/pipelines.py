"""Kernels of lesson 18c around a learner's function, an observer of their asynchronous operations, and the
pipeline in which one thread copies the tiles that a warp group multiplies."""

from numba import cuda
from numpy import float32, int16, int64

from kernels.tensor_cores.bulk_copies import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_try_wait,
    tensor_load,
)
from kernels.tensor_cores.warpgroup import (
    fence_proxy_async,
    matrix_descriptor,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait_0,
)
from sim.events import Observer

ROWS, COLUMNS, DEPTH = 64, 32, 64  # rows of a tile of A and of B; elements in a row


class Issued(Observer):
    """An observer that counts the asynchronous operations: {(kind, block, thread): number}.

    ends: for each wait of a thread, the number of operations that have ended.
    barriers: the number of block-wide barriers, over all blocks.
    synchronised: {(block, thread): [("arrive" or "pass", mbarrier, phase)]}, in the order of each thread.
    """

    def __init__(self):
        self.counts, self.ends, self.barriers, self.synchronised = {}, [], 0, {}

    def async_issued(self, operation):
        key = operation.kind, operation.issued.block, operation.issued.thread
        self.counts[key] = self.counts.get(key, 0) + 1

    def async_done(self, at, operations, sources):
        self.ends.append(len(operations))

    def barrier_opened(self, block, epoch):
        self.barriers += 1

    def arrived(self, at, phase, reach=None):
        self.synchronised.setdefault((at.block, at.thread), []).append(("arrive", *phase))

    def passed(self, at, phase, reach=None):
        self.synchronised.setdefault((at.block, at.thread), []).append(("pass", *phase))

    def total(self, kind):
        return sum(count for (of, _, _), count in self.counts.items() if of == kind)


@cuda.jit(device=True)
def fill(tile, source, rows):
    for element in range(cuda.threadIdx.x, rows * 64, cuda.blockDim.x):
        row, column = element // 64, element % 64
        tile[row, ((column // 8) ^ (row % 8)) * 8 + column % 8] = source[row, column]


@cuda.jit(device=True)
def store(total, columns, c):
    thread = cuda.threadIdx.x % 128
    row = 64 * cuda.blockIdx.y + thread // 32 * 16 + thread % 32 // 4
    column = columns * cuda.blockIdx.x + thread % 4 * 2
    for j in range(columns // 8):
        c[row, column + 8 * j] = total[4 * j]
        c[row, column + 8 * j + 1] = total[4 * j + 1]
        c[row + 8, column + 8 * j] = total[4 * j + 2]
        c[row + 8, column + 8 * j + 1] = total[4 * j + 3]


def with_add_tiles(add_tiles):
    """Return a kernel that adds the products of two pairs of tiles to accumulators that start with 3."""
    start = (float32(3),) * (COLUMNS // 2)

    @cuda.jit
    def kernel(a, b, out):
        a_tile = cuda.shared.array((2, 64, 64), int16, alignment=1024)
        b_tile = cuda.shared.array((2, 32, 64), int16, alignment=1024)
        for pair in range(2):
            fill(a_tile[pair], a[pair], 64)
            fill(b_tile[pair], b[pair], 32)
        fence_proxy_async()
        cuda.syncthreads()
        total = add_tiles(start, a_tile[0], b_tile[0])
        total = add_tiles(total, a_tile[1], b_tile[1])
        store(total, 32, out)

    return kernel


@cuda.jit(device=True)
def wait(barriers, stage, parity):
    while not mbarrier_try_wait(barriers, stage, parity):
        pass


@cuda.jit(device=True)
def the_producer(map_a, map_b, steps, a, b, full, empty):
    for step in range(steps):
        stage, turn = step % full.shape[0], step // full.shape[0]
        wait(empty, stage, (turn + 1) % 2)
        mbarrier_expect(full, stage, 128 * (a.shape[1] + b.shape[1]))
        tensor_load(a, (stage, 0, 0), map_a, 0, (64 * step, 64 * cuda.blockIdx.y), full, stage)
        tensor_load(b, (stage, 0, 0), map_b, 0, (64 * step, b.shape[1] * cuda.blockIdx.x), full, stage)


def the_consumer(columns):
    """Return the reference for exercise 18.9, for tiles of B with this number of rows."""
    product = wgmma(columns, "bf16")

    @cuda.jit(device=True)
    def consume(total, steps, a, b, full, empty):
        for step in range(steps):
            stage, turn = step % full.shape[0], step // full.shape[0]
            wait(full, stage, turn % 2)
            total = wgmma_fence(total)
            for part in range(4):
                of_a = matrix_descriptor(a[stage], (0, 16 * part), 16, 1024, 128)
                of_b = matrix_descriptor(b[stage], (0, 16 * part), 16, 1024, 128)
                total = product(total, of_a, of_b, True)
            wgmma_commit()
            total = wgmma_wait_0(total)
            mbarrier_arrive(empty, stage)
        return total

    return consume


def pipeline(produce, consume, columns, stages):
    """Return the kernel of the lesson for tiles of B with `columns` rows, and with this number of stages. Its
    accumulators start with 3."""
    start = (float32(3),) * (columns // 2)

    @cuda.jit
    def matmul(map_a, map_b, steps, c):
        a = cuda.shared.array((stages, 64, 64), int16, alignment=1024)
        b = cuda.shared.array((stages, columns, 64), int16, alignment=1024)
        full = cuda.shared.array(stages, int64)
        empty = cuda.shared.array(stages, int64)
        thread = cuda.threadIdx.x
        if thread == 0:
            for stage in range(stages):
                mbarrier_init(full, stage, 1)
                mbarrier_init(empty, stage, 128)
            fence_mbarrier_init()
        cuda.syncthreads()
        if thread == 128:
            produce(map_a, map_b, steps, a, b, full, empty)
        elif thread < 128:
            store(consume(start, steps, a, b, full, empty), columns, c)

    return matmul
