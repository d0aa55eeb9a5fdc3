"""Device functions of the convolutional kernels: products of tiles, and the assignment of elements to
threads.

A tile of scores has `size` rows and columns, 64 (or 32 in tests that want small blocks), in shared memory,
followed by PADDING columns of zeros. Its block has (size / PATCH)² threads in one dimension, which share a
tile in two ways:

    as patches    a thread has rows row + r · step and columns column + c · step, r, c < PATCH, with step =
                  size / PATCH: products of tiles; the lanes of a warp form 8 rows by 4 columns
    as strips     thread t has STRIP neighbouring columns, (t % ROW_THREADS + s · ROW_THREADS) · STRIP, of row
                  t // ROW_THREADS: convolutions; the threads of a row are neighbours in a warp

Both avoid bank conflicts: a row of a tile is an odd number of words long, and a row of a chunk is padded by
four words.
"""

from numba import cuda
from numpy import float32

from kernels.common.strips import ROW_THREADS, STRIP, convolve_strip
from kernels.common.tiles import GROUP, INDEX, SECTOR

SIZES = (32, 64)
PATCH = 4
PADDING = 9  # columns that a strip with its taps, in groups of four, may reach beyond the tile
PLACE = (1 << 31) - 1  # like INDEX, for rows of q, k and v
NUMBERS, PATCH_OPERANDS = PATCH * PATCH, PATCH * GROUP
STRIPS = NUMBERS // STRIP  # each thread has NUMBERS elements of a tile: a patch, or strips in one row or two


def threads_of(size):
    """Return the number of threads per block for a tile of `size` × `size` scores."""
    return (size // PATCH) ** 2


def check_size(size):
    """Raise ValueError unless the kernels are written for tiles of this size."""
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
    """Return (rows that a thread convolves, strips in each of them) for a tile of this size."""
    return ROW_THREADS * NUMBERS // size, size // (STRIP * ROW_THREADS)


@cuda.jit(device=True)
def strip_row(turn, size):
    """Return the row of this thread's strips in iteration `turn`."""
    return (cuda.threadIdx.x // ROW_THREADS + turn * (size * size // NUMBERS // ROW_THREADS)) & INDEX


@cuda.jit(device=True)
def strip_column(s):
    """Return the first column of strip s of this thread."""
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

    SECTOR or more neighbouring threads share a row, so they read at least 32 bytes in one request.

    threads: the size of the block. It is a compile-time constant and a power of two, like the chunk's sides,
        so the compiler unrolls every loop and needs no division.
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
    """Compute tile[i, j] = factor · a[first_a + i] · b[first_b + j]; 0 where masked or outside.

    With causal, an element is masked if first_b + j > first_a + i + diagonal. All threads of the block call
    this function. The caller puts a barrier before other threads read the tile.

    tile: (size, size + PADDING), shared memory.
    a, b: (n, d), global memory.
    a_chunk, b_chunk: (size, columns + GROUP), shared memory, for a few columns at a time.
    """
    step, words = tile.shape[0] // PATCH, a_chunk.shape[1] - GROUP
    row, column = patch_place(step)
    patch = cuda.local.array(NUMBERS, float32)
    for part in range(NUMBERS):
        patch[part] = float32(0)
    for start in range(0, a.shape[1], words):
        cuda.syncthreads()  # all threads have left the chunks and the tile: both may be overwritten
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


@cuda.jit(device=True)
def add_weighted_rows(patch, weights, first, chunk):
    """Add Σ_x weights[row r, first + x] · chunk[x, column c] to patch[r, c]: a part of P V.

    Rows are those of this thread's patch; its columns of the output are width / step neighbours. patch: PATCH
    × width / step elements.
    """
    step = weights.shape[0] // PATCH
    columns = chunk.shape[1] // step
    row, column = patch_place(step)
    column = column * columns & INDEX
    mine = cuda.local.array(PATCH_OPERANDS, float32)
    for start in range(0, chunk.shape[0], GROUP):
        at = (first + start) & INDEX
        for r in range(PATCH):
            for x in range(GROUP):
                mine[r * GROUP + x] = weights[row + r * step, at + x]
        add_weighted(patch, mine, chunk, start, columns, column)


@cuda.jit(device=True)
def add_weighted_columns(patch, weights, first, shift, chunk):
    """Add Σ_x weights[first + x, shift + row r] · chunk[x, column c] to patch[r, c]: a part of Pᵀ dO.

    Otherwise like `add_weighted_rows`.
    """
    step = weights.shape[0] // PATCH
    columns = chunk.shape[1] // step
    row, column = patch_place(step)
    column = column * columns & INDEX
    mine = cuda.local.array(PATCH_OPERANDS, float32)
    for start in range(0, chunk.shape[0], GROUP):
        at = (first + start) & INDEX
        for r in range(PATCH):
            for x in range(GROUP):
                mine[r * GROUP + x] = weights[at + x, ((shift + row) & INDEX) + r * step]
        add_weighted(patch, mine, chunk, start, columns, column)


@cuda.jit(device=True)
def add_weighted(patch, mine, chunk, start, columns, column):
    """Add Σ_x mine[r, x] · chunk[start + x, column + c] to patch[r, c], for x < GROUP, c < columns."""
    for x in range(GROUP):
        for c in range(columns):
            number = chunk[(start & INDEX) + x, column + c]
            for r in range(PATCH):
                patch[r * columns + c] += mine[r * GROUP + x] * number


@cuda.jit(device=True)
def store_rows(rows, first, count, factor, patch, step):
    """Store factor · patch in rows[first : first + count], except elements outside `rows` (n, d)."""
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
    """Convolve the STRIPS strips of this thread, except those without a visible column.

    counts: (STRIPS,), the visible columns of each strip; 0 or less for none. The strips are written out
        instead of looped over, because registers cannot be indexed and the compiler would not unroll the
        loop.
    """
    size = tile.shape[0]
    _, strips = turns_and_strips(size)
    if counts[0] > 0:
        convolve_strip(strip, 0, tile, taps, strip_row(0, size), strip_column(0), c_q, c_k)
    if counts[1] > 0:
        row, column = strip_row(1 // strips, size), strip_column(1 % strips)
        convolve_strip(strip, STRIP, tile, taps, row, column, c_q, c_k)
