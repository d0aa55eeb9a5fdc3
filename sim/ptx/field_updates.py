"""Loads that only serve to update a bit-field.

A compiler assigns to a bit-field by a load of the bytes around it, logical operations that keep all other
bits, and a store to the same address. The load may read bits that no thread has written, because the store
writes them back unchanged.
"""

from sim.isa.registers import WIDTHS
from sim.ptx.accesses import access_of
from sim.ptx.register_kinds import read_and_written
from sim.ptx.syntax import Immediate, Instruction, Register

MAX_OPERATIONS = 32  # the maximum number between the load and the store


class FieldUpdates:
    """The loads of one function that only serve to update a bit-field."""

    def __init__(self, function):
        items = [item for item in function.body if isinstance(item, Instruction)]
        self.readers, written = {}, {}
        for item in items:
            reads, writes = read_and_written(item)
            for name in reads:
                self.readers.setdefault(name, []).append(item)
            for name in writes:
                written[name] = written.get(name, 0) + 1
        self.once = {name for name, count in written.items() if count == 1}
        self.loads = {id(item) for item in items if self.is_update(item)}

    def __contains__(self, item):
        return id(item) in self.loads

    def is_update(self, load):
        """Return whether the only use of a loaded value is to combine it with other bits and store it
        again."""
        access = access_of(load, ("ld",))
        register = load.operands[0] if access and access.count == 1 and not access.strong else None
        keeps = False  # whether an operation keeps only some bits of the value
        for _ in range(MAX_OPERATIONS):
            users = self.readers.get(getattr(register, "name", None), ())
            if not isinstance(register, Register) or register.name not in self.once or len(users) != 1:
                return False
            (item,) = users
            store = access_of(item, ("st",))
            if store is not None:
                same = store.space == access.space and WIDTHS[store.type] == WIDTHS[access.type]
                to, value = item.operands
                return keeps and same and value == register and to == load.operands[1]
            masks = item.names[0] == "and" and isinstance(item.operands[2], Immediate)
            inserts = item.names[0] == "bfi" and item.operands[2] == register != item.operands[1]
            if item.guard or not (masks or inserts or item.names[0] == "or"):
                return False
            keeps |= masks or inserts
            register = item.operands[0]
        return False
