"""Device functions of the forward convolution with `wgmma`: copies of tiles, bands of taps, products.

S0 is stored in columns of 16-byte chunks, without a swizzle: (keys / 8, PARITIES · places, 8), with the even
rows before the odd rows. The left operand of a product may then start at any row of a parity, which is a row
shift by two, and its two halves may belong to different parities.

    A   64 pairs of rows, and 8 keys of S0. The left half of its 16 columns contains the even rows, shifted
        down by 2 u rows. The right half contains the odd rows with the same shift. Step u therefore computes
        the row shifts 2 u and 2 u + 1
    B   8 keys of each of these two rows, and n output keys for each row of a pair, the even row first. The
        element for S0's row shift s and key x, and the row e of the pair and key y of T, is the tap w[s - e,
        x + n - 8 - y], or 0 if there is none
    D   64 pairs of rows, with n keys of T for each row. The output keys start P_k - (n - 8) to the right of
        the input keys, and the last n - 8 of them are also outputs of the next 8 input keys

With both operands in shared memory, a product takes 16 + n / 2 cycles of shared memory: 2 KB of A, and 64 n
bytes of B, at 128 bytes per cycle. Its operations take n cycles. For 128 rows and 64 keys, that is 768 cycles
with 7 × 7 taps, where products of single rows with 16 keys took 1,232.
"""

import functools

from numba import cuda
from numpy import float32, int16, int32, uint32

from kernels.tensor_cores.instructions import cp_async_16, exp2_approx
from kernels.tensor_cores.tiles import ARITHMETIC, CHUNK, FULL, clamped, tap_packer
from kernels.tensor_cores.warpgroup import stmatrix_x4, wgmma, wgmma_wait_0
from kernels.tensor_cores.warpgroup_tiles import (
    LARGEST_BASE,
    PTX_KIND,
    all_of,
    generated,
    largest_finder,
    weigher,
)

PARITIES = 2  # even and odd rows
KEYS_IN = 8  # input keys of a product


