"""The findings about operations of the async proxy: accesses before their end, missing proxy fences, and
operations that no thread waits for."""

from sim.events import LOAD, SHARED, SITES, STORE, Access, Finding, alias
from sim.observers.copies import WORDS
from sim.observers.poison import poison_at


class AsyncFindings:
    """The findings of one launch.

    names: the indices of the blocks by number.
    """

    def __init__(self, context, names):
        self.context, self.names = context, names

    def sender(self, operation):
        at = operation.issued
        thread = self.context.thread_index(at.thread)
        return Access("sent", at.block, thread, SITES[operation.site])

    def conflict(self, operation, row, site, address, is_source, other):
        """Return the finding for an access between the issue and the end of an operation.

        row, site: the Moment of the access, and the number of its site.
        is_source: whether the operation only reads the address.
        other: the operation to which the access belongs, or None for a generic access.
        """
        verb = "may still read" if is_source else "writes"
        between = f"before the {operation.kind} that {verb} it is complete"
        fix = self.fix(operation, is_source)
        return self.finding(operation, row, site, address, other, between, fix)

    def unordered(self, operation, row, address, other):
        """Return the finding for an access that is not ordered with an operation."""
        if other is not None and repeats(operation, other):
            return self.repeated(operation, row, address, other)
        is_source = not inside_any(address, operation.writes)
        verb = "reads" if is_source else "writes"
        between = f"while a {operation.kind} that {verb} it may be under way, and nothing orders the two"
        fix = (
            f"{self.fix(operation, is_source)}; or, if the access has to come first, let its thread arrive"
            f" at a barrier after it, and let the thread that sends the {operation.kind} wait there"
        )
        return self.finding(operation, row, row.site, address, other, between, fix)

    def repeated(self, operation, row, address, other):
        """Return the warning for a copy that several threads issue (see `repeats`)."""
        element = self.context.space.element(address)
        return Finding(
            "async-copy",
            "warning",
            f"{element} is written by the same {operation.kind} of several threads, and nothing orders them",
            (self.sender(operation), self.sender(other)),
            *element,
            reason="They copy the same bytes, so the result is the same whichever comes last.",
            fix="let one thread of the warp send it, which elect.sync or a test of the lane selects",
        )

    def fix(self, operation, is_source):
        """Return the fix for an access that no wait orders after an operation."""
        if any(address == operation.barrier for _, address in self.context.early_barriers):
            return "first correct the bytes that its mbarrier expects (see the finding about the phase)"
        return FIXES[operation.through, is_source]

    def finding(self, operation, row, site, address, other, between, fix):
        element = self.context.space.element(address)
        did, thread = WORDS[site & 3], self.context.thread_index(row.thread)
        access = Access(did, self.names[row.block], thread, SITES[site])
        if other is not None:
            did += f" by another {other.kind}" if other.kind == operation.kind else f" by a {other.kind}"
        return Finding(
            "async-copy",
            "error",
            f"{element}{alias(access, element.array)} is {did} {between}",
            (access, self.sender(operation)),
            *element,
            reason=f"The {operation.kind} accesses memory at any time until {UNTIL[operation.through]}.",
            fix=fix,
            undefined=other is None and site & 3 == LOAD and inside_any(address, operation.writes),
            poison=poison_at(self.context, address),
        )

    def unfenced(self, operation, write, site, address, space, copied):
        """Return the finding for a write that no proxy fence orders before an operation.

        write, site: the Moment of the write, and the number of its site.
        copied: whether the write is an asynchronous copy (cp.async) that has ended.
        """
        element = self.context.space.element(address)
        thread = self.context.thread_index(write.thread)
        writes = Access(WORDS[site & 3], self.names[write.block], thread, SITES[site])
        does = "read" if operation.reads and not inside_any(address, operation.writes) else "overwritten"
        fence = f"fence.proxy.async.{'shared::cta' if space == SHARED else 'global'}"
        by = "a thread's cp.async" if copied else "a thread"
        between = "follows the wait for the copy" if copied else "is between the two"
        written = f"write at line {SITES[site].line}"
        if copied:
            written = f"wait (cp.async.wait_group) for its copy at line {SITES[site].line}"
        more = " A fence orders only accesses that are complete." if copied else ""
        return Finding(
            "proxy-fence",
            "error",
            f"{element} is written by {by} and {does} by a {operation.kind}, and no proxy fence {between}",
            (writes, self.sender(operation)),
            *element,
            reason=f"A {operation.kind} accesses memory through the async proxy. Barriers and program order"
            f" alone do not order it after accesses of threads.{more}",
            fix=f"let each thread that writes execute {fence} after the {written}, and then the barrier"
            f" before line {SITES[operation.site].line}",
        )

    def left(self, operation):
        address = (operation.reads if operation.through == "group" else operation.writes or operation.reads)[
            0
        ][0]
        element = self.context.space.element(address)
        return Finding(
            "async-copy",
            "error",
            f"no thread waits for the {operation.kind} that accesses {element} before the block ends",
            (self.sender(operation),),
            *element,
            reason="Shared memory belongs to the next block as soon as the block has ended.",
            fix=LEFT[operation.through],
        )


UNTIL = {
    "mbarrier": "the phase of the mbarrier that counts its bytes is complete",
    "group": "the thread that sent it has waited for its bulk async-group",
    "wgmma": "the warp group has waited for it (wgmma.wait_group)",
}
WAIT_PHASE = (
    "wait for the phase of the mbarrier that counts the copy (mbarrier.try_wait.parity, with the parity of"
    " this"
    " phase) before this line"
)
WAIT_GROUP = (
    "let the thread that sent it commit it (cp.async.bulk.commit_group) and wait"
    " (cp.async.bulk.wait_group{}), and"
    " let a barrier follow before another thread's access"
)
FIXES = {
    ("mbarrier", False): WAIT_PHASE,
    ("mbarrier", True): WAIT_PHASE,
    ("group", False): WAIT_GROUP.format(""),
    ("group", True): WAIT_GROUP.format(".read"),
    ("wgmma", False): "commit it and wait for it (wgmma.commit_group, wgmma.wait_group) before this line",
    (
        "wgmma",
        True,
    ): "commit it and wait for it (wgmma.commit_group, wgmma.wait_group), and arrive at the barrier"
    " before this line only after that",
}
LEFT = {
    "mbarrier": "let threads of the block wait for the phase of the mbarrier that counts the copy",
    "group": "let the thread that sent it execute cp.async.bulk.commit_group and"
    " cp.async.bulk.wait_group.read 0"
    " before it returns",
    "wgmma": "execute wgmma.commit_group and wgmma.wait_group 0 before the block ends",
}


def repeats(one, other):
    """Return whether two operations of one instruction copy the same bytes to the same destination."""
    same = (one.site, one.reads, one.writes) == (other.site, other.reads, other.writes)
    return same and bool(one.reads) and one.site & 3 == STORE


def inside(address, span):
    return span[0] <= address < span[0] + span[1]


def inside_any(address, ranges):
    return any(inside(address, span) for span in ranges)
