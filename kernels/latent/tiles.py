"""Device functions of the latent kernels: a tile of rows stays in shared memory, tiles of COLUMNS other rows
stream by, and each thread has a patch of their scores.

A block has THREADS threads and `rows` resident rows, 32 of up to 64 numbers or 16 of up to 128. Thread t has
rows t // ROW_THREADS + 8·r, r < rows / 8, and of a tile of scores the columns t % ROW_THREADS +
ROW_THREADS·c, c < PATCH: so ROW_THREADS neighbours of a warp hold whole rows of scores, and shuffles find
their maxima. Of a tile that is as wide as a row it has the columns GROUP·(t % ROW_THREADS) + 32·g + x, x <
GROUP: then the lanes of a warp find what they need in different banks.
"""

from numba import cuda
from numpy import float32

from kernels.common.launch import width_for
from kernels.common.tiles import GROUP, INDEX, load_columns, weight

THREADS = 64
COLUMNS = 32  # of a tile of scores: the rows that stream by
ROW_THREADS, PATCH = 8, 4  # threads that share a row; columns of scores for each of them
STEP = THREADS // ROW_THREADS  # between two rows of a thread
MOST_ROWS = 4  # of a thread
WEIGHTS = COLUMNS + GROUP  # words in a row of a tile of scores, so that four rows lie in different banks
MINE = MOST_ROWS * GROUP
WARP = 0xFFFFFFFF


def sizes_for(*lengths):
    """(width, rows) of the resident tiles for rows of at most so many numbers: what fits 48 KiB, three of
    them."""
    width = max(32, width_for(max(lengths)))
    return width, 32 if width <= 64 else 16


@cuda.jit(device=True)
def clear(numbers):
    """numbers = 0, a thread's own."""
    for part in range(numbers.size):
        numbers[part] = float32(0)


@cuda.jit(device=True)
def stream_rows(tile, rows, first):
    """tile = rows[first : first + its rows], with 0 for what lies outside `rows` (n, d): between two
    barriers."""
    cuda.syncthreads()  # what was there is used up
    load_columns(tile, rows, first, 0)
    cuda.syncthreads()  # loaded


# Products ---------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def add_products(patch, resident, stream, length):
    """patch[r, c] += resident[row r] · stream[column c], over the first `length` numbers of both."""
    rows = patch.size // PATCH
    row, column = cuda.threadIdx.x // ROW_THREADS & INDEX, cuda.threadIdx.x % ROW_THREADS & INDEX
    mine, theirs = cuda.local.array(MINE, float32), cuda.local.array(GROUP, float32)
    for start in range(0, length, GROUP):
        at = start & INDEX
        for r in range(rows):
            for x in range(GROUP):
                mine[r * GROUP + x] = resident[row + r * STEP, at + x]
        for c in range(PATCH):
            for x in range(GROUP):
                theirs[x] = stream[column + c * ROW_THREADS, at + x]
            for r in range(rows):
                for x in range(GROUP):
                    patch[r * PATCH + c] += mine[r * GROUP + x] * theirs[x]


@cuda.jit(device=True)
def add_weighted_rows(sums, weights, first, stream, count):
    """sums[r, c] += Σ_x weights[row r, first + x] · stream[x, column c], over the first `count` rows of
    `stream`, COLUMNS at most: those up to the next multiple of GROUP must have no weight."""
    rows, groups = weights.shape[0] // STEP, (stream.shape[1] - GROUP) // (ROW_THREADS * GROUP)
    row, column = cuda.threadIdx.x // ROW_THREADS & INDEX, cuda.threadIdx.x % ROW_THREADS * GROUP & INDEX
    mine, theirs = cuda.local.array(MINE, float32), cuda.local.array(GROUP, float32)
    for start in range(0, min(count, COLUMNS), GROUP):
        at = start & INDEX
        for r in range(rows):
            for x in range(GROUP):
                mine[r * GROUP + x] = weights[row + r * STEP, ((first + at) & INDEX) + x]
        for x in range(GROUP):
            for g in range(groups):
                for y in range(GROUP):
                    theirs[y] = stream[at + x, column + g * (ROW_THREADS * GROUP) + y]
                for r in range(rows):
                    for y in range(GROUP):
                        sums[(r * groups + g) * GROUP + y] += mine[r * GROUP + x] * theirs[y]


@cuda.jit(device=True)
def put(tile, sums, factor):
    """tile = factor · sums, each thread its part."""
    rows, groups = tile.shape[0] // STEP, (tile.shape[1] - GROUP) // (ROW_THREADS * GROUP)
    row, column = cuda.threadIdx.x // ROW_THREADS & INDEX, cuda.threadIdx.x % ROW_THREADS * GROUP & INDEX
    for r in range(rows):
        for g in range(groups):
            for y in range(GROUP):
                tile[row + r * STEP, column + g * (ROW_THREADS * GROUP) + y] = (
                    factor * sums[(r * groups + g) * GROUP + y]
                )


@cuda.jit(device=True, forceinline=True)  # else `sums` would be in memory
def project(tile, matrix, factor, sums, stream):
    """tile = factor · tile matrix, in place; matrix (m, n) in global memory streams by, `sums` is scratch."""
    clear(sums)
    for first in range(0, matrix.shape[0], COLUMNS):
        stream_rows(stream, matrix, first)
        add_weighted_rows(sums, tile, first, stream, matrix.shape[0] - first)
    cuda.syncthreads()  # the tile is used up
    put(tile, sums, factor)
    cuda.syncthreads()


