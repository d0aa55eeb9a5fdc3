"""Volatile loads of a PTX function, classified by the use of their values.

A volatile access is a relaxed strong operation (PTX ISA, chapter 8, "Memory Consistency Model"): it does not
race with other volatile accesses, but it does not order anything either. A thread that loops until a flag
changes is ordered by the value that it reads. A thread that computes with whatever value it reads, such as a
warp reduction through `volatile int*`, relies on an order that is not guaranteed. A thread that tests an
element and then stores to it, as in `if (v > *x) *x = v`, also relies on such an order.
"""

import re
from functools import cached_property

from sim.ptx.inlined import Inlined
from sim.ptx.register_kinds import read_and_written
from sim.ptx.syntax import Group, Immediate, Instruction, Label, Register, Symbol
from sim.ptx.tested_stores import TestedStores, address_of

LIBRARY_ATOMIC = re.compile(r"\batomic(Add|Sub)\s*\(")
NOT_VALUES = {"setp", "isspacep", "testp"}  # results that are predicates count as decisions


class Uses:
    """The uses of register values in one function."""

    def __init__(self, function):
        self.body = function.body
        self.readers = {}  # register -> indices of the instructions that read it
        self.writers = {}  # register -> indices of the instructions that write it
        self.labels = {}  # label -> its index in the body
        self.jumps = []  # pairs (index of a branch, indices of its targets)
        self.volatile = {}  # location in the source -> indices of the volatile loads there
        for at, item in enumerate(self.body):
            if isinstance(item, Label):
                self.labels[item.name] = at
            elif isinstance(item, Instruction):
                for index, names in zip((self.readers, self.writers), read_and_written(item)):
                    for name in names:
                        index.setdefault(name, []).append(at)
                if item.names[0] == "ld" and "volatile" in item.names:
                    self.volatile.setdefault(item.location, []).append(at)
        for at, item in enumerate(self.body):
            if isinstance(item, Instruction) and item.names[0] in ("bra", "brx"):
                self.jumps.append((at, [self.labels[name] for name in targets(item) if name in self.labels]))

    def relies_on(self, load):
        """Return whether the program relies on a loaded value.

        This is the case if the value is stored to memory or decides about a store to the same element, unless
        a loop waits for the value or a compare-and-swap confirms it.

        A store of a new value to the same element, as in `(*turn)++`, does not count if a loop waits for this
        element, because the threads then take turns. A value is not followed into a function that is not
        inlined here.
        """
        values, decisions = self.dependent_registers(load)
        readers = self.readers_of(values)
        if leaves_function(readers):
            return False
        kept = [address_of(item) for item in readers if ends_in_memory(item)]
        here, polled = self.element(address_of(load)), self.is_polled(address_of(load))
        if kept and polled:
            kept = [address for address in kept if self.element(address) != here]
        if not kept and (polled or not self.tested.any_after(load, decisions)):
            return False
        return not self.is_awaited(load, decisions) and not self.is_confirmed(load)

    @cached_property
    def tested(self):
        return TestedStores(self)

    def is_polled(self, address):
        """Return whether a loop waits for a volatile load of an element."""
        loads = [self.body[at] for places in self.volatile.values() for at in places]
        same = (load for load in loads if self.element(address_of(load)) == self.element(address))
        return any(self.is_awaited(load, self.dependent_registers(load)[1]) for load in same)

    def is_confirmed(self, load):
        """Return whether a compare-and-swap confirms that a loaded value is still up to date, and the program
        tests the result. For example, a thread takes the element at the head of a queue in this way."""
        swap = self.swap_after(load)
        return swap is not None and self.acts_on(swap)

    def acts_on(self, load):
        """Return whether a loaded value can affect later actions of a thread.

        This is the case if a predicate depends on the value, or if the value leaves the function.
        """
        values, decisions = self.dependent_registers(load)
        return bool(decisions) or leaves_function(self.readers_of(values))

    def waits_for(self, load):
        """Return whether a loop waits for a loaded value to change, or whether the value leaves the
        function."""
        values, decisions = self.dependent_registers(load)
        return leaves_function(self.readers_of(values)) or self.is_awaited(load, decisions)

    def swap_after(self, load):
        """Return the compare-and-swap on the loaded element that expects the loaded value, or None."""
        copies = self.copies_of(load)
        swaps = (i for i in self.readers_of(copies) if i.names[0] == "atom" and "cas" in i.names)
        here = (i for i in swaps if self.element(address_of(i)) == self.element(address_of(load)))
        return next((item for item in here if getattr(item.operands[2], "name", None) in copies), None)

    def copies_of(self, load):
        """Return the names of the registers that a load writes, and of the registers with copies of these
        values."""
        copies = [register.name for register in registers(load.operands[0])]
        for name in copies:
            items = (self.body[at] for at in self.readers.get(name, ()))
            written = (item.operands[0] for item in items if item.names[0] in ("mov", "cvt"))
            copies += {r.name for operand in written for r in registers(operand)}.difference(copies)
        return copies

    def element(self, address):
        """Return (register or symbol, offset) of an Address. If instructions compute the base by adding a
        constant, the constant is a part of the offset. A copy of a register counts as the register itself."""
        base, offset = address.base, address.offset
        while len(writers := self.writers.get(getattr(base, "name", None), ())) == 1:
            item = self.body[writers[0]]
            if item.names[0] in ("mov", "cvta") and isinstance(item.operands[1], Register):
                base = item.operands[1]
            elif item.names[0] == "add" and isinstance(item.operands[2], Immediate):
                base, offset = item.operands[1], offset + item.operands[2].value
            else:
                break
        return base, offset

    def is_library_guess(self, load, origin):
        """Return whether a plain load is part of the compare-and-swap loop by which CUDA's headers implement
        atomicAdd where the hardware has no such instruction. If the loaded value is out of date, the loop
        takes one more iteration, and nothing else changes.
        """
        swap = self.swap_after(load)
        if swap is None:
            return False
        text, *others = {origin.text_at(item.location) for item in (load, swap)}
        return not others and LIBRARY_ATOMIC.search(text) is not None and "atomicCAS" not in text

    def readers_of(self, names):
        """Return the instructions that read one of these registers."""
        return [self.body[at] for name in names for at in self.readers.get(name, ())]

    def dependent_registers(self, load):
        """Return (registers whose values depend on the loaded value, predicates that depend on it)."""
        return self.dependent_on({r.name for r in registers(load.operands[0])})

    def dependent_on(self, names):
        """Return (registers, predicates) whose values depend on registers with these names."""
        # Follow the values forwards through all instructions that compute with them. Memory, calls and
        # branches end the search.
        values, decisions = set(names), set()
        waiting = list(values)
        while waiting:
            name = waiting.pop()
            for at in self.readers.get(name, ()):
                item = self.body[at]
                if item.names[0] in ("ld", "ldu", "atom", "st", "red", "bra", "brx"):
                    continue
                written = {r.name for operand in item.operands[:1] for r in registers(operand)}
                deciding = name in decisions or item.names[0] in NOT_VALUES
                found = decisions if deciding and predicates(item) else None if deciding else values
                if found is not None:
                    waiting += written - found
                    found |= written
        return values, decisions

    def is_awaited(self, load, decisions):
        """Return whether a loop waits for a loaded value.

        A compiler can move the first iteration of a loop before the loop. The value of such a load counts as
        awaited if a decision depends on it, and a loop waits for a load from the same place in the source.

        A loop that stores to the element in each iteration, as `while (v > *x) *x = v` does, does not wait
        for another thread.

        decisions: the predicates that depend on the value.
        """
        at = self.body.index(load)
        copies = self.volatile.get(load.location, [])
        for loop in self.loops_around(at) if self.tested.can_wait(at, copies) else ():
            if self.can_leave(loop, decisions):
                return True
            # A loop may also count the loads that returned the expected value, and end when the count is
            # reached.
            counted = self.tested.set_on_one_side(loop, decisions, at)
            if counted and self.can_leave(loop, self.dependent_on(counted)[1]):
                return True
        if not decisions or load.location is None:
            return False
        for copy in copies:
            loops = [loop for loop in self.loops_around(copy) if not loop[0] <= at <= loop[1]]
            if loops:
                _, others = self.dependent_registers(self.body[copy])
                waits = self.tested.can_wait(copy, copies)
                if waits and any(self.can_leave(loop, others) for loop in loops):
                    return True
        return False

    def loops_around(self, at):
        """Return the loops around an instruction, as pairs (first index, last index)."""
        # In the text, a backward branch and its target delimit a loop.
        return [(target, jump) for jump, targets in self.jumps for target in targets if target <= at <= jump]

    def can_leave(self, loop, decisions):
        """Return whether a branch on one of these predicates can leave a loop."""
        first, last = loop
        return any(
            first <= jump <= last
            and self.is_guarded_by(jump, decisions)
            and any(not first <= place <= last for place in [*places, jump + 1])
            for jump, places in self.jumps
        )

    def is_guarded_by(self, jump, decisions):
        """Return whether one of these predicates decides whether an instruction is executed."""
        guard = self.body[jump].guard
        return guard is not None and guard[0].name in decisions


