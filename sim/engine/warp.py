"""Warp-wide operations: lanes park until every lane that the mask names has arrived, then all learn their results at once.

A lane that has returned is not waited for (CUDA C++ Programming Guide: "all non-exited threads named in mask must execute the same intrinsic with
the same mask"), but its value cannot be read.
"""
import numpy as np

from sim.isa.operators import domain
from sim.events import Finding
from sim.memory.spaces import poison

FULL = 0xFFFFFFFF
CONVERGED = "converged"  # instead of a mask: whichever lanes are here when nobody else can run (activemask)


class Group:
    """The lanes of one warp that have arrived at one operation with one mask."""

    __slots__ = ("operation", "mask", "threads", "bits")

    def __init__(self, operation, mask):
        self.operation, self.mask, self.threads, self.bits = operation, mask, {}, 0

    def missing(self, block, warp):
        """A mask of the lanes that are named and alive and have not arrived."""
        return FULL if self.mask == CONVERGED else self.mask & block.lanes_alive[warp] & ~self.bits


def arrive(scheduler, operation, mask, payload, frame):
    """The running thread takes part in `operation` with `payload`; returns its result when the mask is complete."""
    thread = scheduler.context.thread
    mask = mask if mask == CONVERGED else int(mask) & FULL
    if mask != CONVERGED and not mask >> thread.lane & 1:
        scheduler.context.findings.append(omits_caller(scheduler, thread, mask, frame))
        return operation.alone(payload)
    place = () if operation.name == "syncwarp" else (frame.f_code, frame.f_lasti)  # a corresponding one suffices (PTX ISA, bar.warp.sync)
    key = (thread.warp, operation.name, mask, *place)
    group = thread.block.warp_groups.get(key)
    if group is None:
        group = thread.block.warp_groups[key] = Group(operation, mask)
        scheduler.context.collective(operation.name, thread.block, frame)
    group.threads[thread.lane] = thread
    group.bits |= 1 << thread.lane
    thread.frame, thread.payload = frame, payload
    if not group.missing(thread.block, thread.warp):
        complete(scheduler.context, thread.block, key, running=thread)
        return thread.result
    return scheduler.wait("warp", frame, payload)


def complete(context, block, key, running=None):
    """Compute every lane's result and let all but the running thread go on."""
    group = block.warp_groups.pop(key)
    lanes = sorted(group.threads)
    payloads = {lane: group.threads[lane].payload for lane in lanes}
    context.findings += absent_sources(context, group, payloads)
    results = group.operation(group.mask, payloads)
    for lane in lanes:
        thread = group.threads[lane]
        thread.result = results[lane]
        if thread is not running:
            block.ready.append(thread)
    if group.operation.name == "syncwarp" and context.listeners["warp_synchronized"]:
        context.announce("warp_synchronized", block.index, tuple(group.threads[lane].linear for lane in lanes), context.last_segment)
        if running:
            context.segment(running)


def lane_ended(context, thread):
    """A lane has returned: a group that waited only for it is complete."""
    block = thread.block
    block.lanes_alive[thread.warp] &= ~(1 << thread.lane)
    for key, group in list(block.warp_groups.items()):
        if key[0] == thread.warp and not group.missing(block, thread.warp):
            complete(context, block, key)


def settle(context, block):
    """Nobody can run: those who asked who is here have their answer. True if somebody woke."""
    keys = [key for key in block.warp_groups if key[2] == CONVERGED]
    for key in keys:
        complete(context, block, key)
    return bool(keys)


# --- findings -----------------------------------------------------------------------------------------------------------------


def omits_caller(scheduler, thread, mask, frame):
    site = scheduler.context.site_of(frame, "call")
    return Finding("warp-divergence", "error", f"lane {thread.lane} calls with a mask that does not name it, {mask:#010x}",
                   (scheduler.context.witness("calls", site, thread),), reason="The mask names the lanes that take part; the caller must be one of them.",
                   fix="pass a mask that names every lane which reaches this call (0xffffffff for all 32)")


def absent_sources(context, group, payloads):
    """Lanes of a shuffle that read from a lane which takes no part: it has returned, does not exist, or the mask leaves it out."""
    for lane, payload in payloads.items() if group.operation.source and len(payloads) < 32 else ():
        of = group.operation.source(lane, int(payload[1]))
        if 0 <= of < 32 and of not in payloads:
            thread = group.threads[lane]
            calls = context.witness("calls", context.site_of(thread.frame, "call"), thread)
            yield Finding("warp-divergence", "warning", f"lane {lane} reads from lane {of} in {group.operation.name}, and lane {of} takes no part", (calls,),
                          reason="The value of a lane that has returned, does not exist or is not in the mask is undefined.",
                          fix="let all 32 lanes take part, those without data with a neutral value; or do not use what such a lane gives")


