"""Masks that the lanes of a warp pass to one call of a warp operation.

A lane that has returned need not arrive at an operation whose mask names it. If it made the same call with
another mask before it returned, however, the lanes disagree about the participants, which is an error.

Source: CUDA C++ Programming Guide, "Warp Vote Functions". All non-exited threads named in mask must execute
the same intrinsic with the same mask.

The n-th call of one lane is compared with the n-th call of another lane. The result therefore does not depend
on the schedule.
"""

from collections import Counter

from sim.events import Finding

MOST_CALLS = 256  # the number of calls that are remembered for each position in the source


class LaneMasks:
    """The masks of calls in one block in which not all 32 lanes of a warp participate."""

    def __init__(self):
        # (warp, operation, id of the code object, position in it) -> (Counter {lane: number of its calls},
        # {number of a call, from 1: {lane: mask}})
        self.calls = {}

    def completed(self, context, block, warp, group):
        """Record an operation in which only some lanes of a warp participate.

        Return a finding if a lane that the mask names, but that is missing, has passed another mask to the
        same call. Otherwise, return None.

        group: the Group of the lanes that participate.
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