class VolatileLoads:
    """The volatile loads of a kernel, in its own code and in the functions that it calls.

    entry: the kernel.
    functions: the functions of the module by name.
    """

    def __init__(self, entry, functions):
        self.kernel = Inlined(entry, functions)

    @cached_property
    def uses(self):
        return Uses(self.kernel)

    def relies_on(self, load, uses):
        """Return whether the program relies on the value of a load (Uses.relies_on).

        If calls of the load's function are inlined, at least one of the calls must rely on the value, and no
        loop may wait for the value in any of them. Otherwise, the function alone is examined.

        uses: the Uses of the function.
        """
        copies = self.kernel.copies.get(id(load), ())
        if not copies:
            return uses.relies_on(load)
        return any(map(self.uses.relies_on, copies)) and not any(map(self.uses.waits_for, copies))


def leaves_function(readers):
    """Return whether one of these instructions passes a value to a callee or to the caller."""
    return any(item.names[0] == "st" and "param" in item.names for item in readers)


def ends_in_memory(item):
    """Return whether an instruction stores a value, updates memory with it, or uses it as an address."""
    return item.names[0] in ("st", "red", "ld", "ldu", "atom") and "cas" not in item.names


def targets(item):
    """Return the possible target labels of a branch."""
    return [part.name for operand in item.operands for part in parts(operand) if isinstance(part, Symbol)]


def parts(operand):
    """Return the elements of a Group, or the operand itself."""
    return operand.parts if isinstance(operand, Group) else (operand,)


def registers(operand):
    """Return the registers in an operand."""
    return [part for part in parts(operand) if isinstance(part, Register)]


def predicates(item):
    """Return whether all results of an instruction are predicates."""
    return all(r.type == "pred" for r in registers(item.operands[0]))
