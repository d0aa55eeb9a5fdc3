"""Warp instructions that only PTX has in this form: shfl.sync with its bounds and predicate, redux.sync,
elect.sync.

Source: PTX ISA 9.7.9, "shfl.sync", "redux.sync", "elect.sync".
"""

from functools import reduce

from numpy import int32, uint32

from sim.isa.table import GIVEN, Like, instruction


def shuffle(mode, source, inside):
    """Add shfl.sync.`mode`. A lane reads from lane `source(lane, b, segment)` if `inside(that lane, bound)`
    holds; otherwise it keeps its own value and the predicate is false.

    The five low bits of c are the bound. The bits from 8 on say which bits of a lane's number select its
    segment.
    """

    def read(lane, value, b, c):
        segment = c >> 8 & 31
        bound = lane & segment | c & 31 & ~segment
        of = source(lane, b & 31, segment)
        return of if inside(of, bound) else -1

    def semantics(lanes, value, b: uint32, c: uint32, *, result: Like("value"), found: bool):
        for lane in range(32):
            of = read(lane, value[lane], int(b[lane]), int(c[lane]))
            found[lane] = of >= 0
            result[lane] = value[of] if 0 <= of < 32 else value[lane]

    def reads(lane, value, b, c):
        return read(lane, value, int(b), int(c))

    instruction(mask=GIVEN, name=f"shfl.sync.{mode}", reads=reads, source="PTX ISA shfl.sync")(semantics)


shuffle("idx", lambda lane, b, segment: lane & segment | b & ~segment, lambda of, bound: of <= bound)
shuffle("up", lambda lane, b, segment: lane - b, lambda of, bound: of >= bound)
shuffle("down", lambda lane, b, segment: lane + b, lambda of, bound: of <= bound)
shuffle("bfly", lambda lane, b, segment: lane ^ b, lambda of, bound: of <= bound)

COMBINE = {
    "add": lambda a, b: a + b,
    "min": lambda a, b: min(a, b),  # Numba inlines a plain function, and no builtin
    "max": lambda a, b: max(a, b),
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


def reduction(operation, name, dtype):
    """Add redux.sync.`operation`: every lane gets the combination of all lanes' values."""
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
    first = (lanes & -lanes).bit_length() - 1
    for lane in range(32):
        leader[lane] = first
        chosen[lane] = lane == first
