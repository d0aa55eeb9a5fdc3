"""Warp instructions with Numba's types: shuffles, votes, matches, syncwarp and activemask. The result of a
ballot is a signed 32-bit integer.

Source: PTX ISA 9.7.9, "Data Movement and Conversion Instructions" (shfl.sync); 9.7.13, "Parallel
Synchronization and Communication Instructions" (vote.sync, match.sync, activemask, bar.warp.sync).
"""

from inspect import Signature, signature

from numpy import int32, int64, uint32

from sim.isa.table import CONVERGED, GIVEN, INSTRUCTIONS, WARP_WIDE, Like
from sim.isa.warp_instruction import instruction


def shuffle(name, mode, operand, source):
    """Add a shuffle to the table.

    name: its name in Numba.
    mode: its mode in PTX, such as "idx".
    operand: Numba's name for the argument after the value.
    source: the function (lane, value, argument) that returns the source lane. A lane whose source is outside
        the warp keeps its value.
    """

    def semantics(lanes, value, argument: int64, *, result: Like("value")):
        for lane in range(32):
            of = source(lane, value[lane], argument[lane])
            result[lane] = value[of] if 0 <= of < 32 else value[lane]

    # Give the parameter Numba's name, so that a call can pass it by keyword.
    lanes, value, argument, result = signature(semantics).parameters.values()
    semantics.__signature__ = Signature([lanes, value, argument.replace(name=operand), result])
    ptx = (f"shfl.sync.{mode}.b32",)
    instruction(mask=GIVEN, name=name, reads=source, source="PTX ISA shfl.sync", ptx=ptx)(semantics)


shuffle("shfl_sync", "idx", "src_lane", lambda lane, value, argument: argument % 32)
shuffle("shfl_up_sync", "up", "delta", lambda lane, value, argument: lane - argument)
shuffle("shfl_down_sync", "down", "delta", lambda lane, value, argument: lane + argument)
shuffle("shfl_xor_sync", "bfly", "lane_mask", lambda lane, value, argument: lane ^ argument)


def lanes_where(lanes, predicate):
    """Return the mask of the participating lanes with a true predicate."""
    holding = 0
    for lane in range(32):
        if predicate[lane]:
            holding |= 1 << lane
    return holding & lanes


def for_all(result, answer):
    """Set the result of every lane to the same value."""
    for lane in range(32):
        result[lane] = answer


@instruction(mask=GIVEN, source="PTX ISA vote.sync", ptx=("vote.sync.all.pred",))
def all_sync(lanes, predicate: bool, *, result: bool):
    """Return whether the predicate is true in all participating lanes."""
    for_all(result, lanes_where(lanes, predicate) == lanes)


@instruction(mask=GIVEN, source="PTX ISA vote.sync", ptx=("vote.sync.any.pred",))
def any_sync(lanes, predicate: bool, *, result: bool):
    """Return whether the predicate is true in at least one participating lane."""
    for_all(result, lanes_where(lanes, predicate) != 0)


@instruction(mask=GIVEN, source="PTX ISA vote.sync", ptx=("vote.sync.uni.pred",))
def eq_sync(lanes, predicate: bool, *, result: bool):
    """Return whether the predicate has the same value in all participating lanes."""
    holding = lanes_where(lanes, predicate)
    for_all(result, holding == 0 or holding == lanes)


@instruction(mask=GIVEN, source="PTX ISA vote.sync", ptx=("vote.sync.ballot.b32",))
def ballot_sync(lanes, predicate: bool, *, result: int32):
    """Return the mask of the participating lanes with a true predicate."""
    for_all(result, lanes_where(lanes, predicate))


@instruction(mask=GIVEN, source="PTX ISA match.sync", ptx=("match.any.sync.b32", "match.any.sync.b64"))
def match_any_sync(lanes, value, *, result: int32):
    """Return the mask of the participating lanes whose value equals that of the calling lane."""
    for lane in range(32):
        same = 0
        for other in range(32):
            if value[other] == value[lane]:
                same |= 1 << other
        result[lane] = same & lanes


@instruction(mask=GIVEN, source="PTX ISA match.sync", ptx=("match.all.sync.b32", "match.all.sync.b64"))
def match_all_sync(lanes, value, *, same: int32, alike: bool):
    """Return (mask, True) if all participating lanes have the same value, otherwise (0, False)."""
    # Compare every value with the value of the lowest participating lane.
    differ, first = False, -1
    for lane in range(32):
        if lanes >> lane & 1:
            first = lane if first < 0 else first
            differ = differ or value[lane] != value[first]
    for_all(same, 0 if differ else lanes)
    for_all(alike, not differ)


@instruction(mask=GIVEN, orders=True, source="PTX ISA bar.warp.sync", ptx=("bar.warp.sync",))
# orders=True: unlike a shuffle or a vote, bar.warp.sync orders accesses to memory among the lanes.
def syncwarp(lanes):
    """Wait for the lanes in the mask, and order their accesses to memory."""


@instruction(mask=CONVERGED, source="PTX ISA activemask", ptx=("activemask.b32",))
def activemask(lanes, *, result: uint32):
    """Return the mask of the converged lanes."""
    for_all(result, lanes)


# The warp instructions provided by numba.cuda.
OF_NUMBA = [
    entry
    for entry in map(INSTRUCTIONS.__getitem__, sorted(WARP_WIDE))
    if entry.semantics.__module__ == __name__
]
