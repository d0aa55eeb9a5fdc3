"""Device functions of the convolution kernels: products of tiles, and the mapping of threads to elements.

A tile of scores has `size` rows and columns, 64 (or 32 in tests, for small blocks). In shared memory, each of
its rows is followed by PADDING zeros. Its (size / PATCH)² threads are one-dimensional, and share the tile in
two ways:

    patches    For products. With step = size / PATCH, a thread owns the rows row + r · step and the columns
               column + c · step, for r, c < PATCH. The lanes of a warp form 8 rows by 4 columns
    strips     For convolutions. Thread t owns the STRIP adjacent columns that start at
               (t % ROW_THREADS + s · ROW_THREADS) · STRIP of row t // ROW_THREADS. The threads of a row are
               adjacent lanes of a warp

Neither way causes bank conflicts: a row of a tile has an odd number of words, and a row of a chunk is padded
by four words.
"""

from numba import cuda
from numpy import float32

from kernels.common.strips import ROW_THREADS, STRIP, convolve_strip
from kernels.common.tiles import GROUP, INDEX, SECTOR

SIZES = (32, 64)
PATCH = 4
PADDING = 9  # columns beyond the tile that convolutions may read: they use whole strips and groups of 4 taps
PLACE = (1 << 31) - 1  # like INDEX, for rows of q, k and v
NUMBERS, PATCH_OPERANDS = PATCH * PATCH, PATCH * GROUP
# Strips per thread. Each thread owns NUMBERS elements of a tile: one patch, or strips in one or two rows.
STRIPS = NUMBERS // STRIP


