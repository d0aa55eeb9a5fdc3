"""pipeline: a recording of the operations of the async proxy (bulk copies, wgmma) and of the waits for them,
for sim.viz.pipeline."""

from sim.events import SHARED, SITES, SPACE_SHIFT, Index3, Observer, index_text
from sim.recording import AsyncEvent


class Pipeline(Observer):
    """An observer that records the issue and the end of each operation of one block, and the waits for phases
    of mbarriers.

    block: the index of the block, as (x, y, z) or as x.
    events: the recorded AsyncEvents, in the order of execution.
    limit: the maximum number of events. Later events are only counted, in `cut`.
    """

    checks = False

    def __init__(self, block: int | Index3 = 0, limit: int = 400) -> None:
        self.block = block if isinstance(block, tuple) else (block, 0, 0)
        self.limit, self.events, self.cut = limit, [], 0
        self.numbers, self.seen = {}, set()

    def launch_started(self, context):
        self.context = context

    def attach(self, context):
        """Add this observer to those of a launch, if one of them receives asynchronous operations."""
        self.context = context
        for hook in ("async_issued", "async_done", "async_tracked", "passed"):
            if context.listeners["async_issued"]:
                context.listeners[hook] = [*context.listeners[hook], getattr(self, hook)]

    def add(self, action, thread, lane, text, number=-1):
        if len(self.events) == self.limit:
            self.cut += 1
            return
        self.events.append(AsyncEvent(action, number, thread, lane, text))

    def async_issued(self, operation):
        # A product whose descriptors lead outside all arrays accesses nothing.
        if operation.issued.block != self.block or not (operation.reads or operation.writes):
            return
        loads, thread = operation.through == "mbarrier", operation.issued.thread
        spans = operation.writes if loads else operation.reads or operation.writes
        inside = [address for address, _ in spans if address >> SPACE_SHIFT == SHARED] or [spans[0][0]]
        lane = str(self.context.space.element(min(inside)))
        if operation.through == "wgmma":
            lane = f"{operation.kind} of warp {thread // 32}"
        self.numbers[operation] = len(self.numbers)
        text = f"{operation.kind} {'to' if loads else 'from'} {lane} is sent ({line_of(operation)})"
        self.add("issue", thread, lane, text, self.numbers[operation])

    def async_done(self, at, operations, sources):
        for operation in operations:
            key = operation, sources
            if operation in self.numbers and key not in self.seen:
                self.seen.add(key)
                what = "has read its source" if sources else "is complete"
                text = f"the {operation.kind} of {line_of(operation)} {what}"
                self.add("read" if sources else "end", at.thread, "", text, self.numbers[operation])

    def async_tracked(self, operation, phase):
        if operation in self.numbers:
            name = str(self.context.space.element(phase[0][1]))
            text = f"the {operation.kind} of {line_of(operation)} is complete: phase {phase[1]} of {name}"
            self.add("end", None, name, text, self.numbers[operation])

    def passed(self, at, phase, reach="grid"):
        barrier, number = phase
        if at.block != self.block or barrier[0] != "mbarrier" or (phase, at.thread // 32) in self.seen:
            return
        self.seen.add((phase, at.thread // 32))
        name = str(self.context.space.element(barrier[1]))
        text = f"warp {at.thread // 32} has waited for phase {number} of {name}"
        if number < 0:
            text = f"warp {at.thread // 32} passes {name} at once, because no phase of it is complete"
        self.add("pass", at.thread, name, text)

    @property
    def title(self) -> str:
        return f"block {index_text(self.block)}: bulk copies, wgmma and phases"


def line_of(operation):
    return f"line {SITES[operation.site].line}"