def keys_out(c_k):
    """Return the number of output keys of a product, for each of its rows."""
    return KEYS_IN + -(-(c_k - 1) // 8) * 8


def steps_of(c_q):
    """Return the number of steps u. Each step computes two of the c_q + 1 row shifts."""
    return (c_q + 2) // 2


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
        # The compiler does not move a shuffle, nor addresses computed from it, out of the loop, where the
        # addresses would occupy registers.
        thread, source = cuda.threadIdx.x, x[batch, head]
        thread = uint32(cuda.shfl_sync(FULL, thread, thread & 31))
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
def tap_loader(kind, c_q, c_k, bits, threads):
    """Create load_taps(taps, w, head), with which a block stores the taps of a head in shared memory.

    taps: (c_q · c_k), int16.
    bits: as for `tap_packer`.
    """
    pack_taps = tap_packer(kind, bits)

    @cuda.jit(device=True, forceinline=True)
    def load_taps(taps, w, head):
        for x in range(cuda.threadIdx.x, c_q * c_k, threads):
            x = uint32(x)
            both = pack_taps(w, head, x // uint32(c_k), int32(x % uint32(c_k)), True, False)
            taps[x] = int16(both & uint32(0xFFFF))

    return load_taps


@functools.cache
def band_maker(c_q, c_k, threads):
    """Create make_bands(bands, taps), with which a block stores the right operands of all steps.

    bands: (steps, 2, PARITIES · n, 8), the elements of a column of B adjacent, eight at a time.
    taps: the array of `tap_loader`.
    """
    n, steps = keys_out(c_k), steps_of(c_q)

    @cuda.jit(device=True, forceinline=True)
    def make_bands(bands, taps):
        for place in range(cuda.threadIdx.x, steps * 2 * PARITIES * n * 8, threads):
            place = uint32(place)
            x, y = int32(place & uint32(7)), int32(place // uint32(8) % uint32(n))
            parity, shift = place // uint32(8 * n) & uint32(1), place // uint32(16 * n)
            a, b = int32(int32(shift) - int32(parity)), int32(x + int32(n - KEYS_IN) - y)
            inside = int32(0) <= a and a < int32(c_q) and int32(0) <= b and b < int32(c_k)
            tap = taps[uint32(a * int32(c_k) + b)] if inside else int16(0)
            bands[shift >> uint32(1), shift & uint32(1), parity * uint32(n) + uint32(y), uint32(x)] = tap

    return make_bands


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

    tile: (keys / 8, PARITIES · places, 8).
    at: the position in the tile of the row whose address this lane gives.
    """
    lines = ["lane = uint32(cuda.threadIdx.x) & uint32(31)"]
    for x in range(0, count, 8):
        registers = ", ".join(f"pack(s[{x + y}], s[{x + y + 1}])" for y in range(0, 8, 2))
        lines.append(f"store(tile, (uint32({x // 4}) + (lane >> uint32(4)), at, uint32(0)), {registers})")
    return generated("store_scores(tile, at, s)", lines, pack=ARITHMETIC[kind].pack, store=stmatrix_x4)


@functools.cache
def cleaner(count):
    """Create cleaned(s) -> (s, found0, found1), which replaces scores that are not finite by 0.

    found0, found1: whether the upper and the lower row of the lane had such scores.
    """
    lines = ["found0, found1 = False, False"]
    for x in range(count):
        lines += [f"s{x} = s[{x}]", f"if s{x} - s{x} != float32(0):"]
        lines.append(f"    s{x}, found{x >> 1 & 1} = float32(0), True")
    return generated(
        "cleaned(s)", [*lines, f"return {all_of(f's{x}' for x in range(count))}, found0, found1"]
    )


@functools.cache
def convolver(kind, c_q, c_k, keys, stage_keys, rows):
    """Create start(of_scores, of_bands) -> sums and finish(sums, of_scores, of_bands, carried) -> (even, odd,
    carried), which compute T of `keys` keys in stages of `stage_keys`. `start` only starts the first stage.

    of_scores: the descriptor of the first row and the first keys of S0, in a tile (keys / 8, rows, 8).
    of_bands: the descriptor of the bands of step 0.
    carried: partial sums for the first output keys, from earlier input keys.
    even, odd: the accumulators of the even and the odd rows.
    """
    n, chunks = keys_out(c_k), stage_keys // KEYS_IN
    blocks = n // 8  # of eight output keys
    zeros = all_of(["float32(0)"] * n)
    lines = [f"t{c} = wgmma_fence({zeros})" for c in range(chunks)]
    for u in range(steps_of(c_q)):
        for c in range(chunks):
            at, band = f"of_scores + uint64({c * rows + u})", f"of_bands + uint64({u * 2 * PARITIES * n})"
            lines.append(f"t{c} = product(t{c}, {at}, {band}, {u > 0})")
    lines += ["wgmma_commit()", f"return {all_of(f't{c}' for c in range(chunks))}"]
    start = generated("start(of_scores, of_bands)", lines, product=wgmma(PARITIES * n, PTX_KIND[kind]))
    found, rest = ([], []), []
    for parity in range(PARITIES):
        for block in range(chunks + blocks - 1):
            for x in range(4):
                terms = [f"carried[{(parity * (blocks - 1) + block) * 4 + x}]"] if block < blocks - 1 else []
                terms += [
                    f"t{c}[{(parity * blocks + block - c) * 4 + x}]"
                    for c in range(chunks)
                    if 0 <= block - c < blocks
                ]
                # Adding 0 puts the value in a register of its own, so that the accumulator's register can be
                # reused.
                terms += ["float32(0)"] * (len(terms) == 1)
                (found[parity] if block < chunks else rest).append(" + ".join(terms))
    stages, lines = range(keys // stage_keys), []
    for stage in stages:
        if stage:
            lines.append(f"sums = start(of_scores + uint64({stage * chunks * rows}), of_bands)")
        lines += [f"t{c} = wgmma_wait_0(sums[{c}])" for c in range(chunks)]
        # The fence prevents the compiler from moving these sums below the start of the next products.
        lines += [f"{name}{stage} = wgmma_fence({all_of(x)})" for name, x in zip(("even", "odd"), found)]
        if rest:
            lines.append(f"carried = wgmma_fence({all_of(rest)})")
    even, odd = (" + ".join(f"{name}{stage}" for stage in stages) for name in ("even", "odd"))
    lines.append(f"return {even}, {odd}, carried")
    names = {"start": start, "wgmma_wait_0": wgmma_wait_0}
    return start, generated("finish(sums, of_scores, of_bands, carried)", lines, **names)


@cuda.jit(device=True, forceinline=True)
def raised(m, largest, factor):
    """Return (the new maximum m of a row, the factor that rescales its earlier weights)."""
    largest = max(largest, cuda.shfl_xor_sync(FULL, largest, 1))
    largest = max(largest, cuda.shfl_xor_sync(FULL, largest, 2))
    largest = max(m, largest)
    return largest, exp2_approx((m - largest) * factor)


@functools.cache
def softener(count):
    """Create soften(even, odd, m, l, large, factor, slack) -> (even, odd, m, l, by, grown, large), one step
    of the online softmax for the lane's rows of both parities.

    The step is the same as in `kernels.tensor_cores.warpgroup_tiles.softener`, with these differences:

    m, l, by: of the two even rows, then of the two odd rows. m is finite even before the first key.
    large: whether a factor · m is so large that its rounding error matters.
    """
    largest, weigh, weigh_large = largest_finder(count), weigher(count, True), weigher(count, False)

    @cuda.jit(device=True, forceinline=True)
    def soften(even, odd, m, l, large, factor, slack):
        m0, m1, m2, m3 = m
        l0, l1, l2, l3 = l
        top0, top1 = largest(even)
        top2, top3 = largest(odd)
        over = top0 > m0 + slack or top1 > m1 + slack
        grown = cuda.any_sync(FULL, over or top2 > m2 + slack or top3 > m3 + slack)
        by0, by1, by2, by3 = float32(1), float32(1), float32(1), float32(1)
        if grown:  # the whole warp takes the same branch
            m0, by0 = raised(m0, top0, factor)
            m1, by1 = raised(m1, top1, factor)
            m2, by2 = raised(m2, top2, factor)
            m3, by3 = raised(m3, top3, factor)
            l0, l1, l2, l3 = l0 * by0, l1 * by1, l2 * by2, l3 * by3
            top = max(max(abs(m0), abs(m1)), max(abs(m2), abs(m3)))
            large = cuda.any_sync(FULL, top * factor > LARGEST_BASE)
        base0, base1, base2, base3 = m0 * factor, m1 * factor, m2 * factor, m3 * factor
        if large:
            even, sum0, sum1 = weigh_large(even, factor, m0, m1, base0, base1)
            odd, sum2, sum3 = weigh_large(odd, factor, m2, m3, base2, base3)
        else:
            even, sum0, sum1 = weigh(even, factor, m0, m1, base0, base1)
            odd, sum2, sum3 = weigh(odd, factor, m2, m3, base2, base3)
        return (
            even,
            odd,
            (m0, m1, m2, m3),
            (l0 + sum0, l1 + sum1, l2 + sum2, l3 + sum3),
            (by0, by1, by2, by3),
            grown,
            large,
        )

    return soften
