"""Device functions of the convolution with `wgmma`: copies of tiles, bands of taps, scores in shared memory.

S0 is stored in columns of 16-byte chunks, without a swizzle: (keys / 8, rows, 8). The left operand of a
product may then start at any row, which is a row shift of the convolution.

The right operand for row shift a is the band B[x, y] = w[a, x + n - 16 - y], for 16 input keys x and n output
keys y. The output keys start P_k - (n - 16) to the right of the input keys. The last n - 16 of them are also
outputs of the next 16 input keys.
"""

import functools

from numba import cuda
from numpy import int16, int32, uint32

from kernels.tensor_cores.instructions import cp_async_16
from kernels.tensor_cores.tiles import ARITHMETIC, CHUNK, clamped, tap_packer
from kernels.tensor_cores.warpgroup import stmatrix_x4, wgmma, wgmma_wait_0
from kernels.tensor_cores.warpgroup_tiles import PTX_KIND, all_of, generated

KEYS_IN = 16  # input keys of a product


def keys_out(c_k):
    """Return the number of output keys of a product with 16 input keys."""
    return KEYS_IN + -(-(c_k - 1) // 8) * 8


@functools.cache
def tile_copier(rows, width, threads):
    """Create copy(tile, x, batch, head, first), with which a block starts a copy of rows [first, first +
    rows) of x[batch, head] to tile (width / 64 · rows, 64), with the 128-byte swizzle. Rows outside x become
    zeros."""
    chunks = width // CHUNK
    step = threads // chunks  # rows
    whole = rows % step == 0

    @cuda.jit(device=True, forceinline=True)
    def copy(tile, x, batch, head, first):
        thread, source = uint32(cuda.threadIdx.x), x[batch, head]
        row, chunk = thread // uint32(chunks), thread % uint32(chunks)
        to, column = chunk // uint32(CHUNK) * uint32(rows) + row, ((chunk ^ row) & uint32(7)) * uint32(CHUNK)
        n = int32(x.shape[2])
        for i in range(0, rows, step):
            at = first + int32(row) + int32(i)
            if whole or int32(row) + int32(i) < int32(rows):
                inside = int32(0) <= at and at < n
                place = uint32(at if inside else int32(0)), chunk * uint32(CHUNK)
                cp_async_16(tile, (to + uint32(i), column), source, place, int32(16) if inside else int32(0))

    return copy


@functools.cache
def band_loader(kind, c_q, c_k, bits, threads):
    """Create load_bands(bands, w, head), with which a block stores the bands of all row shifts in shared
    memory.

    bands: (c_q, 2, n, 8), the right operand B with the elements of a column adjacent, eight at a time.
    bits: as for `tap_packer`.
    """
    n, pack_taps = keys_out(c_k), tap_packer(kind, bits)

    @cuda.jit(device=True, forceinline=True)
    def load_bands(bands, w, head):
        for part in range(cuda.threadIdx.x, c_q * n * 8, threads):
            part = uint32(part)
            a, y, pair = part // uint32(n * 8), part // uint32(8) % uint32(n), int32(part & uint32(7))
            tap = pair * int32(2) + int32(n - KEYS_IN) - int32(y)
            first, second = 0 <= tap and tap < c_k, 0 <= tap + 1 and tap + 1 < c_k
            both = pack_taps(w, head, a, tap, first, second)
            half, x = uint32(pair) >> uint32(2), (uint32(pair) & uint32(3)) * uint32(2)
            bands[a, half, y, x] = int16(both & uint32(0xFFFF))
            bands[a, half, y, x + uint32(1)] = int16(both >> uint32(16))

    return load_bands


@functools.cache
def range_masker(count):
    """Create masked(s, first, last0, last1), which replaces by -inf the scores of keys outside [first, last],
    relative to the lane's first key."""
    lines = [
        f"s{x} = s[{x}] if first <= int32({x // 4 * 8 + x % 2}) and int32({x // 4 * 8 + x % 2}) <="
        f" last{x >> 1 & 1} else MINUS_INFINITY"
        for x in range(count)
    ]
    return generated(
        "masked(s, first, last0, last1)", [*lines, f"return {all_of(f's{x}' for x in range(count))}"]
    )


@functools.cache
def half_scaler(count):
    """Create scaled_scores(s, scale), which multiplies the scores and limits them to the range of float16."""
    parts = all_of(f"clamped(s[{x}] * scale)" for x in range(count))
    return generated("scaled_scores(s, scale)", [f"return {parts}"], clamped=clamped)


@functools.cache
def score_storer(kind, count):
    """Create store_scores(tile, at, s), with which a warp stores its 16 rows of S0, rounded to 16 bits.

    tile: (keys / 8, rows, 8).
    at: the position in the tile of the row whose address this lane gives.
    """
    lines = ["lane = uint32(cuda.threadIdx.x) & uint32(31)"]
    for x in range(0, count, 8):
        registers = ", ".join(f"pack(s[{x + y}], s[{x + y + 1}])" for y in range(0, 8, 2))
        lines.append(f"store(tile, (uint32({x // 4}) + (lane >> uint32(4)), at, uint32(0)), {registers})")
    return generated("store_scores(tile, at, s)", lines, pack=ARITHMETIC[kind].pack, store=stmatrix_x4)


@functools.cache
def convolver(kind, c_q, c_k, keys, rows):
    """Create start(of_scores, of_bands) -> sums and finish(sums, carried) -> (t, carried), which compute the
    scores T of the warp group's rows.

    of_scores: the descriptor of the warp group's first row of S0, in a tile (keys / 8, rows, 8).
    of_bands: the descriptor of the band of row shift 0.
    carried: partial sums for the first output keys, from the scores of the previous tile.
    """
    n, parts = keys_out(c_k), keys // KEYS_IN
    zeros = all_of(["float32(0)"] * (n // 2))
    lines = [f"t{part} = wgmma_fence({zeros})" for part in range(parts)]
    for a in range(c_q):
        for part in range(parts):
            lines.append(
                f"t{part} = product(t{part}, of_scores + uint64({2 * part * rows + a}),"
                f" of_bands + uint64({a * 2 * n}), {a > 0})"
            )
    lines += ["wgmma_commit()", f"return {all_of(f't{part}' for part in range(parts))}"]
    start = generated("start(of_scores, of_bands)", lines, product=wgmma(n, PTX_KIND[kind]))
    lines = [f"t{part} = wgmma_wait_0(sums[{part}])" for part in range(parts)]
    lines += sums_of(parts, n, keys)
    return start, generated("finish(sums, carried)", lines, wgmma_wait_0=wgmma_wait_0)


def sums_of(parts, n, keys):
    """Return the lines that add the overlapping accumulators of t0, t1, ... and return (t, carried).

    parts, n: the number of products, and the output keys of each.
    """
    sums = {x: [f"carried[{x}]"] for x in range((n - KEYS_IN) // 2)}
    for part in range(parts):
        for x in range(n // 2):
            sums.setdefault(part * KEYS_IN // 2 + x, []).append(f"t{part}[{x}]")
    texts = [" + ".join(sums[x]) for x in range(len(sums))]
    carried = all_of(texts[keys // 2 :]) if n > KEYS_IN else "carried"
    return [f"return {all_of(texts[: keys // 2])}, {carried}"]
