"""The bytes accessed by one thread, or through one name of an array."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.events import SITES


@dataclass(frozen=True)
class Extents:
    """Queries about the bytes touched by a set of accesses (Rows)."""

    rows: Any
    space: Any  # the launch's AddressSpace

    def touched(self, row, line):
        """Return the addresses accessed by the thread of a Row on a line of the same function."""
        own = (self.rows.thread == row.thread) & (self.rows.block == row.block)
        place = SITES[row.site].function, line
        # Look up each site once, because a launch has many accesses but few sites.
        numbers = np.unique(self.rows.site[own]).tolist()
        sites = [n for n in numbers if (SITES[n].function, SITES[n].line) == place]
        here = own & np.isin(self.rows.site, sites)
        return set(self.rows.address[here].tolist())

    def size(self, row):
        """Return the number of bytes that the access of a Row touches."""
        found = np.flatnonzero(self.rows.position == row.position)
        return int(self.rows.size[found[0]]) if len(found) else None

    def element(self, address):
        """Return the Element at an address."""
        return self.space.element(address)

    def dtype(self, address):
        """Return the dtype of the host's array at an address, or None if there is none or it has fields."""
        found = self.space.find(address)
        arrays = [array for array in found.keep or () if isinstance(array, np.ndarray)]
        return arrays[0].dtype if arrays and arrays[0].dtype.names is None else None

    def of(self, address, wanted):
        """Return (first, end), the byte offsets of some accesses within the array at `address`, or None if
        there are none.

        wanted: a function that selects the accesses by their site.
        """
        array = self.space.find(address)
        if array is None:
            return None
        inside = (self.rows.address >= array.base) & (self.rows.address < array.base + array.root.size)
        sites = [number for number in np.unique(self.rows.site[inside]).tolist() if wanted(number)]
        chosen = inside & np.isin(self.rows.site, sites)
        if not chosen.any():
            return None
        begin, size = self.rows.address[chosen] - array.base, self.rows.size[chosen]
        return int(begin.min()), int((begin + size).max())

    def arrays(self, site, most=2):
        """Return the base addresses of the arrays that a site accesses, at most `most` of them."""
        left, found = np.unique(self.rows.address[self.rows.site == site]), set()
        while len(left) and len(found) < most:
            array = self.space.find(int(left[0]))
            if array is None:
                break
            found.add(array.base)
            left = left[(left < array.base) | (left >= array.base + array.root.size)]
        return found
