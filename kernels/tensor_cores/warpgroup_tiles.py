"""Device functions of kernels with wgmma: the online softmax, the stores of a warp group's accumulators, and
waits for barriers.

A warp group computes 64 rows, and its accumulators are tuples. Lane l of warp w holds two rows, 16 (w % 4) +
l / 4 and the one 8 below it. Accumulators 4 j and 4 j + 1 belong to the upper row, and 4 j + 2 and 4 j + 3 to
the lower, in columns 8 j + 2 (l % 4) and the next.

A tuple must be indexed by constants, because registers have no addresses. The functions are therefore
generated, with one statement for each accumulator.
"""

import functools
import linecache

from numba import cuda
from numpy import float32, int32, uint32, uint64

from kernels.common.tiles import MINUS_INFINITY
from kernels.tensor_cores.bulk_copies import mbarrier_try_wait
from kernels.tensor_cores.instructions import exp2_approx
from kernels.tensor_cores.tiles import ARITHMETIC, FULL
from kernels.tensor_cores.warpgroup import wgmma, wgmma_commit, wgmma_fence

GROUP = 128  # threads of a warp group
ROWS = 64  # rows of a product
COLUMNS, SWIZZLE = 64, 128  # elements per row of a tile, and bytes
PATTERN = 8 * SWIZZLE  # bytes after which the swizzle repeats
PTX_KIND = {"bfloat16": "bf16", "float16": "f16"}
LARGEST_BASE = float32(2**16)  # the rounding error of smaller bases is at most 2^-8, which is harmless

NAMES = {
    "cuda": cuda,
    "float32": float32,
    "int32": int32,
    "uint32": uint32,
    "uint64": uint64,
    "MINUS_INFINITY": MINUS_INFINITY,
    "exp2": exp2_approx,
    "wgmma_fence": wgmma_fence,
    "wgmma_commit": wgmma_commit,
}


@cuda.jit(device=True, forceinline=True)
def wait(barriers, slot, parity):
    """Wait until the phase with this parity is complete."""
    while not mbarrier_try_wait(barriers, slot, parity):
        pass


def generated(signature, lines, **names):
    """Return the device function with this signature, such as "f(a, b)", and these lines of code."""
    text = "\n".join([f"def {signature}:", *("    " + line for line in lines), ""])
    file = f"<generated {signature}, {hash(text)}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    space = NAMES | names
    exec(compile(text, file, "exec"), space)
    return cuda.jit(device=True, forceinline=True)(space[signature.partition("(")[0]])


def all_of(parts):
    """Return the source of a tuple with these parts.

    It is a sum of short tuples: CPython builds tuples of more than 30 elements from lists, which Numba does
    not support.
    """
    parts = list(parts)
    pieces = [parts[x : x + 16] for x in range(0, len(parts), 16)]
    return " + ".join("(" + "".join(f"{part}, " for part in piece) + ")" for piece in pieces)


def elements(count, row):
    """Return the indices of a row's accumulators; row: 0 for the upper, 1 for the lower."""
    return [x for x in range(count) if x >> 1 & 1 == row]


