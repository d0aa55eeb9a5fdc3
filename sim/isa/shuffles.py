"""Warp instructions in forms available only in PTX: shfl.sync with clamping, segments and a predicate;
redux.sync; elect.sync.

Source: PTX ISA 9.7.9, "Data Movement and Conversion Instructions" (shfl.sync); 9.7.13, "Parallel
Synchronization and Communication Instructions" (redux.sync, elect.sync).
"""

from functools import reduce

from numpy import int32, uint32

from sim.isa.invalid import InvalidOperand
from sim.isa.table import GIVEN, Like
from sim.isa.warp_instruction import instruction


def shuffle(mode, source, inside):
    """Add shfl.sync.`mode` to the table.

    A lane whose source lane is out of bounds keeps its value, and gets a false predicate.

    Operand c packs two values. Bits 0 to 4 are the clamp. Bits 8 to 12 are the segment mask, which selects
    the bits of the lane number that identify a segment.

    source: the function (lane, operand b, segment mask) that returns the source lane.
    inside: the function (source lane, bound) that returns whether the source lane is within bounds.
    """

    def read(lane, value, b, c):
        segment = c >> 8 & 31
        # This is `maxLane` in the manual's pseudocode: it combines the segment of this lane with the clamp.
        bound = lane & segment | c & 31 & ~segment
        of = source(lane, b & 31, segment)
        return of if inside(of, bound) else -1

    def semantics(lanes, value, b: uint32, c: uint32, *, result: Like("value"), found: bool):
        for lane in range(32):
            of = read(lane, value[lane], int(b[lane]), int(c[lane]))
            found[lane] = of >= 0
            # If the source lane is out of bounds, `of` is -1.
            result[lane] = value[of] if 0 <= of < 32 else value[lane]

    # Convert to int, because the rows contain numpy scalars, whose bitwise operations would keep the width of
    # the scalars.
    def reads(lane, value, b, c):
        return read(lane, value, int(b), int(c))

    instruction(mask=GIVEN, name=f"shfl.sync.{mode}", reads=reads, source="PTX ISA shfl.sync")(semantics)


shuffle("idx", lambda lane, b, segment: lane & segment | b & ~segment, lambda of, bound: of <= bound)
shuffle("up", lambda lane, b, segment: lane - b, lambda of, bound: of >= bound)
shuffle("down", lambda lane, b, segment: lane + b, lambda of, bound: of <= bound)
shuffle("bfly", lambda lane, b, segment: lane ^ b, lambda of, bound: of <= bound)


def has_invalid_width(c, clamp):
    """Return whether operand c of shfl.sync results from a width that is not a power of two from 1 to 32.

    Source: CUDA C++ Programming Guide, "Warp Shuffle Functions". CUDA's functions pass
    (32 - width) << 8 | clamp. PTX gives every segment mask a meaning, and ignores the other bits.

    c: the operand, as an unsigned number.
    clamp: the clamp that CUDA's functions pass, or -1 to consider only the segment mask.
    """
    # CUDA's functions leave bits 5 to 7 of the operand clear. If they are set, use PTX's definition.
    complement = c >> 8 if c & 255 == clamp else c >> 8 & 31
    return complement > 31 or (32 - complement) & (31 - complement) != 0


def check_width(clamp, c):
    """Raise InvalidOperand if `has_invalid_width(c, clamp)`."""
    if not has_invalid_width(c, clamp):
        return
    signed = c - (c >> 31 << 32)
    got = f"{32 - (signed >> 8)}" if c & 255 == clamp else f"the segment mask {c >> 8 & 31:#07b}"
    raise InvalidOperand(
        f"the width of a shuffle is a power of two from 1 to 32, got {got}",
        "The lanes of a warp shuffle in segments of `width` consecutive lanes. With any other width, the"
        " results are undefined.",
        "pass a power of two from 1 to 32 as the width",
    )


COMBINE = {
    "add": lambda a, b: a + b,
    "min": lambda a, b: min(a, b),  # Numba inlines plain functions, but not builtins
    "max": lambda a, b: max(a, b),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


def reduction(operation, name, dtype):
    """Add redux.sync.`operation` to the table. Each participating lane receives the reduction of the values
    of all participating lanes."""
    combine = COMBINE[operation]

    def semantics(lanes, value: dtype, *, result: dtype):
        total = reduce(combine, [int(value[lane]) for lane in range(32) if lanes >> lane & 1])
        for lane in range(32):
            result[lane] = total

    instruction(mask=GIVEN, name=f"redux.sync.{operation}.{name}", source="PTX ISA redux.sync")(semantics)


for _operation in ("add", "min", "max"):
    reduction(_operation, "u32", uint32)
    reduction(_operation, "s32", int32)
for _operation in ("and", "or", "xor"):
    reduction(_operation, "b32", uint32)


@instruction(mask=GIVEN, name="elect.sync", source="PTX ISA elect.sync")
def elect(lanes, *, leader: uint32, chosen: bool):
    """Elect the lowest participating lane. Return the number of that lane, and whether it is the calling
    lane."""
    # The expression lanes & -lanes isolates the lowest set bit.
    first = (lanes & -lanes).bit_length() - 1
    for lane in range(32):
        leader[lane] = first
        chosen[lane] = lane == first
