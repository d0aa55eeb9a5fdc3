"""Arrays in global memory that count the accesses of Triton programs, and find accesses that race or are out
of bounds."""

import numpy as np


class Found(Exception):
    """A bug in a program: (kind, description, likely fix). The interpreter adds the program and the line."""


DOES = {"loads": "loads", "stores": "stores to", "atomics": "adds to"}
CONFLICTS = {"loads": ("stores", "atomics"), "stores": tuple(DOES), "atomics": ("loads", "stores")}
NO_PROGRAM = -1


class Array:
    """An array in global memory that counts the loads, stores and atomic adds of each element."""

    def __init__(self, name, shape, numbers):
        self.name, self.shape, self.numbers = name, shape, numbers  # numbers: the elements, flattened
        self.counts = {what: np.zeros(numbers.size, int) for what in DOES}  # totals over all programs
        self.most = {what: np.zeros(numbers.size, int) for what in DOES}  # maximum over programs
        self.now = {what: np.zeros(numbers.size, int) for what in DOES}  # counts of the current program
        # first and last program that accessed each element
        self.by = {what: np.full((2, numbers.size), NO_PROGRAM) for what in DOES}
        self.tiles = {
            what: [] for what in DOES
        }  # (program, elements in the tile) for each access, even if all are masked

    def element(self, at):
        return f"{self.name}[{', '.join(map(str, np.unravel_index(at, self.shape)))}]"

    def touch(self, what, places, mask, language):
        """Record that the current program loads, stores to or adds to the elements places[mask] of a tile.

        Raise Found for an element out of bounds, and for one that another program accesses without a defined
        order.
        """
        at = places[mask]
        self.tiles[what].append((language.number, places.size))
        outside = at[(at < 0) | (at >= self.numbers.size)]
        if outside.size:
            more = f". {outside.size - 1} more in this tile" if outside.size > 1 else ""
            size = self.numbers.size
            has = f"{size} element{'s' * (size != 1)}"
            does = f"{DOES[what]} {self.name}[{outside[0]}]; {self.name} has {has}{more}"
            raise Found("out-of-bounds", does, "a mask that is False there, such as mask=i < n.")
        # on a GPU, programs run concurrently, so no two of them are ordered, although here they run one after
        # another
        for other in CONFLICTS[what]:
            by = self.by[other][:, at]
            clash = np.argwhere(((by != NO_PROGRAM) & (by != language.number)).T)
            if clash.size:
                place, which = clash[0]
                does = (
                    f"{DOES[what]} {self.element(at[place])}, and program {language.named(by[which, place])}"
                )
                fix = "elements of its own for each program; or an atomic: tl.atomic_add in place of +=."
                does = f"{does} {DOES[other]} it too: nothing says which comes first"
                raise Found("race between programs", does, fix)
        first, last = self.by[what]
        first[at] = np.where(first[at] == NO_PROGRAM, language.number, first[at])
        last[at] = language.number
        # np.add.at also counts repeated positions
        np.add.at(self.now[what], at, 1)

    def program_ends(self):
        for what, now in self.now.items():
            self.counts[what] += now
            np.maximum(self.most[what], now, out=self.most[what])
            now[:] = 0
