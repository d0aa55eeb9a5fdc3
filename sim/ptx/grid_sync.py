"""Grid-wide synchronisation of cooperative groups, as compilers translate it to PTX.

`cg::this_grid().sync()` compiles to four steps: a block barrier; an atomic addition by one thread per block
to a word provided by the driver; a loop in this thread until the highest bit of the word has changed; and a
second block barrier. The word is the second word of a workspace, whose address is in %envreg1 (upper half)
and %envreg2 (lower half).

If the loop directly follows the addition, the thread waits instead of looping, and the barrier orders the
accesses of the whole grid, like `grid.sync()` in a Python kernel. If a kernel calls `barrier_arrive` and
`barrier_wait` separately, the workspace is ordinary memory, and release and acquire order the accesses.
"""

from itertools import pairwise

import numpy as np

from sim.engine.scheduler import ONE_OF_BLOCK
from sim.ptx.register_kinds import read_and_written, registers_in
from sim.ptx.syntax import Address, Immediate, Instruction, Special

HIGH, LOW = "envreg1", "envreg2"  # the special registers with the two halves of the workspace's address
BYTES = 8  # the size of the workspace: a word that contains the size, then the barrier's word
TOP = 1 << 31  # the bit that changes when the barrier opens
WORD = (1 << 32) - 1  # the mask of a 32-bit word
# Names of instructions that jump, end the thread, or copy asynchronously.
LEAVING = {"bra", "brx", "call", "ret", "exit", "trap", "cp"}


def loads_parameter(item):
    """Return whether an instruction loads a parameter of the function."""
    return item.names[0] == "ld" and "param" in item.names


class GridSync:
    """The instructions of one function that use the workspace.

    arrivals, waits: the ids of the instructions that form grid barriers in their usual form.
    needed: whether the function accesses the workspace or passes its address on. If so, the kernel requires a
        cooperative launch.
    """

    def __init__(self, function):
        items = [item for item in function.body if isinstance(item, Instruction)]
        self.body, self.items, self.pointers = function.body, items, workspace_pointers(items)
        # A device function may receive the group, which contains the address, as a parameter passed by value.
        self.given = set() if function.entry else workspace_pointers(items, parameters=True)
        self.arrivals, self.waits = set(), set()
        self.needed = any(self.uses_workspace(item) for item in items)
        for item, following in pairwise(items):
            if (
                self.is_arrival(item)
                and self.is_wait(following)
                and address_of(item) == address_of(following)
            ):
                self.needed = True
                self.arrivals.add(id(item))
                self.waits.add(id(following))

    def is_arrival(self, item):
        """Return whether an instruction is the atomic addition of a grid barrier."""
        if item.names[0] != "atom" or "add" not in item.names:
            return False
        return self.at_workspace(item) or self.at_workspace(item, self.given) and self.counts_blocks(item)

    def counts_blocks(self, item):
        """Return whether the added number is computed from a constant whose highest bit is set, as in
        cooperative_groups.h."""
        # Follow the operand backwards through the instructions that computed it.
        names, seen = {register.name for register in registers_in(item.operands[-1])}, set()
        while names - seen:
            seen |= names
            computing = [other for other in self.items if read_and_written(other)[1] & names]
            operands = [operand for other in computing for operand in other.operands]
            if any(isinstance(o, Immediate) and o.value & WORD in (TOP, TOP + 1) for o in operands):
                return True
            names = {name for other in computing for name in read_and_written(other)[0]}
        return False

    def is_wait(self, item):
        """Return whether an instruction is the load of a grid barrier's loop."""
        # The loop must observe the additions of other blocks, so its load is a strong operation.
        strong = {"acquire", "volatile", "relaxed"} & set(item.names)
        return item.names[0] == "ld" and bool(strong) and self.at_workspace(item, self.pointers | self.given)

    def barrier_after(self, wait):
        """Return the block-wide barrier that follows the loop of a wait.

        Return None if a thread can jump or end before this barrier, or access memory other than parameters of
        the kernel.
        """
        position = next(i for i, item in enumerate(self.body) if item is wait)
        loop = getattr(self.body[position - 1], "name", None)
        for item in self.body[position + 1 :]:
            if isinstance(item, Instruction):
                if is_barrier(item):
                    return item
                repeats = item.names[0] == "bra" and item.operands[0].name == loop
                reads_memory = address_of(item) is not None and not loads_parameter(item)
                if reads_memory or item.names[0] in LEAVING and not repeats:
                    return None
        return None

    def is_passed_in(self, items):
        """Return whether these instructions contain both block-wide barriers around some grid barrier."""
        passed = {id(item) for item in items}
        before = None  # the preceding barrier in the PTX text
        for item in self.items:
            if id(item) in self.waits and {id(before), id(self.barrier_after(item))} <= passed:
                return True
            before = item if is_barrier(item) else before
        return False

    def uses_workspace(self, item):
        """Return whether an instruction updates the workspace atomically, or stores its address."""
        if item.names[0] in ("atom", "red"):
            return self.at_workspace(item)
        stored = item.names[0] == "st" and {register.name for register in registers_in(item.operands[1])}
        return bool(stored and stored & self.pointers)

    def at_workspace(self, item, pointers=None):
        """Return whether the base of an instruction's memory operand is one of `pointers`.

        pointers: the names of registers. The default is the registers that point to the workspace.
        """
        found = address_of(item)
        return found is not None and getattr(found.base, "name", None) in (pointers or self.pointers)


