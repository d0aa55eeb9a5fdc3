"""Unwritten bytes that a program copies as part of a structure. Copying them is not an error by itself.

A load that copies a structure (Context.copied_loads) may read unwritten bytes if other bytes of the structure
are written. The bytes at the destination of the copy then count as unwritten.
"""

import numpy as np


class Padding:
    """The copies of unwritten bytes in one launch.

    allowed: the positions of the loads that copy padding, in the access log.
    missing: {position of such a load: offsets of its unwritten bytes}.
    holes: {position of a store: offsets of the unwritten bytes that it stores}.
    """

    def __init__(self, context):
        self.context, self.missing, self.holes = context, {}, {}
        self.refused = set()  # positions of loads that are errors: their unwritten bytes form a value

    @property
    def allowed(self):
        return self.missing.keys() - self.refused

    def add_load(self, position, size, is_unwritten):
        """Record a load that read unwritten bytes, if it copies padding. Return whether the load was not
        recorded before.

        is_unwritten: function (byte offset relative to the load) that returns whether this byte is unwritten.
        """
        window = self.context.copied_loads.get(position)
        if window is None:
            return False
        found = frozenset(byte for byte in range(size) if is_unwritten(byte))
        computes = not found.isdisjoint(window[3])
        if (
            computes
            or all(is_unwritten(byte) for byte in range(*window[:2]))
            or self.missing.get(position) == found
        ):
            return False
        self.missing[position] = found
        return True

    def refuse_members(self, position, size):
        """Refuse loads of a member that the program writes in some structures and not in others.

        position, size: the columns of all loads in an epoch.
        """
        read = {}  # line of a load -> pairs (position, whether all bytes are unwritten)
        for where, nbytes in zip(position.tolist(), size.tolist()):
            if (window := self.context.copied_loads.get(where)) is not None:
                all_unwritten = len(self.missing.get(where, ())) == nbytes
                read.setdefault(window[2], []).append((where, all_unwritten))
        for pairs in read.values():
            if not all(unwritten for _, unwritten in pairs):
                self.refused |= {where for where, unwritten in pairs if unwritten}

    def follow(self, position, address):
        """Update `holes` for the stores at these positions and addresses."""
        for where, to in zip(position.tolist(), address.tolist()):
            sources = self.context.copied_stores.get(where, ())
            hole = {
                store + byte - load
                for source, load, store, nbytes in sources
                for byte in self.missing.get(source, ())
                if load <= byte < load + nbytes
            }
            if hole and self.hides_number(to, hole):
                self.refused |= {source for source, *_ in sources}
            elif hole:
                self.holes[where] = hole

    def hides_number(self, address, hole):
        """Return whether some unwritten bytes include all bytes of a number of the host's array.

        hole: the offsets of the unwritten bytes from `address`.
        """
        allocation = self.context.space.find(address)
        mask = np.zeros(max(hole) + 1, bool)
        mask[list(hole)] = True
        return allocation.unwritten is None and allocation.hides_number(address - allocation.base, mask)

    def forget_epoch(self, position):
        """Forget the copies at these positions. Keep the loads of unwritten bytes, because a later epoch may
        store the loaded bytes."""
        for where in position.tolist():
            self.context.copied_stores.pop(where, None)
            if where not in self.missing:
                self.context.copied_loads.pop(where, None)
