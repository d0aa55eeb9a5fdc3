"""Products of bands of scores with `wgmma`: dQ = dS K, dK = dSᵀ Q and dV = Pᵀ dO."""

import functools

from numba import cuda
from numpy import float32, int16, int32, uint32

from kernels.tensor_cores.instructions import (
    cp_async_16,
    cp_async_commit,
    cp_async_wait_0,
    cp_async_wait_1,
    cp_async_wait_2,
)
from kernels.tensor_cores.tiles import ARITHMETIC, CHUNK
from kernels.tensor_cores.warpgroup import (
    fence_proxy_async,
    matrix_descriptor,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait_0,
)
from kernels.tensor_cores.warpgroup_tiles import GROUP, PATTERN, PTX_KIND, SWIZZLE, all_of, generated

SIDE = 64  # rows and columns of a piece of a tile: 128 bytes per row, with the 128-byte swizzle
PIECE = SIDE * SIDE * 2  # bytes
PART = 32  # rows and columns of a part, the unit in which a band is stored
PART_CHUNKS = PART * PART // CHUNK
GROUPS = 2
THREADS = GROUPS * GROUP
ROWS_PER_BLOCK = COLUMNS_PER_BLOCK = GROUPS * SIDE  # of a band
WAITS = cp_async_wait_0, cp_async_wait_1, cp_async_wait_2


@cuda.jit(device=True)
def row_at(place):
    """Return the logical row that parts store at row `place`. `store_part` defines the order of the rows."""
    return (place & ~31) + (place & 7) * 2 + (place >> 3 & 1) * 16 + (place >> 4 & 1)


@cuda.jit(device=True)
def column_at(place):
    """Return the logical column that parts store at column `place`. Adjacent parts continue the numbering."""
    return (place & ~15) + (place >> 1 & 1) * 8 + (place >> 2 & 3) * 2 + (place & 1)