def divergence(scheduler, block):
    """Lanes wait for lanes that will never come."""
    key, group = min(block.warp_groups.items(), key=lambda item: (item[0][0], min(item[1].threads)))
    missing = [lane for lane in range(32) if group.missing(block, key[0]) >> lane & 1]
    first = group.threads[min(group.threads)]
    lost = block.threads[32 * key[0] + missing[0]]
    lanes = ", ".join(map(str, missing)) if len(missing) < 5 else f"{', '.join(map(str, missing[:3]))} and {len(missing) - 3} more"
    return Finding("warp-divergence", "error", f"{len(group.threads)} lanes of warp {key[0]} wait in {group.operation.name} for lanes {lanes}, which never come",
                   (scheduler.waits(first), scheduler.waits(lost)),
                   reason=f"The mask {group.mask:#010x} names them, and they wait elsewhere.",
                   fix="call it where all lanes of the mask pass, or pass a mask of those that do (cuda.ballot_sync before the branch gives one)")


# --- operations ---------------------------------------------------------------------------------------------------------------


class Operation:
    """What a complete group computes: `compute(mask, {lane: payload})` gives {lane: result}; `alone` is the result without a group.

    A shuffle has a `source`: (lane, argument) -> the lane it reads from.
    """

    def __init__(self, name, compute, alone=lambda payload: payload, source=None):
        self.name, self.compute, self.alone, self.source = name, compute, alone, source

    def __call__(self, mask, payloads):
        return self.compute(mask, payloads)


def shuffle(name, source):
    """The Operation `name` in which lane reads from `source(lane, argument)`; payloads are (value, argument). Outside the warp a lane keeps its own value."""
    def compute(mask, payloads):
        results = {}
        for lane, (value, argument) in payloads.items():
            of = source(lane, int(argument))
            results[lane] = value if not 0 <= of < 32 else payloads[of][0] if of in payloads else absent(value)
        return results
    return Operation(name, compute, lambda payload: payload[0], source)


def absent(value):
    """What a shuffle gives that reads a lane which is not there: poison of the value's type."""
    dtype = np.dtype(np.int64) if isinstance(value, (int, bool)) else np.asarray(value).dtype
    return domain(poison(dtype))


def vote(decide):
    def compute(mask, payloads):
        result = decide(payloads)
        return dict.fromkeys(payloads, result)
    return compute


def ballot(payloads):
    """The lanes whose predicate holds, as Numba types it: a signed 32-bit integer."""
    return np.int32(np.uint32(mask_of(lane for lane, predicate in payloads.items() if predicate)))


def mask_of(lanes):
    return sum(1 << lane for lane in lanes)


def lanes_where(payloads, value):
    return ballot({lane: other == value for lane, other in payloads.items()})


def match_all(payloads):
    same = len(set(payloads.values())) == 1
    return ballot(dict.fromkeys(payloads, same)), same


OPERATIONS = {operation.name: operation for operation in [
    shuffle("shfl_sync", lambda lane, argument: argument % 32),
    shuffle("shfl_up_sync", lambda lane, argument: lane - argument),
    shuffle("shfl_down_sync", lambda lane, argument: lane + argument),
    shuffle("shfl_xor_sync", lambda lane, argument: lane ^ argument),
    Operation("all_sync", vote(lambda payloads: all(payloads.values())), bool),
    Operation("any_sync", vote(lambda payloads: any(payloads.values())), bool),
    Operation("eq_sync", vote(lambda payloads: len({bool(p) for p in payloads.values()}) == 1), lambda payload: True),
    Operation("ballot_sync", vote(ballot), lambda payload: np.int32(0)),
    Operation("match_any_sync", lambda mask, payloads: {lane: lanes_where(payloads, value) for lane, value in payloads.items()}, lambda payload: np.int32(0)),
    Operation("match_all_sync", vote(match_all), lambda payload: (np.int32(0), False)),
    Operation("syncwarp", vote(lambda payloads: None)),
    Operation("activemask", vote(lambda payloads: np.uint32(mask_of(payloads)))),
]}
