"""Masks that the lanes of a warp pass to one call of a warp operation.

A lane that has returned need not arrive at an operation whose mask names it. If it has made the same call
with another mask before it returned, the lanes disagree about the participants.

Source: CUDA C++ Programming Guide, "Warp Vote Functions". All non-exited threads named in mask must execute
the same intrinsic with the same mask.

The n-th calls of two lanes belong together. The comparison therefore does not depend on the schedule.
"""

from collections import Counter

from sim.events import Finding

MOST_CALLS = 256  # the number of calls of one place that are kept


class LaneMasks:
    """The masks of the incomplete calls of one block."""

    def __init__(self):
        # (warp, operation, code, position in the code) -> (Counter of each lane's calls, {number of a call:
        # {lane: mask}})
        self.calls = {}

    def completed(self, context, block, warp, group):
        """Record an operation in which only some lanes of a warp participate.

        Return a finding if a lane of its mask has passed another mask to the same call, otherwise None.
        """
        disagreeing, missing = None, group.mask & ~group.bits
        for lane, thread in sorted(group.threads.items()):
            place = warp, group.operation.name, id(thread.frame.f_code), thread.frame.f_lasti
            counts, masks = self.calls.setdefault(place, (Counter(), {}))
            counts[lane] += 1
            given = masks.setdefault(counts[lane], {})
            others = [one for one in given if missing >> one & 1]
            if others and disagreeing is None:
                disagreeing = lane, min(others), given[min(others)]
            given[lane] = group.mask
            if len(masks) > MOST_CALLS:
                del masks[min(masks)]
        return disagreeing and self.finding(context, block, warp, group, *disagreeing)

    def finding(self, context, block, warp, group, lane, other, mask):
        thread, missing = group.threads[lane], block.threads[32 * warp + other]
        site = context.sites.of_frame(thread.frame, "call")
        return Finding(
            "warp-divergence",
            "error",
            f"lanes {lane} and {other} of warp {warp} call {group.operation.name} with different masks,"
            f" {group.mask:#010x} and {mask:#010x}, and the mask of lane {lane} names lane {other}",
            tuple(context.witness("calls", site, one) for one in (thread, missing)),
            reason="All lanes that a mask names have to make the call with this mask.",
            fix=(
                "pass the same mask in all lanes that it names: cuda.ballot_sync before the branch gives the"
                " lanes that take it"
            ),
        )