@functools.cache
def part_copier(rows, columns):
    """Create copy(tile, stage, band, group, part, seen), which copies rows × columns scores to tile[stage],
    (columns / SIDE, rows, SIDE), with the swizzle.

    band: (groups of rows, parts, PART · PART), of one sequence.
    group, part: the first ones to copy.
    seen: the number of rows that contain queries. The other rows, and parts outside the band, become zeros.
    """
    across = columns // PART

    @cuda.jit(device=True)
    def copy(tile, stage, band, group, part, seen):
        for turn in range(rows * columns // CHUNK // THREADS):
            number = uint32(cuda.threadIdx.x + turn * THREADS)
            inside, right = number % PART_CHUNKS, number // PART_CHUNKS % across
            down = number // PART_CHUNKS // across
            place = uint32((inside >> 5) * 8 + (inside >> 1 & 7))
            chunk = uint32(right * 4 + (inside >> 4 & 1) * 2 + (inside & 1))
            at, c = uint32(down * PART + place), uint32(part + right)
            valid = int32(down * PART + row_at(place)) < seen and c < uint32(band.shape[1])
            source = (uint32(group + down) if valid else uint32(0), c if valid else uint32(0))
            cp_async_16(
                tile, (stage, uint32(chunk >> 3), at, uint32(((chunk ^ at) & 7) * CHUNK)),
                band, (*source, uint32(inside * CHUNK)), int32(16) if valid else int32(0),
            )  # fmt: skip

    return copy


@functools.cache
def row_copier(rows, width, order):
    """Create copy(tile, stage, x, first, begin, end), which copies the rows first to first + rows - 1 of x
    (N, width) to tile[stage], (width / SIDE, rows, SIDE), with the swizzle.

    order: the device function that returns the row of x that is stored in a given row of the tile.

    Rows outside [begin, end) become zeros.
    """
    chunks = width // CHUNK

    @cuda.jit(device=True)
    def copy(tile, stage, x, first, begin, end):
        for turn in range(rows * chunks // THREADS):
            number = uint32(cuda.threadIdx.x + turn * THREADS)
            at, chunk = uint32(number // chunks), uint32(number % chunks)
            row = int32(first + int32(order(at)))
            valid = begin <= row and row < end
            cp_async_16(
                tile, (stage, uint32(chunk >> 3), at, uint32(((chunk ^ at) & 7) * CHUNK)),
                x, (uint32(row) if valid else uint32(0), uint32(chunk * CHUNK)),
                int32(16) if valid else int32(0),
            )  # fmt: skip

    return copy


@functools.cache
def row_storer(kind, width):
    """Create store(out, sequence, rows, valid, total, factor), which stores the accumulators of a lane's two
    rows, multiplied and rounded to 16 bits.

    out: (B · H, N, width / 2), int32.
    rows, valid: pairs: the rows of out, and whether to store them.
    """
    lines = ["column = cuda.threadIdx.x & 3"]
    for half in range(2):
        lines += [f"if valid[{half}]:", f"    line = out[sequence, rows[{half}]]"]
        for j in range(width // 8):
            x = 4 * j + 2 * half
            both = f"pack(total[{x}] * factor, total[{x + 1}] * factor)"
            lines.append(f"    line[{4 * j} + column] = int32({both})")
    signature = "store(out, sequence, rows, valid, total, factor)"
    return generated(signature, lines, pack=ARITHMETIC[kind].pack)


@functools.cache
def accumulator_keeper(count):
    """Create (keep, kept): keep(sums, sequence, block, total) stores the accumulators of this thread, and
    total = kept(sums, sequence, block) loads them again.

    sums: (B · H, blocks, count, THREADS), float32.
    """
    lines = ["place = sums[sequence, block]", "t = cuda.threadIdx.x"]
    keep = [*lines, *(f"place[{x}, t] = total[{x}]" for x in range(count))]
    pieces = all_of(f"place[{x}, t]" for x in range(count))
    return (
        generated("keep(sums, sequence, block, total)", keep),
        generated("kept(sums, sequence, block)", [*lines, f"return {pieces}"]),
    )


@functools.cache
def query_gradient_kernel(width, kind, tile_rows, owned, stages=3):
    """Return the kernel of dQ = scale · dS K, for queries of one band."""
    pieces = width // SIDE
    copy_s, copy_k = part_copier(ROWS_PER_BLOCK, SIDE), row_copier(SIDE, width, column_at)
    product = wgmma(width, PTX_KIND[kind], mn_major_b=True)
    store, zeros = row_storer(kind, width), (float32(0),) * (width // 2)
    wait = WAITS[stages - 2]

    @cuda.jit(max_registers=128 if width == 64 else None)
    def conv_query_gradient_kernel(s_band, k, offset, first, last, causal, scale, d_q):
        s_tiles = cuda.shared.array((stages, 1, ROWS_PER_BLOCK, SIDE), int16, alignment=PATTERN)
        k_tiles = cuda.shared.array((stages, pieces, SIDE, SIDE), int16, alignment=PATTERN)
        sequence, lane = cuda.blockIdx.x, cuda.threadIdx.x & 31
        group, warp = cuda.threadIdx.x // GROUP, cuda.threadIdx.x // 32 % 4
        place, n = (cuda.gridDim.y - 1 - cuda.blockIdx.y) * ROWS_PER_BLOCK, int32(k.shape[1])
        # the block's queries are i0 to i0 + count - 1
        inside, tile = place % tile_rows, place // tile_rows
        i0 = int32(first + tile * owned + inside)
        count = int32(min(min(owned - inside, last - i0), ROWS_PER_BLOCK))
        end = int32(min(n, i0 + count) if causal else n)
        steps = (min(s_band.shape[2] * PART, end - offset) + SIDE - 1) // SIDE
        scores, keys, row_group = s_band[sequence], k[sequence], place // PART
        for stage in range(stages - 1):
            if stage < steps:
                copy_s(s_tiles, stage, scores, row_group, stage * (SIDE // PART), count)
                copy_k(k_tiles, stage, keys, int32(stage * SIDE + offset), int32(0), n)
            cp_async_commit()
        total = zeros
        for step in range(steps):
            wait()
            fence_proxy_async()
            cuda.syncthreads()
            following, stage = step + stages - 1, step % stages
            if following < steps:
                free = following % stages
                copy_s(s_tiles, free, scores, row_group, following * (SIDE // PART), count)
                copy_k(k_tiles, free, keys, int32(following * SIDE + offset), int32(0), n)
            cp_async_commit()
            total = wgmma_fence(total)
            for x in range(0, SIDE, 16):
                a = matrix_descriptor(s_tiles, (stage, 0, group * SIDE, x), 16, PATTERN, SWIZZLE)
                b = matrix_descriptor(k_tiles, (stage, 0, x, 0), PIECE, PATTERN, SWIZZLE)
                total = product(total, a, b, True)
            wgmma_commit()
            total = wgmma_wait_0(total)
        at = group * SIDE + warp * 16 + (lane >> 2)
        upper, lower = row_at(at), row_at(at + 8)
        store(d_q, sequence, (i0 + upper, i0 + lower), (upper < count, lower < count), total, scale)

    return conv_query_gradient_kernel


@functools.cache
def key_gradient_kernel(width, kind, tile_rows, owned, stages=4):
    """Return the kernel of dK = scale · dSᵀ Q and dV = Pᵀ dO, which adds the products of one band."""
    pieces, piece = width // SIDE, PART * SIDE * 2
    copy_band, copy_rows = part_copier(PART, COLUMNS_PER_BLOCK), row_copier(PART, width, row_at)
    product = wgmma(width, PTX_KIND[kind], mn_major_a=True, mn_major_b=True)
    store, zeros = row_storer(kind, width), (float32(0),) * (width // 2)
    keep, kept = accumulator_keeper(width // 2)
    wait = WAITS[stages - 2]

    @cuda.jit(device=True)
    def copy(p_tiles, s_tiles, q_tiles, o_tiles, stage, p, s, q, d_o, group, part, first, last):
        """Start to copy a group of PART rows."""
        inside, tile = group * PART % tile_rows, group * PART // tile_rows
        i0 = int32(first + tile * owned + inside)
        end = int32(min(i0 - inside + owned, last))
        copy_band(p_tiles, stage, p, group, part, int32(end - i0))
        copy_band(s_tiles, stage, s, group, part, int32(end - i0))
        copy_rows(q_tiles, stage, q, i0, int32(0), end)
        copy_rows(o_tiles, stage, d_o, i0, int32(0), end)

    @cuda.jit(max_registers=128 if width == 64 else None)
    def conv_key_gradient_kernel(
        p_band, s_band, q, d_o, p_offset, s_offset, first, last, earlier, causal, scale, k_sums, v_sums,
        d_k, d_v,
    ):  # fmt: skip
        p_tiles = cuda.shared.array((stages, GROUPS, PART, SIDE), int16, alignment=PATTERN)
        s_tiles = cuda.shared.array((stages, GROUPS, PART, SIDE), int16, alignment=PATTERN)
        q_tiles = cuda.shared.array((stages, pieces, PART, SIDE), int16, alignment=PATTERN)
        o_tiles = cuda.shared.array((stages, pieces, PART, SIDE), int16, alignment=PATTERN)
        sequence, lane = cuda.blockIdx.x, cuda.threadIdx.x & 31
        group, warp = cuda.threadIdx.x // GROUP, cuda.threadIdx.x // 32 % 4
        block, n = cuda.blockIdx.y, q.shape[1]
        c0, part = block * COLUMNS_PER_BLOCK, block * (COLUMNS_PER_BLOCK // PART)
        # the groups of rows with queries that see a key of the block
        query = max(0, c0 + s_offset - first) if causal else 0
        start = query // owned * (tile_rows // PART) + query % owned // PART
        end = (last - first - 1) // owned * (tile_rows // PART) + (last - first - 1) % owned // PART + 1
        steps = max(0, end - start) if part < p_band.shape[2] else 0
        p, s, queries, gradients = p_band[sequence], s_band[sequence], q[sequence], d_o[sequence]
        for step in range(stages - 1):
            if step < steps:
                copy(
                    p_tiles, s_tiles, q_tiles, o_tiles, step, p, s, queries, gradients, start + step, part,
                    first, last,
                )  # fmt: skip
            cp_async_commit()
        of_k, of_v = zeros, zeros
        if c0 < earlier:
            of_k, of_v = kept(k_sums, sequence, block), kept(v_sums, sequence, block)
        for step in range(steps):
            wait()
            fence_proxy_async()
            cuda.syncthreads()
            following, stage = step + stages - 1, step % stages
            if following < steps:
                copy(
                    p_tiles, s_tiles, q_tiles, o_tiles, following % stages, p, s, queries, gradients,
                    start + following, part, first, last,
                )  # fmt: skip
            cp_async_commit()
            of_k, of_v = wgmma_fence(of_k), wgmma_fence(of_v)
            for x in range(0, PART, 16):
                a = matrix_descriptor(p_tiles, (stage, group, x, 0), piece, PATTERN, SWIZZLE)
                b = matrix_descriptor(o_tiles, (stage, 0, x, 0), piece, PATTERN, SWIZZLE)
                of_v = product(of_v, a, b, True)
            for x in range(0, PART, 16):
                a = matrix_descriptor(s_tiles, (stage, group, x, 0), piece, PATTERN, SWIZZLE)
                b = matrix_descriptor(q_tiles, (stage, 0, x, 0), piece, PATTERN, SWIZZLE)
                of_k = product(of_k, a, b, True)
            wgmma_commit()
            of_k, of_v = wgmma_wait_0(of_k), wgmma_wait_0(of_v)
        if last == n:
            at = c0 + group * SIDE + warp * 16 + (lane >> 2)
            upper, lower = column_at(at) + s_offset, column_at(at + 8) + s_offset
            valid = 0 <= upper and upper < n, 0 <= lower and lower < n
            store(d_k, sequence, (upper, lower), valid, of_k, scale)
            upper, lower = column_at(at) + p_offset, column_at(at + 8) + p_offset
            valid = 0 <= upper and upper < n, 0 <= lower and lower < n
            store(d_v, sequence, (upper, lower), valid, of_v, float32(1))
        else:
            keep(k_sums, sequence, block, of_k)
            keep(v_sums, sequence, block, of_v)

    return conv_key_gradient_kernel
