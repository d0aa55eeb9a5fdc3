"""What the lanes of a warp do together, on arrays over threads: every lane's value in, every lane's result out.

The lanes that are there must agree on one mask, which names them all, and shuffles must read from lanes that are there; otherwise the block is STOPPED, or DIRTY.
"""
from numba import int32, int64, uint32

from sim.native.arrays import number, set_number
from sim.native.checks import PARTED, SEGMENTS, dirty
from sim.native.internal import always
from sim.native.regions import of_thread, part
from sim.native.threads import lanes_of

SHUFFLES = {"shfl_sync": "argument % 32", "shfl_up_sync": "lane - argument", "shfl_down_sync": "lane + argument", "shfl_xor_sync": "lane ^ argument"}
VOTES = {"all_sync": "count == lanes", "any_sync": "count > 0", "eq_sync": "count == lanes or count == 0", "ballot_sync": "int32(mask_of_true)"}
OFFERED = {"warp_syncwarp", "warp_activemask", "warp_match_any_sync", "warp_unused", *(f"warp_{name}" for name in (*SHUFFLES, *VOTES))}
FULL = 0xFFFFFFFF
IN_TEXT = PARTED, dirty  # names that occur in functions made from text


@always
def is_there(thread, threads, ended):
    return thread < threads and ended[thread] == 0


@always
def lanes_there(warp, threads, ended):
    """The lanes of a warp that have not ended, as a mask."""
    there = 0
    for thread in lanes_of(warp, threads):
        if ended[thread] == 0:
            there |= 1 << (thread & 31)
    return there


@always
def check_mask(state, warp, threads, ended, mask):
    """Every lane that is there must be named, and all must name the same."""
    there, first = lanes_there(warp, threads, ended), -1
    for thread in lanes_of(warp, threads):
        if ended[thread] == 0:
            given = int64(of_thread(mask, thread)) & FULL
            if given & there != there or first not in (-1, given):
                part(state)
            first = given


@always
def warp_syncwarp(state, warp, threads, ended, mask):
    check_mask(state, warp, threads, ended, mask)
    set_number(state, SEGMENTS + warp, (number(state, SEGMENTS + warp) + 1) & 0xFFFF)


@always
def warp_unused(state, warp, threads, ended, mask):
    check_mask(state, warp, threads, ended, mask)


@always
def warp_activemask(state, warp, threads, ended, result):
    there = lanes_there(warp, threads, ended)
    for thread in lanes_of(warp, threads):
        result[thread] = uint32(there)


@always
def warp_match_any_sync(state, warp, threads, ended, mask, value, result):
    check_mask(state, warp, threads, ended, mask)
    for thread in lanes_of(warp, threads):
        same = 0
        for other in lanes_of(warp, threads):
            if ended[other] == 0 and of_thread(value, other) == of_thread(value, thread):
                same |= 1 << (other & 31)
        result[thread] = int32(same)


SHUFFLE = """
@always
def warp_{name}(state, warp, threads, ended, mask, value, argument_of, result):
    check_mask(state, warp, threads, ended, mask)
    for thread in lanes_of(warp, threads):
        lane, argument = thread & 31, int64(of_thread(argument_of, thread))
        source = {source}
        there = is_there(32 * warp + source, threads, ended)
        if 0 <= source < 32 and not there and ended[thread] == 0:
            dirty(state, PARTED)
        result[thread] = of_thread(value, 32 * warp + source if 0 <= source < 32 and there else thread)
"""
VOTE = """
@always
def warp_{name}(state, warp, threads, ended, mask, predicate, result):
    check_mask(state, warp, threads, ended, mask)
    count = lanes = mask_of_true = 0
    for thread in lanes_of(warp, threads):
        if ended[thread] == 0:
            lanes += 1
            if of_thread(predicate, thread):
                count += 1
                mask_of_true |= 1 << (thread & 31)
    for thread in lanes_of(warp, threads):
        result[thread] = {holds}
"""
for _name, _source in SHUFFLES.items():
    exec(SHUFFLE.format(name=_name, source=_source))
for _name, _holds in VOTES.items():
    exec(VOTE.format(name=_name, holds=_holds))
