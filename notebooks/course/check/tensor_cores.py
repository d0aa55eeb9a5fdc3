"""Operands of tensor-core products in bfloat16, as matrices and as registers of a warp's lanes, and counts of
the instructions that a launch executed."""

import numpy as np
from ml_dtypes import bfloat16
from numba import cuda
from numpy import float32, int16, int32, uint32

from course.check.contract import check_bounds
from course.check.harness import fail

NAN = int16(0x7FC0)  # as a bfloat16 bit pattern
MMA = "mma_m16n8k16_f32_bf16"
LANES = np.arange(32)
ROW, COLUMN = LANES // 4, LANES % 4 * 2  # the position of each lane's first entry of a 16 × 8 product


def bits(matrix):
    """Return a matrix rounded to bfloat16, as int16 bit patterns."""
    return np.ascontiguousarray(matrix).astype(bfloat16).view(int16)


def drawn(rng, shape, exact):
    """Return nonzero numbers that bfloat16 represents exactly: whole numbers, or approximately normal
    ones."""
    numbers = rng.integers(1, 10, shape) * rng.choice([-1, 1], shape) if exact else rng.standard_normal(shape)
    return numbers.astype(bfloat16).astype(np.float64)


def value(given):
    """Return the float64 values that bit patterns or words represent."""
    return given.view(bfloat16).astype(np.float64)


def held(piece):
    """Return (32, 4) words: each lane's registers for a 16 × 16 matrix as the left operand of mma."""
    w = np.ascontiguousarray(piece).view(uint32)
    return np.stack([w[:8, :4], w[8:, :4], w[:8, 4:], w[8:, 4:]], axis=-1).reshape(32, 4)


def halves_swapped(a):
    """Return a 16 × 16 left operand with its upper right and lower left quarters exchanged."""
    return np.block([[a[:8, :8], a[8:, :8]], [a[:8, 8:], a[8:, 8:]]])


def spread(product):
    """Return (32, 4): a 16 × 8 matrix as it is distributed over the lanes of a warp."""
    return np.stack([product[ROW + 8 * (i // 2), COLUMN + i % 2] for i in range(4)], 1)


def words(low, high):
    """Pack two arrays into uint32 words, rounding each number to bfloat16."""
    low, high = (np.asarray(x, float32).astype(bfloat16).view(np.uint16).astype(uint32) for x in (low, high))
    return low | high << np.uint32(16)


def parts(found):
    """Return the numbers packed in words, as (…, 2) float32."""
    return np.stack([found << np.uint32(16), found & np.uint32(0xFFFF0000)], -1).view(float32)


def right_operand(b):
    """Return (32, 2) words: each lane's registers for B (16, 8) as the right operand of mma."""
    rows = COLUMN[:, None] + 8 * np.arange(2)
    return words(b[rows, ROW[:, None]], b[rows + 1, ROW[:, None]])


@cuda.jit(device=True)
def unpack(out, lane, r, word):
    """Store the two numbers that are packed in a register, `word`, in out[lane, r]."""
    out[lane, r, 0] = cuda.libdevice.int_as_float(int32(word << uint32(16)))
    out[lane, r, 1] = cuda.libdevice.int_as_float(int32(word & uint32(0xFFFF0000)))


def which_half(half):
    return "upper" if half else "lower"


def executed(report, call, hint, **bounds):
    """Reject a launch in which a warp executed an instruction fewer or more times than (fewest, most)."""
    together = report.counters.get("together", {})
    for name, limits in bounds.items():
        for what in check_bounds(limits, together.get(name, 0), f"{name} instruction", "in all warps"):
            fail(f"correct, but {what}", call=call, hint=hint)


def used(report, wanted, call, hint):
    """Reject a launch unless its warps executed exactly the mma, ldmatrix and shfl instructions in `wanted`,
    {instruction: count}."""
    found = {
        name: count
        for name, count in report.counters["together"].items()
        if name.startswith(("mma", "ldmatrix", "shfl"))
    }
    if found != wanted:
        fail(
            "correct, but with other instructions", call=call, wanted=said(wanted), got=said(found), hint=hint
        )


def said(counts):
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def bytes_of_ldmatrix(report):
    """Return the bytes that the ldmatrix instructions of a launch load: 128 for each 8 × 8 matrix."""
    together = report.counters.get("together", {})
    return sum(
        128 * count * int(name[10]) for name, count in together.items() if name.startswith("ldmatrix_x")
    )


def on_tensor_cores(report, products, call):
    """Reject a launch that did not compute the expected number of 16 × 16 by 16 × 8 products on tensor
    cores."""
    together = report.counters.get("together", {})
    sixteens = sum(
        count * (2 if "k16" in name else 1) for name, count in together.items() if name.startswith("mma_")
    )
    if sixteens != 2 * products:
        fail(
            f"correct, but it makes {sixteens / 2:g} products of 16 × 16 by 16 × 8 with mma;"
            f" {products} are wanted",
            call=call,
            hint="mma_bf16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3) is one, even if its operands are 0.",
        )


def known(got, mistakes, otherwise):
    """Return the hint for the mistake that produces exactly this result, or `otherwise`."""
    same = (said for said, value in mistakes.items() if np.allclose(got, value, 1e-4, 1e-4))
    return next(same, otherwise)