# The softmax ------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def touches_band(position, rows, j0, window):
    """Whether a query at one of `rows` positions from `position` has a reciprocal term with one of the keys
    from j0."""
    return window > 0 and j0 < position + rows and position < j0 + COLUMNS - 1 + window


@cuda.jit(device=True)
def add_softmax(patch, m, l, sums, weights):
    """One more tile of scores, -inf where masked: m and the thread's part of l go on, `sums` shrink, weights
    = P."""
    rows, numbers = m.size, sums.size // m.size
    row, column = cuda.threadIdx.x // ROW_THREADS & INDEX, cuda.threadIdx.x % ROW_THREADS & INDEX
    for r in range(rows):
        largest = m[r]
        for c in range(PATCH):
            largest = max(largest, patch[r * PATCH + c])
        for bit in range(3):
            largest = max(largest, cuda.shfl_xor_sync(WARP, largest, 1 << bit))
        shrink = weight(m[r], largest)
        m[r] = largest
        l[r] *= shrink
        for part in range(numbers):
            sums[r * numbers + part] *= shrink
        for c in range(PATCH):
            p = weight(patch[r * PATCH + c], largest)
            l[r] += p
            weights[row + r * STEP, column + c * ROW_THREADS] = p


@cuda.jit(device=True)
def sum_of_row(x):
    """The sum of x over the ROW_THREADS threads of a row, in each of them."""
    for bit in range(3):
        x += cuda.shfl_xor_sync(WARP, x, 1 << bit)
    return x


@cuda.jit(device=True)
def probability(score, log_sum):
    """P = exp(S - L), at most 1: S is made again in another order than L's, so that for scores near 10⁸ its
    rounding error is more than an exponential bears; NaN stays."""
    p = weight(score, log_sum)
    return float32(1) if p > float32(1) else p


# Weights ----------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def put_weights(weights, patch):
    """weights = patch, each thread its part; no other thread's rows are read by its neighbours meanwhile."""
    row, column = cuda.threadIdx.x // ROW_THREADS & INDEX, cuda.threadIdx.x % ROW_THREADS & INDEX
    cuda.syncthreads()  # what was there is used up
    for r in range(patch.size // PATCH):
        for c in range(PATCH):
            weights[row + r * STEP, column + c * ROW_THREADS] = patch[r * PATCH + c]


@cuda.jit(device=True)
def keep_band(patch, distance, sign, window):
    """patch = 0 outside the band; sign · (distance + row - column) steps lie between query and key."""
    row, column = cuda.threadIdx.x // ROW_THREADS, cuda.threadIdx.x % ROW_THREADS
    for r in range(patch.size // PATCH):
        for c in range(PATCH):
            back = sign * (distance + row + r * STEP - column - c * ROW_THREADS)
            if back < 0 or back >= window:
                patch[r * PATCH + c] = float32(0)


# Out of shared memory ---------------------------------------------------------------------------------------


@cuda.jit(device=True)
def store_rows(rows, first, tile):
    """rows[first : first + its rows] = tile, without what lies outside `rows` (n, d)."""
    width = tile.shape[1] - GROUP
    for element in range(cuda.threadIdx.x, tile.shape[0] * width, THREADS):
        i, c = element // width, element % width
        if first + i < rows.shape[0] and c < rows.shape[1]:
            rows[first + i, c] = tile[i, c]


@cuda.jit(device=True)
def add_rows(rows, first, tile):
    """rows[first : first + its rows] += tile, atomically, without what lies outside `rows` (n, d)."""
    width = tile.shape[1] - GROUP
    for element in range(cuda.threadIdx.x, tile.shape[0] * width, THREADS):
        i, c = element // width, element % width
        if 0 <= first + i and first + i < rows.shape[0] and c < rows.shape[1]:
            cuda.atomic.add(rows, (first + i, c), tile[i, c])


@cuda.jit(device=True)
def add_outer(matrix, left, right, sums, rows):
    """matrix[r, c] += Σ_j left[j, r] · right[j, c] over j < rows, atomically; matrix (m, n) in global memory,
    both tiles in shared; `sums` is scratch."""
    groups = (right.shape[1] - GROUP) // (ROW_THREADS * GROUP)
    mine = sums.size // (groups * GROUP)
    row, column = cuda.threadIdx.x // ROW_THREADS & INDEX, cuda.threadIdx.x % ROW_THREADS * GROUP & INDEX
    theirs = cuda.local.array(GROUP, float32)
    for first in range(0, matrix.shape[0], mine * STEP):
        clear(sums)
        for j in range(rows):
            for g in range(groups):
                for y in range(GROUP):
                    theirs[y] = right[j, column + g * (ROW_THREADS * GROUP) + y]
                for r in range(mine):
                    number = left[j, ((first + row) & INDEX) + r * STEP]
                    for y in range(GROUP):
                        sums[(r * groups + g) * GROUP + y] += number * theirs[y]
        for r in range(mine):
            i = first + row + r * STEP
            for g in range(groups):
                for y in range(GROUP):
                    c = (column + g * (ROW_THREADS * GROUP) + y) & INDEX
                    if i < matrix.shape[0] and c < matrix.shape[1]:
                        cuda.atomic.add(matrix, (i & INDEX, c), sums[(r * groups + g) * GROUP + y])
