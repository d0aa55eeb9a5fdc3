"""The registers of a block, which setmaxnreg moves between its warp groups.

Each warp group begins with the registers per thread of the launch. setmaxnreg.dec releases registers to the
pool of the block, and setmaxnreg.inc waits until the pool contains enough registers.

Source: PTX ISA 9.7.19, "Miscellaneous Instructions: setmaxnreg".
"""

from sim.engine.warpgroup import WARPGROUP, WARPS, Arrivals
from sim.events import Finding, index_text
from sim.isa.wgmma import THREADS
from sim.nouns import joined, plural

REGISTERS = "registers"  # a value of Thread.waits
UNKNOWN = (
    "setmaxnreg was not checked, because the registers per thread at launch are unknown: without a limit"
    " (__launch_bounds__ with two numbers, .maxnreg, max_registers), ptxas ignores setmaxnreg (C7508)"
)


class RegisterPool:
    """The registers of one block.

    at_launch: the registers per thread at launch, or None if they are unknown.
    owned: warp group -> registers per thread, if a setmaxnreg has changed them.
    free: the registers in the pool.
    waiting: the requests that wait: (warp group, its threads, registers per thread).
    """

    def __init__(self, at_launch):
        self.at_launch, self.owned, self.free, self.waiting = at_launch, {}, 0, []

    def of_group(self, group):
        """Return the registers per thread of a warp group."""
        return self.owned.get(group, self.at_launch)

    def missing(self, group, threads, count):
        """Return the number of registers that a warp group needs from the pool."""
        return (count - self.of_group(group)) * len(threads)

    def change(self, group, threads, count):
        """Set the registers per thread of a warp group."""
        self.free -= self.missing(group, threads, count)
        self.owned[group] = count

    def grant(self):
        """Grant the waiting requests for which the pool has enough registers, and wake their threads."""
        for request in list(self.waiting):
            if self.missing(*request) <= self.free:
                self.change(*request)
                self.waiting.remove(request)
                for thread in request[1]:
                    thread.block.ready.append(thread)


def change_registers(scheduler, entry, frame, site):
    """Let the current thread take part in a setmaxnreg of its warp group."""
    thread = scheduler.context.thread
    block, group = thread.block, thread.warp // WARPS
    key = group, entry.name, id(frame.f_code), frame.f_lasti
    arrivals = block.warpgroup_arrivals.setdefault(key, Arrivals(entry))
    arrivals.threads[thread.linear % THREADS], thread.frame = thread, frame
    if scheduler.context.listeners["registers_changed"]:
        arrivals.operands[thread.linear % THREADS] = scheduler.context.moment()
        scheduler.context.begin_segment(thread)
    if len(arrivals.threads) < min(THREADS, len(block.threads) - THREADS * group):
        scheduler.wait(WARPGROUP, frame)
        return
    del block.warpgroup_arrivals[key]
    threads = list(arrivals.threads.values())
    others = [one for one in threads if one is not thread]
    if arrivals.operands:
        scheduler.context.announce("registers_changed", list(arrivals.operands.values()), site)
    if not apply_change(scheduler.context, block, entry, group, threads, site):
        for other in others:
            other.waits = REGISTERS
        scheduler.wait(REGISTERS, frame)
        return
    block.ready += others


def apply_change(context, block, entry, group, threads, site):
    """Change the registers of a warp group. Return whether its threads continue at once."""
    if context.registers_at_launch is None:
        context.notes[UNKNOWN] = None
        return True
    if block.registers is None:
        block.registers = RegisterPool(context.registers_at_launch)
    pool = block.registers
    before, increases = pool.of_group(group), entry.action == "inc"
    if entry.count != before and increases != (entry.count > before):
        context.findings.append(wrong_direction(context, entry, before, site, threads))
        return True
    if increases and pool.missing(group, threads, entry.count) > pool.free:
        pool.waiting.append((group, threads, entry.count))
        return False
    pool.change(group, threads, entry.count)
    pool.grant()
    return True


def wrong_direction(context, entry, before, site, threads):
    """Return the finding for a setmaxnreg.inc below the current number of registers, or a setmaxnreg.dec
    above it."""
    other = "dec" if entry.action == "inc" else "inc"
    return Finding(
        "invalid-operand",
        "error",
        f"setmaxnreg.{entry.action} {entry.count} in a warp group that owns {before} registers per thread",
        (context.witness("executes", site, min(threads, key=lambda thread: thread.linear)),),
        reason="The behaviour of an .inc to fewer registers, and of a .dec to more, is undefined.",
        fix=f"use setmaxnreg.{other}, or another number",
    )


def blocked_finding(scheduler, blocks):
    """Return the finding for the warp groups of one of these blocks that wait for registers, or None if no
    warp group waits."""
    block = next((one for one in blocks if one.registers is not None and one.registers.waiting), None)
    if block is None:
        return None
    pool = block.registers
    group, threads, count = pool.waiting[0]
    groups = range(-(-len(block.threads) // THREADS))
    asked = {one: wanted for one, _, wanted in pool.waiting}
    wanted = [asked.get(one, pool.of_group(one)) for one in groups]
    first = min(threads, key=lambda thread: thread.linear)
    others = [block.threads[THREADS * one] for one in groups if one != group]
    witnesses = [scheduler.waiting_witness(first)]
    witnesses += [place_of(scheduler, thread) for thread in others]
    needed = plural(pool.missing(group, threads, count), "register")
    owners = [f"{pool.of_group(one)} in warp group {one}" for one in groups]
    return Finding(
        "deadlock",
        "error",
        f"warp group {group} waits at setmaxnreg.inc for {needed} ({len(threads)} × ({count} -"
        f" {pool.of_group(group)})), and the pool of the block has {pool.free:,}",
        tuple(dict.fromkeys(witnesses)),
        reason=f"Block {index_text(block.index)} was launched with {len(block.threads)} × {pool.at_launch}"
        f" registers, and only setmaxnreg.dec gives registers to its pool. Registers per thread now:"
        f" {joined(owners)}. Nothing changes while the warp group waits.",
        fix=fix_of_counts(pool, wanted),
    )


def fix_of_counts(pool, wanted):
    """Return the fix for warp groups that wait for registers.

    wanted: the registers per thread of each warp group after all requests.
    """
    most, total = len(wanted) * pool.at_launch, sum(wanted)
    if total > most:
        return (
            f"choose numbers whose sum over the warp groups is at most {len(wanted)} × {pool.at_launch} ="
            f" {most}; {' + '.join(map(str, wanted))} is {total}"
        )
    return "let the warp groups that need fewer registers reach setmaxnreg.dec before they wait for others"


def place_of(scheduler, thread):
    """Return the Access that shows the position of a thread of another warp group."""
    if thread.failed_wait and not thread.done:
        return scheduler.context.witness("waits", thread.failed_wait[1], thread)
    return scheduler.waiting_witness(thread)
