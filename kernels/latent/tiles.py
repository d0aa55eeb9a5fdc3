"""Device functions of the latent kernels: products of a resident tile in shared memory with streamed tiles.

A block has THREADS threads. Its resident tile has 32 rows of up to 64 elements, or 16 rows of up to 128.
Other rows are streamed through shared memory, COLUMNS at a time. Thread t owns the rows t // ROW_THREADS +
8·r, r < rows / 8. In a tile of scores it owns the columns t % ROW_THREADS + ROW_THREADS·c, c < PATCH. So
ROW_THREADS adjacent lanes hold complete rows of scores, whose maxima they compute by shuffles. In a tile as
wide as a row, thread t owns the columns GROUP·(t % ROW_THREADS) + 32·g + x, x < GROUP, so that the lanes of a
warp access different banks.
"""

from numba import cuda
from numpy import float32

from kernels.common.launch import width_for
from kernels.common.tiles import GROUP, INDEX, load_columns, weight

THREADS = 64
COLUMNS = 32  # streamed rows per tile: the columns of a tile of scores
ROW_THREADS, PATCH = 8, 4  # threads per row; columns of scores per thread
STEP = THREADS // ROW_THREADS  # distance between two consecutive rows of a thread
MOST_ROWS = 4  # maximum number of rows per thread
# words per row of a tile of scores: with this padding, four rows lie in different banks
WEIGHTS = COLUMNS + GROUP
MINE = MOST_ROWS * GROUP
WARP = 0xFFFFFFFF


def sizes_for(*lengths):
    """Return (width, rows) of the resident tiles for rows of at most these lengths.

    Three such tiles fit in 48 KiB.
    """
    width = max(32, width_for(max(lengths)))
    return width, 32 if width <= 64 else 16


@cuda.jit(device=True)
def clear(numbers):
    """Set all elements of a local array to 0."""
    for part in range(numbers.size):
        numbers[part] = float32(0)


@cuda.jit(device=True)
def stream_rows(tile, rows, first):
    """Load rows[first:] into the tile, with 0 outside `rows` (n, d). Synchronise before and after."""
    cuda.syncthreads()  # all threads have finished with the old tile
    load_columns(tile, rows, first, 0)
    cuda.syncthreads()  # the tile is loaded


# Products ---------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def add_products(patch, resident, stream, length):
    """Add resident[row r] · stream[column c], over the first `length` elements, to patch[r, c]."""
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
    """Add Σ_x weights[row r, first + x] · stream[x, column c] to sums[r, c], over the first `count` rows of
    `stream`.

    At most COLUMNS rows are added. The loop processes GROUP rows at a time, so the weights must be 0 up to
    the next multiple of GROUP.
    """
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
    """Store factor · sums in the tile; each thread stores its own elements."""
    rows, groups = tile.shape[0] // STEP, (tile.shape[1] - GROUP) // (ROW_THREADS * GROUP)
    row, column = cuda.threadIdx.x // ROW_THREADS & INDEX, cuda.threadIdx.x % ROW_THREADS * GROUP & INDEX
    for r in range(rows):
        for g in range(groups):
            for y in range(GROUP):
                tile[row + r * STEP, column + g * (ROW_THREADS * GROUP) + y] = (
                    factor * sums[(r * groups + g) * GROUP + y]
                )


@cuda.jit(device=True, forceinline=True)  # keeps `sums` in registers instead of local memory
def project(tile, matrix, factor, sums, stream):
    """Replace the tile by factor · tile matrix, in place.

    The matrix (m, n) in global memory is streamed. `sums` is scratch.
    """
    clear(sums)
    for first in range(0, matrix.shape[0], COLUMNS):
        stream_rows(stream, matrix, first)
        add_weighted_rows(sums, tile, first, stream, matrix.shape[0] - first)
    cuda.syncthreads()  # all threads have read the tile
    put(tile, sums, factor)
    cuda.syncthreads()


# The softmax ------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def touches_band(position, rows, j0, window):
    """Return whether some query has a reciprocal term with some key of a tile.

    The queries are at `rows` positions starting at `position`; the tile has the COLUMNS keys starting at j0.
    """
    return window > 0 and j0 < position + rows and position < j0 + COLUMNS - 1 + window


@cuda.jit(device=True)
def add_softmax(patch, m, l, sums, weights):
    """Update the online softmax with one more tile of scores, which are -inf where masked.

    This updates m and the thread's part of l, rescales `sums`, and stores P in `weights`.
    """
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
    """Return the sum of x over the ROW_THREADS threads of a row, in each of them."""
    for bit in range(3):
        x += cuda.shfl_xor_sync(WARP, x, 1 << bit)
    return x


@cuda.jit(device=True)
def probability(score, log_sum):
    """Return P = exp(S - L), clipped to 1; NaN stays NaN.

    The backward pass computes S in a different order of operations than the forward pass, which computed L.
    For scores near 10⁸, the rounding error of S would make P much larger than 1.
    """
    p = weight(score, log_sum)
    return float32(1) if p > float32(1) else p


# Weights ----------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def put_weights(weights, patch):
    """Store the patch in `weights`; each thread stores its own elements.

    Only threads of the same warp read these rows afterwards.
    """
    row, column = cuda.threadIdx.x // ROW_THREADS & INDEX, cuda.threadIdx.x % ROW_THREADS & INDEX
    cuda.syncthreads()  # all threads have read the old weights
    for r in range(patch.size // PATCH):
        for c in range(PATCH):
            weights[row + r * STEP, column + c * ROW_THREADS] = patch[r * PATCH + c]


@cuda.jit(device=True)
def keep_band(patch, distance, sign, window):
    """Set the patch to 0 outside the band, where the distance is not in [0, window).

    The distance from key to query is sign · (distance + row - column).
    """
    row, column = cuda.threadIdx.x // ROW_THREADS, cuda.threadIdx.x % ROW_THREADS
    for r in range(patch.size // PATCH):
        for c in range(PATCH):
            back = sign * (distance + row + r * STEP - column - c * ROW_THREADS)
            if back < 0 or back >= window:
                patch[r * PATCH + c] = float32(0)


# Out of shared memory ---------------------------------------------------------------------------------------


@cuda.jit(device=True)
def store_rows(rows, first, tile):
    """Store the tile in rows[first:], skipping elements outside `rows` (n, d)."""
    width = tile.shape[1] - GROUP
    for element in range(cuda.threadIdx.x, tile.shape[0] * width, THREADS):
        i, c = element // width, element % width
        if first + i < rows.shape[0] and c < rows.shape[1]:
            rows[first + i, c] = tile[i, c]


@cuda.jit(device=True)
def add_rows(rows, first, tile):
    """Add the tile to rows[first:] atomically, skipping elements outside `rows` (n, d)."""
    width = tile.shape[1] - GROUP
    for element in range(cuda.threadIdx.x, tile.shape[0] * width, THREADS):
        i, c = element // width, element % width
        if 0 <= first + i and first + i < rows.shape[0] and c < rows.shape[1]:
            cuda.atomic.add(rows, (first + i, c), tile[i, c])


@cuda.jit(device=True)
def add_outer(matrix, left, right, sums, rows):
    """Add Σ_j left[j, r] · right[j, c], over j < rows, to matrix[r, c], atomically.

    matrix: (m, n), global memory.
    left, right: tiles in shared memory.
    sums: scratch.
    """
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
