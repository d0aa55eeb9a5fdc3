"""Stores guarded by a test of the same element, such as `if (v > *x) *x = v`.

Another thread can store to the element between the test and the store. If the two threads store different
values, one of the values is lost.
"""

from functools import cached_property

from sim.ptx.register_kinds import read_and_written, registers_in
from sim.ptx.syntax import Address, Instruction, Special
from sim.ptx.undefined import results

# The beginnings of the names of special registers that have the same value in all threads.
UNIFORM = "ntid", "nctaid", "nclusterid", "cluster_nctaid", "dynamic_smem_size", "total_smem_size"
# The instructions whose results can differ between threads with equal operands.
DIFFERING = {"atom", "shfl", "vote", "match", "redux", "activemask", "elect", "call"}


class TestedStores:
    """The stores of a function that are guarded by tests of loaded values.

    uses: the Uses of the function.
    """

    __test__ = False  # pytest must not collect this class

    def __init__(self, uses):
        self.uses, self.body = uses, uses.body

    def any_after(self, load, decisions):
        """Return whether a test of a loaded value decides whether a thread stores to the same element, and
        threads can store different values there.

        A store does not count if the thread loads the element again before the store, as in a double-checked
        test, because the store then depends on the value of the second load.

        decisions: the predicates that depend on the loaded value.
        """
        element, start = self.uses.element(address_of(load)), self.body.index(load)
        same = {at for at in self.accesses if self.uses.element(address_of(self.body[at])) == element}
        stores = {at for at in same if self.body[at].names[0] == "st"}
        seen = self.reachable([start + 1], same - stores)
        return any(
            self.differs(self.body[store]) and self.is_decided(store, seen, decisions, start)
            for store in stores & seen
        )

    def can_wait(self, load, copies):
        """Return whether a thread can repeat a load without storing to the same element in between. Only
        stores of values that can differ between threads count.

        load: the index of the load.
        copies: the indices of the loads from the same place in the source.
        """
        element = self.uses.element(address_of(self.body[load]))
        stores = {
            at
            for at in self.accesses
            if self.body[at].names[0] == "st"
            and self.uses.element(address_of(self.body[at])) == element
            and self.differs(self.body[at])
        }
        return not stores or not self.reachable([load + 1], stores).isdisjoint(copies)

    @cached_property
    def accesses(self):
        """The indices of the instructions that access memory, other than parameters."""
        names = "ld", "st", "atom", "red"
        items = ((at, i) for at, i in enumerate(self.body) if isinstance(i, Instruction))
        return [at for at, item in items if item.names[0] in names and "param" not in item.names]

    def is_decided(self, store, seen, decisions, load):
        """Return whether one of these predicates decides whether a store is executed.

        seen: the indices of the instructions that can follow the load.
        load: the index of the load.
        """
        if self.uses.is_guarded_by(store, decisions):
            return True
        for jump, places in self.uses.jumps:
            if jump not in seen or not self.uses.is_guarded_by(jump, decisions):
                continue
            ways = [self.reachable([place], {load}) for place in (*places, jump + 1)]
            # A path avoids the store if it leads to the end of the thread, or back to the load, without the
            # store.
            around = [self.reachable([place], {store}) for place in (*places, jump + 1)]
            avoiding = [way for way in around if load in way or len(self.body) in way]
            if any(store in way for way in ways) and avoiding:
                return True
        return False

    def set_on_one_side(self, loop, decisions, load):
        """Return the registers that an iteration of a loop sets only if one of these predicates has a certain
        value.

        loop: the indices of its first and last instructions.
        load: the index of the load on which the predicates depend.
        """
        first, last = loop
        found = set()
        for jump, places in self.uses.jumps:
            if first <= jump <= last and self.uses.is_guarded_by(jump, decisions):
                sides = [self.reachable([place], {load}) for place in (*places, jump + 1)]
                for at in set.union(*sides) - set.intersection(*sides):
                    if first <= at <= last and isinstance(self.body[at], Instruction):
                        found |= read_and_written(self.body[at])[1]
        return found

    def reachable(self, starts, ends):
        """Return the indices of the instructions that a thread at one of `starts` can reach.

        The search does not continue after the instructions at `ends`. The end of the thread has the length of
        the body as its index.
        """
        seen, waiting = set(), list(starts)
        while waiting:
            at = waiting.pop()
            if at not in seen:
                seen.add(at)
                waiting += self.following(at) if at < len(self.body) and at not in ends else ()
        return seen

    def following(self, at):
        """Return the indices of the instructions that can follow an instruction."""
        item = self.body[at]
        if not isinstance(item, Instruction) or item.names[0] not in ("bra", "brx", "ret", "exit"):
            return [at + 1]
        targets = self.targets.get(at, [len(self.body)])
        return [*targets, at + 1] if item.guard else targets

    @cached_property
    def targets(self):
        return dict(self.uses.jumps)

    def differs(self, store):
        """Return whether threads can store different values."""
        return any(register.name in self.varying for register in registers_in(store.operands[1]))

    @cached_property
    def varying(self):
        """The registers whose values can differ between threads. A value that all threads load from one
        element counts as equal in all threads."""
        found, before = set(), -1
        items = [item for item in self.body if isinstance(item, Instruction) and item.operands]
        while len(found) != before:
            before = len(found)
            for item in items:
                read, _ = read_and_written(item)
                if is_own(item) or not read.isdisjoint(found):
                    found |= {register.name for register in results(item)}
        return found


def is_own(item):
    """Return whether the results of an instruction can differ between threads that read the same operands."""
    special = [operand for operand in item.operands if isinstance(operand, Special)]
    if any(not operand.name.startswith(UNIFORM) for operand in special):
        return True
    return item.names[0] in DIFFERING


def address_of(item):
    """Return the memory operand of an instruction, or None."""
    return next((operand for operand in item.operands if isinstance(operand, Address)), None)
