"""Masks that the lanes of a warp pass to one call of a warp operation.

A lane that has returned need not arrive at an operation whose mask contains it. However, it is an error if
this lane made the same call with another mask before it returned, because the two masks then name different
participants. It is also an error if the lane called the same operation with another mask in another arm of
the same branch.

Source: CUDA C++ Programming Guide, "Warp Vote Functions". All non-exited threads named in mask must execute
the same intrinsic with the same mask.

The n-th call of one lane is compared with the n-th call of another lane, unless both lanes have taken part in
an operation between these two calls: then the calls belong to different iterations of a loop. The result
therefore does not depend on the schedule.
"""

from collections import Counter, defaultdict

from sim.events import SITES, Finding
from sim.isa.table import FULL

# The fix if the lanes of one mask make different calls.
SAME_CALL = (
    "let all lanes of the mask make the same call with the same mask: move the call out of the branch, or"
    " pass in each branch only the lanes that take it, if no lane needs the value of another branch"
)
MOST_CALLS = 256  # the number of calls that are remembered for each position in the source


class LaneMasks:
    """The masks of one block's calls in which not all 32 lanes of a warp participate."""

    def __init__(self):
        # (warp, operation, id of the code object, position in it) -> (Counter {lane: number of its calls},
        # {number of a call, from 1: {lane: (mask, number of calls recorded before it)}})
        self.calls = {}
        self.recorded = 0  # number of calls
        # warp -> {bit mask of the lanes of an operation: number of calls recorded before the last one}
        self.joined = defaultdict(dict)
        self.last = {}  # (warp, lane) -> (name of the lane's last operation, its mask, number of its site)

    def completed(self, context, block, warp, group):
        """Record an operation in which only some lanes of a warp participate.

        Return a finding if a missing lane that the mask contains has passed another mask to the same call, or
        to a call in another arm of the same branch. Otherwise, return None.

        group: the Group of the lanes that participate.
        """
        disagreeing, missing = None, group.mask & ~group.bits
        for lane, thread in sorted(group.threads.items()):
            place = warp, group.operation.name, id(thread.frame.f_code), thread.frame.f_lasti
            counts, masks = self.calls.setdefault(place, (Counter(), {}))
            counts[lane] += 1
            given = masks.setdefault(counts[lane], {})
            others = [
                one
                for one, (_, number) in given.items()
                if missing >> one & 1 and not self.joined_since(number, warp, 1 << lane | 1 << one)
            ]
            if others and disagreeing is None:
                disagreeing = lane, min(others), given[min(others)][0]
            given[lane] = group.mask, self.recorded
            self.recorded += 1
            site = context.sites.of_frame(thread.frame, "call")
            self.last[warp, lane] = group.operation.name, group.mask, site
            if len(masks) > MOST_CALLS:
                del masks[min(masks)]
        if disagreeing:
            lane, other, mask = disagreeing
            return self.finding(context, block, warp, group, (lane, site), (other, site), mask)
        return self.finding_in_arms(context, block, warp, group, missing)

    def join(self, warp, bits):
        """Record that the lanes in a bit mask have taken part in one operation."""
        if self.recorded:
            joined = self.joined[warp]
            if bits == FULL:
                joined.clear()
            joined[bits] = self.recorded

    def joined_since(self, number, warp, bits):
        """Return whether all lanes in a bit mask have taken part in one operation after call `number`."""
        return any(number < recorded and bits & ~lanes == 0 for lanes, recorded in self.joined[warp].items())

    def finding_in_arms(self, context, block, warp, group, missing):
        """Return the finding for a missing lane that has called the operation with another mask in another
        arm of the same branch. Return None if there is no such lane.

        Branches in loops and in device functions do not count: the lane may have made its call in an earlier
        iteration or call, and returned since then.

        missing: the bit mask of the missing lanes.
        """
        for lane in range(32) if missing else ():
            mask = self.last.get((warp, lane), (None, 0))[1]
            places = missing >> lane & 1 and self.sites_in_two_arms(context, warp, group, lane)
            if places and mask != group.mask:
                here, there = (SITES[site] for site in places)
                outline = context.outline(here)
                home = outline.function(here.line)
                kernel = here.function == context.kernel or "__global__" in outline.lines[home.first]
                if kernel and not outline.loop(here.line, there.line):
                    first = min(group.threads), places[0]
                    return self.finding(context, block, warp, group, first, (lane, places[1]), mask)
        return None

    def finding(self, context, block, warp, group, one, other, mask):
        """Return the finding for two lanes, each with the number of its site.

        mask: the mask of the other lane.
        """
        threads = group.threads[one[0]], block.threads[32 * warp + other[0]]
        return Finding(
            "warp-divergence",
            "error",
            f"lanes {one[0]} and {other[0]} of warp {warp} call {group.operation.name} with different masks:"
            f" {group.mask:#010x}, which contains lane {other[0]}, and {mask:#010x}",
            tuple(context.witness("calls", at[1], thread) for at, thread in zip((one, other), threads)),
            reason="All lanes in a mask have to make the same call with the same mask.",
            fix=SAME_CALL
            if one[1] != other[1]
            else (
                "pass the same mask in all lanes that it contains: compute it before the branch, for example"
                " by cuda.ballot_sync, which returns the lanes that take the branch"
            ),
        )

    def sites_in_two_arms(self, context, warp, group, lane):
        """Return two sites: of the call of a group, and of the last call of a lane that does not participate.
        Return None unless the two calls are in different arms of the same branch.

        group: the Group of the lanes that participate.
        """
        name, _, site = self.last.get((warp, lane), (None, 0, 0))
        if name != group.operation.name:
            return None
        here = context.sites.of_frame(group.threads[min(group.threads)].frame, "call")
        outline = context.outline(SITES[here])
        same = outline is not None and SITES[here].function == SITES[site].function
        return (here, site) if same and outline.branch(SITES[here].line, SITES[site].line) else None

    def call_of_absent_lane(self, context, block, warp, group, lane):
        """Return (an Access, a sentence) about the last call of a lane that does not participate in an
        operation. Return None unless this call is in another arm of the same branch.

        group: the Group of the lanes that participate.
        """
        places = self.sites_in_two_arms(context, warp, group, lane)
        if places is None:
            return None
        mask = self.last[warp, lane][1]
        return context.witness("calls", places[1], block.threads[32 * warp + lane]), (
            f"Lane {lane} makes another call, with the mask {mask:#010x}; lanes exchange values only in the"
            " same call with the same mask."
        )
