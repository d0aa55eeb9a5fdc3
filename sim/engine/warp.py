"""Warp operations. A lane waits until every lane in the mask has arrived. Then all lanes get their results.

The other lanes do not wait for a lane that has returned, but they cannot read its value. CUDA C++ Programming
Guide: "all non-exited threads named in mask must execute the same intrinsic with the same mask".
"""

import numpy as np

from sim.engine.lane_masks import SAME_CALL
from sim.events import Finding
from sim.isa.table import ALL, CONVERGED, FULL, GIVEN
from sim.memory.spaces import fresh_memory
from sim.nouns import plural

WARP = "warp"  # the value of Thread.waits for a warp operation


class Group:
    """The lanes of a warp that have arrived at the same operation with the same mask."""

    __slots__ = ("operation", "mask", "threads", "bits")

    def __init__(self, operation, mask):
        self.operation, self.mask, self.threads, self.bits = operation, mask, {}, 0

    def missing(self, block, warp):
        """Return the mask of the lanes that are in the group's mask but have neither arrived nor returned."""
        return FULL if self.mask == CONVERGED else self.mask & block.lanes_alive[warp] & ~self.bits


def arrive(scheduler, operation, frame, *arguments):
    """Let the current thread participate in a warp instruction, and return its result once all lanes in the
    mask have arrived."""
    thread = scheduler.context.thread
    if join(scheduler, operation, frame, *arguments):
        thread.fiber.suspend()
    return thread.result


def join(scheduler, operation, frame, *arguments):
    """Let the current thread participate in a warp instruction, and return whether it must wait. Its result
    is in `thread.result` afterwards.

    arguments: the mask, if the instruction takes one, and the operands. They are converted to the declared
        types when all lanes have arrived.
    """
    context = scheduler.context
    thread, mask = context.thread, operation.mask
    block, lane = thread.block, thread.lane
    if mask == GIVEN:
        mask, *arguments = arguments
        mask = int(mask) & FULL
        if not mask >> lane & 1:
            context.findings.append(mask_without_caller_finding(scheduler, thread, mask, frame))
            thread.result = operation.result_outside_mask(operation.converted(arguments))
            return False
    elif mask != CONVERGED:
        mask = FULL
    # Lanes may arrive at different syncwarp instructions (PTX ISA, bar.warp.sync). For any other operation,
    # they must be at the same call.
    place = () if operation.name == "syncwarp" else (id(frame.f_code), frame.f_lasti)
    # Lanes with equal keys participate in the same operation.
    key = (thread.warp, operation.name, mask, *place)
    group = block.warp_groups.get(key)
    if group is None:
        group = block.warp_groups[key] = Group(operation, mask)
        context.collective(operation.name, block, frame)
    group.threads[lane] = thread
    group.bits |= 1 << lane
    thread.frame, thread.payload = frame, arguments
    # The last lane completes the operation and continues without waiting.
    if mask != CONVERGED and not mask & block.lanes_alive[thread.warp] & ~group.bits:
        complete(context, block, key, running=thread)
        return False
    thread.waits = WARP
    return True


def complete(context, block, key, running=None):
    """Compute each lane's result, and wake all lanes except the current thread."""
    group = block.warp_groups.pop(key)
    operation, lanes = group.operation, sorted(group.threads)
    threads = [group.threads[lane] for lane in lanes]
    origins, results = any(thread.origin for thread in threads), None
    if group.bits == FULL and not origins:
        results = operation.exchange([thread.payload for thread in threads])
    if results is None:
        payloads = {lane: operation.converted(group.threads[lane].payload) for lane in lanes}
        disagreement = None
        if operation.mask == GIVEN and group.bits != FULL:
            disagreement = block.lane_masks.completed(context, block, key[0], group)
        context.findings += (
            [disagreement] if disagreement else absent_lane_findings(context, block, group, payloads)
        )
        by_lane = operation.execute(group.bits, payloads)
        if context.lane_poison is not None:
            for lane, _ in reads_from_absent_lanes(operation, payloads):
                by_lane[lane] = undefined_like(by_lane[lane], context.lane_poison)
        if origins:
            exchange_origins(context, group, payloads)
        results = [by_lane[lane] for lane in lanes]
    if group.mask != CONVERGED:
        block.lane_masks.join(key[0], group.bits)
    for thread, result in zip(threads, results):
        thread.result = result
    if running is not None:
        threads.remove(running)
    block.ready += threads
    hook = "warp_synchronized" if operation.orders else "warp_exchanged"
    if context.listeners[hook]:
        together = tuple([32 * key[0] + lane for lane in lanes])
        context.announce(hook, block.index, together, context.last_segment)
        if running:
            context.begin_segment(running)


def exchange_origins(context, group, payloads):
    """Give each lane of a shuffle the origin of the value that it reads (sim.ptx.undefined)."""
    sent = {lane: thread.origin for lane, thread in group.threads.items()}
    for lane, thread in group.threads.items():
        source = group.operation.reads(lane, *payloads[lane])
        origin = sent.get(source, sent[lane])
        if origin and source in sent and source != lane and len(origin) == 2:
            origin = (*origin, context.witness("read", origin[0], group.threads[source]))
        thread.origin = origin


def lane_ended(context, thread):
    """Remove a lane that has returned, and complete the operations that waited only for it."""
    block = thread.block
    block.lanes_alive[thread.warp] &= ~(1 << thread.lane)
    if not block.warp_groups:
        return
    for key, group in list(block.warp_groups.items()):
        if key[0] == thread.warp and not group.missing(block, thread.warp):
            complete(context, block, key)


