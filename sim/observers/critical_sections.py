"""Accesses between the atomic that takes a lock and the atomic that releases it.

Locks are recognised by the accesses of the launch. The source text would not suffice, because the two atomics
are often in separate functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sim.events import ATOMIC, SITES, Site
from sim.observers.plain_releases import is_swap, takes_lock


@dataclass(frozen=True)
class CriticalSections:
    """The critical sections of locks among the accesses of an epoch or of the launch.

    rows: the accesses (Rows).
    polls: a function that returns whether the atomic at a Site is in the header of a loop.
    """

    rows: Any
    polls: Callable[[Site], bool]

    @cached_property
    def takers(self):
        """The sites of the atomics that take locks.

        Every compare-and-swap counts. An exchange counts only if it is in the header of a loop, because other
        exchanges may release a lock.
        """
        sites = np.unique(self.rows.site[self.rows.action == ATOMIC]).tolist()
        return {
            site
            for site in sites
            if is_swap(SITES[site]) or takes_lock(SITES[site]) and self.polls(SITES[site])
        }

    def have_one_lock(self, a, b):
        """Return whether the threads of two accesses (Row) hold the same lock during the accesses."""
        return bool(self.takers) and not self.locks_around(a).keys().isdisjoint(self.locks_around(b))

    def lock_atomics(self, row):
        """Return the Sites of the atomics that take and release a lock around an access (Row), or None."""
        found = list(self.locks_around(row).values()) if self.takers else []
        return tuple(SITES[site] for site in found[0]) if found else None

    def locks_around(self, row):
        """Return {address: (site that takes it, site that releases it)} for the locks that a thread holds
        during an access.

        The thread's last atomic on such an address before the access takes the lock. The next one after the
        access releases the lock, so it must not be at a site that takes a lock.
        """
        rows = self.rows
        mine = (rows.action == ATOMIC) & (rows.thread == row.thread) & (rows.block == row.block)
        mine = np.flatnonzero(mine)
        mine = mine[np.argsort(rows.position[mine])]
        before, after = {}, {}  # address -> the site of the thread's last or next atomic
        for at in mine.tolist():
            address, site = int(rows.address[at]), int(rows.site[at])
            if rows.position[at] < row.position:
                before[address] = site
            else:
                after.setdefault(address, site)
        return {
            address: (site, after[address])
            for address, site in before.items()
            if site in self.takers and after.get(address, site) not in self.takers
        }
