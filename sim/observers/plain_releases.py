"""Plain stores that release a lock or set a flag, while other threads acquire it by atomics.

A plain store orders nothing, so it races with these atomics. The accesses that the lock or the flag should
protect race too. The fix for all of these races is an atomic release.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from sim.events import ATOMIC, SITES, STORE, Site
from sim.observers.call_lines import is_polled
from sim.observers.statements import CAS, EXCHANGE, reads_only


@dataclass(frozen=True)
class Release:
    """A plain store to a lock or a flag, and the atomic by which another thread acquires it.

    is_lock: whether the storing thread has acquired the element before.
    """

    store: Site
    acquire: Site
    is_lock: bool


@dataclass(frozen=True)
class PlainReleases:
    """The plain stores that release locks or flags, among the accesses of an epoch or of the launch.

    rows: the accesses (Rows).
    outline: a function that maps a Site to its Outline, or to None.
    kernel: the name of the kernel.
    """

    rows: Any
    outline: Callable[[Site], Any]
    kernel: str

    @cached_property
    def atomics(self):
        """The positions in `rows` of the atomics and atomic loads that can acquire a lock or a flag."""
        atomic = np.flatnonzero(self.rows.action >= ATOMIC)
        numbers = self.rows.site[atomic]
        sites = [site for site in np.unique(numbers).tolist() if self.acquires(SITES[site])]
        return atomic[np.isin(numbers, sites)]

    @cached_property
    def stores(self):
        """The positions in `rows` of the plain stores to elements that the `atomics` access."""
        if not len(self.atomics):
            return self.atomics
        addresses = np.unique(self.rows.address[self.atomics])
        return np.flatnonzero((self.rows.action == STORE) & np.isin(self.rows.address, addresses))

    def acquires(self, site):
        """Return whether an atomic can acquire a lock, or polls a flag in the header of a loop."""
        return takes_lock(site) or self.polls(site)

    @cached_property
    def polls(self):
        """A function that returns whether the condition of a `while` loop performs the access at a Site. It
        caches its results, because the accesses of a loop are many and their Sites are few."""
        return cache(lambda site: is_polled(site, self.outline, self.kernel))

    def find(self, a, b, address):
        """Return the Release that should order two accesses (Row) to an address, or None."""
        if not len(self.stores):
            return None
        if (self.rows.address[self.stores] == address).any():
            return self.of_element(address, *((a, b) if a.site & 3 == STORE else (b, a)))
        first, second = sorted((a, b), key=lambda row: row.position)
        for store in self.between(self.stores, first, first.position, second.position):
            place, position = self.rows.address[store], self.rows.position[store]
            for atomic in self.between(self.atomics, second, position, second.position, place):
                found = self.release(store, atomic)
                if found.is_lock or self.polls(found.acquire):
                    return found
        return None

    def between(self, members, row, low, high, address=None):
        """Return the positions in `members` of the accesses that the thread of a Row made after access `low`
        and before access `high`.

        address: the address of these accesses, or None for any address.
        """
        rows = self.rows[members]
        chosen = (rows.thread == row.thread) & (rows.block == row.block)
        chosen &= (rows.position > low) & (rows.position < high)
        if address is not None:
            chosen &= rows.address == address
        return members[chosen]

    def of_element(self, address, store, other):
        """Return the Release of a lock by a plain store, or None if the store releases no lock.

        store, other: two racing accesses to the lock (Rows).
        """
        taken = self.between(self.atomics, store, -1, store.position, address)
        if store.site & 3 != STORE or not len(taken):
            return None
        found = Release(SITES[store.site], SITES[int(self.rows.site[taken[-1]])], True)
        return found if takes_lock(found.acquire) else None

    def release(self, store, atomic):
        """Return the Release for a plain store and the atomic by which another thread acquires the element.

        store, atomic: positions in `rows`.
        """
        row, address = self.rows.row(store), self.rows.address[store]
        taken = self.rows.site[self.between(self.atomics, row, -1, row.position, address)].tolist()
        is_lock = any(takes_lock(SITES[site]) for site in taken)
        return Release(SITES[row.site], SITES[int(self.rows.site[atomic])], is_lock)


def takes_lock(site):
    """Return whether an atomic is a compare-and-swap or an exchange."""
    is_exchange = bool(EXCHANGE.search(site.opcode or site.source))
    return is_swap(site) or is_exchange and site.action == "atomic"


def is_swap(site):
    """Return whether an atomic is a compare-and-swap that can change the element."""
    swaps = CAS.search(site.source) or "cas" in (site.opcode or "")
    return site.action == "atomic" and bool(swaps) and not reads_only(site.source)