def complete_converged(context, block):
    """Complete operations that return the converged lanes, such as activemask, with the lanes that have
    arrived.

    This is called when no thread can run. Return whether a thread was woken.
    """
    keys = [key for key in block.warp_groups if key[2] == CONVERGED]
    for key in keys:
        complete(context, block, key)
    return bool(keys)


# --- findings -----------------------------------------------------------------------------------------------


def mask_without_caller_finding(scheduler, thread, mask, frame):
    """Return the finding for a lane that passes a mask that does not include the lane itself."""
    site = scheduler.context.sites.of_frame(frame, "call")
    return Finding(
        "warp-divergence",
        "error",
        f"lane {thread.lane} passes a mask that does not contain this lane, {mask:#010x}",
        (scheduler.context.witness("calls", site, thread),),
        reason="The mask contains the lanes that take part, and the calling lane must be one of them.",
        fix="pass a mask that contains every lane which reaches this call (0xffffffff for all 32)",
    )


def absent_lane_findings(context, block, group, payloads):
    """Yield findings about lanes that do not participate: they have returned, do not exist, or are not in the
    mask.

    There is one finding if the instruction needs all lanes, and one finding per lane that reads from a
    missing lane.
    """
    operation = group.operation
    if operation.mask == ALL and group.bits != FULL:
        first = group.threads[min(group.threads)]
        lanes = [lane for lane in range(32) if not group.bits >> lane & 1]
        alone = len(lanes) == 1
        those = f"lane{'' if alone else 's'} {format_lanes(lanes)} of warp {first.warp} take{'s' * alone}"
        yield Finding(
            "warp-divergence",
            "error",
            f"{those} no part in {operation.name}, which all 32 lanes must reach",
            (context.witness("calls", context.sites.of_frame(first.frame, "call"), first),),
            reason="They have returned, or the block has no such threads.",
            fix="launch whole warps, and let all 32 lanes reach the call; lanes without data pass zeros",
        )
    for lane, of in reads_from_absent_lanes(operation, payloads):
        thread = group.threads[lane]
        calls = context.witness("calls", context.sites.of_frame(thread.frame, "call"), thread)
        other = block.lane_masks.call_of_absent_lane(context, block, thread.warp, group, of)
        yield absent_lane_finding(operation.name, calls, lane, of, other)


def absent_lane_finding(operation, calls, lane, of, other=None):
    """Return the finding about a lane that reads from a lane that does not participate.

    operation: the name of the operation.
    calls: the Access that shows where the reading lane calls it.
    lane, of: the reading lane, and the lane that it reads from.
    other: (the Access of lane `of` at another call, the reason), or None.
    """
    seen = (calls,)
    reason = "The value of a lane that has returned, does not exist or is not in the mask is undefined."
    fix = (
        "let all 32 lanes take part, and let lanes without data pass a neutral value such as 0; or do not"
        " use the value of a lane that takes no part"
    )
    if other:
        seen, reason, fix = (*seen, other[0]), other[1], SAME_CALL
    return Finding(
        "warp-divergence",
        "warning",
        f"lane {lane} reads from lane {of} in {operation}, and lane {of} takes no part",
        seen,
        reason=reason,
        fix=fix,
        undefined=True,
    )


def reads_from_absent_lanes(operation, payloads):
    """Yield (lane, source lane) for each lane that reads from a lane that does not participate."""
    if operation.reads and len(payloads) < 32:
        for lane, payload in payloads.items():
            of = operation.reads(lane, *payload)
            if 0 <= of < 32 and of not in payloads:
                yield lane, of


def undefined_like(value, filling):
    """Return a value of the type of `value` that consists of the fill pattern `filling`."""
    if isinstance(value, tuple):  # (value, predicate)
        return undefined_like(value[0], filling), *value[1:]
    dtype = np.asarray(value).dtype
    filled = fresh_memory(dtype.itemsize, dtype, filling).view(dtype)[0]
    return filled if isinstance(value, np.generic) else type(value)(filled)


def format_lanes(lanes):
    """Format lane numbers. If there are more than four, list three and say how many more there are."""
    first = ", ".join(map(str, lanes[: 3 if len(lanes) > 4 else 4]))
    return f"{first} and {len(lanes) - 3} more" if len(lanes) > 4 else first


def divergence_finding(scheduler, block):
    """Return the finding for lanes that wait for other lanes, which cannot arrive."""
    key, group = min(block.warp_groups.items(), key=lambda item: (item[0][0], min(item[1].threads)))
    missing = [lane for lane in range(32) if group.missing(block, key[0]) >> lane & 1]
    first = group.threads[min(group.threads)]
    lost = block.threads[32 * key[0] + missing[0]]
    seen = scheduler.waiting_witness(first), scheduler.waiting_witness(lost)
    reason = f"The mask {group.mask:#010x} contains these lanes, but they wait elsewhere."
    fix = (
        "move the call to a line that all lanes of the mask reach, or use a mask of only the lanes that reach"
        " it (cuda.ballot_sync before the branch returns this mask)"
    )
    if group.operation.mask == ALL:
        reason = "The instruction requires all 32 lanes of the warp, but these lanes wait elsewhere."
        fix = "move the call to a line that all 32 lanes of the warp reach"
    if other := block.lane_masks.call_of_absent_lane(scheduler.context, block, key[0], group, missing[0]):
        seen, fix = (*seen, other[0]), SAME_CALL
        reason = f"The mask {group.mask:#010x} contains them. {other[1]}"
    return Finding(
        "warp-divergence",
        "error",
        f"{plural(len(group.threads), 'lane')} of warp {key[0]} wait{'s' * (len(group.threads) == 1)} in"
        f" {group.operation.name} for lanes"
        f" {format_lanes(missing)}, which never arrive",
        seen,
        reason=reason,
        fix=fix,
    )