@functools.cache
def score_starter(kind, keys, width, rows):
    """Create start_scores(s, of_q, of_k), which starts s = Q Kᵀ and returns s.

    of_q, of_k: descriptors of the first columns of Q and K, whose tiles consist of pieces of 64 columns:
        (width / 64, rows, 64) and (width / 64, keys, 64).
    """
    lines = ["s = wgmma_fence(s)"]
    for column in range(0, width, 16):
        piece, inside = divmod(column, COLUMNS)
        at_q, at_k = ((piece * size * SWIZZLE + 2 * inside) // 16 for size in (rows, keys))
        lines.append(f"s = product(s, of_q + uint64({at_q}), of_k + uint64({at_k}), {column > 0})")
    lines += ["wgmma_commit()", "return s"]
    return generated("start_scores(s, of_q, of_k)", lines, product=wgmma(keys, PTX_KIND[kind]))


@functools.cache
def output_starter(kind, keys, width):
    """Create start_output(o, p, of_v), which starts o += P V and returns o.

    p: the registers of `packer`.
    of_v: the descriptor of V, whose tile is (width / 64, keys, 64).
    """
    steps = range(keys // 16)
    lines = [f"p{step} = wgmma_fence({all_of(f'p[{4 * step + x}]' for x in range(4))})" for step in steps]
    lines.append("o = wgmma_fence(o)")
    lines += [f"o = product(o, p{step}, of_v + uint64({SWIZZLE * step}), True)" for step in steps]
    lines += ["wgmma_commit()", "return o"]
    product = wgmma(width, PTX_KIND[kind], a_in_registers=True, mn_major_b=True)
    return generated("start_output(o, p, of_v)", lines, product=product)


@functools.cache
def largest_finder(count):
    """Create largest(s), which returns the maximum of a lane's elements in each of its two rows."""
    lines = []
    for row in range(2):
        own = elements(count, row)
        lines.append(f"m{row} = max(s[{own[0]}], s[{own[1]}])")
        lines += [f"m{row} = max(m{row}, max(s[{x}], s[{y}]))" for x, y in zip(own[2::2], own[3::2])]
    return generated("largest(s)", [*lines, "return m0, m1"])


@functools.cache
def masker(count, hidden="MINUS_INFINITY"):
    """Create masked(s, last0, last1), which replaces the scores of keys after the last visible one.

    hidden: the source of their new value.
    last0, last1: for each of the lane's rows, the last visible key minus the lane's first one.
    """
    lines = [
        f"s{x} = s[{x}] if int32({x // 4 * 8 + x % 2}) <= last{x >> 1 & 1} else {hidden}"
        for x in range(count)
    ]
    return generated("masked(s, last0, last1)", [*lines, f"return {all_of(f's{x}' for x in range(count))}"])


@functools.cache
def weigher(count, fused):
    """Create weigh(s, factor, m0, m1, base0, base1) -> (weights, sum0, sum1): 2^(factor (s - m)) for base =
    factor m, and the sums of this lane's weights in each row.

    fused: compute factor s - base with one instruction. Its error is half a unit in the last place of base.
    """
    power = "s[{x}] * factor - base{row}" if fused else "(s[{x}] - m{row}) * factor"
    lines = [f"w{x} = exp2({power.format(x=x, row=x >> 1 & 1)})" for x in range(count)]
    for row in range(2):
        own = elements(count, row)
        lines.append(f"sum{row} = w{own[0]} + w{own[1]}")
        lines += [f"sum{row} += w{x} + w{y}" for x, y in zip(own[2::2], own[3::2])]
    return generated(
        "weigh(s, factor, m0, m1, base0, base1)",
        [*lines, f"return {all_of(f'w{x}' for x in range(count))}, sum0, sum1"],
    )


@functools.cache
def packer(kind, count):
    """Create packed(w) -> registers with two weights each. Four of them, starting at a multiple of four, are
    the left operand A of a product with 16 columns."""
    parts = all_of(f"pack(w[{x}], w[{x + 1}])" for x in range(0, count, 2))
    return generated("packed(w)", [f"return {parts}"], pack=ARITHMETIC[kind].pack)


@functools.cache
def scaler(count):
    """Create scaled(o, by0, by1), which multiplies the lane's two rows of O by by0 and by1."""
    parts = all_of(f"o[{x}] * by{x >> 1 & 1}" for x in range(count))
    return generated("scaled(o, by0, by1)", [f"return {parts}"])


@functools.cache
def rows_storer(kind, count, wide=False, step=1):
    """Create store_rows(out, batch, head, first, o, share0, share1), which stores the rows `first` and
    first + 8 · step of O, multiplied by share0 and share1.

    out: (B, H, N, d / 2), int32, two 16-bit values per element; or (B, H, N, d), float32, if `wide`.
    """
    lines = ["column = uint32(cuda.threadIdx.x) & uint32(3)"]
    for row in range(2):
        lines += [f"i{row} = uint32(first + int32({8 * row * step}))", f"if i{row} < uint32(out.shape[2]):"]
        for j in range(count // 4):
            x = 4 * j + 2 * row
            first, second = (f"o[{x + y}] * share{row}" for y in range(2))
            if wide:
                at = f"uint32({8 * j}) + uint32(2) * column"
                lines.append(f"    out[batch, head, i{row}, {at}] = {first}")
                lines.append(f"    out[batch, head, i{row}, {at} + uint32(1)] = {second}")
            else:
                both = f"int32(pack({first}, {second}))"
                lines.append(f"    out[batch, head, i{row}, uint32({4 * j}) + column] = {both}")
    return generated(
        "store_rows(out, batch, head, first, o, share0, share1)", lines, pack=ARITHMETIC[kind].pack
    )


@cuda.jit(device=True, forceinline=True)
def raised(m, largest, factor):
    """Return (the new maximum m of a row, the factor that rescales its earlier weights)."""
    largest = max(largest, cuda.shfl_xor_sync(FULL, largest, 1))
    largest = max(largest, cuda.shfl_xor_sync(FULL, largest, 2))
    largest = max(m, largest)
    shrink = float32(0)  # before the first key, m is -inf, and -inf - -inf is NaN
    if m != MINUS_INFINITY:
        shrink = exp2_approx((m - largest) * factor)
    return largest, shrink


@functools.cache
def softener(count):
    """Create soften(s, m0, m1, l0, l1, factor, slack) -> (weights, m0, m1, l0, l1, by0, by1, grown), one step
    of the online softmax.

    It replaces the scores by 2^(factor · (s - m)), and updates m and l of the lane's rows, as in
    `kernels.tensor_cores.tiles.softener`. If `grown`, the caller must multiply the rows of O by by0 and by1.
    """
    largest, weigh, weigh_large = largest_finder(count), weigher(count, True), weigher(count, False)

    @cuda.jit(device=True, forceinline=True)
    def soften(s, m0, m1, l0, l1, factor, slack):
        top0, top1 = largest(s)
        grown = cuda.any_sync(FULL, top0 > m0 + slack or top1 > m1 + slack)
        by0, by1 = float32(1), float32(1)
        if grown:  # the whole warp takes the same branch
            m0, by0 = raised(m0, top0, factor)
            m1, by1 = raised(m1, top1, factor)
            l0, l1 = l0 * by0, l1 * by1
        from0 = float32(0) if m0 == MINUS_INFINITY else m0
        from1 = float32(0) if m1 == MINUS_INFINITY else m1
        base0, base1 = from0 * factor, from1 * factor
        # Because of this branch, ptxas cannot move the weights behind the caller's wait for other products.
        if cuda.any_sync(FULL, max(abs(base0), abs(base1)) > LARGEST_BASE):
            s, sum0, sum1 = weigh_large(s, factor, from0, from1, base0, base1)
        else:
            s, sum0, sum1 = weigh(s, factor, from0, from1, base0, base1)
        return s, m0, m1, l0 + sum0, l1 + sum1, by0, by1, grown

    return soften