def is_barrier(item):
    """Return whether an instruction is a block-wide barrier."""
    return item.names[0] in ("bar", "barrier")


def address_of(item):
    """Return an instruction's memory operand, or None."""
    return next((operand for operand in item.operands if isinstance(operand, Address)), None)


def workspace_pointers(items, parameters=False):
    """Return the names of the registers computed from the workspace's address without a load.

    parameters: whether to start from the function's parameters instead of the workspace's address.
    """
    found, before = set(), None
    if parameters:
        loads = [item for item in items if loads_parameter(item)]
        found = {register.name for item in loads for register in registers_in(item.operands[0])}
    computing = [item for item in items if item.names[0] not in ("ld", "ldu", "atom", "call", "setp")]
    # Follow the address through moves and arithmetic until no further register is found.
    while found != before:
        before = set(found)
        for item in computing:
            read, written = read_and_written(item)
            special = any(isinstance(o, Special) and o.name in (HIGH, LOW) for o in item.operands)
            if special or read & found:
                found |= written
    return found


class GridBarrier:
    """The grid barrier of one launch. `word` is the value of the barrier's word in the workspace."""

    def __init__(self, scheduler):
        self.scheduler, self.context = scheduler, scheduler.context
        self.word = 0
        self.arrived = {}  # block -> the word's value before the block's last arrival
        self.waiting = []  # the waiting threads, one for each block

    def arrive(self, added):
        """Add to the word on behalf of the running thread's block. Return the old value."""
        old = self.word
        self.word = old + added & WORD
        self.arrived[self.context.thread.block] = old
        # Block 0 adds 2^31 - (blocks - 1), and each other block adds 1. After all arrivals, the highest bit
        # has changed.
        if (old ^ self.word) & TOP:
            self.open()
        return old

    def open(self):
        """Wake the waiting threads, because all blocks have arrived."""
        # Deliver all pending accesses to the observers before the barrier event, because the barrier orders
        # these accesses.
        self.context.flush()
        self.context.announce("grid_barrier_opened")
        self.context.loops.barrier_opened()
        for thread in self.waiting:
            thread.result = self.word
            thread.block.ready.append(thread)
        self.scheduler.woken = bool(self.waiting)
        self.waiting = []

    def join(self, at):
        """Let the running thread arrive, and return whether it must wait for the barrier to open. The
        barrier's word is in `thread.result` afterwards."""
        thread = self.context.thread
        thread.result = self.word
        old = self.arrived.get(thread.block)
        if old is None or (old ^ self.word) & TOP:
            return False
        self.waiting.append(thread)
        self.context.grid_barriers.add(self.context.sites.of_frame(at, "call"))
        thread.waits, thread.frame, thread.payload = ONE_OF_BLOCK, at, None
        return True


def workspace(run):
    """Return the Allocation of a launch's workspace, which is in global memory."""
    name = "the workspace of the grid barrier"
    allocation = run.memory.reserve(name, "global", BYTES, 8, 4, None, 1, key=(name,))
    allocation.root[:4] = np.frombuffer(BYTES.to_bytes(4, "little"), np.uint8)
    run.memory.make_addressable(allocation)
    return allocation