def threads_of(size):
    """Return the number of threads per block for a tile of `size` × `size` scores."""
    return (size // PATCH) ** 2


def check_size(size):
    """Raise ValueError unless the kernels support tiles of this size."""
    if size not in SIZES:
        raise ValueError(
            f"argument size is {size!r}; wanted one of {', '.join(map(str, SIZES))}, the rows and columns of"
            " a tile of scores"
        )


@cuda.jit(device=True)
def patch_place(step):
    """Return (row, column) of the first element of this thread's patch."""
    lane, warp, across = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32, step // 4
    return (warp // across * 8 + lane // 4) & INDEX, (warp % across * 4 + lane % 4) & INDEX


@cuda.jit(device=True)
def turns_and_strips(size):
    """Return (rows per thread, strips per row) of a convolution, for a tile of this size."""
    return ROW_THREADS * NUMBERS // size, size // (STRIP * ROW_THREADS)


@cuda.jit(device=True)
def strip_row(turn, size):
    """Return the row of this thread's strips in iteration `turn`."""
    return (cuda.threadIdx.x // ROW_THREADS + turn * (size * size // NUMBERS // ROW_THREADS)) & INDEX


@cuda.jit(device=True)
def strip_column(s):
    """Return the first column of this thread's strip s."""
    return (cuda.threadIdx.x % ROW_THREADS + s * ROW_THREADS) * STRIP & INDEX


# Into shared memory -----------------------------------------------------------------------------------------


@cuda.jit(device=True)
def clear(tile):
    """Set every element of the tile to 0."""
    rows, columns = tile.shape
    for element in range(cuda.threadIdx.x, rows * columns, cuda.blockDim.x):
        tile[element // columns, element % columns] = float32(0)


@cuda.jit(device=True)
def copy_rows(chunk, width, rows, first, start, threads):
    """Copy rows[first :, start :] to chunk[:, :width], with 0 for elements outside `rows` (n, d).

    At least SECTOR adjacent threads copy one row, so that each request reads at least 32 contiguous bytes.

    threads: the block size, a compile-time constant. It is a power of two, and so are the sides of the chunk;
        the compiler can therefore unroll every loop and needs no division.
    """
    n, d = rows.shape
    lanes = max(SECTOR, threads // chunk.shape[0])
    row, lane = cuda.threadIdx.x // lanes, cuda.threadIdx.x % lanes & INDEX
    for turn in range(chunk.shape[0] * lanes // threads):
        i = row + turn * (threads // lanes)
        place = first + i
        inside = 0 <= place and place < n
        for c in range(0, width, lanes):
            column = start + lane + c
            number = rows[place & PLACE, column & PLACE] if inside and column < d else float32(0)
            chunk[i & INDEX, (lane + c) & INDEX] = number


# Products, in patches ---------------------------------------------------------------------------------------


@cuda.jit(device=True)
def products(tile, a, b, first_a, first_b, factor, causal, diagonal, a_chunk, b_chunk):
    """Compute tile[i, j] = factor · a[first_a + i] · b[first_b + j], with 0 for masked and out-of-range
    elements.

    If causal, an element is masked where first_b + j > first_a + i + diagonal. All threads of the block must
    call this function. The caller must synchronise the block before other threads read the tile.

    tile: (size, size + PADDING), shared memory.
    a, b: (n, d), global memory.
    a_chunk, b_chunk: (size, columns + GROUP), shared memory for some columns of a and b at a time.
    """
    step, words = tile.shape[0] // PATCH, a_chunk.shape[1] - GROUP
    row, column = patch_place(step)
    patch = cuda.local.array(NUMBERS, float32)
    for part in range(NUMBERS):
        patch[part] = float32(0)
    for start in range(0, a.shape[1], words):
        cuda.syncthreads()  # all threads have finished reading the chunks and the tile
        copy_rows(a_chunk, words, a, first_a, start, step * step)
        copy_rows(b_chunk, words, b, first_b, start, step * step)
        cuda.syncthreads()
        add_products(patch, a_chunk, b_chunk, row, column, step)
    for r in range(PATCH):
        i = row + r * step
        for c in range(PATCH):
            j = column + c * step
            masked = causal and first_b + j > first_a + i + diagonal
            tile[i, j] = float32(0) if masked else factor * patch[r * PATCH + c]


@cuda.jit(device=True)
def add_products(patch, a_chunk, b_chunk, row, column, step):
    """Add a_chunk[row + r · step] · b_chunk[column + c · step] to patch[r, c], GROUP columns at a time."""
    mine = cuda.local.array(PATCH_OPERANDS, float32)
    theirs = cuda.local.array(GROUP, float32)
    for start in range(0, a_chunk.shape[1] - GROUP, GROUP):
        at = start & INDEX
        for r in range(PATCH):
            for x in range(GROUP):
                mine[r * GROUP + x] = a_chunk[row + r * step, at + x]
        for c in range(PATCH):
            for x in range(GROUP):
                theirs[x] = b_chunk[column + c * step, at + x]
            for r in range(PATCH):
                for x in range(GROUP):
                    patch[r * PATCH + c] += mine[r * GROUP + x] * theirs[x]


def weighted_adder(of_columns):
    """Return a function that adds weighted rows of a chunk to this thread's patch.

    It adds Σ_x weights[row r, first + x] · chunk[x, column c] to patch[r, c], as part of P V. With
    `of_columns`, the weights are transposed, as part of Pᵀ dO: weights[first + x, shift + row r].

    The rows are those of this thread's patch; the columns are width / step adjacent columns of the output.
    `patch` has PATCH × width / step elements.
    """

    @cuda.jit(device=True)
    def add_weighted_rows(patch, weights, first, shift, chunk):
        step = weights.shape[0] // PATCH
        columns = chunk.shape[1] // step
        row, column = patch_place(step)
        column = column * columns & INDEX
        mine = cuda.local.array(PATCH_OPERANDS, float32)
        for start in range(0, chunk.shape[0], GROUP):
            at = (first + start) & INDEX
            for r in range(PATCH):
                for x in range(GROUP):
                    if of_columns:
                        mine[r * GROUP + x] = weights[at + x, ((shift + row) & INDEX) + r * step]
                    else:
                        mine[r * GROUP + x] = weights[row + r * step, at + x]
            add_weighted(patch, mine, chunk, start, columns, column)

    return add_weighted_rows


@cuda.jit(device=True)
def add_weighted(patch, mine, chunk, start, columns, column):
    """Add Σ_x mine[r, x] · chunk[start + x, column + c] to patch[r, c], for x < GROUP and c < columns."""
    for x in range(GROUP):
        for c in range(columns):
            number = chunk[(start & INDEX) + x, column + c]
            for r in range(PATCH):
                patch[r * columns + c] += mine[r * GROUP + x] * number


add_weighted_rows, add_weighted_columns = weighted_adder(False), weighted_adder(True)


@cuda.jit(device=True)
def store_rows(rows, first, count, factor, patch, step):
    """Store factor · patch in rows[first : first + count], skipping elements outside `rows` (n, d)."""
    n, d = rows.shape
    columns = patch.size // PATCH
    row, column = patch_place(step)
    column = column * columns & INDEX
    for r in range(PATCH):
        i = row + r * step
        for c in range(columns):
            if i < count and 0 <= first + i and first + i < n and column + c < d:
                rows[first + i, column + c] = factor * patch[r * columns + c]


# Convolution, in strips -------------------------------------------------------------------------------------


@cuda.jit(device=True)
def convolve_strips(strip, counts, tile, taps, c_q, c_k):
    """Convolve this thread's STRIPS strips, skipping those without a visible column.

    counts: (STRIPS,), the number of visible columns of each strip, not positive if there are none.

    The code is unrolled by hand: registers cannot be indexed, and the compiler would not unroll a loop here.
    """
    size = tile.shape[0]
    _, strips = turns_and_strips(size)
    if counts[0] > 0:
        convolve_strip(strip, 0, tile, taps, strip_row(0, size), strip_column(0), c_q, c_k)
    if counts[1] > 0:
        row, column = strip_row(1 // strips, size), strip_column(1 % strips)
        convolve_strip(strip, STRIP, tile, taps, row, column, c_q, c_k)
