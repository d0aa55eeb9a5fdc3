"""Cells accessed by racing threads or blocks: the pairs of sites that race on each cell, with two accesses
per pair."""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement

import numpy as np

from sim.observers.cells import Rows, sorted_distinct
from sim.observers.pairs import closeness, first_pair, may_race, write_equal_values

THREAD_BITS = 12  # A block has at most 1024 threads.
MAX_ACCESSES = 1024  # racing pairs are cached only for cells with at most this many accesses


@dataclass(frozen=True)
class Collision:
    """The racing accesses to one cell.

    address: the address of the cell.
    all_rows, all_parties: all accesses that are searched for races, and their parties.
    members: the positions of the accesses to the cell in `all_rows`.
    pairs: {(site, site): (position in `members`, position in `members`, closeness)}.
    order: the HappensBefore, or None if it orders no accesses.
    """

    address: int
    all_rows: Rows
    all_parties: np.ndarray
    members: np.ndarray
    pairs: dict
    order: object

    @cached_property
    def rows(self):
        """The accesses to the cell."""
        return self.all_rows[self.members]

    def accesses(self, sites):
        """Return the two accesses (Row) of a pair of sites."""
        return [self.all_rows.row(int(self.members[place])) for place in self.pairs[sites][:2]]

    def writes_equal_values(self, one, other):
        """Return whether all writes by two sites store the same value (see `write_equal_values`)."""
        chosen = (self.rows.site == one) | (self.rows.site == other)
        return write_equal_values(self.rows, self.all_parties[self.members], chosen, self.order)


class Collisions:
    """Finds the racing pairs of each cell.

    A missing barrier causes races on the same cells in every block and iteration. Within a block in which
    nothing orders the accesses, the racing pairs of a cell depend only on the threads and sites that access
    it, and on the bytes that each access covers. Such a cell is therefore searched once per launch.

    cells: the Cells.
    ordered: a mask of the cells in which `order` may order two accesses.
    order: the HappensBefore.
    within_block: whether the parties are the threads of a block.
    known: the cache of the launch, a dict.
    """

    def __init__(self, cells, ordered, order, within_block, known):
        self.cells, self.ordered, self.order, self.known = cells, ordered, order, known
        self.codes, rows = None, cells.rows
        if within_block and not ordered.all():
            self.codes = rows.site.astype(np.int64) << THREAD_BITS | rows.thread
            self.bytes_of = rows.address << THREAD_BITS | rows.size if cells.are_bytes else None

    def at(self, cell, racing_pair):
        """Return the Collision at a cell.

        racing_pair: the positions of two accesses that race, or an empty tuple. They are used if the search
            finds no pair.
        """
        members, address = self.cells.members(cell), int(self.cells.address[cell])
        order = self.order if self.ordered[cell] else None
        key = self.key(members, address) if order is None else None
        pairs = self.known.get(key)
        if pairs is None:
            pairs = self.search(members, order, racing_pair)
            if key is not None:
                self.known[key] = pairs
        return Collision(address, self.cells.rows, self.cells.party, members, pairs, order)

    def key(self, members, address):
        """Return a key that determines the racing pairs of a cell, or None."""
        if self.codes is None or len(members) > MAX_ACCESSES:
            return None
        codes = self.codes[members].tobytes()
        if self.bytes_of is None:
            return codes
        return codes, (self.bytes_of[members] - (address << THREAD_BITS)).tobytes()

    def search(self, members, order, racing_pair):
        """Return the pairs of a Collision."""
        rows, party, pairs = self.cells.rows[members], self.cells.party[members], {}
        sites = {site: np.flatnonzero(rows.site == site) for site in sorted_distinct(rows.site).tolist()}
        for one, other in combinations_with_replacement(sites, 2):
            if may_race(rows[np.concatenate([sites[one], sites[other]])]):
                pair = first_pair(rows, party, sites[one], sites[other], order)
                if pair is not None:
                    pairs[one, other] = pair
        if not pairs and racing_pair:
            pair = [int(np.flatnonzero(members == position)[0]) for position in racing_pair]
            pairs[int(rows.site[pair[0]]), int(rows.site[pair[1]])] = pair
        return {sites: (*pair, closeness(*map(rows.row, pair))) for sites, pair in pairs.items()}


class Cases:
    """Counts of the cases that each finding represents."""

    def __init__(self):
        self.times = {}  # id of a finding -> [the finding, its number of cases]

    def add(self, finding, times=1):
        """Add a finding whose count is not set yet, as the example of `times` cases."""
        self.times.setdefault(id(finding), [finding, 0])[1] += times

    def merged(self):
        """Return the findings, each of which represents all of its cases."""
        return [finding if n == 1 else finding.with_cases(n) for finding, n in self.times.values()]
